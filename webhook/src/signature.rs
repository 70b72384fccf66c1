//! The signature header's value.

use std::collections::BTreeSet;
use std::fmt;

use hmac::Mac;

use crate::SigningKey;

const VERSION: &str = "1";
const ALGORITHM: &str = "hmac-sha256";
const DIGEST_BYTES: usize = 32;
const DIGEST_DIGITS: usize = 2 * DIGEST_BYTES;

/// A signature and the time it was made at, as the header carries them.
///
/// # Grammar
///
/// ```text
/// header    = part *( "," part )
/// part      = OWS name "=" value OWS      each name once, in any order
/// name      = 1*( any but "," "=" and white space )
/// value     = *( any but "," )            without OWS at its ends
/// OWS       = *( SP / HTAB )
///
/// v   = "1"
/// t   = "0" / ( %x31-39 *DIGIT )          at most 2^63 - 1: seconds since 1970
/// alg = "hmac-sha256"
/// s   = 64( DIGIT / %x61-66 )             lower case
/// ```
///
/// All four are required. Parameters of other names are for versions to come, and ignored. There is one spelling of
/// each value: the text of `t` is what was signed, so it must be the text that the number has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    time: i64,
    digest: [u8; DIGEST_BYTES],
}

/// How a header's value departs from the grammar of [`Signature`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("it is empty")]
    Empty,
    #[error("it is not UTF-8")]
    NotText,
    #[error("part {part} is empty")]
    EmptyPart { part: usize },
    #[error("part {part} has no \"=\"")]
    NoEquals { part: usize },
    #[error("part {part} has no name before its \"=\", or one with white space")]
    Name { part: usize },
    #[error("part {part} repeats a parameter")]
    Repeated { part: usize },
    #[error("the parameter {name} is missing")]
    Missing { name: &'static str },
    #[error("v is not {VERSION}")]
    Version,
    #[error("alg is not {ALGORITHM}")]
    Algorithm,
    #[error("t is not made of decimal digits alone")]
    TimeNotDigits,
    #[error("t has leading zeros")]
    TimeLeadingZeros,
    #[error("t is larger than {}", i64::MAX)]
    TimeTooLarge,
    #[error("s has {found} characters, not {DIGEST_DIGITS}")]
    DigestLength { found: usize },
    #[error("s is not made of lower-case hexadecimal digits alone")]
    DigestNotHex,
}

impl Signature {
    /// Signs `body` at `time`, in seconds since 1970.
    pub fn new(key: &SigningKey, time: i64, body: &[u8]) -> Self {
        Self { time, digest: message_code(key, time, body).finalize().into_bytes().into() }
    }

    /// Reads a header's value.
    ///
    /// # Errors
    /// A value in which a parameter is missing, repeated or malformed: which, and how.
    pub fn parse(header: &[u8]) -> Result<Self, HeaderError> {
        let header = std::str::from_utf8(header).map_err(|_| HeaderError::NotText)?;
        if trim(header).is_empty() {
            return Err(HeaderError::Empty);
        }
        let (mut version, mut time, mut algorithm, mut digest) = (None, None, None, None);
        let mut names = BTreeSet::new();
        for (part, text) in (1..).zip(header.split(',').map(trim)) {
            if text.is_empty() {
                return Err(HeaderError::EmptyPart { part });
            }
            let (name, value) = text.split_once('=').ok_or(HeaderError::NoEquals { part })?;
            if name.is_empty() || name.contains(char::is_whitespace) {
                return Err(HeaderError::Name { part });
            }
            if !names.insert(name) {
                return Err(HeaderError::Repeated { part });
            }
            match name {
                "v" => version = Some(value),
                "t" => time = Some(value),
                "alg" => algorithm = Some(value),
                "s" => digest = Some(value),
                _ => {}
            }
        }
        if version.ok_or(HeaderError::Missing { name: "v" })? != VERSION {
            return Err(HeaderError::Version);
        }
        if algorithm.ok_or(HeaderError::Missing { name: "alg" })? != ALGORITHM {
            return Err(HeaderError::Algorithm);
        }
        Ok(Self {
            time: parse_time(time.ok_or(HeaderError::Missing { name: "t" })?)?,
            digest: parse_digest(digest.ok_or(HeaderError::Missing { name: "s" })?)?,
        })
    }

    /// When it was made, by the sender's clock, in seconds since 1970.
    pub fn time(&self) -> i64 {
        self.time
    }

    /// Whether it signs `body` under `key`. Takes as long for one that is wrong in its last byte as in its first.
    pub fn is_of(&self, key: &SigningKey, body: &[u8]) -> bool {
        message_code(key, self.time, body).verify_slice(&self.digest).is_ok()
    }
}

/// The header's value.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v={VERSION}, t={}, alg={ALGORITHM}, s=", self.time)?;
        self.digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The authentication code over what is signed: the time's text, a dot, the body.
fn message_code(key: &SigningKey, time: i64, body: &[u8]) -> hmac::Hmac<sha2::Sha256> {
    key.code().chain_update(time.to_string()).chain_update(b".").chain_update(body)
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

fn parse_time(text: &str) -> Result<i64, HeaderError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(HeaderError::TimeNotDigits);
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(HeaderError::TimeLeadingZeros);
    }
    text.parse().map_err(|_| HeaderError::TimeTooLarge)
}

fn parse_digest(text: &str) -> Result<[u8; DIGEST_BYTES], HeaderError> {
    let found = text.chars().count();
    if found != DIGEST_DIGITS {
        return Err(HeaderError::DigestLength { found });
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(HeaderError::DigestNotHex),
    };
    let mut digest = [0; DIGEST_BYTES];
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(digest)
}
