//! Tenants' secrets at rest: sealed with XChaCha20-Poly1305 under keys from a file.
//!
//! The file holds one key a line, 64 hexadecimal digits. The first seals, all open: to rotate, [`add_key`] puts a new line on top,
//! and [`drop_older_keys`] takes away all others when nothing sealed under them is left ([`reseal`](crate::reseal)). A nonce is 24 random bytes, which for this cipher is safe
//! without counting. What is sealed is bound to a context (the sandbox's id), so it cannot be moved to another row.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sandpiper_durable::{self as durable, Access};
use zeroize::Zeroizing;

use crate::{hex, private_files};

const KEY_LEN: usize = 32;
const NONCE_LEN: usize = 24;
/// Before everything sealed, for a format to come.
const VERSION: &str = "v1:";

/// Why the key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("Key file {path:?}")]
    Io { path: PathBuf, source: io::Error },
    #[error("Key file {path:?} can be read by others; run: chmod 600 {path:?}")]
    Exposed { path: PathBuf },
    #[error("Key file {path:?}: line {line} is not 64 hexadecimal digits")]
    Malformed { path: PathBuf, line: usize },
    #[error("Key file {path:?} holds no key; restore it, or remove it to start anew (what was sealed is lost then)")]
    Empty { path: PathBuf },
}

/// Something sealed does not open: another key, another context, or altered.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Sealed value does not open under any key of the key file")]
pub struct OpenError;

/// Sealing did not work, which the cipher allows only for lengths that no caller has.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Value cannot be sealed")]
pub struct SealError;

/// Seals and opens.
pub struct Vault {
    sealing: XChaCha20Poly1305,
    older: Vec<XChaCha20Poly1305>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vault")
    }
}

/// Puts a new key on top of those in the file, which must be there: from the next time that it is read it seals, and the others
/// still open.
///
/// # Errors
///
/// The file cannot be used, or not be written. It is as it was, then.
pub fn add_key(path: &Path) -> Result<(), KeyFileError> {
    let io = |source| KeyFileError::Io { path: path.to_owned(), source };
    let old = Zeroizing::new(std::fs::read_to_string(path).map_err(io)?);
    Vault::open(path)?;
    let text = Zeroizing::new(format!("{}{}", *new_line(), *old));
    replace(path, &text).map_err(io)
}

/// Leaves nothing in the file but the first key.
///
/// # Errors
///
/// The file cannot be used, or not be written. It is as it was, then.
pub fn drop_older_keys(path: &Path) -> Result<(), KeyFileError> {
    let io = |source| KeyFileError::Io { path: path.to_owned(), source };
    Vault::open(path)?;
    let text = Zeroizing::new(std::fs::read_to_string(path).map_err(io)?);
    let first = text.lines().find(|line| !line.trim().is_empty());
    let first = first.ok_or_else(|| KeyFileError::Empty { path: path.to_owned() })?;
    replace(path, &Zeroizing::new(format!("{first}\n"))).map_err(io)
}

/// A line of a key file, with a key of its own.
fn new_line() -> Zeroizing<String> {
    Zeroizing::new(format!("{}\n", hex::encode(&rand::random::<[u8; KEY_LEN]>())))
}

/// Another content, for the same user: at every moment there is the old file or the new one, whole.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let owner = std::fs::metadata(path)?;
    let access = Access::PRIVATE.owned_by(owner.uid(), owner.gid());
    durable::write_atomic_with(path, access, |file| file.write_all(text.as_bytes()))
}

impl Vault {
    /// Reads the key file, made with a new key where missing.
    pub fn open(path: &Path) -> Result<Self, KeyFileError> {
        let io = |source| KeyFileError::Io { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            private_files::folder(folder).map_err(io)?;
        }
        durable::create_atomic(path, Access::PRIVATE, new_line().as_bytes()).map_err(io)?;
        if private_files::is_exposed(path).map_err(io)? {
            return Err(KeyFileError::Exposed { path: path.to_owned() });
        }
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(io)?);

        let mut ciphers = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let malformed = || KeyFileError::Malformed { path: path.to_owned(), line: index + 1 };
            let key = Zeroizing::new(hex::decode(line.trim()).ok_or_else(malformed)?);
            ciphers.push(XChaCha20Poly1305::new_from_slice(&key).map_err(|_| malformed())?);
        }
        let mut ciphers = ciphers.into_iter();
        let sealing = ciphers.next().ok_or_else(|| KeyFileError::Empty { path: path.to_owned() })?;
        Ok(Self { sealing, older: ciphers.collect() })
    }

    /// `plain`, readable only with the key and the same `context`.
    pub fn seal(&self, context: &str, plain: &[u8]) -> Result<String, SealError> {
        let nonce: [u8; NONCE_LEN] = rand::random();
        let payload = Payload { msg: plain, aad: context.as_bytes() };
        let sealed = self.sealing.encrypt(&XNonce::from(nonce), payload).map_err(|_| SealError)?;
        Ok(format!("{VERSION}{}", BASE64.encode([&nonce[..], &sealed].concat())))
    }

    /// What was sealed.
    pub fn unseal(&self, context: &str, sealed: &str) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let encoded = sealed.strip_prefix(VERSION).ok_or(OpenError)?;
        let bytes = BASE64.decode(encoded).map_err(|_| OpenError)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>().ok_or(OpenError)?;
        let payload = || Payload { msg: sealed, aad: context.as_bytes() };
        std::iter::once(&self.sealing)
            .chain(&self.older)
            .find_map(|cipher| cipher.decrypt(&XNonce::from(*nonce), payload()).ok())
            .map(Zeroizing::new)
            .ok_or(OpenError)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_was_sealed_opens_after_the_key_was_rotated_and_not_for_another_context() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        let sealed = Vault::open(&path).unwrap().seal("sbx1", b"TOKEN=hush").unwrap();
        add_key(&path).unwrap();

        let rotated = Vault::open(&path).unwrap();

        assert_eq!(rotated.unseal("sbx1", &sealed).unwrap().as_slice(), b"TOKEN=hush");
        assert_eq!(rotated.unseal("sbx2", &sealed), Err(OpenError));
        assert!(!sealed.contains("hush"));
    }

    #[test]
    fn a_key_that_was_dropped_opens_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        let old = Vault::open(&path).unwrap().seal("sbx1", b"TOKEN=hush").unwrap();
        add_key(&path).unwrap();
        let new = Vault::open(&path).unwrap().seal("sbx1", b"TOKEN=hush").unwrap();

        drop_older_keys(&path).unwrap();

        let vault = Vault::open(&path).unwrap();
        assert_eq!(vault.unseal("sbx1", &old), Err(OpenError));
        assert_eq!(vault.unseal("sbx1", &new).unwrap().as_slice(), b"TOKEN=hush");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(add_key(&folder.path().join("none")).is_err(), "none is made");
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        Vault::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();

        assert!(matches!(Vault::open(&path), Err(KeyFileError::Exposed { .. })));
    }

    #[test]
    fn a_key_file_without_a_usable_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        durable::create_atomic(&path, Access::PRIVATE, b"\n").unwrap();
        assert!(matches!(Vault::open(&path), Err(KeyFileError::Empty { .. })));
        std::fs::write(&path, "not a key\n").unwrap();
        assert!(matches!(Vault::open(&path), Err(KeyFileError::Malformed { line: 1, .. })));
    }
}
