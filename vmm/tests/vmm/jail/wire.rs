//! A tap for a guest's network device, in a network namespace of its own that lasts as long as the tap, and a socket there
//! that sees every frame.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::thread;

use nix::sched::{CloneFlags, unshare};

/// Of frames that mean nothing to anyone else: an experiment's (IEEE 802).
pub(crate) const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];

pub(crate) struct Wire {
    pub(crate) tap: File,
    socket: File,
}

impl Wire {
    pub(crate) fn new() -> Self {
        thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let socket = packet_socket().unwrap();
            Self { tap: tap(&socket).unwrap(), socket }
        })
        .join()
        .unwrap()
    }

    /// The next frame of [`ETHER_TYPE`], if one has come.
    pub(crate) fn received(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 2048];
        while let Ok(count) = (&self.socket).read(&mut bytes) {
            if bytes[12..14] == ETHER_TYPE {
                return Some(bytes[..count].to_vec());
            }
        }
        None
    }
}

/// Sees what passes any device of the calling thread's namespace.
fn packet_socket() -> io::Result<File> {
    let all = libc::c_int::from(u16::try_from(libc::ETH_P_ALL).map_err(io::Error::other)?.to_be());
    // SAFETY: `socket` takes integers.
    let socket =
        unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, all) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above made this descriptor and nothing else knows of it.
    Ok(unsafe { File::from_raw_fd(socket) })
}

/// A tap that is up, with headers of 12 bytes. `socket` is any of the namespace.
fn tap(socket: &File) -> io::Result<File> {
    let tap = File::options().read(true).write(true).open("/dev/net/tun")?;
    let request = |flags: libc::c_int| -> io::Result<libc::ifreq> {
        // SAFETY: all zeros is a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(b"tap0") {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = i16::try_from(flags).map_err(io::Error::other)?;
        Ok(request)
    };
    let mut kind = request(libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR)?;
    let up = request(libc::IFF_UP)?;
    let header: libc::c_int = 12;
    // SAFETY: the requests read, and the first one writes, the `ifreq` or the integer that they are given.
    let results = unsafe {
        [
            libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut kind),
            libc::ioctl(tap.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const header),
            libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const up),
        ]
    };
    if results == [0; 3] { Ok(tap) } else { Err(io::Error::last_os_error()) }
}
