//! A conversation with the kernel's nf_tables about one network namespace.
//!
//! The kernel does what a message says before `sendmsg` returns, and its answer waits in the socket then. So nothing here
//! waits for anything but the kernel's own lock.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::sockopt::{ReceiveTimeout, SndBufForce};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};

use super::wire::{self, Head, Message, Writer};
use crate::netns::Netns;

/// A message has to fit into the send buffer: the largest policy needs about 3 MiB.
const SEND_BUFFER: usize = 8 * 1024 * 1024;
/// For an answer that is there already, unless the kernel had no memory for it.
const TIME_LIMIT_SECONDS: i64 = 5;
/// Most that the kernel puts into one datagram of a dump.
const DATAGRAM: usize = 64 * 1024;
/// How often a dump begins again because the set changed meanwhile.
const DUMPS: usize = 10;

pub(super) const ERROR: u16 = 2;
const DONE: u16 = 3;
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;

/// A socket within a namespace, which it keeps alive.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    /// The number of the next message. Answers bear the number of what they answer, so that one that nobody waited for is
    /// not taken for another's.
    next: Mutex<u32>,
}

/// The kernel's refusal.
#[derive(Debug)]
pub(super) struct Refused {
    /// Which message of the batch it is about, counted from the first one after its beginning.
    pub(super) message: Option<usize>,
    pub(super) error: io::Error,
}

impl Socket {
    /// Blocks.
    pub(super) fn open(netns: &Netns) -> io::Result<Self> {
        let fd = netns.run(|| {
            let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
            Ok(socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkNetFilter)?)
        })?;
        setsockopt(&fd, SndBufForce, &SEND_BUFFER)?;
        shorten_errors(&fd)?;
        setsockopt(&fd, ReceiveTimeout, &TimeVal::seconds(TIME_LIMIT_SECONDS))?;
        Ok(Self { fd, next: Mutex::new(1) })
    }

    /// Has a batch done: all of it, or nothing.
    pub(super) fn commit(&self, batch: Writer) -> Result<(), Refused> {
        // Only the last change asks for an answer, and has it when all is done; what fails is told in any case.
        let changes = batch.messages().saturating_sub(2);
        let result = self.ask(batch, |first, message| {
            let change = message.sequence.wrapping_sub(first).wrapping_sub(1);
            match (message.kind, message.status()) {
                (ERROR, Some(0)) => (change.wrapping_add(1) == changes).then_some(Ok(())),
                (ERROR, Some(status)) => {
                    let error = io::Error::from_raw_os_error(status.wrapping_neg());
                    Some(Err(Refused { message: usize::try_from(change).ok(), error }))
                }
                _ => None,
            }
        });
        result.unwrap_or_else(|error| Err(Refused { message: None, error }))
    }

    /// Reads all that the kernel has to tell, from the beginning again if it changes meanwhile.
    pub(super) fn dump<T>(
        &self,
        head: &Head,
        attributes: impl Fn(&mut Writer),
        mut read: impl FnMut(&Message<'_>, &mut Vec<T>),
    ) -> io::Result<Vec<T>> {
        for _ in 0..DUMPS {
            let mut writer = Writer::default();
            writer.message(head);
            attributes(&mut writer);
            let (mut found, mut interrupted) = (Vec::new(), false);
            self.ask(writer, |_, message| {
                interrupted |= message.flags & FLAG_DUMP_INTERRUPTED != 0;
                match (message.kind, message.status()) {
                    (ERROR | DONE, Some(status)) if status < 0 => {
                        Some(Err(io::Error::from_raw_os_error(status.wrapping_neg())))
                    }
                    (ERROR | DONE, _) => Some(Ok(())),
                    _ => {
                        read(message, &mut found);
                        None
                    }
                }
            })??;
            if !interrupted {
                return Ok(found);
            }
        }
        Err(io::Error::other("the set changes faster than it can be read"))
    }

    /// Sends messages, and hands the number of the first and each answer to `read` until that has what it wants.
    pub(super) fn ask<T>(&self, writer: Writer, mut read: impl FnMut(u32, &Message<'_>) -> Option<T>) -> io::Result<T> {
        // A panic leaves at worst answers that nobody waits for.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, count) = (*next, writer.messages());
        *next = first.wrapping_add(count);
        let bytes = writer.numbered(first);
        if send(self.fd.as_raw_fd(), &bytes, MsgFlags::empty())? != bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let mut datagram = vec![0; DATAGRAM];
        loop {
            let length = recv(self.fd.as_raw_fd(), &mut datagram, MsgFlags::empty())?;
            let ours = |message: &Message<'_>| message.sequence.wrapping_sub(first) < count;
            let found = wire::messages(&datagram[..length]).filter(ours).find_map(|message| read(first, &message));
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }
}

/// Has errors come without the message that they are about, which may be long: many of those would not fit into the socket.
fn shorten_errors(fd: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads one integer, which lives until the call is over, and its length is given with it.
    let result = unsafe {
        let (level, option) = (libc::SOL_NETLINK, libc::NETLINK_CAP_ACK);
        libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const on).cast(), length)
    };
    Errno::result(result)?;
    Ok(())
}
