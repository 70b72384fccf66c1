//! With real file systems on loop devices, each test in a mount namespace of its own. They need root, and loop devices.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use sandpiper_protocol::guest::GuestMount;
use tempfile::TempDir;

use super::*;

const OWNER: Owner = Owner { uid: 1000, gid: 1000 };

/// Disks with files of their own, each with a file system of a new volume, and a folder to mount them in.
struct Disks {
    slots: Slots,
    nodes: Vec<String>,
    folder: TempDir,
    table: Table,
}

impl Disks {
    fn new(count: usize) -> Self {
        unshare(CloneFlags::CLONE_NEWNS).expect("root may");
        let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
        mount(none, "/", none, private, none).expect("what is mounted here is mounted nowhere else");
        let folder = tempfile::tempdir().unwrap();
        let nodes: Vec<String> = (0..count).map(|slot| disk(&folder.path().join(format!("disk{slot}")))).collect();
        let slots = Slots::of_nodes(nodes.iter().map(PathBuf::from).collect());
        Self { slots, nodes, folder, table: Table { owner: OWNER, ..Table::default() } }
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Mounts the disks of these slots at names in the folder.
    fn mount(&mut self, mounts: &[(u8, &str)]) -> Result<(), VolumeError> {
        let mounts: Vec<_> =
            mounts.iter().map(|(slot, name)| GuestMount { slot: *slot, path: self.at(name) }).collect();
        self.table.put_back();
        self.table.mount(&self.slots, &mounts)
    }

    fn unmount(&mut self, force: bool) -> Result<Vec<u8>, VolumeError> {
        self.table.unmount(force, || false)
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        let _ = self.unmount(true);
        self.table.put_back();
        for node in &self.nodes {
            release(node);
        }
    }
}

/// A loop device with an empty file system.
fn disk(file: &Path) -> String {
    File::create(file).unwrap().set_len(64 << 20).unwrap();
    let text = file.to_str().unwrap();
    output("losetup", &["--find", "--show", text], |device| {
        output("mkfs.ext4", &[&format::OPTIONS[..], &["volume", device]].concat(), |_| device.to_owned())
    })
}

/// Takes the file from a loop device.
fn release(node: &str) {
    const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
    let device = File::open(node).unwrap();
    // SAFETY: the request takes no argument.
    unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD, 0) };
}

fn output<T>(program: &str, arguments: &[&str], then: impl FnOnce(&str) -> T) -> T {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    then(String::from_utf8(output.stdout).unwrap().trim())
}

/// A process that sleeps in `folder`, of this thread's namespaces.
fn sleeper(folder: &str) -> Child {
    Command::new("sleep").arg("1000").current_dir(folder).stdout(Stdio::null()).process_group(0).spawn().unwrap()
}

fn end(mut process: Child) {
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn a_new_volume_is_the_users_and_what_is_done_to_its_root_later_stays() {
    let mut disks = Disks::new(1);
    let root = disks.at("made/here");

    disks.mount(&[(0, "made/here")]).unwrap();
    let meta = fs::metadata(&root).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1000, 1000, 0o755));
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "a database takes it for an empty folder");
    assert_eq!(fs::metadata(disks.at("made")).unwrap().uid(), 1000);
    std::os::unix::fs::chown(&root, Some(7), Some(8)).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(disks.unmount(false).unwrap(), [] as [u8; 0]);
    disks.mount(&[(0, "made/here")]).unwrap();

    let meta = fs::metadata(&root).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (7, 8, 0o700));
    let options = output("findmnt", &["-no", "OPTIONS", &root], str::to_owned);
    for option in ["nosuid", "nodev", "discard"] {
        assert!(options.split(',').any(|one| one == option), "{option}: {options}");
    }
}

#[test]
fn a_volume_in_a_volume_is_mounted_after_it_and_unmounted_before_it() {
    let mut disks = Disks::new(2);

    disks.mount(&[(1, "data/inner"), (0, "data")]).unwrap();
    fs::write(disks.at("data/inner/file"), "inner").unwrap();
    disks.unmount(false).unwrap();
    disks.mount(&[(0, "data")]).unwrap();
    assert_eq!(fs::read_dir(disks.at("data/inner")).unwrap().count(), 0, "it is a folder of the outer volume");
    disks.mount(&[(0, "data"), (1, "data/inner")]).unwrap();

    assert_eq!(fs::read_to_string(disks.at("data/inner/file")).unwrap(), "inner");
}

#[test]
fn a_volume_in_use_stays_as_it_is_with_all_others_and_its_user_is_named() {
    let mut disks = Disks::new(2);
    disks.mount(&[(0, "busy"), (1, "idle")]).unwrap();
    let process = sleeper(&disks.at("busy"));

    let refused = disks.unmount(false).unwrap_err().to_string();
    fs::write(disks.at("idle/file"), "still there").unwrap();
    let named = format!("sleep (process {})", process.id());
    end(process);
    let unmounted = disks.unmount(false);

    assert!(refused.contains("/busy is in use by") && refused.contains(&named), "{refused}");
    assert!(unmounted.is_ok(), "{unmounted:?}");
    disks.mount(&[(0, "busy"), (1, "idle")]).unwrap();
    assert_eq!(fs::read_to_string(disks.at("idle/file")).unwrap(), "still there");
}

