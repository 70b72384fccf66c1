//! What every device does while it runs: wait for something to do, and do it, a bounded amount at a time.
//!
//! ```text
//!   run    begin ──▶ process ──▶ wait ──▶ events ──▶ stop? ──▶ end
//!                       ▲                              │ no
//!                       └──────────────────────────────┘
//!   poll   events that are there already ──▶ process
//! ```
//!
//! A [`Service`] says what it waits for and what it does then. [`EventLoop::run`] is what a device's thread does;
//! [`EventLoop::poll`] is one round of it, for tests and fuzzers.
//!
//! Work comes before waiting: what the driver did before the loop ran, or while it was stopped, may have been notified to
//! nobody.

use std::error::Error;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandpiper_protocol::error_chain;
use virtio_queue::QueueState;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::Interrupt;
use super::ring::Ring;
use crate::jail::Role;

/// The first id for events that are a service's own. Those before are notifications, by the queue's number.
pub const FIRST_SOURCE: u64 = 16;

/// The id of the event that stops the loop.
const STOP: u64 = u64::MAX;

/// Most events that one wait returns; the others come with the next one.
const MAX_EVENTS: usize = 64;

/// A device's work, apart from the thread that does it.
pub trait Service: Send + 'static {
    /// Of the thread.
    const ROLE: Role;

    /// Why the device cannot go on.
    type Error: Error + 'static;

    /// Its queues, in the device's order: at most [`FIRST_SOURCE`].
    fn queues(&self) -> impl Iterator<Item = &Ring>;

    fn interrupt(&self) -> &Interrupt;

    /// What the log calls the device.
    fn name(&self) -> String {
        Self::ROLE.name().to_owned()
    }

    /// Adds to `epoll` what the service waits for besides the notifications of its queues, under ids from [`FIRST_SOURCE`]
    /// on. Called once, when the loop runs for the first time.
    ///
    /// # Errors
    /// The host cannot watch one of them.
    fn watch(&mut self, _epoll: &Epoll) -> io::Result<()> {
        Ok(())
    }

    /// The loop runs from now on, for the first time or again.
    ///
    /// # Errors
    /// The device cannot go on.
    fn begin(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// One of the events that it has added has happened.
    ///
    /// # Errors
    /// The device cannot go on.
    fn event(&mut self, _epoll: &Epoll, _id: u64, _events: EventSet, _now: Instant) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Looks at the queues, whatever woke the loop, and does what there is to do at the time `now`: a bounded amount.
    ///
    /// # Errors
    /// The device cannot go on: above all, because its driver has corrupted a queue.
    fn process(&mut self, epoll: &Epoll, now: Instant) -> Result<Next, Self::Error>;

    /// The loop does not run from now on.
    fn end(&mut self) {}

    /// The queues as they stand, in the device's order.
    fn queue_states(&self) -> Vec<QueueState> {
        self.queues().map(Ring::state).collect()
    }
}

/// When a service has something to do again, the earliest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Next {
    Now,
    At(Instant),
    /// When an event says so.
    Notified,
}

impl Next {
    /// Milliseconds for `epoll_wait`, -1 for ever. Rounded up: waking early would mean waking again.
    fn timeout(self) -> i32 {
        match self {
            Self::Now => 0,
            Self::At(time) => {
                let wait = time.saturating_duration_since(Instant::now()).as_millis() + 1;
                i32::try_from(wait).unwrap_or(i32::MAX)
            }
            Self::Notified => -1,
        }
    }
}

