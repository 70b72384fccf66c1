//! The task that has one build.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable::{self as durable, Interrupted};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::template::{BuildError, BuildSource, BuildState, LogLevel, StartBuild};
use sandpiper_trace as trace;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::log::Line;
use super::queue::Turn;
use super::record::Record;
use super::{Builds, Entry, lock, starting};
use crate::capacity::Reservation;

/// How long the removal of a version waits for who is still linking its files: its warm snapshot's machine at most.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before it is tried again to write down how a build ended.
const RETRY: Duration = Duration::from_secs(10);
/// Pause before it is looked again for memory to spare.
const MEMORY_RETRY: Duration = Duration::from_secs(2);

/// What a build's machine needs of the host, until dropped.
struct Place {
    _turn: Turn,
    reservation: Reservation,
}

/// Why a build does not go on.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(BuildError),
    Cancelled,
    /// The agent ends; the next one goes on with it.
    Leaving,
}

impl From<Interrupted> for Stop {
    fn from(interrupted: Interrupted) -> Self {
        host_failed("go on with the build", &interrupted)
    }
}

/// A build's own fault, for a person.
pub(super) fn failed(code: &str, message: impl Into<String>) -> Stop {
    Stop::Failed(BuildError { code: code.to_owned(), message: message.into(), step: None })
}

/// The host's fault.
pub(super) fn host_failed(what: &str, error: &dyn std::error::Error) -> Stop {
    failed("host_failed", format!("The host cannot {what}: {}; try again", error_chain::chain(error)))
}

impl Builds {
    /// Has a task do what is `order`ed, with its secrets.
    pub(super) fn begin(&self, entry: Arc<Entry>, order: StartBuild) {
        let this = self.clone();
        let trace = trace::begin("build");
        let run = async move {
            trace::about(&order.id);
            this.run(&entry, &order).await;
        };
        self.inner.sandboxes.spawn(run.instrument(trace));
    }

