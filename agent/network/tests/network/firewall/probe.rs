//! Attempts of the guest to reach something.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use sandpiper_policy::{Destination, Host, Protocol};

use super::internet::{FROM_PROXY, FROM_SLOT};
use super::world::{TIMEOUT, World};

/// More than an answer takes, and more than until a connection's second attempt: answers to what is denied are rationed.
const WAIT: Duration = Duration::from_millis(2500);

/// Who answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Nobody,
    Internet,
    Proxy,
    Slot,
}

impl World {
    /// Tries to reach a destination that is an address.
    pub(crate) fn probe(&self, destination: &Destination) -> Answer {
        let Host::Address(address) = destination.host else { panic!("{destination} is not an address") };
        match (destination.protocol, destination.port) {
            (Protocol::Tcp, Some(port)) => self.tcp(SocketAddr::new(address, port)),
            (Protocol::Udp, Some(port)) => self.udp(SocketAddr::new(address, port)),
            (Protocol::Icmp, None) => self.icmp(address),
            _ => panic!("{destination} has no port, or one too many"),
        }
    }

    pub(crate) fn tcp(&self, address: SocketAddr) -> Answer {
        match self.connect(address) {
            Ok((_, answer)) => answer,
            Err(_) => Answer::Nobody,
        }
    }

    /// A connection, and who greeted.
    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<(TcpStream, Answer)> {
        self.guest.netns.run(|| {
            let mut stream = TcpStream::connect_timeout(&address, WAIT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut greeting = [0];
            stream.read_exact(&mut greeting)?;
            let answer = match greeting[0] {
                FROM_PROXY => Answer::Proxy,
                FROM_SLOT => Answer::Slot,
                _ => Answer::Internet,
            };
            Ok((stream, answer))
        })
    }

    pub(crate) fn udp(&self, address: SocketAddr) -> Answer {
        if address.ip() != gateway_of(address.ip()) {
            self.internet.echo(&self.outside, address);
        }
        exchange(&self.datagrams_to(address), b"datagram").map_or(Answer::Nobody, |()| Answer::Internet)
    }

    /// A socket of the guest's that sends datagrams to an address.
    pub(crate) fn datagrams_to(&self, address: SocketAddr) -> UdpSocket {
        self.guest.run(|| {
            let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(address)?;
            socket.set_read_timeout(Some(WAIT)).map(|()| socket)
        })
    }

    pub(crate) fn icmp(&self, address: IpAddr) -> Answer {
        let request = if address.is_ipv4() { 8 } else { 128 };
        let socket = self.guest.run(|| {
            let socket = icmp_socket(libc::SOCK_DGRAM, address)?;
            socket.connect((address, 0))?;
            socket.set_read_timeout(Some(WAIT)).map(|()| socket)
        });
        // The kernel fills in the checksum and the identifier.
        let echoed = socket.send(&[request, 0, 0, 0, 0, 0, 0, 1]).and_then(|_| socket.recv(&mut [0; 64]));
        echoed.map_or(Answer::Nobody, |_| Answer::Internet)
    }
}

/// Raw, or one that sends echo requests and gets the answers, for addresses like this one.
pub(crate) fn icmp_socket(kind: libc::c_int, address: IpAddr) -> io::Result<UdpSocket> {
    let (family, protocol) = match address {
        IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP),
        IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
    };
    // SAFETY: takes integers only.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: made just now, and nobody else's.
    Ok(UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Sends a datagram and waits for it to come back, whatever else does.
pub(crate) fn exchange(socket: &UdpSocket, datagram: &[u8]) -> io::Result<()> {
    socket.send(datagram)?;
    let mut answer = vec![0; 65536];
    while socket.recv(&mut answer)? != datagram.len() || !answer.starts_with(datagram) {}
    Ok(())
}

/// The guest's gateway of the same family.
fn gateway_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => [100, 64, 0, 1].into(),
        IpAddr::V6(_) => [0xfd5a, 0x5a, 0, 0, 0, 0, 0, 1].into(),
    }
}