/// Why a loop ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum LoopError<E: Error + 'static> {
    #[error("Cannot create or wait for the thread's events")]
    Events(#[source] io::Error),
    #[error(transparent)]
    Device(#[from] E),
}

/// A service and what it waits with.
pub struct EventLoop<S> {
    service: S,
    /// Made when it is needed first: a device without a disk, for example, has no use for one.
    epoll: Option<Epoll>,
}

impl<S: Service> EventLoop<S> {
    pub fn new(service: S) -> Self {
        Self { service, epoll: None }
    }

    pub fn service_mut(&mut self) -> &mut S {
        &mut self.service
    }

    pub fn into_service(self) -> S {
        self.service
    }

    /// Serves until `stop` becomes readable, which is not read, or until the device cannot go on: then it asks its driver for
    /// a reset. May be called again.
    pub(super) fn run(&mut self, stop: &EventFd) {
        if let Err(error) = self.serve(stop) {
            fail(&self.service, &error);
        }
        self.service.end();
    }

    /// Handles what has happened, and then does what there is to do.
    ///
    /// # Errors
    /// The device cannot go on.
    pub fn poll(&mut self) -> Result<Next, LoopError<S::Error>> {
        let epoll = self.take_epoll().map_err(LoopError::Events)?;
        let result = self.round(&epoll);
        self.epoll = Some(epoll);
        result
    }

    fn round(&mut self, epoll: &Epoll) -> Result<Next, LoopError<S::Error>> {
        let (now, _) = self.wait(epoll, Next::Now)?;
        Ok(self.service.process(epoll, now)?)
    }

    fn serve(&mut self, stop: &EventFd) -> Result<(), LoopError<S::Error>> {
        let epoll = self.take_epoll().map_err(LoopError::Events)?;
        let watched = EpollEvent::new(EventSet::IN, STOP);
        epoll.ctl(ControlOperation::Add, stop.as_raw_fd(), watched).map_err(LoopError::Events)?;
        let result = self.cycle(&epoll);
        // The next run has another descriptor of the same event.
        epoll.ctl(ControlOperation::Delete, stop.as_raw_fd(), watched).map_err(LoopError::Events)?;
        self.epoll = Some(epoll);
        result
    }

    fn cycle(&mut self, epoll: &Epoll) -> Result<(), LoopError<S::Error>> {
        self.service.begin()?;
        let mut now = Instant::now();
        loop {
            let next = self.service.process(epoll, now)?;
            let stopped;
            (now, stopped) = self.wait(epoll, next)?;
            if stopped {
                return Ok(());
            }
        }
    }

    /// Waits until `next` or an event, and handles what has happened by then. Returns the time, and whether to stop.
    fn wait(&mut self, epoll: &Epoll, next: Next) -> Result<(Instant, bool), LoopError<S::Error>> {
        let mut events = [EpollEvent::default(); MAX_EVENTS];
        let count = match epoll.wait(next.timeout(), &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(LoopError::Events(error)),
        };
        let (now, mut stopped) = (Instant::now(), false);
        for event in events.iter().take(count) {
            match event.data() {
                // Others that came with it are handled all the same: some are told once only.
                STOP => stopped = true,
                queue @ ..FIRST_SOURCE => {
                    let ring = usize::try_from(queue).ok().and_then(|number| self.service.queues().nth(number));
                    // Readable, and read by nobody else.
                    let _ = ring.map(|ring| ring.notify().read());
                }
                id => self.service.event(epoll, id, event.event_set(), now)?,
            }
        }
        Ok((now, stopped))
    }

    fn take_epoll(&mut self) -> io::Result<Epoll> {
        if let Some(epoll) = self.epoll.take() {
            return Ok(epoll);
        }
        let epoll = Epoll::new()?;
        for (number, ring) in (0..).zip(self.service.queues()) {
            let event = EpollEvent::new(EventSet::IN, number);
            epoll.ctl(ControlOperation::Add, ring.notify().as_raw_fd(), event)?;
        }
        self.service.watch(&epoll)?;
        Ok(epoll)
    }
}

/// Asks the driver of a device that cannot go on for a reset, and logs why.
pub(super) fn fail<S: Service>(service: &S, error: &dyn Error) {
    let (device, cause) = (service.name(), error_chain::chain(error));
    log(&format!("the {device} device has stopped until the guest's driver resets it: {cause}"));
    service.interrupt().needs_reset();
}

/// Writes to standard error, at most once a second: a guest can have its devices fail as often as it likes.
pub(super) fn log(message: &str) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(1)) {
        *last = Some(Instant::now());
        eprintln!("sandpiper-vmm: {message}");
    }
}

