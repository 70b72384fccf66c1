//! The guest's end of the link to the host, which tells it who it is.
//!
//! ```text
//!   dial ──▶ connecting ──▶ open ──Init──▶ applied ──▶ Ready (or Failed) ──▶ Freeze, Thaw, … ([`session`])
//!    ▲▲          │            │                                                   │
//!    │└─ pause ◀─┴─ refused ◀─┘                                                   │
//!    └────────────────── broken (agent restarted, sandbox restored) ◀─────────────┘
//! ```
//!
//! A link that worked is dialled again at once: a restored guest serves nobody until it is open.
//!
//! The first connection is begun before anything else of PID 1 happens ([`dial`]), so that it is open by the time there
//! is something to say. It comes from a privileged port: the monitor lets no other connect, so no user of the guest can
//! speak in PID 1's name.

mod session;
mod unasked;

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, bind, connect, getsockopt, socket, sockopt};
use sandpiper_protocol::guest::{GuestMessage, GuestMount, HOST_CID, Init, LINK_PORT, MAX_LINK_LINE, PRIVILEGED_PORTS};
use tokio::time::timeout;

use crate::clock::HostTime;
use crate::fd::FdStream;
use crate::freeze::Rest;
use crate::timeline::Timeline;
pub(crate) use unasked::Unasked;

use session::Session;

/// Source ports to try, downwards from the highest privileged one. More than one is needed only while an older
/// connection still holds its port.
const SOURCE_PORTS: u32 = 64;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pauses between attempts, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The open link's descriptor for [`report_panic`], or -1.
static OPEN: AtomicI32 = AtomicI32::new(-1);

/// What the host's messages do to the guest. Each is answered before the next is read.
pub(crate) trait Handler {
    /// Makes the guest what `init` says. The host's clock is known better by now than `init` says it.
    async fn init(&mut self, init: Init, time: HostTime, timeline: Timeline) -> GuestMessage;
    async fn freeze(&mut self, rest: Rest) -> GuestMessage;
    async fn thaw(&mut self) -> GuestMessage;
    async fn mount(&mut self, mounts: Vec<GuestMount>) -> GuestMessage;
    async fn unmount(&mut self, force: bool) -> GuestMessage;
    async fn format(&mut self, slot: u8) -> GuestMessage;
}

/// A connection to the host, which may not be open yet.
#[derive(Debug)]
pub(crate) struct Begun {
    fd: OwnedFd,
    at: Instant,
}

/// Begins a connection to the host without waiting for it. Needs no runtime and no file system.
pub(crate) fn dial() -> io::Result<Begun> {
    let at = Instant::now();
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    let first = PRIVILEGED_PORTS - 1;
    for port in (first - SOURCE_PORTS..=first).rev() {
        match bind(fd.as_raw_fd(), &VsockAddr::new(libc::VMADDR_CID_ANY, port)) {
            Ok(()) => break,
            Err(Errno::EADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match connect(fd.as_raw_fd(), &VsockAddr::new(HOST_CID, LINK_PORT)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(Begun { fd, at }),
        Err(error) => Err(error.into()),
    }
}

/// Keeps the link for ever. `first` is what [`dial`] gave.
pub(crate) async fn run(first: Option<Begun>, mut unasked: Unasked, handler: &mut impl Handler) {
    let mut begun = first;
    let mut pauses = Pauses { next: FIRST_PAUSE };
    loop {
        let mut served = false;
        if let Ok((link, at)) = open(begun.take()).await {
            OPEN.store(link.as_raw_fd(), Ordering::Release);
            served = Session::new(&link, at, &mut unasked, handler).run().await;
            OPEN.store(-1, Ordering::Release);
        }
        if let Some(pause) = pauses.after(served) {
            tokio::time::sleep(pause).await;
        }
    }
}

/// How long to wait before the next attempt.
struct Pauses {
    next: Duration,
}

impl Pauses {
    /// After a connection over which the host said who this guest is (`served`), or after a failure.
    fn after(&mut self, served: bool) -> Option<Duration> {
        if served {
            self.next = FIRST_PAUSE;
            return None;
        }
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST_PAUSE);
        Some(pause)
    }
}

/// An open connection, and when it was begun.
async fn open(begun: Option<Begun>) -> io::Result<(FdStream, Instant)> {
    let Begun { fd, at } = match begun {
        Some(begun) => begun,
        None => dial()?,
    };
    let link = FdStream::new(fd)?;
    timeout(CONNECT_TIMEOUT, link.writable()).await??;
    match getsockopt(&link.get_ref().as_fd(), sockopt::SocketError)? {
        0 => Ok((link, at)),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

async fn send(link: &FdStream, message: &GuestMessage) -> io::Result<()> {
    timeout(WRITE_TIMEOUT, link.write_all(&encode(message)?)).await?
}

fn encode(message: &GuestMessage) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    if line.len() > MAX_LINK_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "A message is longer than the link's limit"));
    }
    Ok(line)
}

/// Tells the host, if it can be told at once, and the console that PID 1 is about to die. For the panic hook.
pub(crate) fn report_panic(text: &str) {
    let mut message = format!("PID 1 failed: {text}");
    crate::log::truncate(&mut message);
    let _ = writeln!(io::stderr(), "sandpiper-init: {message}");
    let fd = OPEN.load(Ordering::Acquire);
    if let (true, Ok(line)) = (fd >= 0, encode(&GuestMessage::Failed { message })) {
        // SAFETY: `write` reads `line.len()` bytes of a live buffer. The descriptor is non-blocking and was that of the
        // link a moment ago; should it have been closed since, the call fails, and nobody else writes a JSON line's
        // worth of harm.
        unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_worked_is_dialled_at_once_and_one_that_fails_ever_more_slowly() {
        let mut pauses = Pauses { next: FIRST_PAUSE };

        assert_eq!(pauses.after(true), None);
        assert_eq!(pauses.after(false), Some(FIRST_PAUSE));
        assert_eq!(pauses.after(false), Some(FIRST_PAUSE * 2));
        assert_eq!((0..10).filter_map(|_| pauses.after(false)).last(), Some(LONGEST_PAUSE));
        assert_eq!(pauses.after(true), None);
        assert_eq!(pauses.after(false), Some(FIRST_PAUSE));
    }
}
