//! What is written down of a version: `template.json`.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use sandpiper_durable as durable;
use sandpiper_protocol::agent::TemplateVersion;
use serde::{Deserialize, Serialize};

use super::copy;
use crate::layers::{self, Layer};

/// The image of a version that was imported: all of its disk.
pub(super) const IMAGE: &str = "root.ext4";
const MANIFEST: &str = "template.json";

/// A version, as it stands in its folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Stored {
    #[serde(flatten)]
    pub(super) version: TemplateVersion,
    /// The layers of its disk, bottom first; none of one that was imported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) disk: Vec<Layer>,
    /// Only who builds it starts from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) pending: bool,
}

impl Stored {
    /// Writes it down for good. Blocks.
    pub(super) fn save(&self, folder: &Path) -> io::Result<()> {
        durable::write_atomic(&folder.join(MANIFEST), &serde_json::to_vec_pretty(self)?)
    }

    /// The version `name`, in its folder, if its disk is whole as far as that is seen at once. Blocks.
    pub(super) fn load(folder: &Path, name: &str) -> io::Result<Self> {
        let invalid = |problem: &str| io::Error::new(io::ErrorKind::InvalidData, problem.to_owned());
        let stored: Self = serde_json::from_slice(&fs::read(folder.join(MANIFEST))?)?;
        if stored.version.id != name {
            return Err(invalid("its id is not its folder's name"));
        }
        if !stored.disk.is_empty() {
            layers::open_disk(&stored.disk, folder, stored.version.disk_gib).map_err(io::Error::other)?;
            return Ok(stored);
        }
        let image = File::open(folder.join(IMAGE))?;
        let length = image.metadata()?.len();
        if copy::ext4_length(&image)?.is_none_or(|needed| needed > length) {
            return Err(invalid("root.ext4 is damaged; import the image again"));
        }
        Ok(stored)
    }

    /// The layers of its disk, bottom first.
    pub(super) fn layers(&self) -> Vec<Layer> {
        if self.disk.is_empty() { vec![Layer { name: IMAGE.to_owned(), shared: true }] } else { self.disk.clone() }
    }
}
