//! The host's end: a tap, whose reads and writes are whole frames with a header before them.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use vm_memory::VolatileSlice;
use zerocopy::IntoBytes;

use super::header::{HEADER_LEN, Header};

/// A tap with `IFF_VNET_HDR` and headers of 12 bytes, or in tests a socket of datagrams, which behaves alike. Clones are the
/// same one.
#[derive(Debug, Clone)]
pub struct Tap(Arc<File>);

impl Tap {
    /// Takes a tap, or a socket, which does not block from now on however it was opened.
    ///
    /// # Errors
    /// Its flags cannot be read or set.
    pub fn new(file: File) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
        if !flags.contains(OFlag::O_NONBLOCK) {
            fcntl(&file, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        }
        Ok(Self(Arc::new(file)))
    }

    /// Tells what frames that are read may leave undone (`TUN_F_*`).
    pub(super) fn set_offloads(&self, flags: libc::c_uint) -> io::Result<()> {
        let request = libc::TUNSETOFFLOAD;
        // SAFETY: TUNSETOFFLOAD takes an integer.
        let result = unsafe { libc::ioctl(self.as_raw_fd(), request, libc::c_ulong::from(flags)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads the next frame: what is before it into `header`, the frame into `room`, and what does not fit there into
    /// `spill`. Returns the number of bytes, at most as many as there is room for: a longer frame is cut off.
    pub(super) fn read(&self, header: &mut Header, room: &[VolatileSlice<'_>], spill: &mut [u8]) -> io::Result<usize> {
        let guards: Vec<_> = room.iter().map(VolatileSlice::ptr_guard_mut).collect();
        let mut vector = Vec::with_capacity(guards.len() + 2);
        vector.push(libc::iovec { iov_base: header.as_mut_bytes().as_mut_ptr().cast(), iov_len: HEADER_LEN });
        vector.extend(guards.iter().map(|guard| libc::iovec { iov_base: guard.as_ptr().cast(), iov_len: guard.len() }));
        vector.push(libc::iovec { iov_base: spill.as_mut_ptr().cast(), iov_len: spill.len() });
        // SAFETY: every entry covers memory that `header`, `room` or `spill` borrow until this returns. Of these, guest
        // memory is only ever accessed by volatile copies and system calls, and any byte is valid in all three.
        transfer(&vector, |count| unsafe { libc::readv(self.as_raw_fd(), vector.as_ptr(), count) })
    }

    /// Writes a frame that lies in `pieces` of guest memory.
    pub(super) fn write(&self, header: &Header, pieces: &[VolatileSlice<'_>]) -> io::Result<usize> {
        let guards: Vec<_> = pieces.iter().map(VolatileSlice::ptr_guard).collect();
        let mut vector = Vec::with_capacity(guards.len() + 1);
        vector.push(libc::iovec { iov_base: header.as_bytes().as_ptr().cast_mut().cast(), iov_len: HEADER_LEN });
        let piece = |address: *const u8, length| libc::iovec { iov_base: address.cast_mut().cast(), iov_len: length };
        vector.extend(guards.iter().map(|guard| piece(guard.as_ptr(), guard.len())));
        // SAFETY: every entry covers memory that `header` or `pieces` borrow until this returns; the kernel only reads it.
        // That the guest may write to its part meanwhile changes the bytes of its own frame.
        transfer(&vector, |count| unsafe { libc::writev(self.as_raw_fd(), vector.as_ptr(), count) })
    }
}

impl AsRawFd for Tap {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Makes `call` with the length of `vector` until no signal interrupts it.
fn transfer(vector: &[libc::iovec], mut call: impl FnMut(libc::c_int) -> isize) -> io::Result<usize> {
    let count = libc::c_int::try_from(vector.len()).map_err(io::Error::other)?;
    loop {
        // A negative count is an error, and nothing else fails to convert.
        if let Ok(count) = usize::try_from(call(count)) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
