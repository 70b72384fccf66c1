//! Access tokens of data planes: signed, expiring, bound to one sandbox, checked without a database.
//!
//! ```text
//!   spt1_ base64url( expiry: seconds since 1970, 8 bytes big-endian | sandbox id [ / holder ] | HMAC-SHA256, 32 bytes )
//! ```
//!
//! The holder is who asked for the token, the id of an API key; the tokens of a holder are revoked together, and which
//! holders are is kept in a file for as long as a token lives. The authentication code covers all that stands before it. Its
//! key is 32 random bytes in a file that only root may read; whoever deletes that file and restarts the agent has revoked
//! every token at once.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use sandpiper_durable::{self as durable, Access};
use sha2::Sha256;

/// What every token begins with. The proxy also keeps anything of this form away from guests.
pub const TOKEN_PREFIX: &str = "spt1_";

const KEY_BYTES: usize = 32;
const EXPIRY_BYTES: usize = 8;
const MAC_BYTES: usize = 32;
/// Block of SHA-256.
const BLOCK_BYTES: usize = 64;
/// Between sandbox id and holder, which have letters and digits.
const HOLDER_MARK: char = '/';
/// Longest token worth decoding; the ids have 25 characters.
const MAX_TOKEN: usize = 256;

/// Mints and verifies access tokens.
pub struct Sessions {
    /// The code's state after the key.
    keyed: Hmac<Sha256>,
    ttl: Duration,
    revoked: RwLock<Revoked>,
    /// Where they are written down, by one caller at a time; nowhere in tests.
    file: Mutex<Option<PathBuf>>,
}

/// Holders whose tokens open nothing.
#[derive(Debug, Default)]
struct Revoked {
    /// With the second from which none of their tokens can be alive.
    until: HashMap<String, i64>,
    is_written: bool,
}

/// Why the signing key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("Cannot read or create the session key {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("The session key {} is not {KEY_BYTES} bytes long: delete it, and a new one is made (sessions end)", path.display())]
    Length { path: PathBuf },
    #[error("The list of revoked sessions {} is damaged: delete it, and restart sandpiper-api, which knows them", path.display())]
    Revoked { path: PathBuf, source: serde_json::Error },
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
    /// Of a holder that is one no more.
    Revoked,
}

impl SessionError {
    /// For the person who sent it.
    pub fn message(self) -> &'static str {
        match self {
            SessionError::Malformed => "The access token is not valid: use the one from the sandbox's session",
            SessionError::Revoked => {
                "The API key that this session was made with is revoked: make one with another key"
            }
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
                let key: [u8; KEY_BYTES] = rand::random();
                durable::create_atomic(key_file, Access::PRIVATE, &key).map_err(failed)?;
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
        let list = key_file.with_extension("revoked");
        let mut revoked = Revoked { is_written: true, ..Revoked::default() };
        match std::fs::read(&list) {
            Ok(json) => {
                let damaged = |source| OpenError::Revoked { path: list.clone(), source };
                revoked.until = serde_json::from_slice(&json).map_err(damaged)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(OpenError::Io { path: list, source }),
        }
        let sessions = Sessions::new(&key, ttl);
        Ok(Sessions { revoked: RwLock::new(revoked), file: Mutex::new(Some(list)), ..sessions })
    }

    pub(super) fn new(key: &[u8; KEY_BYTES], ttl: Duration) -> Sessions {
        // As long as the hash's block, as RFC 2104 extends a shorter key: with zeros.
        let mut block = [0; BLOCK_BYTES];
        block[..KEY_BYTES].copy_from_slice(key);
        Sessions { keyed: Hmac::new(&block.into()), ttl, revoked: RwLock::default(), file: Mutex::default() }
    }

    /// A new token for `sandbox_id` that `holder`, if anybody, asked for, and when it expires.
    pub fn mint(&self, sandbox_id: &str, holder: Option<&str>) -> (String, Timestamp) {
        self.mint_at(sandbox_id, holder, Timestamp::now())
    }

    /// Ends the tokens of these holders, those too that are minted from now on; returns when it is durable. Blocks.
    pub fn revoke(&self, holders: Vec<String>) -> io::Result<()> {
        self.revoke_at(holders, Timestamp::now())
    }

    fn revoke_at(&self, holders: Vec<String>, now: Timestamp) -> io::Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let json = {
            let mut revoked = self.revoked.write().unwrap_or_else(PoisonError::into_inner);
            let until = now.as_second().saturating_add(self.life());
            let known = revoked.until.len();
            for holder in holders {
                revoked.until.entry(holder).or_insert(until);
            }
            revoked.is_written &= revoked.until.len() == known;
            if revoked.is_written {
                return Ok(());
            }
            revoked.until.retain(|_, until| *until > now.as_second());
            serde_json::to_vec(&revoked.until)?
        };
        if let Some(file) = &*file {
            durable::write_atomic(file, &json)?;
        }
        self.revoked.write().unwrap_or_else(PoisonError::into_inner).is_written = true;
        Ok(())
    }

