//! The files of one owner, by their names in its folder.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use sandpiper_durable as durable;
use serde::{Deserialize, Serialize};

use super::LayerError;

/// What a machine's disk and memory consist of, and its state where it was written down. Stands in records and manifests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// The root disk, bottom first.
    pub disk: Vec<Layer>,
    /// The memory image, bottom first; empty for a machine that was booted.
    pub memory: Vec<Layer>,
    /// Above it, bottom first, what checkpoints of the machine, which runs, have of its memory: for the next one, which then holds
    /// what was written since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub written: Vec<Layer>,
    /// Everything of the machine but disk and memory, in the monitor's own form: with it, these files are a snapshot that
    /// can be restored; without it, the guest has to be booted from the disk.
    pub state: Option<String>,
    /// Which pages a restore had better fetch at once.
    pub working_set: Option<String>,
    /// Whether the machine has a serial port.
    pub console: bool,
    /// Number of the next new file.
    next: u64,
}

/// A layer as one of its owners knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// File name in the owner's folder.
    pub name: String,
    /// It belongs to a template or a warm snapshot too: it is not counted with this owner while they are there, and no merge
    /// touches it.
    pub shared: bool,
}

/// What a new file is for: part of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Disk,
    Memory,
    State,
    WorkingSet,
}

impl Layer {
    /// A layer of the owner's own, or of its like.
    pub fn own(name: String) -> Self {
        Self { name, shared: false }
    }
}

impl Files {
    /// Those of a disk that nobody adds to under these names.
    pub fn of_disk(disk: Vec<Layer>) -> Self {
        Self { disk, ..Self::default() }
    }

    /// A name that no file of this owner has or had.
    pub fn new_name(&mut self, role: Role) -> String {
        let number = self.next;
        self.next += 1;
        match role {
            Role::Disk => format!("disk-{number}.layer"),
            Role::Memory => format!("memory-{number}.layer"),
            Role::State => format!("state-{number}"),
            Role::WorkingSet => format!("working-set-{number}"),
        }
    }

    /// Every name, each once.
    pub fn names(&self) -> BTreeSet<&str> {
        let layers = self.disk.iter().chain(&self.memory).chain(&self.written).map(|layer| layer.name.as_str());
        layers.chain(self.state.as_deref()).chain(self.working_set.as_deref()).collect()
    }

    /// Whether the machine can go on where it stopped.
    pub fn has_memory(&self) -> bool {
        self.state.is_some()
    }

    /// The disk alone, from which a guest can be booted.
    pub fn disk_only(&self) -> Self {
        Self { memory: Vec::new(), written: Vec::new(), state: None, working_set: None, console: false, ..self.clone() }
    }

    /// Notes that the memory of the machine, which runs, was written down in the layer `name`: above those that it was before, or
    /// in their place.
    pub fn note_written(&mut self, name: String, is_above: bool) {
        if !is_above {
            self.written.clear();
        }
        self.written.push(Layer::own(name));
    }

    /// The machine as it was last written down, with this state.
    pub fn written_down(mut self, state: String) -> Self {
        self.memory.append(&mut self.written);
        self.state = Some(state);
        self
    }

    /// Every layer marked as one that does not belong to its owners alone.
    pub fn shared(mut self) -> Self {
        for layer in self.disk.iter_mut().chain(&mut self.memory) {
            layer.shared = true;
        }
        self
    }

    /// Links the layers, under the same names, from folder `from` into folder `to`. Blocks.
    ///
    /// # Errors
    /// [`LayerError::Link`] of the first that cannot be linked; those before it are.
    pub fn link_layers(&self, from: &Path, to: &Path) -> Result<(), LayerError> {
        self.disk.iter().chain(&self.memory).try_for_each(|layer| link(&from.join(&layer.name), &to.join(&layer.name)))
    }

    /// Links every file, under the same name, from folder `from` into folder `to`. Blocks.
    ///
    /// # Errors
    /// [`LayerError::Link`] of the first that cannot be linked; those before it are.
    pub fn link_all(&self, from: &Path, to: &Path) -> Result<(), LayerError> {
        self.names().into_iter().try_for_each(|name| link(&from.join(name), &to.join(name)))
    }

    /// Puts what was written to these files, and their entries in `folder`, on stable storage. Files that belong to a
    /// template or a warm snapshot are there already. Blocks.
    ///
    /// # Errors
    /// Of the first file that cannot be opened or synced, or of the folder.
    pub fn sync(&self, folder: &Path) -> io::Result<()> {
        let own = self.disk.iter().chain(&self.memory).filter(|layer| !layer.shared).map(|layer| layer.name.as_str());
        for name in own.chain(self.state.as_deref()).chain(self.working_set.as_deref()) {
            File::open(folder.join(name))?.sync_data()?;
        }
        File::open(folder)?.sync_all()
    }

