//! The table of connections, and the line in which they wait for the guest's receive buffers.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use sandpiper_protocol::guest::{HOST_CID, LINK_PORT, PRIVILEGED_PORTS};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::super::slices::Slices;
use super::super::{FIRST_SOURCE, Memory, Ring, RingError};
use super::GuestConnections;
use super::connection::{Action, Connection, State};
use super::credit::BUF_ALLOC;
use super::packet::{Header, Ports, TYPE_STREAM, op};
use super::stream::{self, Command};
use super::transmit::{header, next_buffer, send, transmit};

/// Connections at a time, in all states. More are refused.
pub(super) const MAX_CONNECTIONS: usize = 1024;

/// Bytes for host streams that do not take them, of all connections together: as much as 64 of them may have. Over it, the
/// connection with the most is reset: it is the reader of that one who is slow.
pub(super) const MAX_BACKLOG: usize = 64 * BUF_ALLOC as usize;

/// Connections that get as much of the kernel's memory for what their host end has not read as it gives to any socket (208 KiB).
/// The rest gets little: all of it is the monitor's own, whose limit a guest must not be able to reach (its memory and an
/// eighth, and 64 MiB).
const FULL_BUFFERS: usize = 64;

/// Replies to packets that belong to no connection. While as many wait for receive buffers, no more packets are taken from
/// the guest (virtio 1.2 section 5.10.6.1.2): a guest that wants to send must also receive.
const MAX_RESETS: usize = 256;

/// Host ports of connections that clients of the listening socket open: the upper half of what Linux has for unbound
/// sockets, far from any port that a guest connects to.
const FIRST_HOST_PORT: u32 = 1 << 30;
const LAST_HOST_PORT: u32 = (1 << 31) - 1;

/// Identifies a connection to epoll. Never reused, so an event that arrives after its connection ended is recognized.
pub(super) type Id = u64;

/// Ids below this are for others.
pub(super) const FIRST_ID: Id = FIRST_SOURCE + 1;

/// Whether the receive queue has to be served again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// Nothing is waiting.
    All,
    /// Something is waiting and the guest has posted no buffers.
    Starved,
    /// The budget of one call is used up.
    Some,
}

struct Entry {
    connection: Connection,
    /// In `ready`.
    queued: bool,
    /// In `deadlines`.
    armed: Option<Instant>,
    /// In the muxer's `backlog`.
    backlog: usize,
}

pub(super) struct Muxer {
    guest_cid: u64,
    limit: usize,
    entries: HashMap<Id, Entry>,
    /// Connections that the guest knows of.
    by_ports: HashMap<Ports, Id>,
    deadlines: BTreeSet<(Instant, Id)>,
    /// Connections with something for the guest, in the order in which they may send.
    ready: VecDeque<Id>,
    /// `RST` packets, which go out before anything else. At most [`MAX_RESETS`] for strangers, and one for each
    /// connection that ended.
    resets: VecDeque<Header>,
    next_id: Id,
    next_host_port: u32,
    /// Bytes for host streams, of all connections.
    backlog: usize,
}

impl Muxer {
    /// `next_host_port` is where an earlier device of the same guest left off, if there was one.
    pub(super) fn new(guest_cid: u32, next_host_port: Option<u32>) -> Self {
        let ports = FIRST_HOST_PORT..=LAST_HOST_PORT;
        Self {
            guest_cid: guest_cid.into(),
            limit: MAX_CONNECTIONS,
            entries: HashMap::new(),
            by_ports: HashMap::new(),
            deadlines: BTreeSet::new(),
            ready: VecDeque::new(),
            resets: VecDeque::new(),
            next_id: FIRST_ID,
            backlog: 0,
            next_host_port: next_host_port.filter(|port| ports.contains(port)).unwrap_or(FIRST_HOST_PORT),
        }
    }

    /// The host port of the next client.
    pub(super) fn next_host_port(&self) -> u32 {
        self.next_host_port
    }

    /// Whether so many replies wait that no more packets may be handled.
    pub(super) fn is_clogged(&self) -> bool {
        self.resets.len() >= MAX_RESETS
    }

    /// When [`Self::expire`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// A client of the listening socket connected.
    pub(super) fn accept(&mut self, epoll: &Epoll, stream: UnixStream, now: Instant) {
        if self.entries.len() >= self.limit {
            return stream::close(stream);
        }
        // If the descriptor cannot be watched, dropping it refuses the client.
        let _ = self.add(epoll, Connection::from_host(stream, now));
    }

