//! Which Ethernet address the guest of a slot has, told to the kernel: the guest is not asked for it, so no other can claim
//! to be it.
//!
//! A machine that was parked gets another address in the moment in which somebody waits for it, so the socket is opened
//! when the slot is made. The kernel does what a message says before `send` returns, and its answer waits in the socket then.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily as Family, MsgFlags, SockFlag, SockProtocol, SockType};
use nix::sys::socket::{recv, send, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};

use crate::links::Mac;
use crate::netns::Netns;
use crate::plan::{GUEST, GUEST6, TAP};
use crate::sysctl;

/// For an answer that is there already, unless the kernel had no memory for it.
const TIME_LIMIT_SECONDS: i64 = 5;
/// Longer than any answer.
const DATAGRAM: usize = 4096;

/// The neighbours of a slot, of which there is one: the guest.
#[derive(Debug)]
pub(crate) struct Neighbours {
    socket: OwnedFd,
    tap: u32,
    ipv6: bool,
    /// The number of the next message. An answer bears the number of what it answers.
    next: Mutex<u32>,
}

impl Neighbours {
    /// Those of a slot that has its tap. Blocks, briefly.
    pub(crate) fn open(netns: &Netns) -> io::Result<Self> {
        let (socket, tap, ipv6) = netns.run(|| {
            let protocol = SockProtocol::NetlinkRoute;
            let socket = socket(Family::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
            Ok((socket, if_nametoindex(TAP)?, sysctl::speaks_ipv6(TAP)?))
        })?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(TIME_LIMIT_SECONDS))?;
        Ok(Self { socket, tap, ipv6, next: Mutex::new(1) })
    }

    /// Says for good which Ethernet address the guest has; one that was told before is forgotten. Waits for the kernel's
    /// lock only.
    pub(crate) fn set_guest(&self, mac: Mac) -> io::Result<()> {
        for guest in [IpAddr::from(GUEST), IpAddr::from(GUEST6)] {
            if guest.is_ipv4() || self.ipv6 {
                self.set(guest, mac)?;
            }
        }
        Ok(())
    }

    fn set(&self, address: IpAddr, mac: Mac) -> io::Result<()> {
        let (family, destination) = match address {
            IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
            IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
        };
        let mut neighbour = NeighbourMessage::default();
        neighbour.header.family = family;
        neighbour.header.ifindex = self.tap;
        neighbour.header.state = NeighbourState::Permanent;
        neighbour.attributes =
            vec![NeighbourAttribute::Destination(destination), NeighbourAttribute::LinkLayerAddress(mac.to_vec())];
        self.request(RouteNetlinkMessage::NewNeighbour(neighbour))
    }

    /// Has the kernel do it, and returns its answer.
    fn request(&self, message: RouteNetlinkMessage) -> io::Result<()> {
        // A panic leaves at worst an answer that nobody waits for.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *next;
        *next = number.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        header.sequence_number = number;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(self.socket.as_raw_fd(), &bytes, MsgFlags::empty())?;
        let mut answer = [0; DATAGRAM];
        loop {
            let length = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer[..length]);
            let (header, payload) = answer.map_err(io::Error::other)?.into_parts();
            match payload {
                NetlinkPayload::Error(error) if header.sequence_number == number => {
                    return if error.code.is_none() { Ok(()) } else { Err(error.to_io()) };
                }
                _ => {}
            }
        }
    }
}
