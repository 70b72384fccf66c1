//! What is known of one volume, in its folder: written durably, with a checksum.

use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use sandpiper_durable as durable;
use sandpiper_protocol::ids::{SandboxId, VolumeId};
use serde::{Deserialize, Serialize};

use crate::checked::{self, DamageError};

/// Of the record's format. A field that is added gets a `default`; anything else raises this number.
const FORMAT_VERSION: u32 = 1;

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    format_version: u32,
    pub id: VolumeId,
    /// What its guests see; a multiple of a GiB.
    pub size_bytes: u64,
    pub created_at: Timestamp,
    /// Name of the blank layer that it stands on, from the moment somebody may write to it.
    pub blank: Option<String>,
    /// The sandbox whose monitor may have its files open.
    pub attached_to: Option<SandboxId>,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("Cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is damaged; restore it from a backup, or end the agent and remove the folder, and the volume with it", path.display())]
    Damaged { path: PathBuf, source: DamageError },
    #[error("{} has format version {version}; this agent reads {FORMAT_VERSION}", path.display())]
    Version { path: PathBuf, version: u64 },
    #[error("{} belongs to another volume", path.display())]
    Misplaced { path: PathBuf },
}

impl Record {
    pub(super) fn new(id: VolumeId, size_bytes: u64) -> Self {
        let created_at = Timestamp::now();
        Self { format_version: FORMAT_VERSION, id, size_bytes, created_at, blank: None, attached_to: None }
    }

    /// Writes it down for good. Blocks.
    pub(super) fn save(&self, folder: &Path) -> io::Result<()> {
        durable::write_atomic(&path(folder), &checked::encode(self)?)
    }

    /// The record of the volume `id`, in its folder. Blocks.
    pub(super) fn load(folder: &Path, id: &str) -> Result<Self, RecordError> {
        let path = path(folder);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(source) => return Err(RecordError::Read { path, source }),
        };
        let damaged = |source| RecordError::Damaged { path: path.clone(), source };
        let value = checked::verify(&text).map_err(damaged)?;
        let version = value["format_version"].as_u64().unwrap_or_default();
        if version != u64::from(FORMAT_VERSION) {
            return Err(RecordError::Version { path, version });
        }
        let record: Self = serde_json::from_value(value).map_err(|error| damaged(error.into()))?;
        if *record.id == *id { Ok(record) } else { Err(RecordError::Misplaced { path }) }
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("volume.json")
}
