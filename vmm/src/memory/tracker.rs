//! Which pages a guest writes from a moment on, while it runs.
//!
//! With `userfaultfd` in its asynchronous mode (Linux 6.7) a page that was looked at is write-protected, and the first write to
//! it, be it the guest's or a device's, takes the protection away again, in the kernel and with nobody being asked
//! (`Documentation/admin-guide/mm/userfaultfd.rst`). [`Pagemap`](super::written::Pagemap) tells which pages have lost it.
//!
//! Memory that is looked after so has another property: a page of a file that is touched is mapped alone, and not with those around it
//! (`should_fault_around` of `mm/memory.c`). So what is mapped is what was touched.
//!
//! The descriptor is made before the process is jailed, for faults of user mode only: nobody who takes the monitor over can
//! have the kernel wait for them with it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use crate::devices::virtio::Memory;
use crate::jail::{UFFDIO_API, UFFDIO_REGISTER};

/// Of this process's memory.
#[derive(Debug)]
pub struct Tracker(File);

impl Tracker {
    /// # Errors
    /// The kernel does not have this.
    pub fn open() -> io::Result<Self> {
        // SAFETY: it takes flags and makes a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: it is new, and nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        let mut api = Api { api: API, features: FEATURE_WP_ASYNC, ioctls: 0 };
        // SAFETY: the kernel reads and writes one `uffdio_api`, whose form `api` has.
        match unsafe { libc::ioctl(file.as_raw_fd(), UFFDIO_API, &raw mut api) } {
            0 => Ok(Self(file)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has all of `memory` be looked after, also what is so already.
    ///
    /// # Errors
    /// The kernel does not do so for such memory.
    pub(crate) fn follow(&self, memory: &Memory) -> io::Result<()> {
        for region in memory.iter() {
            let mut register =
                Register { start: region.as_ptr() as u64, length: region.len(), mode: MODE_WP, ioctls: 0 };
            // SAFETY: the kernel reads and writes one `uffdio_register`, whose form `register` has. It names a mapping of this
            // process, of which nothing is changed but that writes are noted.
            if unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_REGISTER, &raw mut register) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

impl AsRawFd for Tracker {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// `UFFD_USER_MODE_ONLY` of `linux/userfaultfd.h`, as all that follows.
const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xaa;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const MODE_WP: u64 = 1 << 1;

/// `struct uffdio_api`
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`
#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}
