//! From an image to the root file system of sandboxes.

mod finish;
mod shell;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{removexattr, syncfs};
use sandpiper_protocol::builder::{OUTPUT, UPLOADS};

use crate::buildah::Buildah;
use crate::failure::Failure;
use crate::image::Config;
use crate::inside::inside;

/// What the guest's init marks the root of a volume with once it was given to its user.
const GIVEN: &str = "trusted.sandpiper.given";

/// Writes the files of an image to [`OUTPUT`], with what a sandbox needs besides. They are on stable storage then.
///
/// # Errors
///
/// Fails if a sandbox could not run them, or the disk is too small.
pub(crate) fn write(buildah: &Buildah, image: &str, config: &Config) -> Result<(), Failure> {
    let container = buildah.output(["from", "--pull-never", &buildah.policy_option(), image])?;
    let written = buildah.output(["mount", &container]).and_then(|tree| write_tree(Path::new(&tree), config));
    let removed = buildah.output(["rm", &container]);
    written?;
    removed?;
    let synced = File::open(OUTPUT).and_then(|root| Ok(syncfs(&root)?));
    synced.map_err(|error| failed(&error))
}

fn write_tree(tree: &Path, config: &Config) -> Result<(), Failure> {
    check(tree, config)?;
    clear(Path::new(OUTPUT)).map_err(|error| failed(&error))?;
    copy(tree, Path::new(OUTPUT))?;
    let init = finish::Init::of_this_machine().map_err(|error| failed(&error))?;
    inside(Path::new(OUTPUT), || finish::finish(&init)).map_err(|error| failed(&error))?
}

/// Refuses a tree before it is copied.
fn check(tree: &Path, config: &Config) -> Result<(), Failure> {
    let checked = inside(tree, || {
        shell::check()?;
        finish::check_folders()?;
        config.user().map_or(Ok(()), finish::check_user)
    });
    checked.map_err(|error| failed(&error))?
}

/// Empties the new root: uploads have been used, and an image may have a folder of their name.
fn clear(output: &Path) -> io::Result<()> {
    match fs::remove_dir_all(UPLOADS) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    forget_volume(output)?;
    // What mkfs leaves.
    match fs::remove_dir(output.join("lost+found")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Takes off a root what it got when the guest's init mounted it.
pub(crate) fn forget_volume(root: &Path) -> io::Result<()> {
    match removexattr(root, GIVEN) {
        Ok(()) | Err(rustix::io::Errno::NODATA) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Copies a tree with owners, modes, times, links, extended attributes (capabilities and access lists among them). Blocks of
/// zeros become holes, as layers of images have none.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let copied =
        Command::new("cp").args(["-a", "--sparse=always"]).arg(from.join(".")).arg(to).env("LC_ALL", "C").output();
    let copied = copied.map_err(|error| failed(&error))?;
    if !copied.status.success() {
        let said = String::from_utf8_lossy(&copied.stderr);
        return Err(failed(&io::Error::other(said.lines().next().unwrap_or_default())));
    }
    // Who is not root has to get in.
    let mode = fs::metadata(to).map_err(|error| failed(&error))?.permissions().mode();
    fs::set_permissions(to, fs::Permissions::from_mode(mode | 0o755)).map_err(|error| failed(&error))
}

fn failed(error: &io::Error) -> Failure {
    Failure::host("The file system cannot be written", error)
}
