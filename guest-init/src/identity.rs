//! Applying what the host says a guest is. Sent with every link, so each step leaves alone what is right already.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use sandpiper_protocol::guest::{GENERATION_FILE, Init};

use crate::boot;
use crate::clock::HostTime;
use crate::log::Log;
use crate::network::{self, NetworkError};
use crate::timeline::Timeline;
use crate::volumes::VolumeError;

/// The sandbox's id and a newline, in the folder of [`GENERATION_FILE`].
const ID_FILE: &str = "id";

/// Bytes of entropy in a message.
const ENTROPY: usize = 32;

/// Why a guest cannot be what the host wants.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error("The host name {name:?} cannot be set: {source}")]
    HostName { name: String, source: io::Error },
    #[error("The clock cannot be set: {0}")]
    Clock(io::Error),
    #[error("The host's entropy cannot be used: {0}")]
    Entropy(io::Error),
    #[error("The network cannot be set up: {0}")]
    Network(NetworkError),
    #[error("The sandbox's id and generation cannot be written beside {GENERATION_FILE}: {0}")]
    Generation(io::Error),
    #[error("The root disk cannot be entered: {0}")]
    Root(io::Error),
    #[error("The users of the sandbox cannot be set up: {0}")]
    Users(io::Error),
    #[error("{0}")]
    Volumes(#[from] VolumeError),
}

/// Applies what of `init` a program must not meet as it was before. Blocks. Clock and entropy come first: nothing may make a
/// key or a time stamp before them.
pub(crate) fn apply(init: &Init, time: &HostTime, timeline: &Timeline) -> Result<(), IdentityError> {
    timeline.step("set the clock", || time.set()).map_err(IdentityError::Clock)?;
    timeline.step("take entropy", || add_entropy(&init.entropy)).map_err(IdentityError::Entropy)?;
    nix::unistd::sethostname(&init.hostname)
        .map_err(|error| IdentityError::HostName { name: init.hostname.clone(), source: error.into() })?;
    timeline.step("set up the network", || network::apply(init.network.as_ref())).map_err(IdentityError::Network)
}

/// Tells programs which generation this is. It comes last: who sees it change finds all else changed.
pub(crate) fn announce(init: &Init) -> Result<(), IdentityError> {
    write_generation(Path::new(GENERATION_FILE), init).map_err(IdentityError::Generation)
}

/// Enters the root disk, as a guest that has waited for one.
pub(crate) fn enter_disk(bytes: u64, log: &Log) -> Result<(), IdentityError> {
    for problem in boot::enter_disk(bytes).map_err(IdentityError::Root)? {
        log.warn(problem);
    }
    Ok(())
}

/// Adds the users that every sandbox has. Only a boot needs it: a restored guest has done it.
pub(crate) fn ensure_users() -> Result<(), IdentityError> {
    boot::ensure_users(Path::new("/")).map_err(IdentityError::Users)
}

/// Writes the host name where programs look that do not ask the kernel, and for sudo, which resolves its own host. A
/// template may have these files read-only or not at all, and a sandbox works without.
pub(crate) fn write_host_files(name: &str) {
    let _ = write_if_different(Path::new("/etc/hostname"), |_| format!("{name}\n"));
    let _ = write_if_different(Path::new("/etc/hosts"), |present| hosts(present, name));
}