    /// The readiness of a host stream changed.
    pub(super) fn host_event(&mut self, epoll: &Epoll, id: Id, events: EventSet, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.connection.host_event(events, now);
        if entry.connection.state() != State::Command {
            return self.settle(epoll, id, now);
        }
        match entry.connection.read_command() {
            Command::Connect(port) => {
                let ports = Ports { host: self.free_host_port(port), guest: port };
                self.by_ports.insert(ports, id);
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.connection.request(ports, now);
                }
                self.settle(epoll, id, now);
            }
            Command::Incomplete => self.settle(epoll, id, now),
            Command::Invalid => self.remove(epoll, id),
        }
    }

    /// Ends what took too long.
    pub(super) fn expire(&mut self, epoll: &Epoll, now: Instant) {
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.pop_first();
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.armed = None;
            let action = entry.connection.expire();
            self.apply(epoll, id, action, now);
        }
    }

    /// The guest sent a packet.
    pub(super) fn packet(
        &mut self,
        epoll: &Epoll,
        header: &Header,
        data: Slices<'_>,
        guest_connections: &mut dyn GuestConnections,
        now: Instant,
    ) {
        if header.src_cid != self.guest_cid || header.dst_cid != u64::from(HOST_CID) {
            return;
        }
        let op = header.op.get();
        if header.kind != TYPE_STREAM {
            return self.refuse(header);
        }
        let ports = Ports { host: header.dst_port.get(), guest: header.src_port.get() };
        match self.by_ports.get(&ports).copied() {
            None if op == op::REQUEST => self.connect(epoll, ports, header, guest_connections, now),
            None => self.refuse(header),
            Some(id) if op == op::REQUEST => {
                let closing = self.entries.get(&id).is_some_and(|entry| entry.connection.state() == State::Closing);
                if closing {
                    // The guest closed its end before we heard of it, and uses the port again.
                    self.remove(epoll, id);
                    self.connect(epoll, ports, header, guest_connections, now);
                } else {
                    self.apply(epoll, id, Action::Reset, now);
                }
            }
            Some(id) => {
                let Some(entry) = self.entries.get_mut(&id) else { return };
                let action = entry.connection.packet(header, data);
                if entry.connection.state() == State::Draining {
                    self.by_ports.remove(&ports);
                }
                self.apply(epoll, id, action, now);
                self.bound_backlog(epoll, now);
            }
        }
    }

    /// Resets whoever has the most waiting, while there is too much.
    fn bound_backlog(&mut self, epoll: &Epoll, now: Instant) {
        while self.backlog > MAX_BACKLOG
            && let Some((&id, entry)) = self.entries.iter().max_by_key(|(_, entry)| entry.backlog)
        {
            let action = entry.connection.expire();
            self.apply(epoll, id, action, now);
        }
    }

    /// The guest opens a connection.
    fn connect(
        &mut self,
        epoll: &Epoll,
        ports: Ports,
        request: &Header,
        guest_connections: &mut dyn GuestConnections,
        now: Instant,
    ) {
        let unprivileged_link = ports.host == LINK_PORT && ports.guest >= PRIVILEGED_PORTS;
        if unprivileged_link || self.entries.len() >= self.limit {
            return self.refuse(request);
        }
        let Some(stream) = guest_connections.connect(ports.host) else { return self.refuse(request) };
        match self.add(epoll, Connection::from_guest(stream, ports, request)) {
            Ok(id) => {
                self.by_ports.insert(ports, id);
                self.settle(epoll, id, now);
            }
            Err(_) => self.refuse(request),
        }
    }

    /// Answers a packet that belongs to no connection.
    fn refuse(&mut self, header: &Header) {
        if header.op != op::RST {
            let ports = Ports { host: header.dst_port.get(), guest: header.src_port.get() };
            // The type is the sender's: what it does not know as its own, it could not match.
            let reset = Header { kind: header.kind, ..self.header(ports, op::RST) };
            self.resets.push_back(reset);
        }
    }

    /// Closes all connections, without a word to the guest, and refuses new ones.
    pub(super) fn shut(&mut self, epoll: &Epoll) {
        self.limit = 0;
        let ids: Vec<Id> = self.entries.keys().copied().collect();
        for id in ids {
            self.remove(epoll, id);
        }
        self.resets.clear();
        self.ready.clear();
    }

    /// Fills the guest's receive buffers: replies first, then a batch of one connection after the other.
    pub(super) fn serve(
        &mut self,
        epoll: &Epoll,
        ring: &mut Ring,
        memory: &Memory,
        now: Instant,
    ) -> Result<Served, RingError> {
        let mut budget = ring.size();
        while budget > 0 {
            if let Some(reset) = self.resets.front() {
                let Some(buffer) = next_buffer(ring, memory)? else { return Ok(Served::Starved) };
                send(ring, memory, &buffer, reset)?;
                self.resets.pop_front();
                budget -= 1;
                continue;
            }
            let Some(id) = self.ready.pop_front() else { return Ok(Served::All) };
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.queued = false;
            let before = ring.used_count();
            let starved = !transmit(&mut entry.connection, self.guest_cid, ring, memory, now)?;
            budget = budget.saturating_sub(ring.used_count().wrapping_sub(before).max(1));
            if starved {
                entry.queued = true;
                self.ready.push_front(id);
                return Ok(Served::Starved);
            }
            self.settle(epoll, id, now);
        }
        Ok(if self.resets.is_empty() && self.ready.is_empty() { Served::All } else { Served::Some })
    }

    /// After anything happened to a connection: lets it draw its conclusions, and files it accordingly.
    fn settle(&mut self, epoll: &Epoll, id: Id, now: Instant) {
        self.apply(epoll, id, Action::Keep, now);
    }

    fn apply(&mut self, epoll: &Epoll, id: Id, action: Action, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let action = if action == Action::Keep { entry.connection.advance(now) } else { action };
        match action {
            Action::Remove => return self.remove(epoll, id),
            Action::Reset => {
                let reset = header(self.guest_cid, entry.connection.ports, op::RST);
                self.resets.push_back(reset);
                return self.remove(epoll, id);
            }
            Action::Keep => {}
        }
        if !entry.queued && entry.connection.wants_buffers() {
            entry.queued = true;
            self.ready.push_back(id);
        }
        let backlog = entry.connection.backlog();
        self.backlog = self.backlog - entry.backlog + backlog;
        entry.backlog = backlog;
        let deadline = entry.connection.deadline();
        if entry.armed != deadline {
            if let Some(armed) = entry.armed {
                self.deadlines.remove(&(armed, id));
            }
            self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
            entry.armed = deadline;
        }
        if let Some(stream) = entry.connection.take_finished_stream() {
            close(epoll, stream);
        }
    }

    fn add(&mut self, epoll: &Epoll, connection: Connection) -> io::Result<Id> {
        let id = self.next_id;
        if let Some(stream) = connection.stream() {
            if self.entries.len() >= FULL_BUFFERS {
                stream::shrink(stream)?;
            }
            // Edge-triggered: a stream that has data while the guest has no credit for it must not wake the thread again
            // and again, nor cost a system call to be put aside.
            let events = EventSet::IN | EventSet::OUT | EventSet::READ_HANG_UP | EventSet::EDGE_TRIGGERED;
            epoll.ctl(ControlOperation::Add, stream.as_raw_fd(), EpollEvent::new(events, id))?;
        }
        self.next_id += 1;
        let armed = connection.deadline();
        self.deadlines.extend(armed.map(|deadline| (deadline, id)));
        self.entries.insert(id, Entry { connection, queued: false, armed, backlog: 0 });
        Ok(id)
    }

    fn remove(&mut self, epoll: &Epoll, id: Id) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.backlog -= entry.backlog;
        if let Some(armed) = entry.armed {
            self.deadlines.remove(&(armed, id));
        }
        if self.by_ports.get(&entry.connection.ports) == Some(&id) {
            self.by_ports.remove(&entry.connection.ports);
        }
        if entry.queued {
            // Rare enough: most connections end with nothing left to say.
            self.ready.retain(|ready| *ready != id);
        }
        if let Some(stream) = entry.connection.into_stream() {
            close(epoll, stream);
        }
    }

    /// There are far more ports than connections, so this ends soon.
    fn free_host_port(&mut self, guest: u32) -> u32 {
        loop {
            let host = self.next_host_port;
            self.next_host_port = if host == LAST_HOST_PORT { FIRST_HOST_PORT } else { host + 1 };
            if !self.by_ports.contains_key(&Ports { host, guest }) {
                return host;
            }
        }
    }

    fn header(&self, ports: Ports, op: u16) -> Header {
        header(self.guest_cid, ports, op)
    }
}

fn close(epoll: &Epoll, stream: UnixStream) {
    // Closing would only do if nobody else had a descriptor for the same socket.
    let _ = epoll.ctl(ControlOperation::Delete, stream.as_raw_fd(), EpollEvent::default());
    stream::close(stream);
}
