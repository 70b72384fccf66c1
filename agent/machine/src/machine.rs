//! One running monitor as its supervisor sees it: process, control connection and link, merged into one run of events.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use sandpiper_protocol::error_chain;
use sandpiper_protocol::guest::{GuestMessage, GuestMount, HostMessage, LINK_PORT};
use sandpiper_protocol::vmm::{DiskConfig, DiskEvent, DiskLimits, MachineState, Reply, Request, Timings};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::control::{Control, MonitorEvent, RequestError};
use super::link::{Guest, Link};
use super::process::{Ended, KnownMonitor, MonitorProcess};
use crate::metrics::{DiskMetrics, Held};
use crate::untrusted::sanitize;

/// Pause before a control connection that broke is opened again.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// Attempts in a row; after them the monitor is beyond control.
const RECONNECT_ATTEMPTS: u32 = 5;
/// Links opened within a second; more are closed at once. A monitor lets its guest open no more, unless it is the guest's.
const LINKS_PER_SECOND: u32 = 16;
/// How long a monitor may take for a small request of whose answer nothing depends.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Events of disks that came while the guest was asked something; more are dropped.
const UNHEARD: usize = 8;
/// How long a monitor may be silent before that is noted.
const SILENCE: Duration = Duration::from_secs(60);

/// The parts of a running microVM. Dropping it leaves the process alone.
pub struct Machine {
    guest: Guest,
    known: KnownMonitor,
    process: MonitorProcess,
    control_path: PathBuf,
    monitor: Option<Control>,
    link: Option<Link>,
    introduction: Introduction,
    reconnect_at: Instant,
    attempts: u32,
    /// Links opened since then.
    links: (Instant, u32),
    disk: DiskMetrics,
    /// The monitor has stopped the guest until the host has room for what it wrote.
    held: Option<Held>,
    /// I/O errors that the monitor has told of.
    disk_failures: u64,
    unheard: VecDeque<DiskEvent>,
}

/// When a guest is told who it is.
enum Introduction {
    /// As soon as it opens its link.
    AtOnce,
    /// Not before [`Machine::become_another`]. Its link, once it has opened one.
    Withheld(Option<OwnedFd>),
}

/// Something happened.
#[derive(Debug)]
pub enum MachineEvent {
    /// The process is gone.
    Ended(Ended),
    /// PID 1 opened its link.
    LinkOpened,
    Guest(GuestMessage),
    /// It has been noted and logged for the operator; what is left is to tell the owner.
    Disk(DiskEvent),
    /// The process lives, but does not answer on its control socket any more.
    OutOfControl,
}

/// Why a guest did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    #[error("The guest did not respond within {} seconds", .0.as_secs())]
    TimedOut(Duration),
    #[error("The host has no room for what the sandbox wrote; it stands still until its operator makes room")]
    NoRoom,
    /// Something that ends the sandbox.
    #[error("The guest or its monitor ended")]
    Terminated(Termination),
}

/// What ends a machine.
#[derive(Debug)]
pub enum Termination {
    Ended(Ended),
    OutOfControl,
    /// The guest's own words.
    Failed(String),
}

impl Machine {
    /// A machine of a monitor that is talked to already, or, without `monitor`, that [`Self::next`] connects to.
    pub fn new(
        guest: Guest,
        known: KnownMonitor,
        process: MonitorProcess,
        monitor: Option<Control>,
        control_path: PathBuf,
        disk: DiskMetrics,
    ) -> Self {
        Self {
            guest,
            known,
            process,
            control_path,
            monitor,
            link: None,
            introduction: Introduction::AtOnce,
            reconnect_at: Instant::now(),
            attempts: 0,
            links: (Instant::now(), 0),
            disk,
            held: None,
            disk_failures: 0,
            unheard: VecDeque::new(),
        }
    }

    /// Has the guest wait on its link, not told who it is, until it [becomes](Self::become_another) somebody. To be called
    /// before it opens one.
    pub fn withhold(&mut self) {
        self.introduction = Introduction::Withheld(None);
    }

