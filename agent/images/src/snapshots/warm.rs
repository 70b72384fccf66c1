//! The warm snapshots of this host: templates that have been booted already.
//!
//! A new sandbox of a template goes on from its warm snapshot instead of booting. A snapshot fits one shape of machine and
//! one host: its key names everything that it was made with, so that a new kernel, monitor or processor simply asks for
//! another one. It is made in the background, ahead or after the first create that would have liked it (`upkeep`).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::ids::TeamId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::trouble::Trouble;
use super::{FORMAT_VERSION, HIDDEN, OpenError, Snapshot};
use crate::templates::Template;

/// Bytes of the hash that make a key: as text it is a folder's name, above a socket whose path must not be long.
const KEY_BYTES: usize = 12;
/// How often it is written down that one is used: a start should not wait for the file system's journal.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// What a warm snapshot is made from.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub template: Template,
    pub cpu: u32,
    pub memory_mb: u32,
    pub disk_gib: u32,
}

/// What every machine of this host is made with.
#[derive(Debug, Clone)]
pub struct Platform {
    pub kernel: PathBuf,
    pub kernel_args: String,
    /// The monitor's program.
    pub monitor: PathBuf,
    /// Machines have a serial port.
    pub console: bool,
    /// Machines have a network.
    pub network: bool,
}

/// All warm snapshots.
#[derive(Debug)]
pub struct Warm {
    folder: PathBuf,
    platform: Platform,
    /// The processor and the host's kernel.
    host: String,
    /// Most that are kept.
    most: usize,
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    ready: HashMap<String, Entry>,
    /// By key, those that are being made.
    making: HashMap<String, Making>,
    trouble: HashMap<String, Trouble>,
}

#[derive(Debug)]
struct Making {
    version: String,
    team: Option<TeamId>,
    /// Nobody wants it any more.
    unwanted: bool,
}

#[derive(Debug)]
struct Entry {
    snapshot: Arc<Snapshot>,
    /// Whose version it is of; nobody's is the host's.
    team: Option<TeamId>,
    used: SystemTime,
    /// What its folder says of that.
    noted: SystemTime,
}

/// A warm snapshot, and where its files are.
#[derive(Debug, Clone)]
pub struct WarmSnapshot {
    pub key: String,
    pub folder: PathBuf,
    pub snapshot: Arc<Snapshot>,
    /// When it was looked for and found last, or made.
    pub used: SystemTime,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    #[serde(rename = "form")]
    format_version: u32,
    key: String,
    snapshot: Snapshot,
}

