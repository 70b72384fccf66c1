//! Snapshots that outlive their machine: checkpoints, which people ask for, and warm snapshots, which make starts quick.
//!
//! Each is a folder of hard links ([`crate::layers`]) and a `manifest.json`. It is filled under a name that begins with a
//! dot, synced, and renamed: it is there whole or not at all. It goes the other way round, renamed first. What has a dotted
//! name when an agent starts is removed.

mod checkpoints;
mod trouble;
mod warm;

use std::fs;
use std::io;
use std::path::Path;

use sandpiper_durable as durable;
use sandpiper_protocol::vmm::Shape;
use serde::{Deserialize, Serialize};

pub use self::checkpoints::{Checkpoints, Draft, DraftError, Manifest, Pin};
pub use self::warm::{Platform, Recipe, Warm, WarmSnapshot};
use crate::layers::Files;
use crate::templates::GuestDefaults;
use sandpiper_crash_points::CrashPoint;

/// Of the manifests' format. A field that is added gets a `default`; anything else raises this number.
const FORMAT_VERSION: u32 = 1;
/// Folders with this prefix are not published yet, or not any more.
const HIDDEN: char = '.';
const MANIFEST: &str = "manifest.json";

/// A machine that can be made again, as it was or from its disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub template_version: String,
    pub cpu: u32,
    pub memory_mb: u32,
    pub disk_gib: u32,
    pub files: Files,
    /// Slots for volumes that programs in its memory keep from being used: see `Unmounted` of the guest's link.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_slots: Vec<u8>,
    /// What its guest is told of its template's version, which may be gone.
    #[serde(default, skip_serializing_if = "GuestDefaults::is_empty")]
    pub defaults: GuestDefaults,
    /// Restored, its guest waits to be told who it is for as long as need be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub can_wait: bool,
}

/// Why the snapshots of this host cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("Cannot read the snapshots in {}", path.display())]
pub struct OpenError {
    path: std::path::PathBuf,
    source: io::Error,
}

/// What a monitor is prepared for. Both numbers were checked against the host's limits when the sandbox was created.
pub fn shape(cpu: u32, memory_mb: u32) -> Shape {
    Shape { vcpus: u8::try_from(cpu).unwrap_or(u8::MAX), memory_mib: memory_mb }
}

/// Writes the manifest into `draft`, whose other files are synced, and makes it `folder`. Blocks.
fn publish(draft: &Path, folder: &Path, manifest: &impl Serialize) -> io::Result<()> {
    durable::write_atomic(&draft.join(MANIFEST), &serde_json::to_vec_pretty(manifest)?)?;
    CrashPoint::CheckpointManifest.pass();
    fs::rename(draft, folder)?;
    CrashPoint::CheckpointPublished.pass();
    durable::sync_parent(folder)
}

/// Removes a published folder: from one moment to the next it is no snapshot any more. Blocks.
fn retract(folder: &Path) -> io::Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let hidden = folder.with_file_name(format!("{HIDDEN}deleted-{name}"));
    fs::rename(folder, &hidden)?;
    CrashPoint::CheckpointHidden.pass();
    durable::sync_parent(folder)?;
    durable::remove_tree(&hidden)?;
    CrashPoint::CheckpointRemoved.pass();
    Ok(())
}

/// The published folders in `folder`, by name, with their manifests; what was left unfinished is removed, what cannot be
/// read is left out with an error in the log. Blocks.
fn load<M: for<'de> Deserialize<'de>>(folder: &Path) -> Result<Vec<(String, M)>, OpenError> {
    #[derive(Deserialize)]
    struct FormatOnly {
        #[serde(rename = "form")]
        version: u32,
    }

    let failed = |source| OpenError { path: folder.to_owned(), source };
    let read = |path: &Path| -> io::Result<M> {
        let bytes = fs::read(path.join(MANIFEST))?;
        match serde_json::from_slice::<FormatOnly>(&bytes)? {
            FormatOnly { version: FORMAT_VERSION } => Ok(serde_json::from_slice(&bytes)?),
            FormatOnly { version } => {
                Err(io::Error::other(format!("it has format version {version}; this agent reads {FORMAT_VERSION}")))
            }
        }
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with(HIDDEN) {
            durable::remove_tree(&entry.path()).map_err(failed)?;
            continue;
        }
        match read(&entry.path()) {
            Ok(manifest) => found.push((name, manifest)),
            Err(error) => {
                tracing::error!(path = %entry.path().display(), %error, "snapshot left out: it cannot be read")
            }
        }
    }
    Ok(found)
}
