//! How much of the host's disk each owner of layers is to be charged with.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Files;

/// Unit of `st_blocks`, whatever the file system's own block.
const SECTOR: u64 = 512;

/// Somebody who has files.
#[derive(Debug, Clone)]
pub struct Holder {
    pub id: String,
    pub folder: PathBuf,
    pub files: Files,
    /// Its own files are the host's: here for every sandbox, and charged to nobody.
    pub is_hosts: bool,
}

/// One file, by all names that it has.
#[derive(Debug, Default)]
struct Counted {
    bytes: u64,
    /// Who have it as their own.
    owners: u64,
    /// Who have it of somebody else.
    sharers: u64,
    is_hosts: bool,
}

/// Bytes of the host's disk that each of `holders` is charged with. Of a file with several owners each has its share; who has it
/// of one of them has it for nothing, until none of them has it any more. Blocks.
pub fn measure(holders: &[Holder]) -> HashMap<String, u64> {
    let mut files: HashMap<u64, Counted> = HashMap::new();
    let mut held = Vec::new();
    for holder in holders {
        let layers = holder.files.disk.iter().chain(&holder.files.memory);
        let shared: Vec<&str> = layers.filter(|layer| layer.shared).map(|layer| layer.name.as_str()).collect();
        for name in holder.files.names() {
            // A file may go while we look; then it is nobody's.
            let Ok(metadata) = fs::metadata(holder.folder.join(name)) else { continue };
            let is_shared = shared.contains(&name);
            let file = files.entry(metadata.ino()).or_default();
            file.bytes = metadata.blocks() * SECTOR;
            match (holder.is_hosts, is_shared) {
                // What a warm snapshot has of a team's version is the team's.
                (true, true) => {}
                (true, false) => file.is_hosts = true,
                (false, true) => file.sharers += 1,
                (false, false) => file.owners += 1,
            }
            held.push((holder, metadata.ino(), is_shared));
        }
    }
    let mut charges: HashMap<String, u64> =
        holders.iter().filter(|holder| !holder.is_hosts).map(|holder| (holder.id.clone(), 0)).collect();
    for (holder, inode, is_shared) in held.into_iter().filter(|(holder, ..)| !holder.is_hosts) {
        let (Some(file), Some(charge)) = (files.get(&inode), charges.get_mut(&holder.id)) else { continue };
        *charge += match (is_shared, file.owners) {
            (false, owners) => file.bytes / owners.max(1),
            (true, 0) if !file.is_hosts => file.bytes / file.sharers.max(1),
            (true, _) => 0,
        };
    }
    charges
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
    fn a_file_of_two_owners_is_halved_and_a_templates_counts_for_nobody_while_it_is_there() {
        let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let mut files = Files::default();
        let (base, top) = (files.new_name(Role::Disk), files.new_name(Role::Disk));
        for name in [&base, &top] {
            fs::write(folders[0].path().join(name), vec![1; 1 << 20]).unwrap();
            fs::File::open(folders[0].path().join(name)).unwrap().sync_all().unwrap();
        }
        files.disk = vec![Layer { name: base.clone(), shared: true }, Layer::own(top)];
        let holder = |index: usize, files: &Files, is_hosts| Holder {
            id: index.to_string(),
            folder: folders[index].path().to_owned(),
            files: files.clone(),
            is_hosts,
        };
        let near = |bytes: u64, mib: u64| (mib << 20..(mib << 20) + 65536).contains(&bytes);
        let mut image = Files::default();
        image.disk = vec![Layer::own(base.clone())];
        fs::hard_link(folders[0].path().join(&base), folders[2].path().join(&base)).unwrap();

        let alone = measure(&[holder(0, &files, false), holder(2, &image, true)]);
        files.link_all(folders[0].path(), folders[1].path()).unwrap();
        let two = measure(&[holder(0, &files, false), holder(1, &files, false), holder(2, &image, true)]);
        let of_a_team = measure(&[holder(0, &files, false), holder(2, &image, false)]);
        let orphans = measure(&[holder(0, &files, false), holder(1, &files, false)]);

        assert!(near(alone["0"], 1) && !alone.contains_key("2"), "{alone:?}");
        assert_eq!((two["0"], two["1"]), (alone["0"] / 2, alone["0"] / 2));
        assert!(near(of_a_team["0"], 1) && near(of_a_team["2"], 1), "{of_a_team:?}");
        let mut warm = Files::default();
        warm.disk = vec![Layer { name: base.clone(), shared: true }];
        let beside_warm = measure(&[holder(0, &files, false), holder(1, &files, false), holder(2, &warm, true)]);

        assert_eq!(beside_warm, orphans, "a warm snapshot of a version takes over nothing of it");
        assert!(
            near(orphans["0"] + orphans["1"], 2),
            "what was of a template that is gone is whose it is now: {orphans:?}"
        );
        assert!(disk(folders[0].path(), &files) >= 2 << 20, "a machine uses all of its disk, its template's part too");
    }
}
