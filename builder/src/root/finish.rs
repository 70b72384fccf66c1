//! What a sandbox's root file system needs besides an image's files: the guest's first process, folders to mount on, users.
//!
//! All of it is done in the new root, as the root folder of the thread.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use crate::failure::{Failure, is_full};

/// The first process, by the name that the kernel is told.
const INIT: &str = "/sbin/sandpiper-init";

/// Its other names, by which it is asked to end the machine. What an image has there itself stays.
const NAMES: [&str; 4] = ["init", "poweroff", "halt", "reboot"];

/// Folders that the first process mounts on, and one that it writes to.
const FOLDERS: [&str; 5] = ["/dev", "/proc", "/sys", "/run", "/etc"];

/// Files of users and groups.
const USERS: [&str; 3] = ["/etc/passwd", "/etc/group", "/etc/shadow"];

/// Bytes of such a file: it is read into memory.
const MAX_USERS: u64 = 4 << 20;

/// The first process of this machine, which is that of sandboxes too.
pub(super) struct Init(Vec<u8>);

impl Init {
    pub(super) fn of_this_machine() -> io::Result<Self> {
        Ok(Self(fs::read(INIT)?))
    }
}

/// Refuses a tree in which something is in the way of what a guest mounts or reads.
///
/// # Errors
///
/// Fails if one of the folders, or of the files of users, is something else, or if the first process cannot be put where it is
/// started from.
pub(super) fn check_kinds() -> Result<(), Failure> {
    for folder in FOLDERS {
        if fs::symlink_metadata(folder).is_ok_and(|meta| !meta.is_dir()) {
            return Err(Failure::SourceRefused(format!(
                "{folder} of the image is no folder, and a sandbox needs it as one: remove it"
            )));
        }
    }
    // These may be links, and to where nothing is yet.
    for folder in ["/tmp", "/sbin"] {
        let target = fs::read_link(folder).map_or_else(|_| folder.into(), |target| Path::new("/").join(target));
        let is_in_the_way = |place: &Path| match fs::metadata(place) {
            Ok(meta) => !meta.is_dir(),
            Err(error) => rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::LOOP),
        };
        if is_in_the_way(Path::new(folder)) || target.ancestors().any(is_in_the_way) {
            return Err(Failure::SourceRefused(format!(
                "{folder} of the image is no folder and leads to none, and a sandbox needs it as one: remove it"
            )));
        }
    }
    if fs::symlink_metadata(INIT).is_ok_and(|meta| meta.is_dir()) {
        return Err(Failure::SourceRefused(format!(
            "{INIT} of the image is a folder, and a sandbox's first process has that name: remove it"
        )));
    }
    check_users()
}

/// Refuses files of users that are none, or that are too large to be read.
///
/// # Errors
///
/// Fails if there is such a file.
pub(super) fn check_users() -> Result<(), Failure> {
    for file in USERS {
        let Ok(meta) = fs::metadata(file) else { continue };
        if !meta.is_file() {
            return Err(Failure::SourceRefused(format!(
                "{file} of the image is no file, and a sandbox needs it as one: remove it"
            )));
        }
        if meta.len() > MAX_USERS {
            return Err(Failure::SourceRefused(format!(
                "{file} of the image has more than {} MiB: remove what is not of users",
                MAX_USERS >> 20
            )));
        }
    }
    Ok(())
}

/// Refuses a user whom nobody could become.
///
/// # Errors
///
/// Fails if the image's database has no such user or group; a number needs no entry.
pub(super) fn check_user(user: &str) -> Result<(), Failure> {
    let (name, group) = user.split_once(':').map_or((user, None), |(name, group)| (name, Some(group)));
    let parts = [("user", "/etc/passwd", Some(name)), ("group", "/etc/group", group)];
    for (what, file, name) in parts {
        let Some(name) = name.filter(|name| !name.is_empty() && name.parse::<u32>().is_err()) else { continue };
        let entries = fs::read(file).unwrap_or_default();
        let entries = String::from_utf8_lossy(&entries);
        if !entries.lines().any(|line| line.split(':').next() == Some(name)) {
            return Err(Failure::SourceRefused(format!(
                "The image's programs are to run as the {what} {name:?}, whom its {file} does not have: add it, or name another"
            )));
        }
    }
    Ok(())
}

/// Completes the root, for programs that start in `workdir`.
///
/// # Errors
///
/// Fails if it cannot be written.
pub(super) fn finish(init: &Init, workdir: Option<&str>) -> Result<(), Failure> {
    let work = || {
        for folder in FOLDERS {
            make_folder(folder, 0o755)?;
        }
        make_folder("/tmp", 0o1777)?;
        if let Some(folder) = workdir {
            make_workdir(folder)?;
        }
        put_init(init)?;
        sandpiper_init::ensure_users(Path::new("/"))
    };
    work().map_err(|error| Failure::host("What a sandbox needs cannot be added to the file system", &error))
}

fn make_folder(path: &str, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        // The mask of this program would take from it.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the folder of a `WORKDIR` behind which nothing was run, so that nobody has made it yet. One that cannot be is left out:
/// programs start in `/` then.
fn make_workdir(folder: &str) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(0o755).create(folder) {
        Err(error) if is_full(&error.to_string()) => Err(error),
        _ => Ok(()),
    }
}

