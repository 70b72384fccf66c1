//! Access tokens of data planes: signed, expiring, bound to one sandbox, checked without a database.
//!
//! ```text
//!   spt1_ base64url( expiry: seconds since 1970, 8 bytes big-endian | sandbox id | HMAC-SHA256, 32 bytes )
//! ```
//!
//! The authentication code covers the version prefix, the expiry and the sandbox id. Its key is 32 random bytes in a file
//! that only root may read; whoever deletes that file and restarts the agent has revoked every token at once.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use sha2::Sha256;

/// What every token begins with. The proxy also keeps anything of this form away from guests.
pub const TOKEN_PREFIX: &str = "spt1_";

const KEY_BYTES: usize = 32;
const EXPIRY_BYTES: usize = 8;
const MAC_BYTES: usize = 32;
/// Block of SHA-256.
const BLOCK_BYTES: usize = 64;
/// Longest token worth decoding; a sandbox id has 25 characters.
const MAX_TOKEN: usize = 256;

/// Mints and verifies access tokens.
pub struct Sessions {
    /// The code's state after the key.
    keyed: Hmac<Sha256>,
    ttl: Duration,
}

/// Why the signing key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("Cannot read or create the session key {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("The session key {} is not {KEY_BYTES} bytes long: delete it, and a new one is made (sessions end)", path.display())]
    Length { path: PathBuf },
    #[error("The session key {} may be read by others than its owner: run chmod 600 on it", path.display())]
    Exposed { path: PathBuf },
}

/// Why a token does not open a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub enum SessionError {
    /// Not a token of ours, or changed on the way, or signed with a key that is gone.
    Malformed,
    Expired,
    /// A good token of another sandbox.
    Foreign,
}

impl SessionError {
    /// For the person who sent it.
    pub fn message(self) -> &'static str {
        match self {
            SessionError::Malformed => "The access token is not valid: use the one from the sandbox's session",
            SessionError::Expired => "The access token has expired: ask for a new session",
            SessionError::Foreign => {
                "The access token belongs to another sandbox: use the one from this sandbox's session"
            }
        }
    }
}

impl Sessions {
    /// Opens the signing key in `key_file`, making one when there is none. Tokens live for `ttl`.
    pub fn open(key_file: &Path, ttl: Duration) -> Result<Sessions, OpenError> {
        let failed = |source| OpenError::Io { path: key_file.to_path_buf(), source };
        let mut file = match File::open(key_file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_key(key_file).map_err(failed)?;
                File::open(key_file).map_err(failed)?
            }
            opened => opened.map_err(failed)?,
        };
        if file.metadata().map_err(failed)?.mode() & 0o077 != 0 {
            return Err(OpenError::Exposed { path: key_file.to_path_buf() });
        }
        let mut bytes = Vec::with_capacity(KEY_BYTES + 1);
        Read::take(&mut file, KEY_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        let key: [u8; KEY_BYTES] = bytes.try_into().map_err(|_| OpenError::Length { path: key_file.to_path_buf() })?;
        Ok(Sessions::new(&key, ttl))
    }

    pub(super) fn new(key: &[u8; KEY_BYTES], ttl: Duration) -> Sessions {
        // As long as the hash's block, as RFC 2104 extends a shorter key: with zeros.
        let mut block = [0; BLOCK_BYTES];
        block[..KEY_BYTES].copy_from_slice(key);
        Sessions { keyed: Hmac::new(&block.into()), ttl }
    }

    /// A new token for `sandbox_id`, and when it expires.
    pub fn mint(&self, sandbox_id: &str) -> (String, Timestamp) {
        self.mint_at(sandbox_id, Timestamp::now())
    }

    /// Whether `token` opens `sandbox_id` now.
    pub fn verify(&self, token: &str, sandbox_id: &str) -> Result<(), SessionError> {
        self.verify_at(token, sandbox_id, Timestamp::now())
    }

