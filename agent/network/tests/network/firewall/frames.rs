//! Frames that a guest makes itself, byte by byte.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::world::{GUEST_MAC, SLOT_MAC, World, eventually};

pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const ARP: u16 = 0x0806;
pub(crate) const IPV6: u16 = 0x86dd;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

/// The guest's link, for frames of any kind.
pub(crate) struct Wire {
    fd: OwnedFd,
    to: libc::sockaddr_ll,
}

impl World {
    pub(crate) fn wire(&self) -> Wire {
        self.guest.run(|| {
            // SAFETY: takes integers only.
            let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: made just now, and nobody else's.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            // SAFETY: a text that ends with a zero.
            let index = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
            // SAFETY: zeros are a valid address of this kind.
            let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            to.sll_family = libc::AF_PACKET.try_into().unwrap();
            to.sll_ifindex = index.try_into().unwrap();
            Ok(Wire { fd, to })
        })
    }
}

impl Wire {
    pub(crate) fn send(&self, frame: &[u8]) {
        let length = size_of_val(&self.to).try_into().unwrap();
        // SAFETY: both pointers are to live memory of the lengths that are given with them.
        let sent = unsafe {
            let (bytes, to) = (frame.as_ptr().cast(), (&raw const self.to).cast());
            libc::sendto(self.fd.as_raw_fd(), bytes, frame.len(), 0, to, length)
        };
        assert_eq!(usize::try_from(sent), Ok(frame.len()), "{}", io::Error::last_os_error());
    }

    /// Sends frames as fast as they arrive somewhere, which is where `counted` counts.
    pub(crate) fn flood(&self, frames: impl IntoIterator<Item = Vec<u8>>, counted: impl Fn() -> u64) {
        let frames: Vec<_> = frames.into_iter().collect();
        let mut sent = 0;
        for some in frames.chunks(AT_A_TIME) {
            some.iter().for_each(|frame| self.send(frame));
            sent += some.len() as u64;
            eventually("all frames arrive", || counted() >= sent);
        }
    }
}

/// So many frames at a time: a link loses those that it is behind with by a thousand.
const AT_A_TIME: usize = 250;

/// From the guest to the slot, as it should be.
pub(crate) fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    ethernet_from(GUEST_MAC, kind, payload)
}

pub(crate) fn ethernet_from(source: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&SLOT_MAC[..], &source, &kind.to_be_bytes(), payload].concat()
}

pub(crate) fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let header = 20 + options.len();
    let mut packet = vec![0; 20];
    packet[0] = 0x40 | u8::try_from(header / 4).unwrap();
    packet[2..4].copy_from_slice(&u16::try_from(header + payload.len()).unwrap().to_be_bytes());
    packet[8] = 64;
    packet[9] = protocol;
    packet[12..16].copy_from_slice(&source.octets());
    packet[16..20].copy_from_slice(&destination.octets());
    packet.extend_from_slice(options);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

pub(crate) fn ipv6(source: Ipv6Addr, destination: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend_from_slice(&u16::try_from(payload.len()).unwrap().to_be_bytes());
    packet.extend_from_slice(&[next, 255]);
    packet.extend_from_slice(&source.octets());
    packet.extend_from_slice(&destination.octets());
    packet.extend_from_slice(payload);
    packet
}

/// From port 4000.
pub(crate) fn udp(source: IpAddr, destination: IpAddr, port: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap();
    let mut datagram = [4000_u16, port, length, 0].map(u16::to_be_bytes).concat();
    datagram.extend_from_slice(payload);
    let sum = checksum(&[&pseudo_header(source, destination, UDP, length.into())[..], &datagram].concat());
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

/// `body` is what follows the checksum.
pub(crate) fn icmpv6(source: Ipv6Addr, destination: Ipv6Addr, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0][..], body].concat();
    let length = u32::try_from(message.len()).unwrap();
    let sum = checksum(&[&pseudo_header(source.into(), destination.into(), ICMPV6, length)[..], &message].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

pub(crate) fn icmpv4(kind: u8, code: u8, body: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], body].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// An answer to a question that nobody asked.
pub(crate) fn arp(sender_mac: [u8; 6], sender: Ipv4Addr) -> Vec<u8> {
    let head = [1, IPV4, 0x0604, 2].map(u16::to_be_bytes).concat();
    [&head[..], &sender_mac, &sender.octets(), &SLOT_MAC, &[100, 64, 0, 1]].concat()
}

fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: u32) -> Vec<u8> {
    let mut header = Vec::new();
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => header.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => header.extend_from_slice(&address.octets()),
        }
    }
    header.extend_from_slice(&length.to_be_bytes());
    header.extend_from_slice(&[0, 0, 0, protocol]);
    header
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
