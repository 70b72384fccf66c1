//! The task that has one build.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable::{self as durable, Interrupted};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::template::{BuildError, BuildSource, BuildState, LogLevel, StartBuild};
use tokio_util::sync::CancellationToken;

use super::log::Line;
use super::queue::Turn;
use super::record::Record;
use super::{Builds, Entry, lock};

/// How long the removal of a version waits for who is still linking its files: its warm snapshot's machine at most.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(60);

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

impl Record {
    /// Notes how it ended.
    pub(super) fn end(&mut self, state: BuildState, error: Option<BuildError>) {
        self.state = state;
        self.error = error;
        self.finished_at = Some(Timestamp::now());
    }
}

impl Builds {
    /// Has a task do what is `order`ed, with its secrets.
    pub(super) fn begin(&self, entry: Arc<Entry>, order: StartBuild) {
        let this = self.clone();
        self.inner.sandboxes.spawn(async move { this.run(&entry, &order).await });
    }

    async fn run(&self, entry: &Arc<Entry>, order: &StartBuild) {
        let id = order.id.as_str();
        let done = match self.turn(entry, order).await {
            Ok(turn) => self.within_bounds(entry, order, turn).await,
            Err(stop) => Err(stop),
        };
        let result = match done {
            Ok(()) => self.finish(entry, BuildState::Ready, None).await,
            Err(Stop::Leaving) => return,
            Err(Stop::Cancelled) => self.give_up(entry, BuildState::Cancelled, None).await,
            Err(Stop::Failed(error)) => self.give_up(entry, BuildState::Failed, Some(error)).await,
        };
        match result {
            Ok(()) => {
                let record = entry.record();
                let code = record.error.as_ref().map(|error| error.code.as_str());
                tracing::info!(target: "audit", build = id, state = ?record.state, code, "build ended");
            }
            // The next agent goes on with it.
            Err(error) => tracing::error!(build = id, %error, "cannot write down how a build ended"),
        }
        self.inner.sandboxes.context().changed.send_replace(());
    }

    /// Waits for the build's turn to have a machine, if it needs one.
    async fn turn(&self, entry: &Arc<Entry>, order: &StartBuild) -> Result<Option<Turn>, Stop> {
        let context = self.inner.sandboxes.context();
        if !entry.record().needs_machine() || context.templates.find_any(&order.id).is_some() {
            return Ok(None);
        }
        let mut ticket = self.inner.queue.enter(&order.id, &order.team);
        tokio::select! {
            () = context.leave.cancelled() => Err(Stop::Leaving),
            () = entry.cancelled.cancelled() => Err(Stop::Cancelled),
            turn = ticket.turn() => Ok(Some(turn)),
        }
    }

    /// Does it, within its time, unless it is cancelled or the agent ends.
    async fn within_bounds(&self, entry: &Arc<Entry>, order: &StartBuild, turn: Option<Turn>) -> Result<(), Stop> {
        let leave = self.inner.sandboxes.context().leave.clone();
        let started_at = entry.record().started_at.unwrap_or_else(Timestamp::now);
        let seconds = i64::try_from(order.limits.seconds).unwrap_or(i64::MAX);
        let end = started_at.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        let left = Duration::try_from(end.duration_since(Timestamp::now())).unwrap_or_default();
        // Not of the agent's end as such: work that ended by it would look cancelled.
        let unwanted = CancellationToken::new();
        let stopped = async {
            tokio::select! {
                () = leave.cancelled() => Stop::Leaving,
                () = entry.cancelled.cancelled() => Stop::Cancelled,
                () = tokio::time::sleep(left) => {
                    failed("too_slow", format!("It was not ready within {seconds} seconds, its limit"))
                }
            }
        };
        let mut work = pin!(self.work(entry, order, turn, &unwanted));
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
        turn: Option<Turn>,
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
                | BuildSource::Steps(_) => self.build_in_machine(entry, order, unwanted).await?,
            }
        }
        // The team's next build may have the cache now.
        drop(turn);
        self.change(entry, |record| record.state = BuildState::Warming).await.map_err(noted)?;
        CrashPoint::BuildWarming.pass();
        self.warm(entry, order, unwanted).await?;
        let (templates, id) = (context.templates.clone(), order.id.clone());
        let released = durable::blocking(move || templates.release(&id)).await;
        released.map(drop).map_err(|error| host_failed("release the version", &error))
    }

    /// Takes away what there is of the version, and writes down how the build ended.
    async fn give_up(&self, entry: &Arc<Entry>, state: BuildState, error: Option<BuildError>) -> io::Result<()> {
        let context = self.inner.sandboxes.context_owned();
        let id = entry.id();
        context.templates.delete(&id, REMOVE_TIMEOUT).await.map_err(io::Error::other)?;
        durable::blocking(move || {
            context.warm.forget(&id);
            Ok::<_, io::Error>(())
        })
        .await?;
        self.finish(entry, state, error).await
    }

    /// Says how the build ended, in its log and its record.
    async fn finish(&self, entry: &Arc<Entry>, state: BuildState, error: Option<BuildError>) -> io::Result<()> {
        let last = match (&error, state) {
            (Some(error), _) => Line::of_agent(LogLevel::Error, error.message.clone()),
            (None, BuildState::Cancelled) => Line::of_agent(LogLevel::Warn, "cancelled"),
            (None, _) => Line::of_agent(LogLevel::Info, "ready"),
        };
        let (this, entry) = (self.clone(), Arc::clone(entry));
        let write = move || {
            let mut log = lock(&entry.log);
            log.push_last([last])?;
            log.sync()?;
            drop(log);
            this.write(&entry, |record| record.end(state, error))?;
            CrashPoint::BuildEnded.pass();
            Ok(())
        };
        durable::blocking(write).await
    }

    async fn change(&self, entry: &Arc<Entry>, change: impl FnOnce(&mut Record) + Send + 'static) -> io::Result<()> {
        let (this, entry) = (self.clone(), Arc::clone(entry));
        durable::blocking(move || this.write(&entry, change)).await
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
