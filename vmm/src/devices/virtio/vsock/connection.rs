//! One connection, and both of its ends.
//!
//! ```text
//!                 line read              RESPONSE
//!   Command ─────────────▶ Requested ─────────────▶ Established ──────────────────────────▶ gone (RST sent)
//!      │ not a command         │ RST, no answer       │ │    guest has closed both directions
//!      ▼                       ▼                      │ │    and its data reached the host
//!     gone                    gone                    │ │
//!                              host end gone, all of  │ └─▶ Draining ──▶ gone
//!   (a connection that         its data with guest    ▼     RST came while data for the host was waiting:
//!   the guest opens starts                         Closing  the guest is gone, the host still gets it
//!   as Established)                                   │ RST, or CLOSE_TIMEOUT
//!                                                     ▼
//!                                                   gone
//! ```
//!
//! Events only change fields; [`Connection::advance`], called after each, draws the conclusions. What has to go to the
//! guest is not sent but waits in fields, until the muxer offers receive buffers: see [`Connection::wants_buffers`].

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use vm_memory::VolatileSlice;
use vmm_sys_util::epoll::EventSet;

use super::super::slices::Slices;
use super::credit::{ReceiveCredit, SendCredit};
use super::packet::{Header, Ports, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, op};
use super::stream::{self, Command};

/// A client names the port it wants within this.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// The guest answers a request within this: generous, because guests also run under emulation.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The guest answers the last `SHUTDOWN` within this.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A guest takes some of what a host end left behind when it closed within this.
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(60);

/// See the module's picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Command,
    Requested,
    Established,
    Closing,
    Draining,
}

/// What is to be done with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Keep,
    /// Both ends know.
    Remove,
    /// The guest has to be told.
    Reset,
}

pub(super) struct Connection {
    state: State,
    /// The guest's port is unknown in `Command`, and both are of no meaning in `Draining`.
    pub(super) ports: Ports,
    /// When to give up on the side that is waited for.
    deadline: Option<Instant>,

    /// `None` from `Closing` on.
    stream: Option<UnixStream>,
    /// Last known readiness. Events are edge-triggered: these stay true until a call would block.
    readable: bool,
    writable: bool,
    /// The host end is closed in both directions.
    hung_up: bool,
    /// The host end has finished writing.
    finished: bool,
    /// Everything the host end wrote was read.
    at_end: bool,
    /// Nothing can be written to the host end any more; data for it is dropped.
    unwritable: bool,
    /// The guest's end of data was passed on to the host end.
    write_shut: bool,
    /// What the host end did not take yet. Within `receive`'s limit.
    backlog: VecDeque<u8>,

    send: SendCredit,
    receive: ReceiveCredit,
    /// `SHUTDOWN` flags from the guest, for the guest, and as sent to the guest.
    guest_shutdown: u32,
    our_shutdown: u32,
    sent_shutdown: u32,
    /// `REQUEST` or `RESPONSE`, before anything else.
    announce: Option<u16>,
    credit_update: bool,
    credit_request: bool,
    /// Asked for credit, and got none since.
    credit_requested: bool,
}

impl Connection {
    fn new(state: State, ports: Ports, stream: UnixStream) -> Self {
        Self {
            state,
            ports,
            deadline: None,
            stream: Some(stream),
            readable: false,
            writable: true,
            hung_up: false,
            finished: false,
            at_end: false,
            unwritable: false,
            write_shut: false,
            backlog: VecDeque::new(),
            send: SendCredit::default(),
            receive: ReceiveCredit::default(),
            guest_shutdown: 0,
            our_shutdown: 0,
            sent_shutdown: 0,
            announce: None,
            credit_update: false,
            credit_request: false,
            credit_requested: false,
        }
    }

    /// A client of the listening socket connected.
    pub(super) fn from_host(stream: UnixStream, now: Instant) -> Self {
        let mut connection = Self::new(State::Command, Ports { host: 0, guest: 0 }, stream);
        connection.deadline = Some(now + COMMAND_TIMEOUT);
        connection
    }

