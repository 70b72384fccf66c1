//! The files that disks and memory images consist of.
//!
//! A disk is a stack of layers, top writable. A layer is a sparse file whose holes are the layer below: an offset in the
//! file is the same offset on the disk. A memory image is such a stack too, none of it ever written to again.
//!
//! # Who owns a layer
//!
//! Every owner (a sandbox, a checkpoint, a warm snapshot) has a folder, and each layer that it needs is a hard link in it;
//! its record or manifest says in which order they are stacked ([`Files`]). So the file system counts the owners: deleting
//! a folder frees exactly what nobody else needs, also when that is interrupted at any point, and all owners share one
//! inode and with it the page cache. A layer never changes once something is stacked on it, with one exception that nobody
//! can observe: holes of it may be filled with what is below them ([`merge`]).
//!
//! * [`files`]: the list of an owner's files, and how they are linked from one folder into another.
//! * [`extents`]: which blocks a layer holds.
//! * [`digest`]: whether a file still holds what was written to it.
//! * [`merge`]: makes one layer of two, so that chains do not grow for ever.
//! * [`usage`]: how much of the host's disk is whose.

pub mod digest;
mod extents;
mod files;
pub mod merge;
pub mod usage;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub use self::files::{Files, Layer, Role, link};

/// Serial number under which the guest sees its root disk.
pub const ROOT_SERIAL: &str = "root";

/// Most layers of a root disk that is checkpointed: a start passes every layer to the monitor with one message
/// ([`MAX_FDS`](sandpiper_protocol::vmm::MAX_FDS)). Merging keeps chains far shorter.
pub const MAX_DISK_LAYERS: usize = 40;

const GIB: u64 = 1024 * 1024 * 1024;

/// Why an owner's files could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("Cannot link {} to {}", from.display(), to.display())]
    Link { from: PathBuf, to: PathBuf, source: io::Error },
    #[error("Cannot create {}", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("Cannot open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error(
        "{} is damaged: it has {length} bytes, which no layer of this disk has; restore it from a backup, or delete what \
         consists of it",
        path.display()
    )]
    Length { path: PathBuf, length: u64 },
}

/// Bytes of a disk of `disk_gib`.
pub fn disk_size(disk_gib: u32) -> u64 {
    u64::from(disk_gib) * GIB
}

/// A new layer of `size` bytes at `path`, which takes no space yet. Blocks.
///
/// # Errors
/// [`LayerError::Create`], also where there is such a file.
pub fn create(path: &Path, size: u64) -> Result<File, LayerError> {
    let make = || {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        // ext4 writes a file out when it is closed, for as long as that takes, that was ever cut to nothing.
        if size > 0 {
            file.set_len(size)?;
        }
        Ok(file)
    };
    make().map_err(|source| LayerError::Create { path: path.to_owned(), source })
}

/// Opens a layer for reading. Blocks.
///
/// # Errors
/// [`LayerError::Open`].
pub fn open(path: &Path) -> Result<File, LayerError> {
    File::open(path).map_err(|source| LayerError::Open { path: path.to_owned(), source })
}

/// Opens the layers of a disk of `disk_gib` for reading, bottom first. Those above the bottom, which is a template's image,
/// are as long as the disk was when each was made: in one that was cut off, what is below would show through. Blocks.
///
/// # Errors
/// [`LayerError::Open`] of the first that cannot be opened; [`LayerError::Length`] of one that was cut off.
pub fn open_disk(layers: &[Layer], folder: &Path, disk_gib: u32) -> Result<Vec<File>, LayerError> {
    let open = |(index, layer): (usize, &Layer)| {
        let path = folder.join(&layer.name);
        let file = open(&path)?;
        let metadata = file.metadata().map_err(|source| LayerError::Open { path: path.clone(), source })?;
        let length = metadata.len();
        let is_whole = (GIB..=disk_size(disk_gib)).contains(&length) && length.is_multiple_of(GIB);
        if index > 0 && !is_whole {
            return Err(LayerError::Length { path, length });
        }
        Ok(file)
    };
    layers.iter().enumerate().map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_new_layer_has_the_disks_size_and_takes_no_space() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk-0.layer");

        create(&path, disk_size(3)).unwrap();

        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!((metadata.len(), metadata.blocks()), (3 * GIB, 0));
    }

    #[test]
    fn a_layer_that_was_cut_off_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let layers = ["image", "disk-1.layer", "disk-2.layer"].map(|name| Layer::own(name.to_owned()));
        std::fs::write(folder.path().join("image"), b"of any length").unwrap();
        // The disk may have grown since the first was made.
        create(&folder.path().join("disk-1.layer"), disk_size(1)).unwrap();
        let upper = create(&folder.path().join("disk-2.layer"), disk_size(2)).unwrap();
        assert_eq!(open_disk(&layers, folder.path(), 2).unwrap().len(), 3);

        for length in [0, 4096, disk_size(2) - 1, disk_size(3)] {
            upper.set_len(length).unwrap();
            let error = open_disk(&layers, folder.path(), 2).unwrap_err().to_string();
            assert!(error.contains("disk-2.layer is damaged") && error.contains("backup"), "{error}");
        }
    }

    #[test]
    fn a_layer_that_exists_is_never_reused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk-0.layer");
        create(&path, 4096).unwrap();
        assert!(matches!(create(&path, 4096), Err(LayerError::Create { .. })));
    }
}
