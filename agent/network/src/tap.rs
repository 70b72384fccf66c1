//! The tap: the guest's end of a slot, through which the monitor's network device passes frames.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use libc::{c_int, c_short};

use crate::plan::TAP;

const DEVICE: &str = "/dev/net/tun";

#[allow(clippy::cast_possible_truncation, reason = "they are bits of a short integer: the field's own type")]
const FLAGS: c_short = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as c_short;

/// Of the header before each frame: `struct virtio_net_hdr_v1` (virtio 1.2, section 5.1.6).
static HEADER: c_int = 12;

nix::ioctl_write_ptr_bad!(tun_set_iff, libc::TUNSETIFF, libc::ifreq);
nix::ioctl_write_ptr_bad!(tun_set_vnet_hdr_sz, libc::TUNSETVNETHDRSZ, c_int);
nix::ioctl_write_int_bad!(tun_set_persist, libc::TUNSETPERSIST);

/// Makes the tap in the namespace that the calling thread is in, and opens it. It stays there until the namespace goes.
pub(crate) fn create() -> io::Result<OwnedFd> {
    let tap = open()?;
    // SAFETY: the request takes an integer, and `tap` is a tap.
    unsafe { tun_set_persist(tap.as_raw_fd(), 1) }?;
    Ok(tap)
}

/// Opens the tap of the namespace that the calling thread is in, for one monitor: `EBUSY` while another has it.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE);
    let tap = opened.map_err(|error| io::Error::new(error.kind(), format!("Cannot open {DEVICE}: {error}")))?;
    // SAFETY: all zeroes is a valid `ifreq`: no name, no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(TAP.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = FLAGS;
    // SAFETY: `request` is a whole `ifreq`, whose name ends with a zero, and lives through the call.
    unsafe { tun_set_iff(tap.as_raw_fd(), &raw const request) }?;
    // SAFETY: the request reads an integer, which lives through the call.
    unsafe { tun_set_vnet_hdr_sz(tap.as_raw_fd(), &raw const HEADER) }?;
    Ok(tap.into())
}