    /// Removes from `folder` every layer, state and working set that is not in this list. Other files are left alone.
    /// Blocks.
    ///
    /// # Errors
    /// Where the folder cannot be read, or of the first file that cannot be removed.
    pub fn remove_others(&self, folder: &Path) -> io::Result<()> {
        let names = self.names();
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            if is_ours(name) && !names.contains(name) {
                durable::remove_file(&folder.join(name))?;
            }
        }
        Ok(())
    }

    /// Takes the layer `lower` out, if `upper` is the one right above it: after a merge the upper one holds both.
    pub fn absorb(&mut self, lower: &str, upper: &str) -> bool {
        for layers in [&mut self.disk, &mut self.memory] {
            let position = layers.windows(2).position(|pair| pair[0].name == lower && pair[1].name == upper);
            if let Some(position) = position {
                layers.remove(position);
                return true;
            }
        }
        false
    }
}

/// Makes `to` another name of the file `from`. Blocks.
///
/// # Errors
/// [`LayerError::Link`], also where `to` is there already.
pub fn link(from: &Path, to: &Path) -> Result<(), LayerError> {
    fs::hard_link(from, to).map_err(|source| LayerError::Link { from: from.to_owned(), to: to.to_owned(), source })
}

fn is_ours(name: &str) -> bool {
    ["disk-", "memory-", "state-", "working-set-"].iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn snapshot(folder: &Path) -> Files {
        let mut files = Files::default();
        let (base, top) = (files.new_name(Role::Disk), files.new_name(Role::Disk));
        files.disk = vec![Layer { name: base, shared: true }, Layer::own(top)];
        files.memory = vec![Layer::own(files.new_name(Role::Memory))];
        files.state = Some(files.new_name(Role::State));
        for name in files.names() {
            fs::write(folder.join(name), name).unwrap();
        }
        files
    }

    #[test]
    fn names_are_never_given_twice() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = snapshot(folder.path());
        let saved = serde_json::to_string(&files).unwrap();
        let mut loaded: Files = serde_json::from_str(&saved).unwrap();
        assert_eq!(files.new_name(Role::Disk), loaded.new_name(Role::Disk));
        assert_eq!(files.names().len(), 4);
        assert!(!files.names().contains("disk-4.layer"));
    }

    #[test]
    fn a_file_lives_as_long_as_one_of_its_owners() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = snapshot(one.path());

        files.link_all(one.path(), two.path()).unwrap();

        let inode = |folder: &Path| fs::metadata(folder.join("disk-1.layer")).unwrap().ino();
        assert_eq!(inode(one.path()), inode(two.path()));
        one.close().unwrap();
        files.sync(two.path()).unwrap();
        assert_eq!(fs::read(two.path().join("memory-2.layer")).unwrap(), b"memory-2.layer");
    }

    #[test]
    fn what_the_list_does_not_name_is_removed_and_foreign_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let files = snapshot(folder.path());
        for name in ["disk-9.layer", "state-7", "record.json"] {
            fs::write(folder.path().join(name), b"").unwrap();
        }

        files.remove_others(folder.path()).unwrap();

        let left: BTreeSet<_> =
            fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        let mut expected: BTreeSet<_> = files.names().into_iter().map(str::to_owned).collect();
        expected.insert("record.json".into());
        assert_eq!(left, expected);
    }

    #[test]
    fn only_a_layer_right_below_is_absorbed() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = snapshot(folder.path());
        assert!(!files.absorb("disk-1.layer", "disk-0.layer"));
        assert!(!files.absorb("disk-1.layer", "memory-2.layer"));
        assert!(files.absorb("disk-0.layer", "disk-1.layer"));
        assert_eq!(files.disk, [Layer::own("disk-1.layer".into())]);
    }

    #[test]
    fn what_a_machine_was_written_down_in_is_memory_of_its_checkpoints_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = snapshot(folder.path());
        files.state = None;
        for (name, is_above) in [("memory-7", true), ("memory-8", false), ("memory-9", true)] {
            files.note_written(name.into(), is_above);
        }
        let names = |layers: &[Layer]| layers.iter().map(|layer| layer.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&files.written), ["memory-8", "memory-9"]);
        assert!(files.names().contains("memory-8") && !files.names().contains("memory-7"));
        assert_eq!(names(&files.memory), ["memory-2.layer"]);

        let checkpoint = files.clone().written_down("state-10".into());
        assert_eq!(names(&checkpoint.memory), ["memory-2.layer", "memory-8", "memory-9"]);
        assert!(checkpoint.written.is_empty() && checkpoint.has_memory());
        assert!(files.disk_only().written.is_empty());
    }

    #[test]
    fn a_disk_alone_is_no_machine() {
        let folder = tempfile::tempdir().unwrap();
        let files = snapshot(folder.path());
        assert!(files.has_memory());
        let disk = files.disk_only();
        assert!(!disk.has_memory() && disk.memory.is_empty());
        assert_eq!(disk.disk, files.disk);
        assert!(files.shared().disk.iter().all(|layer| layer.shared));
    }
}
