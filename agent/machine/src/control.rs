//! The agent's end of a monitor's control socket.
//!
//! A monitor runs a hostile guest and may have been taken over by it, so what it sends is checked like any foreign input:
//! packets are bounded by the protocol, events that nobody fetches are dropped, every wait has a limit.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use sandpiper_protocol::vmm::{self, DiskEvent, Event, Fault, MonitorMessage, Packet, Reply, Request, RequestMessage};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Events and replies that wait to be fetched. A guest opens one link at a time.
const QUEUE: usize = 8;

/// A connection to a monitor.
#[derive(Debug)]
pub struct Control {
    socket: Arc<AsyncFd<OwnedFd>>,
    replies: mpsc::Receiver<(u64, Result<Reply, Fault>)>,
    events: mpsc::Receiver<MonitorEvent>,
    next_id: u64,
    _reader: AbortOnDropHandle<()>,
}

/// What a monitor says unasked.
#[derive(Debug)]
pub enum MonitorEvent {
    GuestConnected(GuestConnection),
    Disk(DiskEvent),
}

/// The guest connected to a vsock port of the host.
#[derive(Debug)]
pub struct GuestConnection {
    pub port: u32,
    pub stream: OwnedFd,
}

/// Why a request has no reply.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("Cannot send to the monitor")]
    Send(#[source] io::Error),
    #[error("The monitor closed its control connection")]
    Closed,
    #[error("The monitor did not respond within {} seconds", .0.as_secs())]
    TimedOut(Duration),
    #[error("The monitor refused: {0}")]
    Refused(Fault),
}

/// A listening control socket at `path`, for a monitor that is about to be started.
///
/// The backlog takes connections from now on, so the agent connects and asks without waiting for the monitor to be up.
///
/// # Errors
/// Of the system; where `path` is taken, or too long for a socket.
pub fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let socket = seqpacket(SockFlag::SOCK_CLOEXEC)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::new(4)?)?;
    Ok(socket)
}

fn seqpacket(flags: SockFlag) -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

impl Control {
    /// Connects to the control socket at `path`. Does not wait: a Unix socket's backlog takes the connection or refuses it.
    ///
    /// # Errors
    /// Where nobody listens at `path`, or the backlog is full.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let fd = seqpacket(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        // SAFETY: `OwnedFd` reports the same descriptor all its life and keeps it open, also while registered.
        let socket = Arc::new(unsafe { AsyncFd::register(fd) }?);
        let (replies_in, replies) = mpsc::channel(QUEUE);
        let (events_in, events) = mpsc::channel(QUEUE);
        let reader = tokio::spawn(read(Arc::clone(&socket), replies_in, events_in));
        Ok(Self { socket, replies, events, next_id: 1, _reader: AbortOnDropHandle::new(reader) })
    }

    /// Asks, and waits for the reply at most `timeout`.
    ///
    /// # Errors
    /// [`RequestError`]: it could not be sent, was refused, or had no reply.
    pub async fn request(
        &mut self,
        request: Request,
        fds: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Reply, RequestError> {
        let ask = async {
            let id = self.next_id;
            self.next_id += 1;
            let message = RequestMessage { id, request };
            let send = |fd: &OwnedFd| vmm::send(fd.as_fd(), &message, fds);
            self.socket.async_io(Interest::WRITABLE, send).await.map_err(RequestError::Send)?;
            loop {
                match self.replies.recv().await {
                    Some((found, result)) if found == id => return result.map_err(RequestError::Refused),
                    // The late answer to a request that was given up.
                    Some(_) => {}
                    None => return Err(RequestError::Closed),
                }
            }
        };
        tokio::time::timeout(timeout, ask).await.unwrap_or(Err(RequestError::TimedOut(timeout)))
    }

    /// The next event; `None` once the monitor closed. May be dropped and called again.
    pub async fn event(&mut self) -> Option<MonitorEvent> {
        self.events.recv().await
    }
}

