//! Signed file URLs, as the E2B SDKs make them: whoever has one may read or write the one file, without a token.
//!
//! ```text
//!   GET|POST /files?path=<path>&username=<user>&signature_expiration=<seconds since 1970>&signature=<signature>
//!   signature = "v1_" base64( SHA-256( path ":" "read"|"write" ":" user ":" access token [ ":" expiration ] ) ), no padding
//! ```
//!
//! The path is signed as it stands in the URL once decoded: a relative one stays relative. The access token is the one that
//! lasts as long as the sandbox ([`crate::lasting`]), so nothing has to be kept of a signature that was handed out.
//!
//! The guest reads the URL once more. So that it cannot read another path than was signed, one with a parameter that is there
//! twice counts as not signed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::Method;
use http::request::Parts;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use url::form_urlencoded;

use super::credentials::Denied;
use crate::session::Sessions;

const PATH: &str = "/files";

/// A request with a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SignedUrl {
    /// `path:operation:user`
    subject: String,
    /// As it stands in the URL.
    expiration: Option<String>,
    signature: String,
    /// When the request came: what it began in time may go on.
    at: Timestamp,
}

impl SignedUrl {
    /// That of a request for files which has a signature.
    pub(super) fn of(request: &Parts) -> Option<Self> {
        let operation = match request.method {
            Method::GET => "read",
            Method::POST => "write",
            _ => return None,
        };
        if request.uri.path() != PATH {
            return None;
        }
        let (mut path, mut user, mut signature, mut expiration) = (None, None, None, None);
        for (name, value) in form_urlencoded::parse(request.uri.query()?.as_bytes()) {
            let parameter = match &*name {
                "path" => &mut path,
                "username" => &mut user,
                "signature" => &mut signature,
                "signature_expiration" => &mut expiration,
                _ => continue,
            };
            if parameter.replace(value.into_owned()).is_some() {
                return None;
            }
        }
        let subject = format!("{}:{operation}:{}", path.unwrap_or_default(), user.unwrap_or_default());
        Some(Self { subject, expiration, signature: signature?, at: Timestamp::now() })
    }

    /// Whether it was made with the token of `sandbox_id`, and is still good.
    pub(super) fn check(&self, sessions: &Sessions, sandbox_id: &str) -> Result<(), Denied> {
        if !self.is_of(sessions, sandbox_id) {
            return Err(Denied::WrongSignature);
        }
        match self.expiration.as_deref().map(str::parse::<i64>) {
            None => Ok(()),
            Some(Ok(expiration)) if self.at.as_second() <= expiration => Ok(()),
            Some(_) => Err(Denied::SignatureExpired),
        }
    }

    /// Whether it was made with the token of `sandbox_id`.
    pub(super) fn is_of(&self, sessions: &Sessions, sandbox_id: &str) -> bool {
        is_same(self.expected(&sessions.lasting(sandbox_id)).as_bytes(), self.signature.as_bytes())
    }

    fn expected(&self, token: &str) -> String {
        let Self { subject, expiration, .. } = self;
        let signed = match expiration {
            Some(expiration) => format!("{subject}:{token}:{expiration}"),
            None => format!("{subject}:{token}"),
        };
        format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(signed)))
    }
}

/// In a time that tells nothing of where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(method: Method, target: &str) -> Option<SignedUrl> {
        SignedUrl::of(&http::Request::builder().method(method).uri(target).body(()).expect("valid").into_parts().0)
    }

    #[test]
    fn the_signature_is_the_one_that_the_sdks_make() {
        let url = signed(Method::GET, "/files?path=hello.txt&username=user&signature=x").expect("a signature");
        assert_eq!(
            url.expected("0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"),
            "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E",
            "that of path hello.txt, user user"
        );
    }

    #[test]
    fn only_requests_for_files_with_a_signature_are_signed() {
        assert_eq!(signed(Method::GET, "/files?path=a"), None);
        assert_eq!(signed(Method::GET, "/health?signature=x"), None);
        assert_eq!(signed(Method::DELETE, "/files?path=a&signature=x"), None);
        assert_eq!(signed(Method::GET, "/files"), None);
        for twice in ["path=a&path=b&signature=x", "path=a&p%61th=b&signature=x", "path=a&signature=x&signature=y"] {
            assert_eq!(signed(Method::GET, &format!("/files?{twice}")), None, "{twice}");
        }
        let read = signed(Method::GET, "/files?path=a+b%3A&username=root&signature=x").expect("a signature");
        assert_eq!(read.subject, "a b::read:root");
        assert_eq!(signed(Method::POST, "/files?signature=x").expect("a signature").subject, ":write:");
    }
}
