//! Control connections: packets in, replies out.
//!
//! The newest connection is the agent's present one and gets events; older ones still get their replies. A connection
//! whose peer does not take its replies is closed: the protocol is one reply to one request, so a full socket means that
//! nobody reads. There are at most [`MAX_CONNECTIONS`]; the oldest goes for a new one. If the kernel gives none out, for want of
//! memory or descriptors, the listener pauses for [`ACCEPT_PAUSE`]: clients wait in its backlog, and the machine has nothing to do
//! with it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{SockFlag, accept4};
use sandpiper_protocol::vmm::{self, MonitorMessage, Packet};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::link::EventSlot;

/// An agent has one; one more while the old one's end is not noticed yet; the rest is for people who look.
const MAX_CONNECTIONS: usize = 8;

/// How long nobody is let in after the kernel refused to.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Names a connection; later ones have greater numbers.
pub(crate) type ConnectionId = u64;

pub(crate) struct Control {
    listener: OwnedFd,
    /// By age.
    connections: BTreeMap<ConnectionId, Arc<OwnedFd>>,
    next_id: ConnectionId,
    events: EventSlot,
    /// When the listener is watched again.
    paused_until: Option<Instant>,
    /// A refusal has been logged; the next is, after a success.
    complained: bool,
}

/// What came from a connection.
pub(crate) enum Received {
    Packet(Packet),
    /// Over the protocol's limits; the next one may be well again.
    Unreadable(io::Error),
    /// No packet at present.
    Nothing,
    /// The peer is gone, and so is the connection.
    Closed,
}

impl Control {
    /// Connections are numbered from `first_id` on.
    pub(crate) fn new(listener: OwnedFd, events: EventSlot, first_id: ConnectionId) -> Self {
        let connections = BTreeMap::new();
        Self { listener, connections, next_id: first_id, events, paused_until: None, complained: false }
    }

    /// Has `epoll` watch the listener as `id`, or not.
    fn watch(&self, epoll: &Epoll, id: u64, operation: ControlOperation) -> io::Result<()> {
        epoll.ctl(operation, self.listener.as_raw_fd(), EpollEvent::new(EventSet::IN, id))
    }

    /// Takes one waiting connection, if there is one, and has `epoll` watch it under its number. If that fails, `epoll`
    /// stops watching the listener, known to it as `listener`, until [`Self::wake`]. Fails only if that cannot be done.
    pub(crate) fn accept(&mut self, epoll: &Epoll, listener: u64) -> io::Result<()> {
        match self.take_one(epoll) {
            Ok(()) => self.complained = false,
            Err(error) => {
                if !std::mem::replace(&mut self.complained, true) {
                    eprintln!("sandpiper-vmm: cannot accept a control connection; retrying: {error}");
                }
                self.watch(epoll, listener, ControlOperation::Delete)?;
                self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
            }
        }
        Ok(())
    }

    /// When [`Self::wake`] has something to do.
    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Watches the listener again, if its pause has ended.
    pub(crate) fn wake(&mut self, epoll: &Epoll, listener: u64) -> io::Result<()> {
        if self.paused_until.is_some_and(|until| until <= Instant::now()) {
            self.paused_until = None;
            self.watch(epoll, listener, ControlOperation::Add)?;
        }
        Ok(())
    }