/// Sorts what the monitor sends, until it closes or breaks the protocol.
async fn read(
    socket: Arc<AsyncFd<OwnedFd>>,
    replies: mpsc::Sender<(u64, Result<Reply, Fault>)>,
    events: mpsc::Sender<MonitorEvent>,
) {
    loop {
        let received = socket.async_io(Interest::READABLE, |fd| vmm::receive(fd.as_fd())).await;
        let packet = match received {
            Ok(Some(packet)) => packet,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "reading from a monitor failed");
                return;
            }
        };
        match understand(packet) {
            // Queues that are full belong to a monitor that sends what nobody asked for: the surplus is dropped, which
            // closes the descriptors.
            Ok(Message::Reply(id, result)) => drop(replies.try_send((id, result))),
            Ok(Message::Event(event)) => drop(events.try_send(event)),
            Err(error) => {
                tracing::warn!(%error, "a monitor broke its protocol");
                return;
            }
        }
    }
}

enum Message {
    Reply(u64, Result<Reply, Fault>),
    Event(MonitorEvent),
}

fn understand(packet: Packet) -> io::Result<Message> {
    let mut fds = packet.fds.into_iter();
    match serde_json::from_slice(&packet.bytes)? {
        MonitorMessage::Reply { id, result } => Ok(Message::Reply(id, result)),
        MonitorMessage::Event(Event::GuestConnected { port }) => {
            let missing = || io::Error::new(io::ErrorKind::InvalidData, "an event without its descriptor");
            let connection = GuestConnection { port, stream: fds.next().ok_or_else(missing)? };
            Ok(Message::Event(MonitorEvent::GuestConnected(connection)))
        }
        MonitorMessage::Event(Event::Disk(event)) => Ok(Message::Event(MonitorEvent::Disk(event))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::accept;
    use sandpiper_protocol::vmm::{FaultCode, MachineState, Timings};
    use std::os::fd::FromRawFd;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// The monitor's end, driven by hand.
    fn accept_one(listener: &OwnedFd) -> OwnedFd {
        let fd = accept(listener.as_raw_fd()).unwrap();
        // SAFETY: accept has just made it for this test.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    #[tokio::test]
    async fn requests_get_their_replies_and_events_come_between() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = listen_at(&path).unwrap();
        let mut monitor = Control::connect(&path).unwrap();
        let peer = accept_one(&listener);
        let answers = tokio::task::spawn_blocking(move || {
            let packet = vmm::receive(peer.as_fd()).unwrap().unwrap();
            let request: RequestMessage = serde_json::from_slice(&packet.bytes).unwrap();
            let event = MonitorMessage::Event(Event::GuestConnected { port: 1024 });
            vmm::send(peer.as_fd(), &event, &[peer.as_fd()]).unwrap();
            vmm::send(peer.as_fd(), &MonitorMessage::Event(Event::Disk(DiskEvent::Room)), &[]).unwrap();
            let late = Fault { code: FaultCode::Host, message: "late".into() };
            vmm::send(peer.as_fd(), &MonitorMessage::Reply { id: request.id + 9, result: Err(late) }, &[]).unwrap();
            let status = Reply::Status { state: MachineState::Running, timings: Timings::default() };
            vmm::send(peer.as_fd(), &MonitorMessage::Reply { id: request.id, result: Ok(status) }, &[]).unwrap();
        });

        let reply = monitor.request(Request::Status, &[], TIMEOUT).await.unwrap();
        answers.await.unwrap();

        assert!(matches!(reply, Reply::Status { state: MachineState::Running, .. }));
        assert!(matches!(
            monitor.event().await,
            Some(MonitorEvent::GuestConnected(GuestConnection { port: 1024, .. }))
        ));
        assert!(matches!(monitor.event().await, Some(MonitorEvent::Disk(DiskEvent::Room))));
        assert!(monitor.event().await.is_none());
    }

    #[tokio::test]
    async fn a_monitor_that_talks_nonsense_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = listen_at(&path).unwrap();
        let mut monitor = Control::connect(&path).unwrap();
        let peer = accept_one(&listener);

        vmm::send(peer.as_fd(), &"nonsense", &[]).unwrap();

        assert!(monitor.event().await.is_none());
        assert!(matches!(monitor.request(Request::Status, &[], TIMEOUT).await, Err(RequestError::Closed)));
    }

    #[tokio::test]
    async fn a_monitor_that_is_silent_is_not_waited_for_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let _listener = listen_at(&path).unwrap();
        let mut monitor = Control::connect(&path).unwrap();
        let result = monitor.request(Request::Status, &[], Duration::from_millis(1)).await;
        assert!(matches!(result, Err(RequestError::TimedOut(_))));
    }
}
