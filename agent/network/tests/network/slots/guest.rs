//! A guest: a namespace whose `eth0` is joined to a slot's tap as a monitor would, frame by frame.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{read, write};
use sandpiper_network::firewall::Firewall;
use sandpiper_network::netns::Netns;
use sandpiper_network::slots::Slot;
use sandpiper_policy::{Platform, Policy, Profiles};
use sandpiper_protocol::agent::NetworkPolicy;
use sandpiper_protocol::guest::GuestNetwork;

use super::host::ip;

nix::ioctl_write_ptr_bad!(tun_set_iff, libc::TUNSETIFF, libc::ifreq);
nix::ioctl_write_ptr_bad!(tun_set_vnet_hdr_sz, libc::TUNSETVNETHDRSZ, libc::c_int);

pub(crate) struct Guest {
    pub(crate) netns: Netns,
}

impl Guest {
    /// Starts a guest in a slot, which may reach what a policy without entries allows.
    pub(crate) fn start(slot: &Slot) -> Self {
        let mac = Slot::mac_of(slot.name());
        slot.set_guest(mac).unwrap();
        let firewall = Firewall::open(slot.netns()).unwrap();
        firewall.set_guest(mac).unwrap();
        let policy = Policy::compile(&NetworkPolicy::default(), &Profiles::default(), &Platform::default()).unwrap();
        firewall.apply(&policy, 1, &[]).unwrap();

        Self::join(&format!("guest{}", slot.number()), slot.open_tap().unwrap(), &slot.guest_network(mac))
    }

    /// Starts a guest of this name at a tap.
    pub(crate) fn join(name: &str, tap: OwnedFd, network: &GuestNetwork) -> Self {
        let netns = Netns::create(name).unwrap();
        let device = netns.run(|| new_tap("eth0")).unwrap();
        let mac = network.mac.map(|byte| format!("{byte:02x}")).join(":");
        ip(&format!("-n {name} link set eth0 address {mac} mtu {}", network.mtu));
        ip(&format!("-n {name} link set eth0 up"));
        ip(&format!("-n {name} addr add {}/{} dev eth0", network.address, network.prefix_length));
        ip(&format!("-n {name} addr add {}/{} dev eth0 nodad", network.address6, network.prefix_length6));
        ip(&format!("-n {name} route add default via {}", network.gateway));
        ip(&format!("-n {name} route add default via {}", network.gateway6));
        let (device, tap) = (Arc::new(device), Arc::new(tap));
        pump(device.clone(), tap.clone());
        pump(tap, device);
        Self { netns }
    }
}

/// A device whose frames are what is read and written, in the namespace of the calling thread.
fn new_tap(name: &str) -> io::Result<OwnedFd> {
    let tap: File = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all zeroes is a valid `ifreq`: no name, no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR).unwrap();
    let header = 12;
    // SAFETY: both requests read what they are given, which lives through the calls.
    unsafe {
        tun_set_iff(tap.as_raw_fd(), &raw const request)?;
        tun_set_vnet_hdr_sz(tap.as_raw_fd(), &raw const header)?;
    }
    Ok(tap.into())
}

/// Passes frames on until one of the devices is gone.
fn pump(from: Arc<OwnedFd>, to: Arc<OwnedFd>) {
    thread::spawn(move || {
        let mut frame = vec![0; 70_000];
        loop {
            let passed = match read(&from, &mut frame) {
                // A frame that the other one does not take now is lost, as on any network.
                Ok(length) => write(&to, &frame[..length]).or(Ok(0)),
                Err(Errno::EAGAIN) => {
                    poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).map(|_| 0)
                }
                Err(errno) => Err(errno),
            };
            if passed.is_err() {
                break;
            }
        }
    });
}
