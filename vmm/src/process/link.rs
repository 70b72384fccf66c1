//! From the guest to the agent: connections to the host's vsock ports, as events on the newest control connection.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sandpiper_protocol::guest::LINK_PORT;
use sandpiper_protocol::vmm::{self, Event, MonitorMessage};

use crate::devices::virtio::bucket::Bucket;
use crate::devices::virtio::vsock::GuestConnections;
use crate::machine::clock::monotonic_us;

/// The control connection that gets events, if any. Clones are the same slot.
#[derive(Clone, Default)]
pub(crate) struct EventSlot(Arc<Mutex<Option<Arc<OwnedFd>>>>);

impl EventSlot {
    pub(crate) fn set(&self, connection: Option<Arc<OwnedFd>>) {
        *self.lock() = connection;
    }

    /// Sends `event` unless nobody is there to take it now: the connection does not block, so an agent that reads nothing
    /// holds nothing up here.
    pub(crate) fn send(&self, event: Event, fd: Option<&UnixStream>) -> bool {
        let Some(connection) = self.lock().clone() else { return false };
        let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        vmm::send(connection.as_fd(), &MonitorMessage::Event(event), &fds).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device's view of the agent: of all host ports only the link's is open.
pub(crate) struct AgentLink {
    pub(crate) events: EventSlot,
    /// Filled with the time of the guest's first attempt.
    pub(crate) guest_init_us: Arc<AtomicU64>,
    pub(crate) openings: Openings,
}

/// How often the guest may still open its link. It does so once, and again when the agent was restarted; each time costs the
/// agent a task and a first message of up to 64 KiB.
pub(crate) struct Openings(Bucket);

impl Default for Openings {
    fn default() -> Self {
        Self(Bucket::new(PER_SECOND))
    }
}

const PER_SECOND: u64 = 8;

impl Openings {
    fn take(&mut self, now: Instant) -> bool {
        let open = self.0.empty_until(now).is_none();
        if open {
            self.0.take(1, now);
        }
        open
    }
}

impl GuestConnections for AgentLink {
    fn connect(&mut self, port: u32) -> Option<UnixStream> {
        if port != LINK_PORT {
            return None;
        }
        // Only the first attempt finds a zero.
        let _ = self.guest_init_us.compare_exchange(0, monotonic_us(), Ordering::Relaxed, Ordering::Relaxed);
        if !self.openings.take(Instant::now()) {
            return None;
        }
        let (ours, theirs) = UnixStream::pair().ok()?;
        self.events.send(Event::GuestConnected { port }, Some(&theirs)).then_some(ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    fn link() -> (AgentLink, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let events = EventSlot::default();
        events.set(Some(Arc::new(ours)));
        (AgentLink { events, guest_init_us: Arc::default(), openings: Openings::default() }, theirs)
    }

    #[test]
    fn the_link_reaches_the_agent_and_its_first_attempt_is_timed() {
        let (mut link, agent) = link();
        assert!(link.connect(LINK_PORT).is_some());
        let packet = vmm::receive(agent.as_fd()).unwrap().unwrap();
        assert_eq!(packet.fds.len(), 1);
        let message: MonitorMessage = serde_json::from_slice(&packet.bytes).unwrap();
        assert!(matches!(message, MonitorMessage::Event(Event::GuestConnected { port: LINK_PORT })));
        let first = link.guest_init_us.load(Ordering::Relaxed);
        assert!(first > 0);
        link.connect(LINK_PORT);
        assert_eq!(link.guest_init_us.load(Ordering::Relaxed), first);
    }

    #[test]
    fn other_ports_and_an_absent_agent_are_refused() {
        let (mut link, agent) = link();
        assert!(link.connect(LINK_PORT + 1).is_none());
        assert_eq!(link.guest_init_us.load(Ordering::Relaxed), 0);
        drop(agent);
        assert!(link.connect(LINK_PORT).is_none());
        link.events.set(None);
        assert!(link.connect(LINK_PORT).is_none());
    }

    #[test]
    fn an_agent_that_does_not_read_does_not_block_the_guest() {
        let (link, _agent) = link();
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let mut sent = 0;
        while link.events.send(Event::GuestConnected { port: LINK_PORT }, Some(&theirs)) {
            sent += 1;
            assert!(sent < 100_000);
        }
    }

    #[test]
    fn a_guest_that_opens_its_link_in_a_loop_is_refused_and_later_heard_again() {
        let (mut openings, start) = (Openings::default(), Instant::now());
        let opened = (0..1000).filter(|_| openings.take(start)).count();
        assert!((1..=PER_SECOND + 1).contains(&(opened as u64)), "{opened}");
        assert!(openings.take(start + std::time::Duration::from_secs(1)));

        let (mut link, _agent) = link();
        assert!((0..1000).any(|_| link.connect(LINK_PORT).is_none()));
    }
}
