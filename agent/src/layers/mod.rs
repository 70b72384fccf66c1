//! The files that a sandbox's disks consist of.
//!
//! A disk is a stack of layers, top writable. A layer is a sparse file whose holes are the layer below: an offset in the
//! file is the same offset on the disk. The root disk is made of two: the template's image, opened read-only and shared
//! by all sandboxes through the page cache, and a layer of the sandbox's own, empty at first.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Serial number under which the guest sees its root disk.
pub(crate) const ROOT_SERIAL: &str = "root";

const GIB: u64 = 1024 * 1024 * 1024;

/// A disk as it is handed to a monitor.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Bytes that the guest sees.
    pub(crate) size: u64,
    /// Bottom first; the last one is writable.
    pub(crate) layers: Vec<File>,
}

/// Why a disk could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayerError {
    #[error("Cannot open the template's image {}", path.display())]
    Base { path: PathBuf, source: io::Error },
    #[error("Cannot create the disk layer {}", path.display())]
    Top { path: PathBuf, source: io::Error },
}

/// A root disk of `disk_gib` on the image `base`, with a new layer at `top`.
pub(crate) fn create_root(base: &Path, top: &Path, disk_gib: u32) -> Result<Disk, LayerError> {
    let size = u64::from(disk_gib) * GIB;
    let base = File::open(base).map_err(|source| LayerError::Base { path: base.to_owned(), source })?;
    let make = || {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(top)?;
        file.set_len(size)?;
        Ok(file)
    };
    let top = make().map_err(|source| LayerError::Top { path: top.to_owned(), source })?;
    Ok(Disk { size, layers: vec![base, top] })
}

/// Whether an image of `image_size` bytes fits on a disk of `disk_gib`.
pub(crate) fn fits(image_size: u64, disk_gib: u32) -> bool {
    image_size <= u64::from(disk_gib) * GIB
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_new_layer_has_the_disks_size_and_takes_no_space() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("root.ext4");
        std::fs::write(&base, [0; 4096]).unwrap();
        let top = folder.path().join("root.layer");

        let disk = create_root(&base, &top, 3).unwrap();

        assert_eq!((disk.size, disk.layers.len()), (3 * GIB, 2));
        let metadata = std::fs::metadata(&top).unwrap();
        assert_eq!((metadata.len(), metadata.blocks()), (3 * GIB, 0));
    }

    #[test]
    fn a_layer_that_exists_is_never_reused() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("root.ext4");
        std::fs::write(&base, b"").unwrap();
        let top = folder.path().join("root.layer");
        create_root(&base, &top, 1).unwrap();
        assert!(matches!(create_root(&base, &top, 1), Err(LayerError::Top { .. })));
    }
}
