//! Keeps the tenant's environment variables unreadable in the records.
//!
//! A guest gets its variables anew on every link, also from an agent that was restarted, so they must be in the record;
//! they are secrets, so there they are sealed with XChaCha20-Poly1305 under a key file of mode 0600, bound to the
//! sandbox's id.

use std::io;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sandpiper_durable as durable;
use sandpiper_machine::link::Envs;
use serde::{Deserialize, Serialize};

/// Sealed variables, as they stand in a record: base64 of a nonce and the ciphertext.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SealedEnvs(String);

/// Length of the nonce before the ciphertext.
const NONCE: usize = 24;

/// Seals and unseals under one key.
pub(crate) struct Sealer {
    cipher: XChaCha20Poly1305,
}

/// Why sealed variables cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnsealError {
    #[error("The sealed environment variables are damaged")]
    Damaged,
    #[error("The environment variables were sealed with another key: was record.key replaced?")]
    WrongKey,
}

impl Sealer {
    /// Reads the key file, or makes it. Blocks.
    pub(crate) fn open(key_file: &Path) -> io::Result<Self> {
        let key = durable::read_or_create::<32>(key_file, rand::random)?;
        Ok(Self { cipher: XChaCha20Poly1305::new(&key.into()) })
    }

    /// Seals the variables of the sandbox `id`.
    pub(crate) fn seal(&self, id: &str, envs: &Envs) -> io::Result<SealedEnvs> {
        let plain = serde_json::to_vec(envs)?;
        let nonce: [u8; NONCE] = rand::random();
        let payload = Payload { msg: &plain, aad: id.as_bytes() };
        // Fails only for messages of hundreds of gigabytes.
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| io::Error::other("Cannot seal"))?;
        Ok(SealedEnvs(STANDARD.encode([&nonce[..], &sealed].concat())))
    }

    /// The variables of the sandbox `id`.
    pub(crate) fn unseal(&self, id: &str, sealed: &SealedEnvs) -> Result<Envs, UnsealError> {
        let bytes = STANDARD.decode(&sealed.0).map_err(|_| UnsealError::Damaged)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE>().ok_or(UnsealError::Damaged)?;
        let payload = Payload { msg: sealed, aad: id.as_bytes() };
        let plain = self.cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| UnsealError::WrongKey)?;
        serde_json::from_slice(&plain).map_err(|_| UnsealError::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_variables_show_nothing_and_come_back_with_the_same_key_file() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("record.key");
        let envs = Envs::from([("TOKEN".into(), "hunter2".into())]);

        let sealed = Sealer::open(&key).unwrap().seal("sbx1", &envs).unwrap();

        let text = serde_json::to_string(&sealed).unwrap();
        assert!(!text.contains("hunter2") && !text.contains("TOKEN"));
        assert!(Sealer::open(&key).unwrap().unseal("sbx1", &sealed).unwrap() == envs);
    }

    #[test]
    fn another_sandbox_or_another_key_cannot_unseal() {
        let folder = tempfile::tempdir().unwrap();
        let sealer = Sealer::open(&folder.path().join("one")).unwrap();
        let other = Sealer::open(&folder.path().join("two")).unwrap();
        let sealed = sealer.seal("sbx1", &Envs::new()).unwrap();

        assert!(matches!(sealer.unseal("sbx2", &sealed), Err(UnsealError::WrongKey)));
        assert!(matches!(other.unseal("sbx1", &sealed), Err(UnsealError::WrongKey)));
        assert!(matches!(sealer.unseal("sbx1", &SealedEnvs("AAAA".into())), Err(UnsealError::Damaged)));
    }
}
