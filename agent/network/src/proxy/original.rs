//! Where a redirected connection was going.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{Ip6tOriginalDst, OriginalDst};
use tokio::net::TcpStream;

/// What connection tracking remembers of the connection's first packet. An error if it was not tracked.
pub(super) fn original_destination(stream: &TcpStream) -> io::Result<SocketAddr> {
    // Addresses and ports are in network byte order.
    if stream.local_addr()?.is_ipv4() {
        let to = getsockopt(stream, OriginalDst)?;
        let address = Ipv4Addr::from(u32::from_be(to.sin_addr.s_addr));
        Ok(SocketAddr::new(IpAddr::V4(address), u16::from_be(to.sin_port)))
    } else {
        let to = getsockopt(stream, Ip6tOriginalDst)?;
        let address = Ipv6Addr::from(to.sin6_addr.s6_addr);
        Ok(SocketAddr::new(IpAddr::V6(address), u16::from_be(to.sin6_port)))
    }
}