    fn take_one(&mut self, epoll: &Epoll) -> io::Result<()> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = match accept4(self.listener.as_raw_fd(), flags) {
            Ok(fd) => fd,
            // Gone again, or taken already.
            Err(nix::Error::EAGAIN | nix::Error::EINTR | nix::Error::ECONNABORTED) => return Ok(()),
            // No descriptor is free: the oldest connection makes room, and the new one is still waiting.
            Err(nix::Error::EMFILE | nix::Error::ENFILE) if self.connections.pop_first().is_some() => {
                self.choose_receiver();
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
        let connection = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let id = self.next_id;
        epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, id))?;
        self.next_id += 1;
        self.connections.insert(id, connection);
        if self.connections.len() > MAX_CONNECTIONS {
            self.connections.pop_first();
        }
        self.choose_receiver();
        Ok(())
    }

    /// Takes one packet from connection `id`.
    pub(crate) fn receive(&mut self, id: ConnectionId) -> Received {
        let Some(connection) = self.connections.get(&id) else { return Received::Nothing };
        match vmm::receive(connection.as_fd()) {
            Ok(Some(packet)) => Received::Packet(packet),
            Ok(None) => self.close(id),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Received::Nothing,
                io::ErrorKind::InvalidData => Received::Unreadable(error),
                _ => self.close(id),
            },
        }
    }

    /// Sends `message` to connection `id`, or closes it if it does not take it.
    pub(crate) fn reply(&mut self, id: ConnectionId, message: &MonitorMessage) {
        let Some(connection) = self.connections.get(&id) else { return };
        if vmm::send(connection.as_fd(), message, &[]).is_err() {
            self.close(id);
        }
    }

    fn close(&mut self, id: ConnectionId) -> Received {
        // Closing takes it out of the epoll set too, unless the event slot still holds it: that is next.
        self.connections.remove(&id);
        self.choose_receiver();
        Received::Closed
    }

    fn choose_receiver(&self) {
        self.events.set(self.connections.last_key_value().map(|(_, connection)| Arc::clone(connection)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::virtio::vsock::GuestConnections;
    use crate::process::link::{AgentLink, Openings};
    use nix::sys::socket::{AddressFamily, Backlog, SockType, UnixAddr, bind, connect, getsockname, listen, socket};
    use sandpiper_protocol::guest::LINK_PORT;
    use sandpiper_protocol::vmm::Reply;

    /// How the listener is known to epoll.
    const LISTENER: u64 = 0;

    fn seqpacket() -> OwnedFd {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap()
    }

    struct Fixture {
        control: Control,
        epoll: Epoll,
        address: UnixAddr,
        link: AgentLink,
    }

    fn fixture() -> Fixture {
        let listener = seqpacket();
        bind(listener.as_raw_fd(), &UnixAddr::new_unnamed()).unwrap();
        listen(&listener, Backlog::new(16).unwrap()).unwrap();
        let address = getsockname(listener.as_raw_fd()).unwrap();
        let events = EventSlot::default();
        let control = Control::new(listener, events.clone(), 2);
        Fixture {
            control,
            epoll: Epoll::new().unwrap(),
            address,
            link: AgentLink { events, guest_init_us: Arc::default(), openings: Openings::default() },
        }
    }

    impl Fixture {
        fn agent(&mut self) -> OwnedFd {
            let socket = seqpacket();
            connect(socket.as_raw_fd(), &self.address).unwrap();
            self.control.accept(&self.epoll, LISTENER).unwrap();
            socket
        }
    }

    fn got_event(agent: &OwnedFd) -> bool {
        let Ok(Some(packet)) = vmm::receive(agent.as_fd()) else { return false };
        matches!(serde_json::from_slice(&packet.bytes).unwrap(), MonitorMessage::Event(_))
    }

    #[test]
    fn the_newest_connection_gets_events_and_the_one_before_it_when_it_closes() {
        let mut fixture = fixture();
        let first = fixture.agent();
        let second = fixture.agent();
        assert!(fixture.link.connect(LINK_PORT).is_some());
        assert!(!got_event(&first));
        assert!(got_event(&second));

        drop(second);
        assert!(matches!(fixture.control.receive(3), Received::Closed));
        assert!(fixture.link.connect(LINK_PORT).is_some());
        assert!(got_event(&first));
    }

    #[test]
    fn connections_are_limited_and_the_newest_stay() {
        let mut fixture = fixture();
        let agents: Vec<_> = (0..MAX_CONNECTIONS + 2).map(|_| fixture.agent()).collect();
        assert!(vmm::receive(agents[0].as_fd()).unwrap().is_none(), "closed");
        assert!(vmm::receive(agents[2].as_fd()).is_err(), "open, with nothing to read");
        assert!(fixture.link.connect(LINK_PORT).is_some());
        assert!(got_event(agents.last().unwrap()));
    }

    #[test]
    fn a_listener_that_fails_is_watched_again_after_a_pause() {
        let mut fixture = fixture();
        // One that nobody can connect to: `accept4` fails with EINVAL, which is none of the errors that are known.
        let listener = std::mem::replace(&mut fixture.control.listener, seqpacket());
        let mut events = [EpollEvent::default(); 4];
        fixture.control.watch(&fixture.epoll, LISTENER, ControlOperation::Add).unwrap();
        fixture.control.accept(&fixture.epoll, LISTENER).unwrap();
        assert!(fixture.control.paused_until().is_some_and(|until| until > Instant::now()));
        assert_eq!(fixture.epoll.wait(0, &mut events).unwrap(), 0, "it is not watched");

        fixture.control.listener = listener;
        let client = seqpacket();
        connect(client.as_raw_fd(), &fixture.address).unwrap();
        while fixture.control.paused_until().is_some() {
            fixture.epoll.wait(10, &mut events).unwrap();
            fixture.control.wake(&fixture.epoll, LISTENER).unwrap();
        }
        assert_eq!(fixture.epoll.wait(-1, &mut events).unwrap(), 1);
        fixture.control.accept(&fixture.epoll, LISTENER).unwrap();
        assert!(fixture.link.connect(LINK_PORT).is_some() && got_event(&client));
    }

    #[test]
    fn a_peer_that_takes_no_replies_is_closed() {
        let mut fixture = fixture();
        let _agent = fixture.agent();
        let reply = MonitorMessage::Reply { id: 1, result: Ok(Reply::Stopping) };
        for _ in 0..100_000 {
            fixture.control.reply(2, &reply);
            if fixture.control.connections.is_empty() {
                return;
            }
        }
        panic!("still open");
    }
}
