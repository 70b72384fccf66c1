//! The task that owns one sandbox from its record's first line to its last file's removal. See the module above for the
//! states; here is what happens in each.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_protocol::agent::{ExposedPort, LogSource, SandboxError, SandboxState, UpdateSandbox};
use sandpiper_protocol::guest::{GuestMessage, LogLevel};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::create::MAX_PORTS;
use super::machine::{Machine, MachineEvent};
use super::process::MonitorProcess;
use super::record::{self, Record};
use super::registry::ChangeError;
use super::seal::Envs;
use super::start::StartError;
use super::{Context, console, ending};
use crate::logs::SandboxLog;
use crate::templates::Template;

/// How often the wall clock is compared with the deadline: it may be set while we sleep.
const CLOCK_CHECK: Duration = Duration::from_secs(30);
/// Pause between attempts to remove files that could not be removed.
const REMOVE_AGAIN: Duration = Duration::from_secs(5);

/// What a supervisor is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    Update(UpdateSandbox, Answer<Arc<Record>>),
    /// Adds or replaces a port.
    Expose(ExposedPort, Answer<Arc<Record>>),
    /// Removes a port.
    Close(u16, Answer<Arc<Record>>),
    /// Answered when nothing of the sandbox is left.
    Delete(DeleteCause, oneshot::Sender<()>),
}

/// Where a command's result goes.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, ChangeError>>;

/// Why a sandbox is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeleteCause {
    Requested,
    Timeout,
    AgentEnds,
}

impl DeleteCause {
    fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "it was asked for",
            Self::Timeout => "its time is over",
            Self::AgentEnds => "the agent ends",
        }
    }

    /// For the figures.
    pub(crate) fn as_label(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Timeout => "timeout",
            Self::AgentEnds => "agent_ends",
        }
    }
}

/// Why a phase of the supervisor is over.
enum Turn {
    Delete(DeleteCause),
    Ended(SandboxError),
    /// The agent ends and leaves the sandbox as it is.
    Leave,
}

/// The task's state.
pub(super) struct Supervisor {
    pub(super) context: Arc<Context>,
    pub(super) log: SandboxLog,
    /// What others see of the record: never newer than the file.
    pub(super) published: watch::Sender<Arc<Record>>,
    pub(super) commands: mpsc::Receiver<Command>,
    /// Deletes that wait for the end.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// Follows the guest's console, where there is one, until the token is cancelled.
    pub(super) console: Option<(CancellationToken, AbortOnDropHandle<()>)>,
}

impl Supervisor {
    pub(super) fn record(&self) -> Arc<Record> {
        self.published.borrow().clone()
    }

    /// Creates the sandbox and stays with it. `started` learns how the start went; `forget` is called when nothing is left.
    pub(super) async fn create(
        mut self,
        template: Template,
        envs: Envs,
        started: oneshot::Sender<Result<Arc<Record>, StartError>>,
        forget: impl FnOnce() + Send,
    ) {
        let result = match self.prepare(template).await {
            Ok(prepared) => {
                self.follow_console();
                self.bring_up(prepared, envs).await
            }
            Err(error) => Err((error, None)),
        };
        match result {
            Ok(machine) => {
                self.log.host("ready");
                // Nobody may be waiting any more; the sandbox lives all the same.
                let _ = started.send(Ok(self.record()));
                self.stay(machine, forget).await;
            }
            Err((error, machine)) => {
                self.log.host(format!("not started: {}", crate::chain(&error)));
                self.take_away(machine).await;
                forget();
                let _ = started.send(Err(error));
                self.answer_deletes();
            }
        }
    }

    /// Takes over a sandbox of an earlier agent.
    pub(super) async fn adopt(mut self, pidfd: std::os::fd::OwnedFd, forget: impl FnOnce() + Send) {
        let record = self.record();
        let envs = self.context.sealer.unseal(&record.id, &record.envs).unwrap_or_else(|error| {
            tracing::error!(sandbox = record.id, %error, "the sandbox goes on without its environment variables");
            Envs::new()
        });
        let control = self.context.paths.sandbox(&record.id).control_socket();
        match MonitorProcess::watch(pidfd) {
            Ok(process) => {
                tracing::info!(sandbox = record.id, "adopted");
                self.log.host("the agent was restarted; the sandbox went on");
                self.follow_console();
                self.stay(Machine::new(&record.id, process, control, envs), forget).await;
            }
            // Only for want of descriptors or memory: the process lives on, and the next agent finds it.
            Err(error) => tracing::error!(sandbox = record.id, %error, "cannot watch a monitor; restart the agent"),
        }
    }

    /// Stays with a sandbox that has failed.
    pub(super) async fn keep_failed(mut self, forget: impl FnOnce() + Send) {
        if let Turn::Delete(cause) = self.watch_failed().await {
            self.delete(None, cause, forget).await;
        }
    }

