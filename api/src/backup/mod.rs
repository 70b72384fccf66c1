//! A backup: the database and the keys that open what is sealed in it, as files of one folder.
//!
//! ```text
//!   FOLDER/                   0700, made whole or not at all
//!     backup.json             format, program, schema; length and SHA-256 of each file
//!     sandpiper.db            a file of SQLite, as it was at one moment; a server of PostgreSQL has tools of its own
//!     secrets.key             seals tenants' secrets, and merchants' unless these have a file of their own
//!     merchant-secrets.key    which is this
//! ```
//!
//! Keys and database fit each other: a rotation of keys changes the file of keys before and after it seals anything anew, so keys
//! that were the same before and after the copy of the database open all of it.

mod restore;
mod write;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use sandpiper_db::{DatabaseLocation, StoreError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use restore::{Owner, restore};
pub use write::write;

use crate::config::Config;

/// Of what this program writes, and the only one that it reads.
const FORMAT_VERSION: u32 = 1;
const MANIFEST: &str = "backup.json";

/// Why a backup was not made, or not restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{path:?} is there already; name a folder that this is to make")]
    Exists { path: PathBuf },
    #[error("{path:?} is there already, and nothing is overwritten; end sandpiper-api, and move it away first")]
    Occupied { path: PathBuf },
    #[error("Cannot {what} {path:?}")]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("The keys changed while they were copied: wait for `key rotate-secrets` to end, and run this again")]
    KeysChanged,
    #[error("{path:?} is no backup of this program: {reason}")]
    NoBackup { path: PathBuf, reason: String },
    #[error("{path:?} is not what was backed up: {reason}. Take another backup")]
    Damaged { path: PathBuf, reason: &'static str },
    #[error(
        "The backup has version {backup} of the database's tables, and this program, {program} of them at most: \
         install the version that made it, {made_by} or later"
    )]
    Newer { backup: i64, program: i64, made_by: String },
    #[error(
        "The backup is of {backup}, and `database` of the configuration names another kind; records do not move between them"
    )]
    OtherKind { backup: &'static str },
    #[error(
        "The backup has {backup} key files and the configuration {configured}: set `merchant_secrets_key_file` as it was"
    )]
    KeyFiles { backup: usize, configured: usize },
}

impl BackupError {
    fn io<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }
}

/// What a backup holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format_version: u32,
    pub created_at: Timestamp,
    /// Version of the program that made it.
    pub program: String,
    pub database: Kind,
    /// Version of the database's tables.
    pub schema: i64,
    pub files: Vec<Entry>,
}

/// Where the records are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Sqlite,
    Postgres,
}

impl Kind {
    fn of(location: &DatabaseLocation) -> Self {
        match location {
            DatabaseLocation::Sqlite(_) => Self::Sqlite,
            DatabaseLocation::Postgres(_) => Self::Postgres,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "a file of SQLite",
            Self::Postgres => "a database of PostgreSQL",
        }
    }
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: Name,
    pub bytes: u64,
    /// Hexadecimal.
    pub sha256: String,
}

/// What a file of a backup can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Name {
    #[serde(rename = "sandpiper.db")]
    Database,
    #[serde(rename = "secrets.key")]
    SecretsKey,
    #[serde(rename = "merchant-secrets.key")]
    MerchantSecretsKey,
}

impl Name {
    fn as_str(self) -> &'static str {
        match self {
            Self::Database => "sandpiper.db",
            Self::SecretsKey => "secrets.key",
            Self::MerchantSecretsKey => "merchant-secrets.key",
        }
    }
}

impl Entry {
    /// Of the file of this name in `folder`.
    fn of(folder: &Path, name: Name) -> io::Result<Self> {
        let mut file = File::open(folder.join(name.as_str()))?;
        let (mut hash, mut bytes, mut part) = (Sha256::new(), 0, vec![0; 1 << 16]);
        loop {
            let length = file.read(&mut part)?;
            if length == 0 {
                let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
                return Ok(Self { name, bytes, sha256 });
            }
            bytes += length as u64;
            hash.update(&part[..length]);
        }
    }
}

/// The key files of a configuration, by their names in a backup.
fn key_files(config: &Config) -> Vec<(Name, PathBuf)> {
    let (secrets, merchants) = (config.secrets_key_file(), config.merchant_secrets_key_file());
    let mut files = vec![(Name::SecretsKey, secrets.clone())];
    if merchants != secrets {
        files.push((Name::MerchantSecretsKey, merchants));
    }
    files
}
