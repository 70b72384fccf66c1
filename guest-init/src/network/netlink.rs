//! As much of rtnetlink as it takes to set up one device: a request, and whether the kernel did it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// Bytes of `struct nlmsghdr`, and of `struct nlattr`.
const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;

/// Both are padded to this.
const ALIGNMENT: usize = 4;

/// A request to the kernel, without its length and number.
#[derive(Debug)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Of type `RTM_…`, with `NLM_F_…` of its own and the structure that the type begins with.
    pub(super) fn new(kind: u16, flags: libc::c_int, structure: &[u8]) -> Self {
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK).unwrap_or_default();
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(structure);
        Self(bytes)
    }

    /// Adds an attribute, shorter than 64 KiB.
    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
        self
    }

    fn numbered(&self, number: u32) -> Vec<u8> {
        let mut bytes = self.0.clone();
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[8..12].copy_from_slice(&number.to_ne_bytes());
        bytes
    }
}

/// A socket to the part of the kernel that knows devices, addresses and routes.
#[derive(Debug)]
pub(super) struct Routing {
    socket: OwnedFd,
    number: u32,
}

impl Routing {
    /// To that of the calling thread's network namespace.
    pub(super) fn open() -> io::Result<Self> {
        let protocol = SockProtocol::NetlinkRoute;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        Ok(Self { socket, number: 0 })
    }

    /// Has the kernel do something, and says whether it did.
    pub(super) fn request(&mut self, message: &Message) -> io::Result<()> {
        self.number += 1;
        send(self.socket.as_raw_fd(), &message.numbered(self.number), MsgFlags::empty())?;
        let mut answer = [0; 4096];
        loop {
            // The kernel has answered before `send` returns.
            let count = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
            if let Some(result) = acknowledged(&answer[..count], self.number) {
                return result;
            }
        }
    }
}

/// What an answer to request `number` says; `None` if it is another one. `struct nlmsghdr` and `struct nlmsgerr`.
fn acknowledged(answer: &[u8], number: u32) -> Option<io::Result<()>> {
    let word = |at: usize| <[u8; 4]>::try_from(answer.get(at..at + 4)?).ok();
    let kind = u16::from_ne_bytes(<[u8; 2]>::try_from(answer.get(4..6)?).ok()?);
    if libc::c_int::from(kind) != libc::NLMSG_ERROR || u32::from_ne_bytes(word(8)?) != number {
        return None;
    }
    Some(match i32::from_ne_bytes(word(HEADER)?) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_lengths_are_not() {
        let message = Message::new(16, 0, &[7; 4]).with(1, &[1, 2, 3, 4, 5, 6]).with(4, &[9]);

        let bytes = message.numbered(3);

        let attributes = [10, 0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 0, 5, 0, 4, 0, 9, 0, 0, 0];
        assert_eq!(bytes[..12], [40, 0, 0, 0, 16, 0, 5, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[HEADER..], [&[7; 4][..], &attributes].concat());
    }

    #[test]
    fn an_answer_is_read_as_far_as_it_goes() {
        let answer = |number: u8, error: i32| {
            let header = [36, 0, 0, 0, 2, 0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0];
            [&header[..], &error.to_ne_bytes(), &[0; 16]].concat()
        };
        assert!(matches!(acknowledged(&answer(1, 0), 1), Some(Ok(()))));
        let refused = acknowledged(&answer(1, -libc::EPERM), 1).unwrap().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert!(acknowledged(&answer(2, 0), 1).is_none());
        assert!((0..20).all(|length| acknowledged(&answer(1, 0)[..length], 1).is_none()));
    }
}