    /// Stays with a running sandbox until it is gone.
    async fn stay(mut self, mut machine: Machine, forget: impl FnOnce() + Send) {
        match self.watch(&mut machine).await {
            Turn::Leave => {}
            Turn::Delete(cause) => self.delete(Some(machine), cause, forget).await,
            Turn::Ended(error) => {
                self.fail(machine, error).await;
                self.keep_failed(forget).await;
            }
        }
    }

    // ---- ready ----

    async fn watch(&mut self, machine: &mut Machine) -> Turn {
        let leave = self.context.leave.clone();
        let mut housekeeping = interval(CLOCK_CHECK);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let remaining = self.record().deadline.duration_since(Timestamp::now());
            let Ok(remaining) = Duration::try_from(remaining) else { return Turn::Delete(DeleteCause::Timeout) };
            if remaining.is_zero() {
                return Turn::Delete(DeleteCause::Timeout);
            }
            tokio::select! {
                () = leave.cancelled() => return Turn::Leave,
                () = sleep(remaining) => {}
                _ = housekeeping.tick() => self.bound_monitor_log().await,
                event = machine.next() => match event {
                    MachineEvent::Ended(ended) => return Turn::Ended(self.explain(ended).await),
                    MachineEvent::OutOfControl => return Turn::Ended(ending::out_of_control()),
                    MachineEvent::LinkOpened => tracing::debug!(sandbox = self.record().id, "the guest opened its link again"),
                    MachineEvent::Guest(message) => {
                        if let Some(error) = self.hear(message) {
                            return Turn::Ended(error);
                        }
                    }
                },
                command = next_command(&mut self.commands) => {
                    if let Some(cause) = self.handle(command).await {
                        return Turn::Delete(cause);
                    }
                }
            }
        }
    }

    /// Does what a command says; a delete is for the caller.
    async fn handle(&mut self, command: Command) -> Option<DeleteCause> {
        let (saved, answer) = match command {
            Command::Delete(cause, answer) => {
                self.waiting.push(answer);
                return Some(cause);
            }
            Command::Update(update, answer) => {
                let saved = self.change(|record| {
                    if let Some(seconds) = update.timeout_seconds {
                        record.timeout_seconds = seconds;
                        record.deadline = record::deadline(Timestamp::now(), seconds);
                    }
                    if let Some(lifecycle) = update.lifecycle {
                        record.lifecycle = lifecycle;
                    }
                });
                (saved.await, answer)
            }
            Command::Expose(port, answer) => {
                let record = self.record();
                let is_new = record.exposed_ports.iter().all(|other| other.port != port.port);
                if is_new && record.exposed_ports.len() >= MAX_PORTS {
                    let _ = answer.send(Err(ChangeError::TooManyPorts));
                    return None;
                }
                let saved = self.change(|record| {
                    record.exposed_ports.retain(|other| other.port != port.port);
                    record.exposed_ports.push(port);
                    record.exposed_ports.sort_by_key(|port| port.port);
                });
                (saved.await, answer)
            }
            Command::Close(port, answer) => {
                if self.record().exposed_ports.iter().all(|other| other.port != port) {
                    let _ = answer.send(Err(ChangeError::NotFound));
                    return None;
                }
                let saved = self.change(|record| record.exposed_ports.retain(|other| other.port != port));
                (saved.await, answer)
            }
        };
        let _ = answer.send(saved.map(|()| self.record()).map_err(ChangeError::Storage));
        None
    }

    /// Takes a message of the guest; an error ends the sandbox.
    pub(super) fn hear(&self, message: GuestMessage) -> Option<SandboxError> {
        match message {
            GuestMessage::Ready { .. } => None,
            GuestMessage::Failed { message } => Some(ending::guest_failed(&message)),
            GuestMessage::Log { level, message } => {
                let mark = match level {
                    LogLevel::Info => "",
                    LogLevel::Warn => "warning: ",
                    LogLevel::Error => "error: ",
                };
                self.log.push(LogSource::Guest, &format!("{mark}{message}"));
                None
            }
        }
    }

    // ---- failed ----

    /// Frees everything of a sandbox that ended by itself, but its record.
    async fn fail(&mut self, machine: Machine, error: SandboxError) {
        let record = self.record();
        tracing::warn!(sandbox = record.id, code = error.code, error = error.message, "sandbox failed");
        self.log.host(format!("failed: {} ({})", error.message, error.code));
        self.context.metrics.ended(&error.code);
        self.end_process(machine).await;
        if let Err(save_error) = self.change(|record| record.fail(error.clone(), Timestamp::now())).await {
            tracing::error!(sandbox = record.id, error = %save_error, "cannot write the record of a failed sandbox");
            // The monitor is gone whatever the file says, and a restarted agent comes to the same end.
            let mut record = (*record).clone();
            record.fail(error, Timestamp::now());
            self.published.send_replace(Arc::new(record));
        }
        // After the record: the reason is in the exit record, which goes with the files.
        let paths = self.context.paths.sandbox(&record.id);
        let freed = tokio::task::spawn_blocking(move || ending::free(&paths)).await.map_err(io::Error::other).flatten();
        if let Err(error) = freed {
            tracing::error!(sandbox = record.id, %error, "cannot free a failed sandbox's files; DELETE tries again");
        }
    }

    async fn watch_failed(&mut self) -> Turn {
        let leave = self.context.leave.clone();
        loop {
            tokio::select! {
                () = leave.cancelled() => return Turn::Leave,
                command = next_command(&mut self.commands) => {
                    if let Some(cause) = self.handle_while_busy(command) {
                        return Turn::Delete(cause);
                    }
                }
            }
        }
    }

    /// Refuses everything but a delete.
    pub(super) fn handle_while_busy(&mut self, command: Command) -> Option<DeleteCause> {
        match command {
            Command::Delete(cause, answer) => {
                self.waiting.push(answer);
                return Some(cause);
            }
            Command::Update(_, answer) | Command::Expose(_, answer) | Command::Close(_, answer) => {
                let _ = answer.send(Err(ChangeError::State(self.record().state)));
            }
        }
        None
    }

    // ---- stopping ----

    async fn delete(mut self, machine: Option<Machine>, cause: DeleteCause, forget: impl FnOnce() + Send) {
        let id = self.record().id.clone();
        if let Err(error) = self.change(|record| record.state = SandboxState::Stopping).await {
            // Full disk, perhaps: deleting is the cure. Should we be killed now, the sandbox lives on; nobody was told
            // otherwise.
            tracing::warn!(sandbox = id, %error, "cannot write down that a sandbox is being deleted");
        }
        self.log.host(format!("deleted: {}", cause.as_str()));
        self.take_away(machine).await;
        tracing::info!(target: "audit", sandbox = id, ?cause, "deleted");
        self.context.metrics.deleted(cause);
        forget();
        self.answer_deletes();
    }

    /// Ends the process and removes every file, the record last. Goes on until that is done.
    async fn take_away(&mut self, machine: Option<Machine>) {
        if let Some(machine) = machine {
            self.end_process(machine).await;
        }
        let record = self.record();
        loop {
            let paths = self.context.paths.sandbox(&record.id);
            let removed = tokio::task::spawn_blocking(move || ending::remove(&paths)).await;
            match removed.map_err(io::Error::other).flatten() {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(sandbox = record.id, %error, "cannot remove a sandbox's files; trying again")
                }
            }
            tokio::select! {
                // The record says what is going on: the next agent finishes it.
                () = self.context.leave.cancelled() => return,
                () = sleep(REMOVE_AGAIN) => {}
            }
        }
    }

    async fn end_process(&mut self, machine: Machine) {
        if let Err(error) = machine.end(self.context.config.stop_timeout()).await {
            tracing::error!(sandbox = self.record().id, %error, "cannot end a monitor");
        }
        if let Some((end, following)) = self.console.take() {
            end.cancel();
            // So that the last words are in the log before the file goes.
            let _ = following.await;
        }
    }

    /// Tells those who asked, and those who ask while the last of it goes.
    fn answer_deletes(&mut self) {
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Delete(_, answer) => self.waiting.push(answer),
                Command::Update(_, answer) | Command::Expose(_, answer) | Command::Close(_, answer) => {
                    let _ = answer.send(Err(ChangeError::NotFound));
                }
            }
        }
        for answer in self.waiting.drain(..) {
            let _ = answer.send(());
        }
    }

    // ---- helpers ----

    /// Changes the record: on disk first, then for everybody to see.
    pub(super) async fn change(&mut self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let mut record = (*self.record()).clone();
        change(&mut record);
        let path = self.context.paths.sandbox(&record.id).record();
        let save = move || record::save(&path, &record).map(|()| record);
        let record = tokio::task::spawn_blocking(save).await.map_err(io::Error::other)??;
        self.published.send_replace(Arc::new(record));
        Ok(())
    }

    pub(super) async fn explain(&self, ended: super::process::Ended) -> SandboxError {
        let paths = self.context.paths.sandbox(&self.record().id);
        let explained = tokio::task::spawn_blocking(move || ending::explain(&paths, &ended)).await;
        explained.unwrap_or_else(|_| ending::error("monitor_failed", "The monitor ended".into()))
    }

    fn follow_console(&mut self) {
        let path = self.context.paths.sandbox(&self.record().id).console_log();
        // An adopted guest has a console if its own agent gave it one.
        if path.exists() {
            let end = CancellationToken::new();
            let following = tokio::spawn(console::follow(path, self.log.clone(), end.clone()));
            self.console = Some((end, AbortOnDropHandle::new(following)));
        }
    }

    async fn bound_monitor_log(&self) {
        let path = self.context.paths.sandbox(&self.record().id).monitor_log();
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || console::bound_file(&path)).await {
            tracing::warn!(sandbox = self.record().id, %error, "cannot bound a monitor's log");
        }
    }
}

/// The next command. The registry holds the other end as long as the sandbox is here, so there is always a next one.
pub(super) async fn next_command(commands: &mut mpsc::Receiver<Command>) -> Command {
    match commands.recv().await {
        Some(command) => command,
        None => pending().await,
    }
}