/// Tells the guest's programs which sandbox this is and how often it was started; the folder is made if need be.
fn write_generation(path: &Path, init: &Init) -> io::Result<()> {
    match path.parent().map(|folder| DirBuilder::new().mode(0o755).create(folder)) {
        Some(Err(error)) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    write_if_different(&path.with_file_name(ID_FILE), |_| format!("{}\n", init.sandbox_id))?;
    write_if_different(path, |_| format!("{}\n", init.generation))
}

/// `struct rand_pool_info` of `linux/random.h`, with room for what is sent.
#[repr(C)]
struct RandPoolInfo {
    entropy_bits: i32,
    bytes: i32,
    buffer: [u8; ENTROPY],
}

/// `_IOW('R', 0x03, int[2])` and `_IO('R', 0x07)` of `linux/random.h`.
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

/// Mixes the host's bytes into the kernel's pool and has the generator take them at once, so that two clones of one
/// snapshot differ from here on.
fn add_entropy(hexadecimal: &str) -> io::Result<()> {
    let buffer = decode_entropy(hexadecimal)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not 32 bytes in hexadecimal"))?;
    let info = RandPoolInfo { entropy_bits: 256, bytes: 32, buffer };
    let random = File::open("/dev/urandom")?;
    // SAFETY: RNDADDENTROPY reads the two counts and then `bytes` bytes, all within `info`, a live local variable.
    if unsafe { libc::ioctl(random.as_raw_fd(), RNDADDENTROPY, &raw const info) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: RNDRESEEDCRNG takes no argument.
    if unsafe { libc::ioctl(random.as_raw_fd(), RNDRESEEDCRNG) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn decode_entropy(hexadecimal: &str) -> Option<[u8; ENTROPY]> {
    let digits = hexadecimal.as_bytes();
    if digits.len() != 2 * ENTROPY {
        return None;
    }
    let mut bytes = [0; ENTROPY];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// The text of `/etc/hosts` with one line for 127.0.0.1, ours; all others stay.
fn hosts(present: &str, name: &str) -> String {
    let mut text = format!("127.0.0.1 localhost {name}\n");
    for line in present.lines().filter(|line| line.split_whitespace().next() != Some("127.0.0.1")) {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// Replaces a file whose text is not what `text` makes of it.
pub(crate) fn write_if_different(path: &Path, text: impl FnOnce(&str) -> String) -> io::Result<()> {
    let present = fs::read(path).unwrap_or_default();
    let wanted = text(&String::from_utf8_lossy(&present));
    if present == wanted.as_bytes() {
        return Ok(());
    }
    let mode = fs::metadata(path).map_or(0o644, |meta| meta.permissions().mode() & 0o7777);
    boot::replace_file(path, &wanted, mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::template::ImageSettings;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_hosts_file_keeps_foreign_lines_and_is_stable() {
        let once = hosts("127.0.0.1\tlocalhost\n::1 ip6-localhost\n10.0.0.7 db\n", "sbx1");
        assert_eq!(once, "127.0.0.1 localhost sbx1\n::1 ip6-localhost\n10.0.0.7 db\n");
        assert_eq!(hosts(&once, "sbx1"), once);
        assert_eq!(hosts(&once, "sbx2"), "127.0.0.1 localhost sbx2\n::1 ip6-localhost\n10.0.0.7 db\n");
    }

    #[test]
    fn the_generation_is_replaced_when_it_differs_and_else_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sandpiper/generation");
        let init = |generation| Init {
            sandbox_id: "sbx1".into(),
            hostname: "sbx1".into(),
            unix_time_ns: 0,
            envs: [].into(),
            default_user: "user".into(),
            entropy: String::new(),
            generation,
            root_bytes: None,
            network: None,
            mounts: Vec::new(),
            serves_volume: false,
            settings: ImageSettings::default(),
            start: None,
            capture_output: false,
        };
        let inode = || fs::metadata(&path).unwrap().ino();

        write_generation(&path, &init(7)).unwrap();
        let first = inode();
        write_generation(&path, &init(7)).unwrap();
        assert_eq!(inode(), first);
        // Both exist for a moment, so the new file is another one.
        write_generation(&path, &init(8)).unwrap();

        assert_ne!(inode(), first);
        assert_eq!(fs::read_to_string(&path).unwrap(), "8\n");
        assert_eq!(fs::read_to_string(path.with_file_name("id")).unwrap(), "sbx1\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }

    #[test]
    fn entropy_is_exactly_32_bytes_of_hexadecimal() {
        assert_eq!(decode_entropy(&"0f".repeat(32)), Some([15; 32]));
        assert_eq!(decode_entropy(&"0f".repeat(31)), None);
        assert_eq!(decode_entropy(&"zz".repeat(32)), None);
        assert_eq!(decode_entropy(&"é".repeat(32)), None);
    }
}