#[cfg(test)]
mod tests {
    use vmm_sys_util::eventfd::EFD_NONBLOCK;

    use super::*;
    use crate::devices::virtio::RingError;

    /// Raises the event that stops it, then one of its own that is told once only, and breaks if it is to.
    struct Probe {
        stop: EventFd,
        source: EventFd,
        interrupt: Interrupt,
        breaks: bool,
        log: Vec<&'static str>,
    }

    impl Service for Probe {
        const ROLE: Role = Role::Rng;
        type Error = RingError;

        fn queues(&self) -> impl Iterator<Item = &Ring> {
            std::iter::empty()
        }

        fn interrupt(&self) -> &Interrupt {
            &self.interrupt
        }

        fn watch(&mut self, epoll: &Epoll) -> io::Result<()> {
            self.log.push("watch");
            let event = EpollEvent::new(EventSet::IN | EventSet::EDGE_TRIGGERED, FIRST_SOURCE);
            epoll.ctl(ControlOperation::Add, self.source.as_raw_fd(), event)
        }

        fn begin(&mut self) -> Result<(), RingError> {
            self.log.push("begin");
            Ok(())
        }

        fn event(&mut self, _: &Epoll, id: u64, _: EventSet, _: Instant) -> Result<(), RingError> {
            assert_eq!(id, FIRST_SOURCE);
            self.log.push("event");
            Ok(())
        }

        fn process(&mut self, _: &Epoll, _: Instant) -> Result<Next, RingError> {
            self.log.push("process");
            self.stop.write(1).expect("an event");
            self.source.write(1).expect("an event");
            if self.breaks { Err(RingError::Unreadable) } else { Ok(Next::Notified) }
        }

        fn end(&mut self) {
            self.log.push("end");
        }
    }

    fn event() -> EventFd {
        EventFd::new(EFD_NONBLOCK).expect("an event")
    }

    fn probe(breaks: bool) -> (EventLoop<Probe>, EventFd) {
        let (stop, source) = (event(), event());
        let service = Probe {
            stop: stop.try_clone().expect("a descriptor"),
            source,
            interrupt: Interrupt::new(event()),
            breaks,
            log: Vec::new(),
        };
        (EventLoop::new(service), stop)
    }

    #[test]
    fn events_that_come_with_the_order_to_stop_are_handled_before_the_loop_ends() {
        let (mut event_loop, stop) = probe(false);
        event_loop.run(&stop);
        assert_eq!(event_loop.service.log, ["watch", "begin", "process", "event", "end"]);
        assert!(!event_loop.service.interrupt.is_reset_needed());
    }

    #[test]
    fn a_loop_runs_again_with_what_it_watched_before() {
        let (mut event_loop, stop) = probe(false);
        event_loop.run(&stop.try_clone().expect("a descriptor"));
        event_loop.service.log.clear();
        stop.read().expect("the event was raised");
        event_loop.run(&stop.try_clone().expect("a descriptor"));
        assert_eq!(event_loop.service.log, ["begin", "process", "event", "end"]);
    }

    #[test]
    fn a_device_that_breaks_asks_for_a_reset_and_its_loop_can_run_again() {
        let (mut event_loop, stop) = probe(true);
        event_loop.run(&stop);
        assert_eq!(event_loop.service.log, ["watch", "begin", "process", "end"]);
        assert!(event_loop.service.interrupt.is_reset_needed());
        event_loop.service.breaks = false;
        stop.read().expect("the event was raised");
        event_loop.run(&stop);
        assert_eq!(event_loop.service.log[4..], ["begin", "process", "event", "end"]);
    }
}
