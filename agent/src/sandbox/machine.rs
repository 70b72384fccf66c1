//! One running monitor as its supervisor sees it: process, control connection and link, merged into one run of events.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use sandpiper_protocol::guest::{GuestMessage, LINK_PORT};
use sandpiper_protocol::vmm::{Reply, Request, Timings};
use tokio::time::{Instant, sleep_until};

use super::link::{self, Link};
use super::monitor::{Monitor, RequestError};
use super::process::{Ended, MonitorProcess};
use super::seal::Envs;

/// Pause before a control connection that broke is opened again.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// Attempts in a row; after them the monitor is beyond control.
const RECONNECT_ATTEMPTS: u32 = 5;
/// How long a monitor may take for a small request.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);

/// The parts of a running microVM. Dropping it leaves the process alone.
pub(super) struct Machine {
    sandbox_id: String,
    process: MonitorProcess,
    control_path: PathBuf,
    monitor: Option<Monitor>,
    link: Option<Link>,
    envs: Envs,
    reconnect_at: Instant,
    attempts: u32,
}

/// Something happened.
#[derive(Debug)]
pub(super) enum MachineEvent {
    /// The process is gone.
    Ended(Ended),
    /// PID 1 opened its link.
    LinkOpened,
    Guest(GuestMessage),
    /// The process lives, but does not answer on its control socket any more.
    OutOfControl,
}

impl Machine {
    /// A machine whose control socket is not connected yet: [`Self::next`] connects it.
    pub(super) fn new(sandbox_id: &str, process: MonitorProcess, control_path: PathBuf, envs: Envs) -> Self {
        let sandbox_id = sandbox_id.to_owned();
        let reconnect_at = Instant::now();
        Self { sandbox_id, process, control_path, monitor: None, link: None, envs, reconnect_at, attempts: 0 }
    }

    /// Asks the monitor; connects first if need be.
    pub(super) async fn request(
        &mut self,
        request: Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<Reply, RequestError> {
        if self.monitor.is_none() {
            self.monitor = Some(Monitor::connect(&self.control_path).map_err(RequestError::Send)?);
        }
        match &mut self.monitor {
            Some(monitor) => monitor.request(request, fds, patience).await,
            None => Err(RequestError::Closed),
        }
    }

    /// When the monitor reached which step.
    pub(super) async fn timings(&mut self) -> Result<Timings, RequestError> {
        match self.request(Request::Status, &[], REQUEST_PATIENCE).await? {
            Reply::Status { timings, .. } | Reply::Booted(timings) => Ok(timings),
            Reply::Stopping => Err(RequestError::Closed),
        }
    }

    /// Waits for the next event. May be dropped and called again.
    pub(super) async fn next(&mut self) -> MachineEvent {
        loop {
            tokio::select! {
                // The end first: what a dead monitor's sockets report is only a consequence.
                biased;
                ended = self.process.ended() => return MachineEvent::Ended(ended.unwrap_or(Ended::Unknown)),
                connection = async { self.monitor.as_mut()?.guest_connection().await }, if self.monitor.is_some() => {
                    let Some(connection) = connection else {
                        self.monitor = None;
                        self.reconnect_at = Instant::now() + RECONNECT_AFTER;
                        continue;
                    };
                    self.attempts = 0;
                    if connection.port != LINK_PORT {
                        continue;
                    }
                    // The newest link is the guest's; an older one is only not noticed to be dead yet.
                    match Link::open(connection.stream, link::init(&self.sandbox_id, &self.envs)) {
                        Ok(link) => {
                            self.link = Some(link);
                            return MachineEvent::LinkOpened;
                        }
                        Err(error) => tracing::warn!(sandbox = self.sandbox_id, %error, "cannot use a guest's link"),
                    }
                }
                message = async { self.link.as_mut()?.message().await }, if self.link.is_some() => match message {
                    Some(message) => return MachineEvent::Guest(message),
                    // The guest opens another one.
                    None => self.link = None,
                },
                () = sleep_until(self.reconnect_at), if self.monitor.is_none() => {
                    self.attempts += 1;
                    match Monitor::connect(&self.control_path) {
                        Ok(monitor) => self.monitor = Some(monitor),
                        Err(error) => {
                            tracing::warn!(sandbox = self.sandbox_id, %error, "cannot connect to a monitor");
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

    /// Ends the process: asked to at first, killed after `patience`. Returns when it is gone.
    pub(super) async fn end(mut self, patience: Duration) -> std::io::Result<()> {
        let asked = self.request(Request::Stop, &[], patience.min(REQUEST_PATIENCE)).await;
        if asked.is_ok() && tokio::time::timeout(patience, self.process.ended()).await.is_ok() {
            return Ok(());
        }
        self.process.kill().await
    }
}
