//! What is written down about the account, the order under way and the certificate.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use instant_acme::AccountCredentials;
use sandpiper_durable as durable;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::hook::Record;

/// The files of one data-plane host.
pub(super) struct Store {
    folder: PathBuf,
    host: String,
}

/// Our account at an issuer.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedAccount {
    /// The issuer. With another one in the configuration, another account is made.
    pub(super) directory: String,
    pub(super) credentials: AccountCredentials,
}

/// An order under way.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct SavedOrder {
    /// Of the account that made it.
    pub(super) directory: String,
    pub(super) url: String,
    /// Records that may be in the DNS.
    pub(super) records: Vec<Record>,
    /// Key that the certificate is or will be asked for, PEM. Without it a certificate that was issued while the agent died
    /// could not be used.
    pub(super) key: Option<String>,
}

/// Why something is not in the store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("Cannot write or read {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is damaged: delete it, and a new one is made", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
}

impl Store {
    pub(super) fn new(state_dir: &Path, host: &str) -> Store {
        Store { folder: state_dir.join("acme"), host: host.to_owned() }
    }

    pub(super) fn bundle(&self) -> PathBuf {
        self.folder.join(format!("{}.pem", self.host))
    }

    fn account(&self) -> PathBuf {
        self.folder.join("account.json")
    }

    fn order(&self) -> PathBuf {
        self.folder.join(format!("{}.order.json", self.host))
    }

    pub(super) async fn read_account(&self) -> Result<Option<SavedAccount>, StoreError> {
        read_json(self.account()).await
    }

    pub(super) async fn write_account(&self, account: &SavedAccount) -> Result<(), StoreError> {
        write_json(self.account(), account).await
    }

    pub(super) async fn read_order(&self) -> Result<Option<SavedOrder>, StoreError> {
        read_json(self.order()).await
    }

    pub(super) async fn write_order(&self, order: &SavedOrder) -> Result<(), StoreError> {
        write_json(self.order(), order).await
    }

    pub(super) async fn remove_order(&self) -> Result<(), StoreError> {
        work_on(self.order(), durable::remove_file).await
    }

    pub(super) async fn read_bundle(&self) -> Result<Option<Vec<u8>>, StoreError> {
        read(self.bundle()).await
    }

    pub(super) async fn write_bundle(&self, chain: &str, key: &str) -> Result<(), StoreError> {
        write(self.bundle(), format!("{}\n{key}", chain.trim_end()).into_bytes()).await
    }
}

async fn read_json<T: DeserializeOwned>(path: PathBuf) -> Result<Option<T>, StoreError> {
    let Some(bytes) = read(path.clone()).await? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|source| StoreError::Damaged { path, source })
}

async fn write_json(path: PathBuf, value: &impl Serialize) -> Result<(), StoreError> {
    let failed = |source: serde_json::Error| StoreError::Io { path: path.clone(), source: source.into() };
    let bytes = serde_json::to_vec(value).map_err(failed)?;
    write(path, bytes).await
}

async fn read(path: PathBuf) -> Result<Option<Vec<u8>>, StoreError> {
    work_on(path, |path| match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    })
    .await
}

async fn write(path: PathBuf, bytes: Vec<u8>) -> Result<(), StoreError> {
    work_on(path, move |path| {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        durable::write_atomic(path, &bytes)
    })
    .await
}

async fn work_on<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let copy = path.clone();
    durable::blocking(move || work(&copy)).await.map_err(|source| StoreError::Io { path, source })
}
