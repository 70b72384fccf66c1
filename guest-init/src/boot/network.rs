//! The loopback device.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::Problem;

/// Of `linux/sockios.h`; libc gives it a type that its own `ioctl` takes with one C library only.
const SIOCSIFFLAGS: libc::Ioctl = 0x8914;

/// Brings `lo` up; the kernel then gives it 127.0.0.1 and ::1 by itself.
pub(super) fn bring_up_loopback(problems: &mut Vec<Problem>) {
    if let Err(error) = try_bring_up() {
        problems.push(format!("The loopback device stays down: {error}"));
    }
}

fn try_bring_up() -> io::Result<()> {
    // SAFETY: `socket` takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above made this descriptor and nothing else knows of it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `ifreq` is plain data for which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or_default();
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which lives until the call is over.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCSIFFLAGS, &raw const request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