fn put_init(init: &Init) -> io::Result<()> {
    // `/sbin` may be a link, as on most distributions; what it leads to may be missing.
    let folder = Path::new("/sbin");
    let folder = fs::read_link(folder).map_or_else(|_| folder.to_owned(), |target| Path::new("/").join(target));
    DirBuilder::new().recursive(true).mode(0o755).create(&folder)?;
    // An image that was a sandbox's has one, which may be older.
    match fs::remove_file(INIT) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(INIT)?;
    file.write_all(&init.0)?;
    file.set_permissions(Permissions::from_mode(0o755))?;
    for name in NAMES {
        match symlink("sandpiper-init", folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::inside;
    use tempfile::TempDir;

    fn finished(prepare: impl FnOnce(&Path)) -> TempDir {
        let tree = tempfile::tempdir().unwrap();
        prepare(tree.path());
        inside(tree.path(), || finish(&Init(b"init".to_vec()), Some("/srv/app"))).unwrap().unwrap();
        tree
    }

    #[test]
    fn an_empty_tree_becomes_a_root_and_a_second_time_changes_nothing() {
        let tree = finished(|_| ());
        let passwd = fs::read_to_string(tree.path().join("etc/passwd")).unwrap();
        inside(tree.path(), || finish(&Init(b"newer".to_vec()), Some("/srv/app"))).unwrap().unwrap();

        assert_eq!(passwd, "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n");
        assert_eq!(fs::read_to_string(tree.path().join("etc/passwd")).unwrap(), passwd);
        assert_eq!(fs::read(tree.path().join("sbin/sandpiper-init")).unwrap(), b"newer");
        assert_eq!(fs::metadata(tree.path().join("sbin/sandpiper-init")).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(fs::metadata(tree.path().join("tmp")).unwrap().permissions().mode() & 0o7777, 0o1777);
        assert!(tree.path().join("sbin/poweroff").is_symlink() && tree.path().join("proc").is_dir());
        assert!(tree.path().join("srv/app").is_dir());
    }

    #[test]
    fn links_of_the_tree_lead_within_it_and_its_own_programs_stay() {
        let outside = tempfile::tempdir().unwrap();
        let tree = finished(|tree| {
            symlink(outside.path().join("usr/sbin"), tree.join("sbin")).unwrap();
            let folder = tree.join(outside.path().strip_prefix("/").unwrap()).join("usr/sbin");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("poweroff"), "own").unwrap();
        });

        let folder = tree.path().join(outside.path().strip_prefix("/").unwrap()).join("usr/sbin");
        assert_eq!(fs::read(folder.join("sandpiper-init")).unwrap(), b"init");
        assert_eq!(fs::read(folder.join("poweroff")).unwrap(), b"own");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_user_of_the_image_is_in_its_database_or_a_number() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir(tree.path().join("etc")).unwrap();
        fs::write(tree.path().join("etc/passwd"), "app:x:7:7::/:/bin/sh\n").unwrap();
        let is_good = |user: &str| inside(tree.path(), || check_user(user).is_ok()).unwrap();

        assert!(is_good("app") && is_good("1001") && is_good("app:12") && is_good("1001:0"));
        assert!(!is_good("web") && !is_good("app:web"));
    }

    #[test]
    fn what_is_in_the_way_of_the_first_process_or_of_users_is_named() {
        let refused = |prepare: &dyn Fn(&Path)| {
            let tree = tempfile::tempdir().unwrap();
            prepare(tree.path());
            inside(tree.path(), check_kinds).unwrap().unwrap_err().to_string()
        };
        let fifo = |path: &Path| assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());

        assert!(refused(&|tree| fs::write(tree.join("sbin"), "").unwrap()).contains("/sbin of"));
        assert!(refused(&|tree| fs::write(tree.join("tmp"), "").unwrap()).contains("/tmp of"));
        assert!(refused(&|tree| symlink("sbin", tree.join("sbin")).unwrap()).contains("/sbin of"));
        assert!(
            refused(&|tree| {
                fs::write(tree.join("usr"), "").unwrap();
                symlink("usr/sbin", tree.join("sbin")).unwrap();
            })
            .contains("/sbin of")
        );
        assert!(
            refused(&|tree| fs::create_dir_all(tree.join("sbin/sandpiper-init")).unwrap()).contains("sandpiper-init")
        );
        assert!(
            refused(&|tree| {
                fs::create_dir(tree.join("etc")).unwrap();
                fifo(&tree.join("etc/passwd"));
            })
            .contains("/etc/passwd of the image is no file")
        );
        assert!(
            refused(&|tree| {
                fs::create_dir(tree.join("etc")).unwrap();
                fs::File::create(tree.join("etc/group")).unwrap().set_len(1 << 40).unwrap();
            })
            .contains("/etc/group of the image has more than")
        );
    }

    #[test]
    fn what_is_in_the_way_of_a_mount_is_named() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("proc"), "").unwrap();
        let refused = inside(tree.path(), check_kinds).unwrap().unwrap_err();
        assert!(refused.to_string().contains("/proc"), "{refused}");
    }
}
