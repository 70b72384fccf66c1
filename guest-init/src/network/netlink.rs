//! As much of rtnetlink as it takes to set up one device: requests, several at once, and whether the kernel did them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// Bytes of `struct nlmsghdr`, and of `struct nlattr`.
const HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;

/// Both are padded to this.
const ALIGNMENT: usize = 4;

/// A request to the kernel, without its length and number, and without `NLM_F_ACK`: what is refused is told in any case.
#[derive(Debug)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Of type `RTM_…`, with `NLM_F_…` of its own and the structure that the type begins with.
    pub(super) fn new(kind: u16, flags: libc::c_int, structure: &[u8]) -> Self {
        let flags = u16::try_from(flags | libc::NLM_F_REQUEST).unwrap_or_default();
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

    fn numbered(&self, number: u32, more_flags: libc::c_int) -> Vec<u8> {
        let mut bytes = self.0.clone();
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let flags = u16::from_ne_bytes([bytes[6], bytes[7]]) | u16::try_from(more_flags).unwrap_or_default();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
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

    /// Has the kernel do all of this, in this order and by one call. It does not stop at what it refuses.
    ///
    /// # Errors
    /// The first that it did not do: which of them, and why.
    pub(super) fn request<const N: usize>(&mut self, messages: &[Message; N]) -> Result<(), (usize, io::Error)> {
        let first = self.number + 1;
        let mut bytes = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            self.number += 1;
            let is_last = at + 1 == messages.len();
            bytes.extend(message.numbered(self.number, if is_last { libc::NLM_F_ACK } else { 0 }));
        }
        let failed = |error: nix::Error| (0, error.into());
        send(self.socket.as_raw_fd(), &bytes, MsgFlags::empty()).map_err(failed)?;
        let mut refused = None;
        let mut answer = [0; 4096];
        loop {
            // The kernel has answered before `send` returns.
            let count = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT).map_err(failed)?;
            let Some((number, result)) = acknowledged(&answer[..count]) else { continue };
            if let (Err(error), None) = (result, &refused) {
                refused = Some((usize::try_from(number.saturating_sub(first)).unwrap_or_default(), error));
            }
            if number == self.number {
                return refused.map_or(Ok(()), Err);
            }
        }
    }
}

/// Which request an answer is for, and whether the kernel did it; `None` if it is something else. `struct nlmsghdr` and
/// `struct nlmsgerr`.
fn acknowledged(answer: &[u8]) -> Option<(u32, io::Result<()>)> {
    let word = |at: usize| <[u8; 4]>::try_from(answer.get(at..at + 4)?).ok();
    let kind = u16::from_ne_bytes(<[u8; 2]>::try_from(answer.get(4..6)?).ok()?);
    if libc::c_int::from(kind) != libc::NLMSG_ERROR {
        return None;
    }
    let result = match i32::from_ne_bytes(word(HEADER)?) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
    };
    Some((u32::from_ne_bytes(word(8)?), result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_lengths_are_not() {
        let message = Message::new(16, 0, &[7; 4]).with(1, &[1, 2, 3, 4, 5, 6]).with(4, &[9]);

        let bytes = message.numbered(3, libc::NLM_F_ACK);

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
        assert!(matches!(acknowledged(&answer(1, 0)), Some((1, Ok(())))));
        let Some((2, Err(refused))) = acknowledged(&answer(2, -libc::EPERM)) else { panic!("not refused") };
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert!((0..20).all(|length| acknowledged(&answer(1, 0)[..length]).is_none()));
    }
}