    async fn run(&self, entry: &Arc<Entry>, order: &StartBuild) {
        let id = order.id.as_str();
        let done = match self.place(entry, order).instrument(trace::step("wait for a place")).await {
            Ok(place) => self.within_bounds(entry, order, place).await,
            Err(stop) => Err(stop),
        };
        let (state, error) = match done {
            Ok(()) => (BuildState::Ready, None),
            Err(Stop::Leaving) => return,
            Err(Stop::Cancelled) => (BuildState::Cancelled, None),
            Err(Stop::Failed(error)) => (BuildState::Failed, Some(error)),
        };
        let context = self.inner.sandboxes.context();
        // Before anything is taken away: an agent that starts in between is to know why.
        let record = loop {
            match self.finish(entry, state, error.clone()).await {
                Ok(record) => break record,
                Err(failure) => {
                    tracing::error!(build = id, error = %failure, "cannot write down how a build ended; trying again");
                }
            }
            tokio::select! {
                // The next agent finds it as it was, and goes on with it.
                () = context.leave.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        };
        if state != BuildState::Ready {
            self.give_up(entry).await;
        }
        entry.record.send_replace(Arc::new(record));
        let code = error.as_ref().map(|error| error.code.as_str());
        tracing::info!(target: "audit", build = id, ?state, code, "build ended");
        context.changed.send_replace(());
    }

    /// Waits for the build's turn to have a machine, if it needs one, and for memory for that. No time limit: nobody is to
    /// fail, or to pay, for others that came before.
    async fn place(&self, entry: &Arc<Entry>, order: &StartBuild) -> Result<Option<Place>, Stop> {
        let context = self.inner.sandboxes.context();
        if !entry.record().needs_machine() || context.templates.find_any(&order.id).is_some() {
            return Ok(None);
        }
        let mut ticket = self.inner.queue.enter(&order.id, &order.team);
        let place = async {
            let turn = ticket.turn().await;
            Place { _turn: turn, reservation: self.reserve(entry, starting::memory_mb(context, order)).await }
        };
        tokio::select! {
            () = context.leave.cancelled() => Err(Stop::Leaving),
            () = entry.cancelled.cancelled() => Err(Stop::Cancelled),
            place = place => Ok(Some(place)),
        }
    }

    async fn reserve(&self, entry: &Arc<Entry>, memory_mb: u32) -> Reservation {
        let mut is_waiting = false;
        loop {
            if let Some(reservation) = self.inner.sandboxes.context().capacity.spare(memory_mb) {
                return reservation;
            }
            if !std::mem::replace(&mut is_waiting, true) {
                self.say(entry, "waiting for the host to have memory to spare").await;
            }
            tokio::time::sleep(MEMORY_RETRY).await;
        }
    }

    /// Does it, within its time, unless it is cancelled or the agent ends. What an agent goes on with has its time anew: the
    /// host may have been away for long.
    async fn within_bounds(&self, entry: &Arc<Entry>, order: &StartBuild, place: Option<Place>) -> Result<(), Stop> {
        let leave = self.inner.sandboxes.context().leave.clone();
        let seconds = order.limits.seconds;
        // Not of the agent's end as such: work that ended by it would look cancelled.
        let unwanted = CancellationToken::new();
        let stopped = async {
            tokio::select! {
                () = leave.cancelled() => Stop::Leaving,
                () = entry.cancelled.cancelled() => Stop::Cancelled,
                () = tokio::time::sleep(Duration::from_secs(seconds)) => {
                    failed("too_slow", format!("It was not ready within {seconds} seconds, its limit"))
                }
            }
        };
        let mut work = pin!(self.work(entry, order, place, &unwanted));
        tokio::select! {
            result = &mut work => result,
            stop = stopped => {
                // It takes away what it has started.
                unwanted.cancel();
                work.await.map_err(|_| stop)
            }
        }
    }

    async fn work(
        &self,
        entry: &Arc<Entry>,
        order: &StartBuild,
        place: Option<Place>,
        unwanted: &CancellationToken,
    ) -> Result<(), Stop> {
        let context = self.inner.sandboxes.context();
        let noted = |error| host_failed("write the build down", &error);
        if context.templates.find_any(&order.id).is_none() {
            let begin = |record: &mut Record| {
                record.state = BuildState::Building;
                record.started_at.get_or_insert_with(Timestamp::now);
            };
            self.change(entry, begin).await.map_err(noted)?;
            match &order.source {
                BuildSource::Checkpoint { checkpoint } => {
                    self.say(entry, format!("using the disk of {checkpoint}")).await;
                    self.reuse_checkpoint(order, checkpoint).await?;
                }
                BuildSource::Sandbox { sandbox } => {
                    self.say(entry, format!("using the disk of {sandbox}")).await;
                    self.reuse_sandbox(order, sandbox).await?;
                }
                BuildSource::Image { .. }
                | BuildSource::Archive { .. }
                | BuildSource::Dockerfile(_)
                | BuildSource::Steps(_) => {
                    let no_place = || failed("host_failed", "The build has no machine; build it again");
                    let reservation = place.as_ref().map(|place| place.reservation.clone()).ok_or_else(no_place)?;
                    self.build_in_machine(entry, order, reservation, unwanted).await?;
                }
            }
        }
        // The team's next build may have the cache now.
        drop(place);
        self.change(entry, |record| record.state = BuildState::Warming).await.map_err(noted)?;
        CrashPoint::BuildWarming.pass();
        self.warm(entry, order, unwanted).instrument(trace::step("warm snapshot")).await?;
        let (templates, id) = (context.templates.clone(), order.id.clone());
        let released = durable::blocking(move || templates.release(&id)).instrument(trace::step("release")).await;
        released.map(drop).map_err(|error| host_failed("release the version", &error))
    }

    /// Takes away what there is of the version. What cannot be now is pending, so that nobody starts from it, and the next agent
    /// removes it.
    async fn give_up(&self, entry: &Arc<Entry>) {
        let context = self.inner.sandboxes.context_owned();
        let id = entry.id();
        let removed = context.templates.delete(&id, REMOVE_TIMEOUT).await;
        let forget = {
            let id = id.clone();
            durable::blocking(move || {
                context.warm.forget(&id);
                Ok::<_, io::Error>(())
            })
        };
        if let Err(error) = removed.map(drop).map_err(io::Error::other).and(forget.await) {
            tracing::error!(build = id.as_str(), %error, "cannot remove what a build has made; the next agent will");
        }
    }

    async fn finish(&self, entry: &Arc<Entry>, state: BuildState, error: Option<BuildError>) -> io::Result<Record> {
        let (this, entry) = (self.clone(), Arc::clone(entry));
        durable::blocking(move || this.end(&entry, state, error)).await
    }

    /// Says how the build ended, in its log and its record on the disk, which whoever waits for it is yet to be shown. A log
    /// that takes no more goes without. Blocks.
    pub(super) fn end(&self, entry: &Entry, state: BuildState, error: Option<BuildError>) -> io::Result<Record> {
        let last = match (&error, state) {
            (Some(error), _) => Line::of_agent(LogLevel::Error, error.message.clone()),
            (None, BuildState::Cancelled) => Line::of_agent(LogLevel::Warn, "cancelled"),
            (None, _) => Line::of_agent(LogLevel::Info, "ready"),
        };
        let mut log = lock(&entry.log);
        if let Err(error) = log.push_last([last]).and_then(|_| log.sync()) {
            tracing::warn!(build = entry.id().as_str(), %error, "cannot write the end of a build's log");
        }
        drop(log);
        let record = self.save(entry, |record| record.end(state, error))?;
        CrashPoint::BuildEnded.pass();
        Ok(record)
    }

    async fn change(&self, entry: &Arc<Entry>, change: impl FnOnce(&mut Record) + Send + 'static) -> io::Result<()> {
        let (this, entry) = (self.clone(), Arc::clone(entry));
        durable::blocking(move || {
            this.save(&entry, change).map(|record| drop(entry.record.send_replace(Arc::new(record))))
        })
        .await
    }

    /// Adds a line of the agent's own to the log.
    pub(super) async fn say(&self, entry: &Arc<Entry>, text: impl Into<String>) {
        let line = Line::of_agent(LogLevel::Info, text);
        let log = Arc::clone(&entry.log);
        if let Err(error) = durable::blocking(move || lock(&log).push_last([line])).await {
            tracing::warn!(build = entry.id().as_str(), %error, "cannot write to a build's log");
        }
    }
}
