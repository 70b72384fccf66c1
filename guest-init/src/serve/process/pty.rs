//! Pseudo-terminals.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, fchown};

use sandpiper_protocol::process::PtySize;

/// What a terminal without a size is taken for.
const DEFAULT_SIZE: PtySize = PtySize { cols: 80, rows: 24 };

/// Both ends of a new terminal.
pub(super) struct Pair {
    pub(super) master: OwnedFd,
    pub(super) slave: OwnedFd,
}

/// Opens a terminal that belongs to the user `uid`.
pub(super) fn open(size: Option<PtySize>, uid: u32) -> io::Result<Pair> {
    let flags = libc::O_NOCTTY | libc::O_CLOEXEC;
    let master: File = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/ptmx")?;
    let unlocked: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int, a live local variable.
    if unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: TIOCGPTPEER takes open flags by value and returns a new descriptor or -1. It needs no path, so it works
    // whatever is mounted on /dev/pts.
    let slave = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, libc::O_RDWR | flags) };
    if slave < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above made this descriptor and nothing else knows of it.
    let slave = unsafe { OwnedFd::from_raw_fd(slave) };
    fchown(&slave, Some(uid), None)?;
    let pair = Pair { master: master.into(), slave };
    resize(std::os::fd::AsFd::as_fd(&pair.master), size.unwrap_or(DEFAULT_SIZE))?;
    Ok(pair)
}

/// Tells the terminal its size; the programs on it get SIGWINCH.
pub(super) fn resize(master: BorrowedFd<'_>, size: PtySize) -> io::Result<()> {
    let cells = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    let size = libc::winsize { ws_row: cells(size.rows), ws_col: cells(size.cols), ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one `winsize`, a live local variable.
    if unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