    /// Tells the guest that it is another from now on: at once if it has a link, else when it opens one.
    ///
    /// # Errors
    /// Its link cannot be used.
    pub fn become_another(&mut self, guest: Guest) -> io::Result<()> {
        self.guest = guest;
        match std::mem::replace(&mut self.introduction, Introduction::AtOnce) {
            Introduction::Withheld(Some(stream)) => self.link = Some(Link::open(stream, &self.guest)?),
            Introduction::Withheld(None) => {}
            // One that takes no more messages is opened anew by the guest.
            Introduction::AtOnce => self.link = self.link.take().filter(|link| link.introduce(&self.guest)),
        }
        Ok(())
    }

    /// Has the guest tell what its processes write, or not any more: it opens its link again, and is told so there.
    pub fn capture_output(&mut self, capture: bool) {
        if self.guest.capture_output != capture {
            self.guest.capture_output = capture;
            self.link = None;
        }
    }

    /// Its monitor's files are in another folder from now on.
    pub fn moved(&mut self, control_path: PathBuf) {
        self.control_path = control_path;
    }

    /// Asks the monitor; connects first if need be.
    ///
    /// # Errors
    /// [`RequestError`]: the monitor could not be reached, refused, or did not reply in time.
    pub async fn request(
        &mut self,
        request: Request,
        fds: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Reply, RequestError> {
        if self.monitor.is_none() {
            self.monitor = Some(Control::connect(&self.control_path).map_err(RequestError::Send)?);
        }
        match &mut self.monitor {
            Some(monitor) => monitor.request(request, fds, timeout).await,
            None => Err(RequestError::Closed),
        }
    }

    /// As [`Self::request`], however long it takes: a monitor that is slow, because its host's disk is, has not failed.
    /// Where its connection breaks, it has ended, or may have done what it was asked to.
    ///
    /// # Errors
    /// [`RequestError`], never [`RequestError::TimedOut`].
    pub async fn order(&mut self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<Reply, RequestError> {
        let sandbox = self.guest.id.clone();
        let result = {
            let mut answer = std::pin::pin!(self.request(request, fds, Duration::MAX));
            loop {
                match timeout(SILENCE, &mut answer).await {
                    Ok(answer) => break answer,
                    Err(_) => tracing::warn!(sandbox, "a monitor has not responded yet; still waiting"),
                }
            }
        };
        if let Err(RequestError::Send(_) | RequestError::Closed) = &result {
            self.monitor = None;
        }
        result
    }

    /// When the monitor reached which step.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn timings(&mut self) -> Result<Timings, RequestError> {
        Ok(self.status().await?.1)
    }

    async fn status(&mut self) -> Result<(MachineState, Timings), RequestError> {
        let reply = self.request(Request::Status, &[], REQUEST_TIMEOUT).await?;
        self.read_status(reply)
    }

    fn read_status(&mut self, reply: Reply) -> Result<(MachineState, Timings), RequestError> {
        match reply {
            Reply::Status { state, timings } => {
                self.set_held(state == MachineState::Held);
                Ok((state, timings))
            }
            // Not an answer to this question.
            _ => Err(RequestError::Closed),
        }
    }

    /// Puts a disk into a slot that is empty, at its own limits: running, just started or paused. `layers` are its files, bottom
    /// first, as many as `disk` says; the slot is below [`EXTRA_DISKS`](sandpiper_protocol::vmm::EXTRA_DISKS).
    ///
    /// # Errors
    /// [`RequestError`]: the slot is taken or there is none, a layer cannot be used, or the monitor has ended. Where it closed
    /// its connection it may have attached the disk.
    pub async fn attach_disk(
        &mut self,
        slot: u8,
        disk: DiskConfig,
        limits: DiskLimits,
        layers: &[BorrowedFd<'_>],
    ) -> Result<(), RequestError> {
        match self.order(Request::AttachDisk { slot, disk, limits }, layers).await? {
            Reply::DiskAttached => Ok(()),
            // Not an answer to this question.
            _ => Err(RequestError::Closed),
        }
    }

    /// Takes the disk out of a slot; content if there is none. When it returns the monitor has closed the disk's layers.
    ///
    /// # Errors
    /// [`RequestError`]: there is no such slot, or the monitor has ended. Where it closed its connection it may still have the
    /// disk, unless its process is gone.
    pub async fn detach_disk(&mut self, slot: u8) -> Result<(), RequestError> {
        match self.order(Request::DetachDisk { slot }, &[]).await? {
            Reply::DiskDetached => Ok(()),
            _ => Err(RequestError::Closed),
        }
    }

    /// What a guest is told to mount that opens its link from now on.
    pub fn set_mounts(&mut self, mounts: Vec<GuestMount>) {
        self.guest.mounts = mounts;
    }

    /// Lets a machine go on that is paused; content when it runs. Asks until the monitor has answered, or has ended.
    ///
    /// # Errors
    /// How the monitor ended, if it did.
    pub async fn go_on(&mut self) -> Result<(), Ended> {
        loop {
            let Err(error) = self.try_to_go_on().await else { return Ok(()) };
            let error = error_chain::chain(&error);
            tracing::warn!(sandbox = self.guest.id, error, "cannot tell whether a machine runs; asking again");
            tokio::select! {
                ended = self.process.ended() => return Err(ended.unwrap_or(Ended::Unknown)),
                () = sleep(RECONNECT_AFTER) => {}
            }
        }
    }

    async fn try_to_go_on(&mut self) -> Result<(), RequestError> {
        let reply = self.order(Request::Status, &[]).await?;
        if self.read_status(reply)?.0 == MachineState::Paused {
            self.order(Request::Resume, &[]).await?;
        }
        Ok(())
    }

    /// Sends `message` to the guest, as soon as it has a link, and waits at most `timeout` for its answer, which
    /// `is_answer` knows. What else the guest says meanwhile goes to `hear`.
    ///
    /// Where the link breaks, as it may when the agent has just been restarted, the guest is asked again on the next one.
    /// A guest that does not answer in time, or stands still because the host's disk is full, loses its link. On the next
    /// one it is told who it is, which undoes whatever it had been asked for; and no late answer can be taken for one to a
    /// later question.
    ///
    /// # Errors
    /// [`Unanswered`]: the machine ended or stands still, or the guest did not answer in time.
    pub async fn ask(
        &mut self,
        message: HostMessage,
        is_answer: impl Fn(&GuestMessage) -> bool,
        timeout: Duration,
        mut hear: impl FnMut(GuestMessage),
    ) -> Result<GuestMessage, Unanswered> {
        let give_up_at = Instant::now() + timeout;
        // Where an event may have been missed, the monitor knows.
        if self.held.is_some() && matches!(self.status().await, Ok((MachineState::Held, _))) {
            return Err(Unanswered::NoRoom);
        }
        let mut asked = self.send(&message);
        loop {
            let Ok(event) = timeout_at(give_up_at, self.wait()).await else {
                self.link = None;
                return Err(Unanswered::TimedOut(timeout));
            };
            match event {
                MachineEvent::Guest(GuestMessage::Failed { message }) => {
                    return Err(Unanswered::Terminated(Termination::Failed(message)));
                }
                MachineEvent::Guest(answer) if asked && is_answer(&answer) => return Ok(answer),
                MachineEvent::Guest(other) => hear(other),
                MachineEvent::LinkOpened => asked = self.send(&message),
                MachineEvent::Disk(event) => {
                    let full = matches!(event, DiskEvent::Full(_));
                    if self.unheard.len() < UNHEARD {
                        self.unheard.push_back(event);
                    }
                    if full {
                        self.link = None;
                        return Err(Unanswered::NoRoom);
                    }
                }
                MachineEvent::Ended(ended) => return Err(Unanswered::Terminated(Termination::Ended(ended))),
                MachineEvent::OutOfControl => return Err(Unanswered::Terminated(Termination::OutOfControl)),
            }
        }
    }

    fn send(&self, message: &HostMessage) -> bool {
        self.link.as_ref().is_some_and(|link| link.send(message.clone()))
    }

    /// Waits for the next event. May be dropped and called again.
    pub async fn next(&mut self) -> MachineEvent {
        match self.unheard.pop_front() {
            Some(event) => MachineEvent::Disk(event),
            None => self.wait().await,
        }
    }

    async fn wait(&mut self) -> MachineEvent {
        loop {
            tokio::select! {
                // The end first: what a dead monitor's sockets report is only a consequence.
                biased;
                ended = self.process.ended() => return MachineEvent::Ended(ended.unwrap_or(Ended::Unknown)),
                event = async { self.monitor.as_mut()?.event().await }, if self.monitor.is_some() => {
                    let connection = match event {
                        None => {
                            self.monitor = None;
                            self.reconnect_at = Instant::now() + RECONNECT_AFTER;
                            continue;
                        }
                        Some(MonitorEvent::Disk(event)) => {
                            self.note(&event);
                            return MachineEvent::Disk(event);
                        }
                        Some(MonitorEvent::GuestConnected(connection)) => connection,
                    };
                    self.attempts = 0;
                    if connection.port != LINK_PORT || !self.may_open_link() {
                        continue;
                    }
                    // The newest link is the guest's; an older one is only not noticed to be dead yet.
                    if let Introduction::Withheld(link) = &mut self.introduction {
                        *link = Some(connection.stream);
                        return MachineEvent::LinkOpened;
                    }
                    match Link::open(connection.stream, &self.guest) {
                        Ok(link) => {
                            self.link = Some(link);
                            return MachineEvent::LinkOpened;
                        }
                        Err(error) => tracing::warn!(sandbox = self.guest.id, %error, "cannot use a guest's link"),
                    }
                }
                message = async { self.link.as_mut()?.message().await }, if self.link.is_some() => match message {
                    Some(message) => return MachineEvent::Guest(message),
                    // The guest opens another one.
                    None => self.link = None,
                },
                () = sleep_until(self.reconnect_at), if self.monitor.is_none() => {
                    self.attempts += 1;
                    match Control::connect(&self.control_path) {
                        Ok(monitor) => self.monitor = Some(monitor),
                        Err(error) => {
                            tracing::warn!(sandbox = self.guest.id, %error, "cannot connect to a monitor");
                            self.reconnect_at = Instant::now() + RECONNECT_AFTER;
                        }
                    }
                    if self.attempts > RECONNECT_ATTEMPTS {
                        return MachineEvent::OutOfControl;
                    }
                }
            }
        }
    }

    fn may_open_link(&mut self) -> bool {
        if self.links.0.elapsed() > Duration::from_secs(1) {
            self.links = (Instant::now(), 0);
        }
        self.links.1 += 1;
        self.links.1 <= LINKS_PER_SECOND
    }

    fn note(&mut self, event: &DiskEvent) {
        let sandbox = &self.guest.id;
        match event {
            DiskEvent::Full(failure) => {
                let (layer, offset, errno) = (failure.layer, failure.offset, failure.errno);
                tracing::error!(
                    sandbox,
                    layer,
                    offset,
                    errno,
                    "the host's disk is full: a sandbox stands still until there is room below `state_dir`"
                );
                self.set_held(true);
            }
            DiskEvent::Room => {
                tracing::info!(sandbox, "the host has room again: a sandbox goes on");
                self.set_held(false);
            }
            DiskEvent::Failed { failure, total } => {
                let (layer, offset, errno) = (failure.layer, failure.offset, failure.errno);
                let (operation, error) = (sanitize(&failure.operation), std::io::Error::from_raw_os_error(errno));
                tracing::error!(sandbox, operation, layer, offset, %error, total, "an I/O error of the host's disk reached a sandbox");
                self.disk.failed(total.saturating_sub(self.disk_failures));
                self.disk_failures = self.disk_failures.max(*total);
            }
        }
    }

    fn set_held(&mut self, held: bool) {
        if held != self.held.is_some() {
            self.held = held.then(|| self.disk.held());
        }
    }

    /// Ends the process: asked to at first, killed after `timeout`. Returns, with what it was known by, when it is gone.
    ///
    /// # Errors
    /// Where the process cannot be killed or waited for.
    pub async fn end(mut self, timeout: Duration) -> io::Result<KnownMonitor> {
        let asked = self.request(Request::Stop, &[], timeout.min(REQUEST_TIMEOUT)).await;
        if asked.is_ok() && tokio::time::timeout(timeout, self.process.ended()).await.is_ok() {
            return Ok(self.known);
        }
        self.process.kill().await?;
        Ok(self.known)
    }
}