    /// The guest connected, with `request`, and `stream` is the host's end.
    pub(super) fn from_guest(stream: UnixStream, ports: Ports, request: &Header) -> Self {
        let mut connection = Self::new(State::Established, ports, stream);
        connection.send.update(request.buf_alloc.get(), request.fwd_cnt.get());
        connection.announce = Some(op::RESPONSE);
        connection
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The deadline passed.
    pub(super) fn expire(&self) -> Action {
        match self.state {
            State::Command | State::Draining => Action::Remove,
            // The guest has not heard of the connection as long as the request waits to be sent.
            State::Requested if self.announce.is_some() => Action::Remove,
            State::Requested | State::Established | State::Closing => Action::Reset,
        }
    }

    /// Bytes that the host end did not take yet.
    pub(super) fn backlog(&self) -> usize {
        self.backlog.len()
    }

    pub(super) fn stream(&self) -> Option<&UnixStream> {
        self.stream.as_ref()
    }

    /// The host end's readiness changed.
    pub(super) fn host_event(&mut self, events: EventSet, now: Instant) {
        self.readable |= events.intersects(EventSet::IN | EventSet::READ_HANG_UP | EventSet::HANG_UP | EventSet::ERROR);
        self.writable |= events.intersects(EventSet::OUT | EventSet::HANG_UP | EventSet::ERROR);
        self.finished |= events.intersects(EventSet::READ_HANG_UP | EventSet::HANG_UP);
        if events.contains(EventSet::HANG_UP) && !self.hung_up {
            self.hung_up = true;
            if self.state == State::Established {
                self.deadline = Some(now + LINGER_TIMEOUT);
            }
        }
    }

    /// In `Command`: reads which port the client wants. `Incomplete` also when there is nothing to read.
    pub(super) fn read_command(&mut self) -> Command {
        let Some(stream) = self.stream.as_ref().filter(|_| self.readable) else { return Command::Incomplete };
        let command = stream::read_command(stream);
        if command == Command::Incomplete {
            self.readable = false;
        }
        command
    }

    /// `Command` → `Requested`.
    pub(super) fn request(&mut self, ports: Ports, now: Instant) {
        self.state = State::Requested;
        self.ports = ports;
        self.announce = Some(op::REQUEST);
        self.deadline = Some(now + REQUEST_TIMEOUT);
    }

    /// The guest sent `header`, and `data` as far as there is any. `REQUEST` is the muxer's to handle.
    pub(super) fn packet(&mut self, header: &Header, data: Slices<'_>) -> Action {
        self.send.update(header.buf_alloc.get(), header.fwd_cnt.get());
        if self.send.available() > 0 {
            self.credit_requested = false;
        }
        match (header.op.get(), self.state) {
            (op::RST, State::Established) if !self.backlog.is_empty() => {
                self.state = State::Draining;
                self.deadline = None;
                self.announce = None;
                // Nobody is left to take what the host end writes.
                let _ = self.stream.as_ref().map(|stream| stream.shutdown(Shutdown::Read));
                Action::Keep
            }
            (op::RST, _) => Action::Remove,
            (op::RESPONSE, State::Requested) if self.announce.is_none() => self.establish(),
            (op::RW, State::Established | State::Closing) => self.deliver(header.len.get(), data),
            (op::SHUTDOWN, State::Established | State::Closing) => {
                self.guest_shutdown |= header.flags.get() & SHUTDOWN_BOTH;
                Action::Keep
            }
            (op::CREDIT_UPDATE, _) => Action::Keep,
            (op::CREDIT_REQUEST, State::Established | State::Closing) => {
                self.credit_update = true;
                Action::Keep
            }
            _ => Action::Reset,
        }
    }

    /// `Requested` → `Established`: the client is told.
    fn establish(&mut self) -> Action {
        let mut answer = format!("OK {}\n", self.ports.host).into_bytes();
        let len = answer.len();
        let Some(stream) = &self.stream else { return Action::Reset };
        // A client's socket always has room for the first line that it gets.
        match stream::send(stream, &[VolatileSlice::from(&mut answer[..])]) {
            Ok(count) if count == len => {
                self.state = State::Established;
                self.deadline = None;
                Action::Keep
            }
            _ => Action::Reset,
        }
    }

    /// Data from the guest: to the host end at once if possible, else into the backlog.
    fn deliver(&mut self, len: u32, mut data: Slices<'_>) -> Action {
        let mut data = data.split_front(len as usize);
        let cut_short = data.len() != len as usize;
        if cut_short || self.guest_shutdown & SHUTDOWN_SEND != 0 || self.receive.receive(len).is_err() {
            return Action::Reset;
        }
        while !data.is_empty() && self.backlog.is_empty() && self.writable {
            let Some(stream) = self.stream.as_ref().filter(|_| !self.unwritable) else { break };
            match stream::send(stream, data.pieces()) {
                Ok(count) => {
                    self.receive.forward(count);
                    data.split_front(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(_) => self.give_up_writing(),
            }
        }
        if self.stream.is_none() || self.unwritable {
            self.receive.forward(data.len());
            return Action::Keep;
        }
        let mut chunk = [0; 8 * 1024];
        while !data.is_empty() {
            let part = data.split_front(chunk.len());
            part.copy_to(&mut chunk);
            self.backlog.extend(&chunk[..part.len()]);
        }
        Action::Keep
    }

    /// Writes the backlog to the host end as far as it takes it.
    fn flush(&mut self) {
        while !self.backlog.is_empty() && self.writable {
            let Some(stream) = &self.stream else { break };
            let (first, second) = self.backlog.as_mut_slices();
            match stream::send(stream, &[VolatileSlice::from(first), VolatileSlice::from(second)]) {
                Ok(count) => {
                    self.backlog.drain(..count);
                    self.receive.forward(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(_) => self.give_up_writing(),
            }
        }
        if self.backlog.is_empty() {
            // An idle connection holds no memory.
            self.backlog = VecDeque::new();
        }
    }

    fn give_up_writing(&mut self) {
        self.unwritable = true;
        self.our_shutdown |= SHUTDOWN_RECEIVE;
        self.receive.forward(self.backlog.len());
        self.backlog = VecDeque::new();
    }

    /// The host end finished writing, and the guest has it all.
    fn reach_end(&mut self) {
        self.at_end = true;
        self.our_shutdown |= SHUTDOWN_SEND;
    }

    /// Draws the conclusions from what changed.
    pub(super) fn advance(&mut self, now: Instant) -> Action {
        match self.state {
            State::Command if self.hung_up => Action::Remove,
            State::Command => Action::Keep,
            State::Requested if self.hung_up => self.expire(),
            State::Requested => Action::Keep,
            State::Established => self.advance_established(now),
            State::Closing if self.guest_shutdown == SHUTDOWN_BOTH => Action::Reset,
            State::Closing => Action::Keep,
            State::Draining => {
                self.flush();
                if self.backlog.is_empty() || self.hung_up { Action::Remove } else { Action::Keep }
            }
        }
    }

    fn advance_established(&mut self, now: Instant) -> Action {
        if self.hung_up {
            self.give_up_writing();
        }
        self.flush();
        if self.backlog.is_empty() && self.guest_shutdown == SHUTDOWN_BOTH {
            return Action::Reset;
        }
        let Some(stream) = &self.stream else { return Action::Reset };
        if self.backlog.is_empty() && self.guest_shutdown & SHUTDOWN_SEND != 0 && !self.write_shut {
            self.write_shut = true;
            let _ = stream.shutdown(Shutdown::Write);
        }
        if !self.at_end {
            let unwanted = self.guest_shutdown & SHUTDOWN_RECEIVE != 0;
            if unwanted {
                // The host end gets EPIPE from now on.
                let _ = stream.shutdown(Shutdown::Read);
            }
            // Without credit nothing is read, but the end of the stream needs no credit.
            let starved = self.send.available() == 0;
            if unwanted || self.finished && starved && stream::is_at_end(stream) {
                self.reach_end();
            }
        }
        if self.readable && !self.at_end && self.send.available() == 0 && !self.credit_requested {
            self.credit_request = true;
            self.credit_requested = true;
        }
        if self.our_shutdown == SHUTDOWN_BOTH {
            self.state = State::Closing;
            self.deadline = Some(now + CLOSE_TIMEOUT);
        }
        Action::Keep
    }

    /// In `Closing`, once: the stream, which has nothing more to give or take.
    pub(super) fn take_finished_stream(&mut self) -> Option<UnixStream> {
        if self.state == State::Closing { self.stream.take() } else { None }
    }

    /// When the connection is over.
    pub(super) fn into_stream(self) -> Option<UnixStream> {
        self.stream
    }

    /// Whether there is something to tell the guest.
    pub(super) fn wants_buffers(&self) -> bool {
        self.announce.is_some() || self.next_notice().is_some() || self.may_read()
    }

    /// The packet that has to precede all others.
    pub(super) fn announcement(&self) -> Option<u16> {
        self.announce
    }

    /// A packet without data that is due, and its flags.
    pub(super) fn next_notice(&self) -> Option<(u16, u32)> {
        if !matches!(self.state, State::Established | State::Closing) {
            None
        } else if self.our_shutdown != self.sent_shutdown {
            Some((op::SHUTDOWN, self.our_shutdown))
        } else if self.credit_update || self.receive.is_worth_telling() {
            Some((op::CREDIT_UPDATE, 0))
        } else if self.credit_request {
            Some((op::CREDIT_REQUEST, 0))
        } else {
            None
        }
    }

    /// Whether the host end may have data that the guest takes.
    pub(super) fn may_read(&self) -> bool {
        self.state == State::Established && self.readable && !self.at_end && self.send.available() > 0
    }

    /// How many bytes the guest takes.
    pub(super) fn credit(&self) -> usize {
        self.send.available()
    }

    /// Reads from the host end into `pieces`, which are not empty and cover at most [`Self::credit`] bytes. Returns how
    /// many bytes are to be sent to the guest: none at the end, or if there is nothing now.
    pub(super) fn read(&mut self, pieces: &[VolatileSlice<'_>], now: Instant) -> usize {
        let Some(stream) = &self.stream else { return 0 };
        match stream::receive(stream, pieces) {
            Ok(count @ 1..) => {
                if self.hung_up {
                    self.deadline = Some(now + LINGER_TIMEOUT);
                }
                return count;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Ok(_) => self.reach_end(),
            // ECONNRESET: the host end closed with data unread.
            Err(_) => {
                self.give_up_writing();
                self.reach_end();
            }
        }
        0
    }

    /// The header's field `fwd_cnt` for a packet `op` with `len` bytes of data that goes out now.
    pub(super) fn sent(&mut self, op: u16, flags: u32, len: u32) -> u32 {
        match op {
            op::REQUEST | op::RESPONSE => self.announce = None,
            op::SHUTDOWN => self.sent_shutdown = flags,
            op::CREDIT_REQUEST => self.credit_request = false,
            _ => self.send.send(len),
        }
        // Every header carries the credit.
        self.credit_update = false;
        self.receive.advertise()
    }
}