    /// Of a token, in seconds.
    fn life(&self) -> i64 {
        i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX)
    }

    /// Whether `token` opens `sandbox_id` now.
    pub fn verify(&self, token: &str, sandbox_id: &str) -> Result<(), SessionError> {
        self.verify_at(token, sandbox_id, Timestamp::now())
    }

    fn mint_at(&self, sandbox_id: &str, holder: Option<&str>, now: Timestamp) -> (String, Timestamp) {
        let expiry = Timestamp::from_second(now.as_second().saturating_add(self.life())).unwrap_or(Timestamp::MAX);
        let mut bytes = payload(expiry.as_second(), sandbox_id);
        if let Some(holder) = holder {
            bytes.extend_from_slice(format!("{HOLDER_MARK}{holder}").as_bytes());
        }
        (self.seal(TOKEN_PREFIX, bytes), expiry)
    }

    /// The token with this prefix and payload.
    pub(super) fn seal(&self, prefix: &str, mut payload: Vec<u8>) -> String {
        let code = self.code(prefix, &payload).finalize().into_bytes();
        payload.extend_from_slice(&code);
        format!("{prefix}{}", URL_SAFE_NO_PAD.encode(payload))
    }

    /// The payload of a token with this prefix, if it was sealed here.
    pub(super) fn open_token(&self, prefix: &str, token: &str) -> Option<Vec<u8>> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(token.strip_prefix(prefix)?).ok()?;
        let (payload, code) = bytes.split_last_chunk::<MAC_BYTES>()?;
        // Constant time, and before anything in the payload is believed.
        self.code(prefix, payload).verify_slice(code).ok()?;
        bytes.truncate(bytes.len() - MAC_BYTES);
        Some(bytes)
    }

    /// The id of the sandbox that `token` was made for, if it was made here. It may open that no more: see [`Self::verify`].
    pub(super) fn subject(&self, token: &str) -> Option<String> {
        Some(self.read(token)?.sandbox_id)
    }

    fn verify_at(&self, token: &str, sandbox_id: &str, now: Timestamp) -> Result<(), SessionError> {
        let claims = self.read(token).ok_or(SessionError::Malformed)?;
        if claims.sandbox_id != sandbox_id {
            return Err(SessionError::Foreign);
        }
        if now.as_second() >= claims.expiry {
            return Err(SessionError::Expired);
        }
        if claims.holder.is_some_and(|holder| self.is_revoked(&holder)) {
            return Err(SessionError::Revoked);
        }
        Ok(())
    }

    /// What a token says, if it was sealed here.
    fn read(&self, token: &str) -> Option<Claims> {
        let payload = self.open_token(TOKEN_PREFIX, token)?;
        let (expiry, names) = payload.split_first_chunk::<EXPIRY_BYTES>()?;
        let names = std::str::from_utf8(names).ok()?;
        let (sandbox_id, holder) = match names.split_once(HOLDER_MARK) {
            Some((id, holder)) => (id, Some(holder.to_owned())),
            None => (names, None),
        };
        Some(Claims { expiry: i64::from_be_bytes(*expiry), sandbox_id: sandbox_id.to_owned(), holder })
    }

    fn is_revoked(&self, holder: &str) -> bool {
        self.revoked.read().unwrap_or_else(PoisonError::into_inner).until.contains_key(holder)
    }

    /// Over the prefix too, so that a token of one kind is never one of another.
    fn code(&self, prefix: &str, payload: &[u8]) -> Hmac<Sha256> {
        let mut code = self.keyed.clone();
        code.update(prefix.as_bytes());
        code.update(payload);
        code
    }
}

