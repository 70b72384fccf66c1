//! Ending the connections that a slot leaves in the host's table of connections.
//!
//! The kernel keeps one that nobody closed for days. It counts towards the most that the host can have, and belongs to a
//! tenant that is gone.

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};

// `linux/netfilter/nfnetlink.h`, `linux/netfilter/nfnetlink_conntrack.h`
const SUBSYSTEM: u16 = 1;
const DELETE: u16 = 2;
const MARK: u16 = 8;
const MARK_MASK: u16 = 21;

// `linux/netlink.h`
const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
const ERROR: u16 = 2;
const HEADER: usize = 16;

/// The kernel has answered when `send` returns, unless it had no memory for it.
const TIME_LIMIT_SECONDS: i64 = 5;

/// Ends all connections with this mark in the namespace that the calling thread is in. Blocks.
pub(crate) fn end(mark: u32) -> io::Result<()> {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    let socket = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkNetFilter)?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(TIME_LIMIT_SECONDS))?;
    send(socket.as_raw_fd(), &message(mark), MsgFlags::empty())?;
    let mut answer = [0; 512];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    match status(&answer[..length]) {
        Some(0) => Ok(()),
        Some(status) => Err(io::Error::from_raw_os_error(status.wrapping_neg())),
        None => Err(Errno::EBADMSG.into()),
    }
}

/// Asks for the deletion of what has the mark: `struct nlmsghdr`, `struct nfgenmsg` for every family, two attributes.
fn message(mark: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for (kind, value) in [(MARK, mark), (MARK_MASK, u32::MAX)] {
        body.extend_from_slice(&8_u16.to_ne_bytes());
        body.extend_from_slice(&kind.to_ne_bytes());
        body.extend_from_slice(&value.to_be_bytes());
    }
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&(SUBSYSTEM << 8 | DELETE).to_ne_bytes());
    message.extend_from_slice(&REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    // The sequence number and the port, of no use for a single message.
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&body);
    message
}

/// The number that the answer begins with: 0, or an errno with a minus sign.
fn status(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let status = i32::from_ne_bytes(*answer.get(HEADER..)?.first_chunk()?);
    (kind == ERROR).then_some(status)
}