#[test]
fn volumes_that_take_too_long_to_be_written_out_stay_mounted() {
    let mut disks = Disks::new(1);
    disks.mount(&[(0, "data")]).unwrap();
    for force in [false, true] {
        let refused = disks.table.unmount(force, || true).unwrap_err();
        assert!(matches!(refused, VolumeError::Slow), "{refused}");
        fs::write(disks.at("data/file"), "still there").unwrap();
    }
    disks.unmount(false).unwrap();
    disks.mount(&[(0, "data")]).unwrap();
    assert_eq!(fs::read_to_string(disks.at("data/file")).unwrap(), "still there");
}

#[test]
fn a_volume_that_is_forced_away_is_clean_and_its_slot_held_until_its_user_has_ended() {
    let mut disks = Disks::new(1);
    disks.mount(&[(0, "data")]).unwrap();
    let mut open = File::create(disks.at("data/file")).unwrap();
    io::Write::write_all(&mut open, b"written, not synced").unwrap();

    let held = disks.unmount(true).unwrap();
    let state = output("dumpe2fs", &["-h", &disks.nodes[0]], str::to_owned);
    let refused = disks.mount(&[(0, "data")]).unwrap_err();
    let failed = io::Write::write_all(&mut open, &[0; 4096]).unwrap_err();
    drop(open);
    disks.mount(&[(0, "data")]).unwrap();

    assert_eq!(held, [0]);
    assert!(!state.contains("needs_recovery"), "{state}");
    assert!(matches!(refused, VolumeError::Held(0)), "{refused}");
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read_to_string(disks.at("data/file")).unwrap(), "written, not synced");
}

#[test]
fn a_volume_that_is_mounted_a_second_time_is_busy_and_can_be_forced_away() {
    let mut disks = Disks::new(1);
    disks.mount(&[(0, "data")]).unwrap();
    fs::create_dir(disks.at("second")).unwrap();
    let (from, to) = (disks.at("data"), disks.at("second"));
    mount(Some(from.as_str()), to.as_str(), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();

    let refused = disks.unmount(false).unwrap_err();
    let is_mounted = fs::write(disks.at("data/file"), "there").is_ok();
    let held = disks.unmount(true).unwrap();

    assert!(matches!(refused, VolumeError::Busy { .. }), "{refused}");
    assert!(is_mounted);
    assert_eq!(held, [] as [u8; 0]);
}

#[test]
fn nobody_writes_where_a_volume_is_away() {
    let mut disks = Disks::new(1);
    disks.mount(&[(0, "data")]).unwrap();
    disks.unmount(false).unwrap();

    let lost = fs::write(disks.at("data/file"), "lost").unwrap_err();
    disks.table.put_back();

    assert_eq!(lost.kind(), io::ErrorKind::ReadOnlyFilesystem);
    fs::write(disks.at("data/file"), "an ordinary folder").unwrap();
}

#[test]
fn a_link_in_the_path_is_not_followed_and_nothing_of_the_message_stays() {
    let mut disks = Disks::new(2);
    fs::create_dir(disks.at("target")).unwrap();
    symlink(disks.at("target"), disks.at("z-link")).unwrap();

    let refused = disks.mount(&[(0, "data"), (1, "z-link/inner")]).unwrap_err().to_string();

    assert!(refused.contains("a symbolic link is in it"), "{refused}");
    assert_eq!(fs::read_dir(disks.at("target")).unwrap().count(), 0);
    assert!(disks.table.mounted.is_empty());
    assert!(disks.unmount(false).unwrap().is_empty());
    disks.mount(&[(0, "data")]).unwrap();
}

#[test]
fn places_that_no_volume_may_have_are_refused() {
    let mut disks = Disks::new(1);
    for path in ["/", "/proc/1", "/run/sandpiper", "/usr", "/data/../etc"] {
        let refused = disks.table.mount(&disks.slots, &[GuestMount { slot: 0, path: path.to_owned() }]).unwrap_err();
        assert!(matches!(refused, VolumeError::Path { .. }), "{path}: {refused}");
    }
    let missing = disks.mount(&[(4, "data")]).unwrap_err();
    assert!(matches!(missing, VolumeError::NoSlot(4)), "{missing}");
    let twice = disks.mount(&[(0, "a"), (0, "b")]).unwrap_err();
    assert!(matches!(twice, VolumeError::Taken(0)), "{twice}");
    assert!(disks.table.mounted.is_empty());
}

#[test]
fn what_is_no_file_system_is_called_damaged() {
    let mut disks = Disks::new(1);
    fs::write(disks.folder.path().join("disk0"), vec![0x5a; 1 << 20]).unwrap();
    File::options().write(true).open(disks.folder.path().join("disk0")).unwrap().set_len(64 << 20).unwrap();

    let refused = disks.mount(&[(0, "data")]).unwrap_err();

    assert!(refused.to_string().starts_with(DAMAGED_VOLUME), "{refused}");
}

#[tokio::test]
async fn a_new_disk_gets_a_file_system_that_takes_next_to_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    File::create(&file).unwrap().set_len(10 << 30).unwrap();
    let node = output("losetup", &["--find", "--show", file.to_str().unwrap()], str::to_owned);
    crate::reap::start().unwrap();
    let volumes = Volumes::new(Slots::of_nodes(vec![node.clone().into()]));

    let formatted = volumes.format(0).await;
    let absent = volumes.format(1).await.unwrap_err();
    let own = fs::metadata(&file).unwrap().blocks() * 512;
    release(&node);

    assert!(formatted.is_ok(), "{formatted:?}");
    assert!(matches!(absent, VolumeError::NoSlot(1)), "{absent}");
    assert!(own < 8 << 20, "{own} bytes");
}
