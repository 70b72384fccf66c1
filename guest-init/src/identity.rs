//! Applying what the host says a guest is. Sent with every link, so each step leaves alone what is right already.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};
use sandpiper_protocol::guest::Init;

use crate::boot;

/// A clock that differs by less than this is left alone: the message itself took some of it.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(10);

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
    #[error("The users of the sandbox cannot be set up: {0}")]
    Users(io::Error),
}

/// Applies everything of `init` that is the kernel's or a file's. Blocks. Clock and entropy come first: nothing may
/// make a key or a time stamp before them.
pub(crate) fn apply(init: &Init) -> Result<(), IdentityError> {
    set_clock(init.unix_time_ns).map_err(IdentityError::Clock)?;
    add_entropy(&init.entropy).map_err(IdentityError::Entropy)?;
    set_host_name(&init.hostname).map_err(|source| IdentityError::HostName { name: init.hostname.clone(), source })?;
    boot::ensure_users(Path::new("/")).map_err(IdentityError::Users)
}

fn set_clock(unix_time_ns: u64) -> io::Result<()> {
    let wanted = Duration::from_nanos(unix_time_ns);
    let present = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME)?);
    if wanted.abs_diff(present) > CLOCK_TOLERANCE {
        clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from(wanted))?;
    }
    Ok(())
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

fn set_host_name(name: &str) -> io::Result<()> {
    nix::unistd::sethostname(name)?;
    // Programs ask the kernel; the files are for those that look there, and for sudo, which resolves its own host.
    // A template may have them read-only or not at all, and a sandbox works without.
    let _ = write_if_different(Path::new("/etc/hostname"), |_| format!("{name}\n"));
    let _ = write_if_different(Path::new("/etc/hosts"), |present| hosts(present, name));
    Ok(())
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

fn write_if_different(path: &Path, text: impl FnOnce(&str) -> String) -> io::Result<()> {
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

    #[test]
    fn the_hosts_file_keeps_foreign_lines_and_is_stable() {
        let once = hosts("127.0.0.1\tlocalhost\n::1 ip6-localhost\n10.0.0.7 db\n", "sbx1");
        assert_eq!(once, "127.0.0.1 localhost sbx1\n::1 ip6-localhost\n10.0.0.7 db\n");
        assert_eq!(hosts(&once, "sbx1"), once);
        assert_eq!(hosts(&once, "sbx2"), "127.0.0.1 localhost sbx2\n::1 ip6-localhost\n10.0.0.7 db\n");
    }

    #[test]
    fn entropy_is_exactly_32_bytes_of_hexadecimal() {
        assert_eq!(decode_entropy(&"0f".repeat(32)), Some([15; 32]));
        assert_eq!(decode_entropy(&"0f".repeat(31)), None);
        assert_eq!(decode_entropy(&"zz".repeat(32)), None);
        assert_eq!(decode_entropy(&"é".repeat(32)), None);
    }
}