    fn mint_at(&self, sandbox_id: &str, now: Timestamp) -> (String, Timestamp) {
        let ttl = i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX);
        let expiry = Timestamp::from_second(now.as_second().saturating_add(ttl)).unwrap_or(Timestamp::MAX);
        let mut bytes = Vec::with_capacity(EXPIRY_BYTES + sandbox_id.len() + MAC_BYTES);
        bytes.extend_from_slice(&expiry.as_second().to_be_bytes());
        bytes.extend_from_slice(sandbox_id.as_bytes());
        let code = self.code(&bytes).finalize().into_bytes();
        bytes.extend_from_slice(&code);
        (format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)), expiry)
    }

    fn verify_at(&self, token: &str, sandbox_id: &str, now: Timestamp) -> Result<(), SessionError> {
        if token.len() > MAX_TOKEN {
            return Err(SessionError::Malformed);
        }
        let encoded = token.strip_prefix(TOKEN_PREFIX).ok_or(SessionError::Malformed)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| SessionError::Malformed)?;
        let (payload, code) = bytes.split_last_chunk::<MAC_BYTES>().ok_or(SessionError::Malformed)?;
        // Constant time, and before anything in the payload is believed.
        self.code(payload).verify_slice(code).map_err(|_| SessionError::Malformed)?;
        let (expiry, id) = payload.split_first_chunk::<EXPIRY_BYTES>().ok_or(SessionError::Malformed)?;
        if id != sandbox_id.as_bytes() {
            return Err(SessionError::Foreign);
        }
        if now.as_second() >= i64::from_be_bytes(*expiry) {
            return Err(SessionError::Expired);
        }
        Ok(())
    }

    fn code(&self, payload: &[u8]) -> Hmac<Sha256> {
        let mut code = self.keyed.clone();
        code.update(TOKEN_PREFIX.as_bytes());
        code.update(payload);
        code
    }
}

/// Prints no key.
impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// Puts a new key at `path`, complete or not at all; a key that appeared meanwhile stays.
fn create_key(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let draft = path.with_extension(format!("{:016x}.new", rand::random::<u64>()));
    let key: [u8; KEY_BYTES] = rand::random();
    let result = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| file.write_all(&key).and_then(|()| file.sync_all()))
        .and_then(|()| match std::fs::hard_link(&draft, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
    let _ = std::fs::remove_file(&draft);
    result?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const HOUR: Duration = Duration::from_secs(3600);

    fn sessions() -> Sessions {
        Sessions::new(&[7; KEY_BYTES], HOUR)
    }

    fn noon() -> Timestamp {
        "2026-08-01T12:00:00Z".parse().expect("a time")
    }

    fn after(seconds: i64) -> Timestamp {
        Timestamp::from_second(noon().as_second() + seconds).expect("a time")
    }

    #[test]
    fn a_token_opens_its_sandbox_until_it_expires() {
        let sessions = sessions();
        let (token, expires_at) = sessions.mint_at("sbxaaa", noon());
        assert_eq!(expires_at, after(3600));
        assert_eq!(sessions.verify_at(&token, "sbxaaa", noon()), Ok(()));
        assert_eq!(sessions.verify_at(&token, "sbxaaa", after(3599)), Ok(()));
        assert_eq!(sessions.verify_at(&token, "sbxaaa", after(3600)), Err(SessionError::Expired));
    }

    #[test]
    fn a_token_of_another_sandbox_is_foreign() {
        let sessions = sessions();
        let (token, _) = sessions.mint_at("sbxaaa", noon());
        assert_eq!(sessions.verify_at(&token, "sbxbbb", noon()), Err(SessionError::Foreign));
        assert_eq!(sessions.verify_at(&token, "sbxaaa0", noon()), Err(SessionError::Foreign));
    }

    #[test]
    fn every_changed_character_spoils_a_token() {
        let sessions = sessions();
        let (token, _) = sessions.mint_at("sbxaaa", noon());
        for position in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[position] = if changed[position] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_eq!(sessions.verify_at(&changed, "sbxaaa", noon()), Err(SessionError::Malformed), "at {position}");
        }
    }

    #[test]
    fn rubbish_and_foreign_keys_are_malformed() {
        let (token, _) = sessions().mint_at("sbxaaa", noon());
        let other = Sessions::new(&[8; KEY_BYTES], HOUR);
        assert_eq!(other.verify_at(&token, "sbxaaa", noon()), Err(SessionError::Malformed));
        for rubbish in ["", "spt1_", "spt1_AAAA", "spt2_AAAA", "spt1_ä", &"A".repeat(5000)] {
            assert_eq!(other.verify_at(rubbish, "sbxaaa", noon()), Err(SessionError::Malformed), "{rubbish}");
        }
    }

    #[test]
    fn a_key_is_made_once_and_readable_only_by_its_owner() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("session.key");

        let (token, _) = Sessions::open(&path, HOUR).expect("a new key").mint("sbxaaa");

        let again = Sessions::open(&path, HOUR).expect("the same key");
        assert_eq!(again.verify(&token, "sbxaaa"), Ok(()));
        assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 1, "no draft is left");
    }

    #[test]
    fn an_exposed_or_damaged_key_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("session.key");
        std::fs::write(&path, [0; 32]).expect("writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("changeable");
        assert!(matches!(Sessions::open(&path, HOUR), Err(OpenError::Exposed { .. })));

        std::fs::write(&path, [0; 31]).expect("writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changeable");
        assert!(matches!(Sessions::open(&path, HOUR), Err(OpenError::Length { .. })));
    }
}