impl Warm {
    /// Opens the snapshots in `folder`, which exists, and removes those of templates that are gone: `template` finds the
    /// template of a version. Those that were made with another kernel or monitor stay while there is room, for both may
    /// come back; at most `most` do. Blocks.
    ///
    /// # Errors
    /// The folder cannot be read, or what an interrupted making left in it not removed.
    pub fn open(
        folder: &Path,
        platform: Platform,
        most: usize,
        template: impl Fn(&str) -> Option<Template>,
    ) -> Result<Self, OpenError> {
        let warm = Self { folder: folder.to_owned(), platform, host: host(), most, shelf: Mutex::default() };
        for (name, Manifest { key, snapshot, .. }) in super::load::<Manifest>(folder)? {
            let template = template(&snapshot.template_version).filter(|_| key == name);
            let path = folder.join(&name);
            if let Some(template) = template {
                let used = fs::metadata(&path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
                let entry = Entry { snapshot: Arc::new(snapshot), team: template.version.team, used, noted: used };
                warm.lock().ready.insert(key, entry);
            } else {
                tracing::info!(key = name, "removing a warm snapshot that no create will ask for");
                remove(&path);
            }
        }
        warm.evict();
        Ok(warm)
    }

    /// What a snapshot made now by this recipe would be called. Looks at the files of kernel and monitor, so it blocks.
    ///
    /// # Errors
    /// Where kernel or monitor cannot be looked at.
    pub fn key(&self, recipe: &Recipe) -> io::Result<String> {
        let Platform { kernel, kernel_args, monitor, console, network } = &self.platform;
        let mut hash = Sha256::new();
        let parts = [
            FORMAT_VERSION.to_string(),
            recipe.template.version.id.clone(),
            recipe.cpu.to_string(),
            recipe.memory_mb.to_string(),
            recipe.disk_gib.to_string(),
            identity(kernel)?,
            identity(monitor)?,
            kernel_args.clone(),
            console.to_string(),
            network.to_string(),
            self.host.clone(),
        ];
        for part in parts {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        Ok(hash.finalize().iter().take(KEY_BYTES).map(|byte| format!("{byte:02x}")).collect())
    }

    /// The snapshot of this key, and notes its use. Blocks.
    pub fn find(&self, key: &str) -> Option<WarmSnapshot> {
        let now = SystemTime::now();
        let (snapshot, is_noted) = {
            let mut shelf = self.lock();
            let entry = shelf.ready.get_mut(key)?;
            entry.used = now;
            let is_noted = now.duration_since(entry.noted).is_ok_and(|since| since < NOTE_EVERY);
            if !is_noted {
                entry.noted = now;
            }
            (Arc::clone(&entry.snapshot), is_noted)
        };
        let folder = self.folder.join(key);
        // For the next agent; the time is that of the folder.
        if !is_noted && let Err(error) = fs::File::open(&folder).and_then(|folder| folder.set_modified(now)) {
            tracing::debug!(key, %error, "cannot note the use of a warm snapshot");
        }
        Some(WarmSnapshot { key: key.to_owned(), folder, snapshot, used: now })
    }

    /// Whether the caller is the one to make the snapshot of this key, of this version. If so, [`Self::publish`] or
    /// [`Self::gave_up`] follows.
    pub fn begin(&self, key: &str, version: &TemplateVersion) -> bool {
        let now = Instant::now();
        let mut shelf = self.lock();
        let Shelf { ready, making, trouble } = &mut *shelf;
        trouble.retain(|key, trouble| ready.contains_key(key) || !trouble.is_past(now));
        let may = trouble.get(key).is_none_or(|trouble| trouble.may_retry(now));
        let begins = !ready.contains_key(key) && may && !making.contains_key(key);
        if begins {
            let making_of = Making { version: version.id.clone(), team: version.team.clone(), unwanted: false };
            making.insert(key.to_owned(), making_of);
        }
        begins
    }

    /// The snapshot was not made; `failed`: it is not tried again for a while.
    pub fn gave_up(&self, key: &str, failed: bool) {
        let mut shelf = self.lock();
        shelf.making.remove(key);
        if failed {
            shelf.trouble.entry(key.to_owned()).or_default().fail(Instant::now());
        }
    }

    /// A sandbox was started from it.
    pub fn worked(&self, key: &str) {
        self.lock().trouble.remove(key);
    }

    /// A start from it did not go well, and nothing says that its files are to blame; what was started in its place did.
    /// Blocks.
    pub fn strike(&self, key: &str) {
        if self.lock().trouble.entry(key.to_owned()).or_default().strike() {
            tracing::warn!(key, "removing a warm snapshot that failed to start several times in a row");
            self.discard(key);
        }
    }

    /// The folder in which the snapshot of this key is made.
    pub fn draft_folder(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{HIDDEN}{key}"))
    }

    /// The folder of a machine that tries it.
    pub fn trial_folder(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{HIDDEN}trial-{key}"))
    }

    /// Makes a filled and synced draft the snapshot of this key, and removes what is too many. Blocks.
    ///
    /// # Errors
    /// Where the manifest cannot be written, or the folder cannot be renamed; or its version was deleted meanwhile.
    pub fn publish(&self, draft: &Path, key: &str, snapshot: Snapshot) -> io::Result<()> {
        let folder = self.folder.join(key);
        let manifest = Manifest { format_version: FORMAT_VERSION, key: key.to_owned(), snapshot };
        super::publish(draft, &folder, &manifest)?;
        let mut shelf = self.lock();
        let wanted = shelf.making.remove(key).filter(|making| !making.unwanted);
        let is_wanted = wanted.is_some();
        if let Some(Making { team, .. }) = wanted {
            let now = SystemTime::now();
            let entry = Entry { snapshot: Arc::new(manifest.snapshot), team, used: now, noted: now };
            shelf.ready.insert(key.to_owned(), entry);
        }
        drop(shelf);
        if !is_wanted {
            remove(&folder);
            return Err(io::Error::new(io::ErrorKind::NotFound, "the version is gone"));
        }
        self.evict();
        Ok(())
    }

    /// Makes the snapshot of `key`, for `version`, of the one of `from`, whose version has the same disk and starts the same: its
    /// files are linked. False if there is no such snapshot, or that of `key` is there or being made. Blocks.
    ///
    /// # Errors
    /// As [`Self::publish`], and where a file cannot be linked; nothing is left then.
    pub fn adopt(&self, from: &str, key: &str, version: &TemplateVersion) -> io::Result<bool> {
        let Some(source) = self.find(from) else { return Ok(false) };
        if !self.begin(key, version) {
            return Ok(false);
        }
        let draft = self.draft_folder(key);
        let adopt = || {
            fs::DirBuilder::new().mode(0o700).create(&draft)?;
            source.snapshot.files.link_all(&source.folder, &draft).map_err(io::Error::other)?;
            fs::File::open(&draft)?.sync_all()?;
            let snapshot = Snapshot { template_version: version.id.clone(), ..Snapshot::clone(&source.snapshot) };
            self.publish(&draft, key, snapshot)
        };
        let adopted = adopt();
        if adopted.is_err() {
            self.gave_up(key, false);
            remove(&draft);
        }
        adopted.map(|()| true)
    }

    /// Removes every snapshot of a version that is gone, also one that is being made. Blocks.
    pub fn forget(&self, version: &str) {
        let mut shelf = self.lock();
        for making in shelf.making.values_mut().filter(|making| making.version == version) {
            making.unwanted = true;
        }
        let gone: Vec<_> =
            shelf.ready.extract_if(|_, entry| entry.snapshot.template_version == version).map(|(key, _)| key).collect();
        drop(shelf);
        for key in gone {
            remove(&self.folder.join(key));
        }
    }

    /// Throws away a snapshot that is of no use. It is made anew for the next create, if that is not soon after. Blocks.
    pub fn discard(&self, key: &str) {
        let mut shelf = self.lock();
        let found = shelf.ready.remove(key);
        shelf.trouble.entry(key.to_owned()).or_default().fail(Instant::now());
        drop(shelf);
        if found.is_some() {
            remove(&self.folder.join(key));
        }
    }

    /// All that can be started from.
    pub fn list(&self) -> Vec<WarmSnapshot> {
        let shelf = self.lock();
        let snapshots = shelf.ready.iter().map(|(key, entry)| WarmSnapshot {
            key: key.clone(),
            folder: self.folder.join(key),
            snapshot: Arc::clone(&entry.snapshot),
            used: entry.used,
        });
        snapshots.collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().ready.len()
    }

    /// Removes some while there are too many: of the team that has most, or of the host's, the one that was not used for longest.
    /// So nobody's new ones push out others'. Blocks.
    fn evict(&self) {
        loop {
            let oldest = {
                let mut shelf = self.lock();
                if shelf.ready.len() <= self.most {
                    return;
                }
                let mut counts: HashMap<Option<TeamId>, usize> = HashMap::new();
                for entry in shelf.ready.values() {
                    *counts.entry(entry.team.clone()).or_default() += 1;
                }
                let count = |entry: &Entry| counts.get(&entry.team).copied().unwrap_or_default();
                let most = counts.values().copied().max().unwrap_or_default();
                let of_most = shelf.ready.iter().filter(|(_, entry)| count(entry) == most);
                let oldest = of_most.min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
                let Some(oldest) = oldest else { return };
                shelf.ready.remove(&oldest);
                oldest
            };
            tracing::info!(key = oldest, "removing the warm snapshot that was not used for longest");
            remove(&self.folder.join(oldest));
        }
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sandboxes that were started from it have links of their own.
fn remove(folder: &Path) {
    if let Err(error) = super::retract(folder) {
        tracing::warn!(path = %folder.display(), %error, "cannot remove a warm snapshot");
    }
}

/// Which file is at `path` now: another one, or another content, has another identity.
fn identity(path: &Path) -> io::Result<String> {
    let data = fs::metadata(path)?;
    let numbers = [
        data.dev().to_string(),
        data.ino().to_string(),
        data.len().to_string(),
        data.mtime().to_string(),
        data.mtime_nsec().to_string(),
    ];
    Ok(numbers.join(":"))
}

/// The processor and the kernel of this machine: a snapshot of another one may hold what these cannot restore.
fn host() -> String {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let fields = ["vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags"];
    let first = processor.split("\n\n").next().unwrap_or_default();
    let mut host: Vec<&str> =
        first.lines().filter(|line| fields.contains(&line.split(':').next().unwrap_or_default().trim())).collect();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    host.push(&release);
    host.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Files, Layer, Role};
    use jiff::Timestamp;
    use sandpiper_protocol::agent::RuntimeBaseline;

    struct Host {
        folder: tempfile::TempDir,
        platform: Platform,
        most: usize,
    }

    impl Host {
        fn new(most: usize) -> Self {
            let folder = tempfile::tempdir().unwrap();
            for name in ["vmlinux", "monitor"] {
                fs::write(folder.path().join(name), name).unwrap();
            }
            fs::create_dir(folder.path().join("warm")).unwrap();
            let platform = Platform {
                kernel: folder.path().join("vmlinux"),
                kernel_args: String::new(),
                monitor: folder.path().join("monitor"),
                console: false,
                network: true,
            };
            Self { folder, platform, most }
        }

        fn open(&self) -> Warm {
            self.open_with(|id| Some(template(id)))
        }

        fn open_with(&self, template: impl Fn(&str) -> Option<Template>) -> Warm {
            Warm::open(&self.folder.path().join("warm"), self.platform.clone(), self.most, template).unwrap()
        }
    }

    fn template(id: &str) -> Template {
        let version = TemplateVersion {
            id: id.into(),
            slug: "base".into(),
            digest: String::new(),
            key: None,
            created_at: Timestamp::UNIX_EPOCH,
            baseline: RuntimeBaseline { cpu: 1, memory_mb: 256 },
            team: None,
            disk_gib: 0,
            settings: Default::default(),
            start: None,
            command: None,
            images: Default::default(),
            retained_bytes: 0,
        };
        Template { version, folder: PathBuf::new(), disk: Vec::new() }
    }

    fn version(id: &str) -> TemplateVersion {
        template(id).version
    }

    fn recipe(memory_mb: u32) -> Recipe {
        Recipe { template: template("ver1"), cpu: 1, memory_mb, disk_gib: 2 }
    }

    fn make(warm: &Warm, memory_mb: u32) -> String {
        make_of(warm, memory_mb, &version("ver1"))
    }

    fn make_of(warm: &Warm, memory_mb: u32, version: &TemplateVersion) -> String {
        let key = warm.key(&recipe(memory_mb)).unwrap();
        assert!(warm.begin(&key, version));
        let draft = warm.draft_folder(&key);
        fs::create_dir(&draft).unwrap();
        let mut files = Files::default();
        files.disk = vec![Layer::own(files.new_name(Role::Disk))];
        fs::write(draft.join("disk-0.layer"), b"layer").unwrap();
        warm.publish(&draft, &key, snapshot(memory_mb, files)).unwrap();
        key
    }

    fn snapshot(memory_mb: u32, files: Files) -> Snapshot {
        Snapshot {
            template_version: "ver1".into(),
            cpu: 1,
            memory_mb,
            disk_gib: 2,
            files,
            held_slots: Vec::new(),
            defaults: Default::default(),
            can_wait: false,
        }
    }

    #[test]
    fn a_snapshot_is_found_again_by_an_agent_that_would_make_the_same() {
        let host = Host::new(16);
        let key = make(&host.open(), 256);

        let reopened = host.open();
        let found = reopened.find(&key).unwrap();

        assert!(found.folder.join("disk-0.layer").exists());
        assert!(!reopened.begin(&key, &version("ver1")));
        assert!(reopened.find(&reopened.key(&recipe(512)).unwrap()).is_none());
    }

    #[test]
    fn a_snapshot_of_the_same_disk_is_taken_for_another_version_and_outlives_the_first() {
        let host = Host::new(16);
        let warm = host.open();
        let (from, other) = (make(&warm, 256), Recipe { template: template("ver2"), ..recipe(256) });
        let key = warm.key(&other).unwrap();

        assert!(!warm.adopt("none", &key, &other.template.version).unwrap());
        assert!(warm.adopt(&from, &key, &other.template.version).unwrap());
        assert!(!warm.adopt(&from, &key, &other.template.version).unwrap(), "it is there");

        warm.forget("ver1");
        for warm in [warm, host.open_with(|id| (id == "ver2").then(|| template(id)))] {
            let found = warm.find(&key).unwrap();
            assert_eq!((found.snapshot.template_version.as_str(), warm.count()), ("ver2", 1));
            assert_eq!(fs::read(found.folder.join("disk-0.layer")).unwrap(), b"layer");
        }
    }

    #[test]
    fn machines_with_and_without_a_network_have_different_snapshots() {
        let mut host = Host::new(16);
        let key = host.open().key(&recipe(256)).unwrap();

        host.platform.network = false;

        assert_ne!(host.open().key(&recipe(256)).unwrap(), key);
    }

    #[test]
    fn a_new_kernel_needs_new_snapshots_and_the_old_ones_stay_while_there_is_room() {
        let host = Host::new(2);
        let key = make(&host.open(), 256);
        fs::write(&host.platform.kernel, b"another kernel").unwrap();

        let reopened = host.open();

        assert_ne!(reopened.key(&recipe(256)).unwrap(), key);
        let newer = [256, 512].map(|memory_mb| {
            assert_eq!(reopened.count(), if memory_mb == 256 { 1 } else { 2 });
            make(&reopened, memory_mb)
        });
        assert!(reopened.find(&key).is_none() && newer.iter().all(|key| reopened.find(key).is_some()));
    }

    #[test]
    fn snapshots_of_a_template_that_is_gone_go() {
        let host = Host::new(16);
        make(&host.open(), 256);

        let reopened = host.open_with(|_| None);

        assert_eq!(reopened.count(), 0);
        assert_eq!(fs::read_dir(host.folder.path().join("warm")).unwrap().count(), 0);
    }

    #[test]
    fn snapshots_of_a_deleted_version_go_and_one_that_is_being_made_is_not_kept() {
        let host = Host::new(16);
        let warm = host.open();
        let key = make(&warm, 256);
        let making = warm.key(&recipe(512)).unwrap();
        assert!(warm.begin(&making, &version("ver1")));
        fs::create_dir(warm.draft_folder(&making)).unwrap();

        warm.forget("ver2");
        assert!(warm.find(&key).is_some());
        warm.forget("ver1");

        warm.publish(&warm.draft_folder(&making), &making, snapshot(512, Files::default())).unwrap_err();
        assert!(warm.find(&key).is_none() && warm.find(&making).is_none());
        assert_eq!(fs::read_dir(host.folder.path().join("warm")).unwrap().count(), 0);
    }

    #[test]
    fn the_least_recently_used_one_gives_way() {
        let host = Host::new(2);
        let warm = host.open();
        let keys = [make(&warm, 256), make(&warm, 512)];
        warm.find(&keys[0]).unwrap();

        let newest = make(&warm, 1024);

        assert!(warm.find(&keys[0]).is_some() && warm.find(&keys[1]).is_none() && warm.find(&newest).is_some());
        assert_eq!(warm.count(), 2);
    }

    #[test]
    fn its_folder_says_that_it_is_used_once_a_minute() {
        let host = Host::new(2);
        let key = make(&host.open(), 256);
        let folder = host.folder.path().join("warm").join(&key);
        let noted = || fs::metadata(&folder).unwrap().modified().unwrap();
        let find_after = |seconds: u64| {
            let before = SystemTime::now() - Duration::from_secs(seconds);
            fs::File::open(&folder).unwrap().set_modified(before).unwrap();
            host.open().find(&key).unwrap();
            noted().duration_since(before).unwrap()
        };

        assert_eq!(find_after(NOTE_EVERY.as_secs() - 10), Duration::ZERO);
        assert!(find_after(NOTE_EVERY.as_secs() + 1) >= NOTE_EVERY);
    }

    #[test]
    fn a_team_that_makes_many_pushes_out_its_own() {
        let host = Host::new(3);
        let warm = host.open();
        let of_team = |team: &str| TemplateVersion { team: Some(team.into()), ..version("ver1") };
        let others = [make(&warm, 256), make_of(&warm, 512, &of_team("team_b"))];

        let keys = [1024, 2048, 4096].map(|memory_mb| make_of(&warm, memory_mb, &of_team("team_a")));

        assert!(others.iter().all(|key| warm.find(key).is_some()));
        assert!(warm.find(&keys[2]).is_some() && warm.count() == 3);
    }

    #[test]
    fn what_failed_is_not_tried_again_at_once_and_nothing_is_made_twice() {
        let host = Host::new(2);
        let warm = host.open();
        assert!(warm.begin("one", &version("ver1")) && !warm.begin("one", &version("ver1")));
        warm.gave_up("one", false);
        assert!(warm.begin("one", &version("ver1")));
        warm.gave_up("one", true);
        assert!(!warm.begin("one", &version("ver1")));

        let key = make(&warm, 256);
        warm.discard(&key);
        assert!(warm.find(&key).is_none() && !warm.begin(&key, &version("ver1")));
    }

    #[test]
    fn a_snapshot_goes_when_it_did_not_start_three_times_in_a_row() {
        let host = Host::new(2);
        let warm = host.open();
        let key = make(&warm, 256);
        for _ in 0..3 {
            warm.strike(&key);
            warm.strike(&key);
            warm.worked(&key);
        }
        assert!(warm.find(&key).is_some());
        (0..3).for_each(|_| warm.strike(&key));
        assert!(warm.find(&key).is_none());
    }
}
