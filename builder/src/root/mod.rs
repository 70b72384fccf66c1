//! From an image to the root file system of sandboxes.

mod finish;
mod shell;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};

use rustix::fs::{removexattr, syncfs};
use sandpiper_protocol::builder::{OUTPUT, UPLOADS};

use crate::cache::remove_tree;
use crate::failure::Failure;
use crate::image::Config;
use crate::inside::inside;
use crate::storage;

/// What the guest's init marks the root of a volume with once it was given to its user.
const GIVEN: &str = "trusted.sandpiper.given";

/// Bytes of what a program says of its failure.
const MAX_WORDS: u64 = 4096;

/// Writes the files of an image to [`OUTPUT`], with what a sandbox needs besides. They are on stable storage then.
///
/// # Errors
///
/// Fails if a sandbox could not run them, or the disk is too small.
pub(crate) fn write(image: &str, config: &Config) -> Result<(), Failure> {
    storage::with_tree(image, |tree| write_tree(tree, config)).map_err(|error| failed(&error))??;
    let synced = File::open(OUTPUT).and_then(|root| Ok(syncfs(&root)?));
    synced.map_err(|error| failed(&error))
}

fn write_tree(tree: &Path, config: &Config) -> Result<(), Failure> {
    check(tree, config)?;
    clear(Path::new(OUTPUT)).map_err(|error| failed(&error))?;
    copy(tree, Path::new(OUTPUT))?;
    let init = finish::Init::of_this_machine().map_err(|error| failed(&error))?;
    inside(Path::new(OUTPUT), || finish::finish(&init, config.workdir())).map_err(|error| failed(&error))?
}

/// Refuses a tree before it is copied.
fn check(tree: &Path, config: &Config) -> Result<(), Failure> {
    let checked = inside(tree, || {
        shell::check()?;
        finish::check_kinds()?;
        config.user().map_or(Ok(()), finish::check_user)
    });
    checked.map_err(|error| failed(&error))?
}

/// Refuses a tree whose files of users are none, or too large to be read.
///
/// # Errors
///
/// Fails for such a tree, or if it cannot be entered.
pub(crate) fn check_users(tree: &Path) -> Result<(), Failure> {
    inside(tree, finish::check_users).map_err(|error| failed(&error))?
}

/// Empties the new root: uploads have been used, and an image may have a folder of their name.
fn clear(output: &Path) -> io::Result<()> {
    remove_tree(Path::new(UPLOADS))?;
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
    let mut command = Command::new("cp");
    command.args(["-a", "--sparse=always"]).arg(from.join(".")).arg(to).env("LC_ALL", "C");
    run(&mut command).map_err(|error| failed(&error))?;
    // Who is not root has to get in.
    let mode = fs::metadata(to).map_err(|error| failed(&error))?.permissions().mode();
    fs::set_permissions(to, fs::Permissions::from_mode(mode | 0o755)).map_err(|error| failed(&error))
}

/// Runs a program that fails with the first line of what it says.
fn run(command: &mut Command) -> io::Result<()> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let said = child.stderr.take().map_or(Ok(String::new()), first_line);
    if child.wait()?.success() { Ok(()) } else { Err(io::Error::other(said?)) }
}

/// It may say something of each of a million files: the rest is read, and kept nowhere.
fn first_line(stream: ChildStderr) -> io::Result<String> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    (&mut stream).take(MAX_WORDS).read_until(b'\n', &mut line)?;
    io::copy(&mut stream, &mut io::sink())?;
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

fn failed(error: &io::Error) -> Failure {
    Failure::host("The file system cannot be written", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_program_says_of_its_failure_the_first_line_is_kept() {
        let script = "echo first >&2; i=0; while [ $i -lt 20000 ]; do echo another >&2; i=$((i+1)); done; exit 3";
        let error = run(Command::new("sh").args(["-c", script])).unwrap_err();
        assert_eq!(error.to_string(), "first");
        run(&mut Command::new("true")).unwrap();
    }
}
