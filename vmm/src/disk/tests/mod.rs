//! Disks over real files: on whatever file system the temporary folder is on, and on tmpfs.

mod basics;
mod crash;
pub(crate) mod full;
mod model;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use vm_memory::VolatileSlice;

use super::{BLOCK_SIZE, Buffers, Disk, DiskError};

/// The files of a disk's layers, in a folder of their own.
struct Stack {
    folder: PathBuf,
    layers: usize,
    size: u64,
}

impl Stack {
    /// A disk of `blocks` blocks in `folder`, without layers yet.
    fn new(folder: &Path, blocks: u64) -> Self {
        Self { folder: folder.to_owned(), layers: 0, size: blocks * BLOCK_SIZE }
    }

    /// A new empty file for the next layer.
    fn add(&mut self) -> File {
        let path = self.path(self.layers);
        self.layers += 1;
        OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
    }

    /// A new layer that holds `content` from `block` on.
    fn add_with(&mut self, block: u64, content: &[u8]) {
        self.add().write_all_at(content, block * BLOCK_SIZE).unwrap();
    }

    /// Opens the disk from its files, as a new process would.
    fn open(&self) -> Disk {
        let open = |index| {
            let writable = index + 1 == self.layers;
            OpenOptions::new().read(true).write(writable).open(self.path(index)).unwrap()
        };
        Disk::open((0..self.layers).map(open).collect(), self.size, false).unwrap()
    }

    fn path(&self, index: usize) -> PathBuf {
        self.folder.join(format!("layer-{index}"))
    }

    /// Bytes that a layer's file takes on the host.
    fn allocated(&self, index: usize) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(self.path(index)).unwrap().blocks() * 512
    }
}

/// A block full of one byte.
fn block(byte: u8) -> Vec<u8> {
    vec![byte; 4096]
}

/// Reads in pieces of `pieces` bytes.
fn read_in_pieces(disk: &Disk, offset: u64, length: usize, pieces: usize) -> Vec<u8> {
    let mut data = vec![0xee; length];
    let slices: Vec<VolatileSlice<'_>> = data.chunks_mut(pieces).map(VolatileSlice::from).collect();
    disk.read(offset, Buffers::new(&slices).unwrap()).unwrap();
    data
}

fn read(disk: &Disk, offset: u64, length: usize) -> Vec<u8> {
    read_in_pieces(disk, offset, length, length.max(1))
}

fn read_all(disk: &Disk) -> Vec<u8> {
    read(disk, 0, usize::try_from(disk.size()).unwrap())
}

/// Writes in pieces of `pieces` bytes.
fn write_in_pieces(disk: &mut Disk, offset: u64, data: &[u8], pieces: usize) -> Result<(), DiskError> {
    let mut data = data.to_vec();
    let slices: Vec<VolatileSlice<'_>> = data.chunks_mut(pieces).map(VolatileSlice::from).collect();
    disk.write(offset, Buffers::new(&slices).unwrap())
}

fn write(disk: &mut Disk, offset: u64, data: &[u8]) -> Result<(), DiskError> {
    write_in_pieces(disk, offset, data, data.len().max(1))
}
