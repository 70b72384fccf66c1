//! Tenants' secrets at rest: sealed with XChaCha20-Poly1305 under keys from a file.
//!
//! The file holds one key a line, 64 hexadecimal digits. The first seals, all open: to rotate, put a new line on top and
//! drop the old one when nothing sealed under it is left. A nonce is 24 random bytes, which for this cipher is safe
//! without counting. What is sealed is bound to a context (the sandbox's id), so it cannot be moved to another row.

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

impl Vault {
    /// Reads the key file, made with a new key where missing.
    pub fn open(path: &Path) -> Result<Self, KeyFileError> {
        let io = |source| KeyFileError::Io { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            private_files::folder(folder).map_err(io)?;
        }
        let fresh = Zeroizing::new(format!("{}\n", hex::encode(&rand::random::<[u8; KEY_LEN]>())));
        durable::create_atomic(path, Access::PRIVATE, fresh.as_bytes()).map_err(io)?;
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
        let old = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{}\n{old}", "ab".repeat(32))).unwrap();

        let rotated = Vault::open(&path).unwrap();

        assert_eq!(rotated.unseal("sbx1", &sealed).unwrap().as_slice(), b"TOKEN=hush");
        assert_eq!(rotated.unseal("sbx2", &sealed), Err(OpenError));
        assert!(!sealed.contains("hush"));
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