/// What an access token says.
struct Claims {
    /// In seconds since 1970.
    expiry: i64,
    sandbox_id: String,
    holder: Option<String>,
}

/// What a token says that has no holder.
pub(super) fn payload(expiry: i64, sandbox_id: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(EXPIRY_BYTES + sandbox_id.len() + MAC_BYTES);
    bytes.extend_from_slice(&expiry.to_be_bytes());
    bytes.extend_from_slice(sandbox_id.as_bytes());
    bytes
}

/// Prints no key.
impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("ttl", &self.ttl).finish_non_exhaustive()
    }
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
        let (token, expires_at) = sessions.mint_at("sbxaaa", None, noon());
        assert_eq!(expires_at, after(3600));
        assert_eq!(sessions.verify_at(&token, "sbxaaa", noon()), Ok(()));
        assert_eq!(sessions.verify_at(&token, "sbxaaa", after(3599)), Ok(()));
        assert_eq!(sessions.verify_at(&token, "sbxaaa", after(3600)), Err(SessionError::Expired));
    }

    #[test]
    fn a_token_of_another_sandbox_is_foreign() {
        let sessions = sessions();
        let (token, _) = sessions.mint_at("sbxaaa", None, noon());
        assert_eq!(sessions.verify_at(&token, "sbxbbb", noon()), Err(SessionError::Foreign));
        assert_eq!(sessions.verify_at(&token, "sbxaaa0", noon()), Err(SessionError::Foreign));
    }

    #[test]
    fn every_changed_character_spoils_a_token() {
        let sessions = sessions();
        let (token, _) = sessions.mint_at("sbxaaa", None, noon());
        for position in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[position] = if changed[position] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("ASCII");
            assert_eq!(sessions.verify_at(&changed, "sbxaaa", noon()), Err(SessionError::Malformed), "at {position}");
        }
    }

    #[test]
    fn the_tokens_of_a_revoked_holder_open_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("session.key");
        let sessions = Sessions::open(&path, HOUR).expect("a new key");
        let token = |sessions: &Sessions, holder| sessions.mint_at("sbxaaa", holder, noon()).0;
        let of = |holder| token(&sessions, holder);
        let (ours, others, nobodys) = (of(Some("keya")), of(Some("keyb")), of(None));
        let verify = |sessions: &Sessions, token: &str| sessions.verify_at(token, "sbxaaa", noon());
        assert_eq!(verify(&sessions, &ours), Ok(()));

        sessions.revoke_at(vec!["keya".to_owned()], noon()).expect("written");

        assert_eq!(verify(&sessions, &ours), Err(SessionError::Revoked));
        assert_eq!(verify(&sessions, &of(Some("keya"))), Err(SessionError::Revoked), "nor one that comes later");
        assert_eq!((verify(&sessions, &others), verify(&sessions, &nobodys)), (Ok(()), Ok(())));
        let again = Sessions::open(&path, HOUR).expect("the same key");
        assert_eq!(verify(&again, &ours), Err(SessionError::Revoked));
        again.revoke_at(vec!["keyb".to_owned()], after(3600)).expect("written");
        assert!(!again.is_revoked("keya"), "by now all of its tokens have expired");
        assert_eq!(verify(&again, &others), Err(SessionError::Revoked));
    }

    #[test]
    fn rubbish_and_foreign_keys_are_malformed() {
        let (token, _) = sessions().mint_at("sbxaaa", None, noon());
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

        let (token, _) = Sessions::open(&path, HOUR).expect("a new key").mint("sbxaaa", None);

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
