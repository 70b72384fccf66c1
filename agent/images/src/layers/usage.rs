//! How much of the host's disk each owner of layers is to be charged with.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Files;

/// Unit of `st_blocks`, whatever the file system's own block.
const SECTOR: u64 = 512;

/// Bytes of the files in `folder` that belong to their owners alone. Of a file with several owners each has its share.
/// Blocks.
pub fn measure(folder: &Path, files: &Files) -> u64 {
    let shared: Vec<&str> =
        files.disk.iter().chain(&files.memory).filter(|layer| layer.shared).map(|layer| layer.name.as_str()).collect();
    let own = files.names().into_iter().filter(|name| !shared.contains(name));
    // A file may go while we look; then it is nobody's.
    own.filter_map(|name| fs::metadata(folder.join(name)).ok())
        .map(|metadata| metadata.blocks() * SECTOR / metadata.nlink().max(1))
        .sum()
}

/// Bytes of the host's disk that all layers of a machine's disk hold, whoever else has them: about what its file system says is
/// used, and more where a layer hides what is in one below. Blocks.
pub fn disk(folder: &Path, files: &Files) -> u64 {
    // A layer may be merged into its neighbour while we look; the next look finds that one.
    let found = files.disk.iter().filter_map(|layer| fs::metadata(folder.join(&layer.name)).ok());
    found.map(|metadata| metadata.blocks() * SECTOR).sum()
}

/// The last measure of every owner, by id.
#[derive(Debug, Default)]
pub struct Usage {
    bytes: Mutex<HashMap<String, u64>>,
}

impl Usage {
    /// What `id` was last found to hold, in bytes; 0 before that.
    pub fn of(&self, id: &str) -> u64 {
        self.lock().get(id).copied().unwrap_or_default()
    }

    /// Bytes that all owners hold together.
    pub fn total(&self) -> u64 {
        self.lock().values().sum()
    }

    /// Puts a new measure of everything, bytes by owner, in place of the last one.
    pub fn replace(&self, bytes: HashMap<String, u64>) {
        *self.lock() = bytes;
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Layer, Role};

    #[test]
    fn a_file_of_two_owners_is_halved_and_a_templates_counts_for_nobody() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut files = Files::default();
        let (base, top) = (files.new_name(Role::Disk), files.new_name(Role::Disk));
        for name in [&base, &top] {
            fs::write(one.path().join(name), vec![1; 1 << 20]).unwrap();
            fs::File::open(one.path().join(name)).unwrap().sync_all().unwrap();
        }
        files.disk = vec![Layer { name: base, shared: true }, Layer::own(top)];

        let alone = measure(one.path(), &files);
        files.link_all(one.path(), two.path()).unwrap();
        let halves = measure(one.path(), &files) + measure(two.path(), &files);

        assert!(((1 << 20)..(1 << 20) + 65536).contains(&alone), "{alone}");
        assert_eq!(halves, alone);
        assert!(disk(one.path(), &files) >= 2 << 20, "a machine uses all of its disk, its template's part too");
    }
}
