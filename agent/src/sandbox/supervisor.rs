//! The task that owns one sandbox from its record's first line to its last file's removal. See the module above for the
//! states; here is what happens in each. What takes longer has files of its own: `bring_up`, `pause`, `resume`,
//! `checkpoint`, `removal`.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_durable as durable;
use sandpiper_images::snapshots;
use sandpiper_machine::console::{self, Console};
use sandpiper_machine::link::{Envs, Guest};
use sandpiper_machine::process::{Ended, MonitorProcess};
use sandpiper_machine::{Machine, MachineEvent, Over};
use sandpiper_network::Attachment;
use sandpiper_protocol::agent::{LogSource, OnTimeout, SandboxError, SandboxState};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::guest::{GuestMessage, LogLevel};
use sandpiper_protocol::vmm::{DiskEvent, DiskFailure, Shape};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::bring_up::Attempt;
use super::capacity::Place;
use super::command::{Answer, Command, DeleteCause, Setback};
use super::create::MAX_PORTS;
use super::pause::Rest;
use super::record::{self, Record};
use super::registry::ChangeError;
use super::{Context, StartError, ending, record_file};
use crate::launch::{self, Running};
use crate::logs::SandboxLog;

/// How often the wall clock is compared with the deadline: it may be set while we sleep.
const CLOCK_CHECK: Duration = Duration::from_secs(30);
/// Commands that wait for the end of what is being done.
const POSTPONED: usize = 32;
/// How much longer a sandbox runs that could not be paused at its deadline. Then that is tried again.
const PAUSE_AGAIN: u64 = 60;

/// Why a phase of the supervisor is over.
enum Turn {
    Delete(DeleteCause),
    Ended(SandboxError),
    /// The record says that the sandbox is stopped; the machine is paused and not needed any more.
    Stopped,
    Resumed(Box<Running>),
    /// The agent ends and leaves the sandbox as it is.
    Leave,
}

/// What a supervisor stays with.
enum Phase {
    Running(Box<Running>),
    Stopped,
    Failed,
}

/// The task's state.
pub(super) struct Supervisor {
    pub(super) context: Arc<Context>,
    pub(super) log: SandboxLog,
    /// What others see of the record: never newer than the file.
    pub(super) published: watch::Sender<Arc<Record>>,
    pub(super) commands: mpsc::Receiver<Command>,
    /// Commands that came while something else was being done, oldest first.
    pub(super) postponed: VecDeque<Command>,
    /// Deletes that wait for the end.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
    /// The deadline has passed once, and the sandbox could not be paused.
    pub(super) overdue: bool,
    /// What the machine holds of the host's memory, while there is one.
    pub(super) place: Option<Place>,
}

impl Supervisor {
    pub(super) fn record(&self) -> Arc<Record> {
        self.published.borrow().clone()
    }

    /// Creates the sandbox and stays with it. `started` learns how the start went; `forget` is called when nothing is left.
    pub(super) async fn create(
        mut self,
        attempts: Vec<Attempt>,
        envs: Envs,
        started: oneshot::Sender<Result<Arc<Record>, StartError>>,
        forget: impl FnOnce() + Send,
    ) {
        let start = self.context.launcher.pool.begin(self.shape());
        let result = self.bring_up_new(attempts, &envs).await;
        drop(start);
        match result {
            Ok(running) => {
                self.log.host("ready");
                // Nobody may be waiting any more; the sandbox lives all the same.
                let _ = started.send(Ok(self.record()));
                self.stay(Phase::Running(Box::new(running)), forget).await;
            }
            Err((error, machine)) => {
                self.log.host(format!("not started: {}", error_chain::chain(&error)));
                self.take_away(machine).await;
                forget();
                let _ = started.send(Err(error));
                self.answer_deletes();
            }
        }
    }

    /// Takes over a running sandbox of an earlier agent.
    pub(super) async fn adopt(mut self, pidfd: OwnedFd, forget: impl FnOnce() + Send) {
        let record = self.record();
        let Some(known) = record.process.clone() else { return };
        let network = self.adopt_network().await;
        let guest = Guest {
            id: record.id.clone(),
            envs: self.unseal(),
            generation: record.generation,
            network: launch::guest_network(network.as_ref()),
        };
        let paths = self.context.paths.sandbox(&record.id);
        match MonitorProcess::watch(pidfd) {
            Ok(process) => {
                tracing::info!(sandbox = record.id, "adopted");
                self.log.host("the agent was restarted; the sandbox went on");
                let machine = self.context.launcher.machine(guest, known, process, None, &paths);
                let mut running = Running { machine, network, console: self.follow_console() };
                let phase = match self.take_up(&mut running.machine).await {
                    Ok(()) | Err(Setback::Refused(_)) => Phase::Running(Box::new(running)),
                    Err(Setback::Over(error)) => {
                        self.lose_machine(Some(running), error).await;
                        Phase::Stopped
                    }
                    Err(Setback::Delete(cause)) => return self.delete(Some(running), cause, forget).await,
                };
                self.stay(phase, forget).await;
            }
            // Only for want of descriptors or memory: the process lives on, and the next agent finds it.
            Err(error) => tracing::error!(sandbox = record.id, %error, "cannot watch a monitor; restart the agent"),
        }
    }

    /// Has a machine go on that the earlier agent paused or checkpointed when it ended: only then its sandbox is `ready`.
    async fn take_up(&mut self, machine: &mut Machine) -> Result<(), Setback> {
        if self.record().state == SandboxState::Ready {
            return Ok(());
        }
        self.let_go_on(machine).await
    }

    /// Stays with a sandbox that an earlier agent left stopped; or failed, as it was called when nothing was kept.
    pub(super) async fn keep(self, forget: impl FnOnce() + Send) {
        let phase = if self.record().state == SandboxState::Stopped { Phase::Stopped } else { Phase::Failed };
        self.stay(phase, forget).await;
    }

    /// Stays with a sandbox until it is gone.
    async fn stay(mut self, mut phase: Phase, forget: impl FnOnce() + Send) {
        loop {
            let turn = match &mut phase {
                Phase::Running(running) => self.watch(running).await,
                Phase::Stopped => self.watch_stopped().await,
                Phase::Failed => self.watch_failed().await,
            };
            let running = match phase {
                Phase::Running(running) => Some(*running),
                Phase::Stopped | Phase::Failed => None,
            };
            phase = match turn {
                Turn::Leave => return,
                Turn::Delete(cause) => return self.delete(running, cause, forget).await,
                Turn::Ended(error) => {
                    self.overdue = false;
                    self.lose_machine(running, error).await;
                    Phase::Stopped
                }
                Turn::Stopped => {
                    self.overdue = false;
                    self.put_away(running).await;
                    self.place = None;
                    Phase::Stopped
                }
                Turn::Resumed(running) => Phase::Running(running),
            };
        }
    }

    // ---- ready ----

    async fn watch(&mut self, running: &mut Running) -> Turn {
        let leave = self.context.leave.clone();
        let mut housekeeping = interval(CLOCK_CHECK);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let remaining = remaining(self.record().deadline);
            if remaining.is_zero() {
                match self.time_is_over(&mut running.machine).await {
                    Some(turn) => return turn,
                    None => continue,
                }
            }
            if let Some(command) = self.postponed.pop_front() {
                match self.handle(running, command).await {
                    Some(turn) => return turn,
                    None => continue,
                }
            }
            tokio::select! {
                () = leave.cancelled() => return Turn::Leave,
                () = sleep(remaining) => {}
                _ = housekeeping.tick() => self.bound_monitor_log().await,
                event = running.machine.next() => match event {
                    MachineEvent::Ended(ended) => return Turn::Ended(self.explain(ended).await),
                    MachineEvent::OutOfControl => return Turn::Ended(ending::out_of_control()),
                    MachineEvent::Disk(event) => self.hear_disk(&event),
                    MachineEvent::LinkOpened => tracing::debug!(sandbox = self.record().id, "the guest opened its link again"),
                    MachineEvent::Guest(message) => {
                        if let Some(error) = self.hear(message) {
                            return Turn::Ended(error);
                        }
                    }
                },
                command = next_command(&mut self.commands) => {
                    if let Some(turn) = self.handle(running, command).await {
                        return turn;
                    }
                }
            }
        }
    }

    /// What `on_timeout` says; `None` when the sandbox goes on after all.
    async fn time_is_over(&mut self, machine: &mut Machine) -> Option<Turn> {
        if self.record().lifecycle.on_timeout == OnTimeout::Kill {
            return Some(Turn::Delete(DeleteCause::Timeout));
        }
        // A guest is asked once. What refuses then must not buy time that its owner has not been given.
        let rest = if std::mem::replace(&mut self.overdue, true) { Rest::IfPossible } else { Rest::Required };
        match self.pause(machine, rest).await {
            Ok(()) => Some(Turn::Stopped),
            Err(Setback::Refused(error)) => {
                let error = error_chain::chain(&error);
                tracing::warn!(
                    sandbox = self.record().id,
                    error,
                    "cannot pause a sandbox whose time is over; trying later"
                );
                self.extend(Duration::from_secs(PAUSE_AGAIN)).await;
                None
            }
            Err(Setback::Over(error)) => Some(Turn::Ended(error)),
            Err(Setback::Delete(cause)) => Some(Turn::Delete(cause)),
        }
    }

    /// Sees to it that the deadline is at least this far away. Where that cannot be written down, it holds all the same
    /// while this agent runs.
    pub(super) async fn extend(&mut self, least: Duration) {
        let deadline = record::deadline(Timestamp::now(), least.as_secs());
        if self.record().deadline < deadline {
            self.change_regardless(|record| record.deadline = deadline).await;
        }
    }

    /// Does what a command says; what ends the phase is for the caller.
    async fn handle(&mut self, running: &mut Running, command: Command) -> Option<Turn> {
        match command {
            Command::Delete(cause, answer) => {
                self.waiting.push(answer);
                Some(Turn::Delete(cause))
            }
            Command::Pause(answer) => match self.pause(&mut running.machine, Rest::Required).await {
                Ok(()) => {
                    let _ = answer.send(Ok(self.record()));
                    Some(Turn::Stopped)
                }
                Err(setback) => self.set_back(setback, answer),
            },
            Command::Resume(order, answer) => {
                let result = self.refresh(order.timeout_seconds).await.map_err(ChangeError::Storage);
                let _ = answer.send(result.map(|()| self.record()));
                None
            }
            Command::Snapshot(order, answer) => match self.checkpoint(&mut running.machine, order).await {
                Ok(manifest) => {
                    let _ = answer.send(Ok(manifest));
                    None
                }
                Err(setback) => self.set_back(setback, answer),
            },
            command => {
                self.handle_record(running.network.as_ref(), command).await;
                None
            }
        }
    }

    /// Answers that something did not come about; what that comes to for the sandbox.
    fn set_back<T>(&mut self, setback: Setback, answer: Answer<T>) -> Option<Turn> {
        match setback {
            Setback::Refused(error) => {
                let _ = answer.send(Err(error));
                None
            }
            Setback::Over(error) => {
                let _ = answer.send(Err(ChangeError::Guest(error.message.clone())));
                Some(Turn::Ended(error))
            }
            Setback::Delete(cause) => {
                let _ = answer.send(Err(ChangeError::NotFound));
                Some(Turn::Delete(cause))
            }
        }
    }

    /// The deadline of a sandbox that is asked to go on and runs: it is never brought forward.
    async fn refresh(&mut self, seconds: Option<u64>) -> io::Result<()> {
        let record = self.record();
        let deadline = record::deadline(Timestamp::now(), seconds.unwrap_or(record.timeout_seconds));
        if deadline <= record.deadline {
            return Ok(());
        }
        self.change(|record| record.deadline = deadline).await
    }

    /// Does what needs only the record, and its network where it runs.
    async fn handle_record(&mut self, network: Option<&Attachment>, command: Command) {
        let (saved, answer) = match command {
            Command::Update(update, answer) => {
                let saved = self.change(|record| {
                    if let Some(seconds) = update.timeout_seconds {
                        record.timeout_seconds = seconds;
                        record.deadline = record::deadline(Timestamp::now(), seconds);
                    }
                    if let Some(lifecycle) = update.lifecycle {
                        record.lifecycle = lifecycle;
                    }
                    if let Some(allowed) = update.allow_public_traffic {
                        record.allow_public_traffic = allowed;
                    }
                });
                (saved.await, answer)
            }
            Command::Expose(port, answer) => {
                let record = self.record();
                let is_new = record.exposed_ports.iter().all(|other| other.port != port.port);
                if is_new && record.exposed_ports.len() >= MAX_PORTS {
                    let _ = answer.send(Err(ChangeError::TooManyPorts));
                    return;
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
                    return;
                }
                let saved = self.change(|record| record.exposed_ports.retain(|other| other.port != port));
                (saved.await, answer)
            }
            Command::SetNetwork(policy, answer) => {
                let _ = answer.send(self.set_network(network, policy).await);
                return;
            }
            Command::Denied(answer) => {
                let _ = answer.send(self.denied(network).await);
                return;
            }
            Command::Absorb { lower, upper, answer } => (self.absorb(&lower, &upper).await, answer),
            other => return other.refuse(ChangeError::State(self.record().state)),
        };
        let _ = answer.send(saved.map(|()| self.record()).map_err(ChangeError::Storage));
    }

    /// Drops a layer whose content is in the one above it. A monitor that runs on it has it open.
    pub(super) async fn absorb(&mut self, lower: &str, upper: &str) -> io::Result<()> {
        let mut files = self.record().files.clone();
        if !files.absorb(lower, upper) {
            return Ok(());
        }
        self.change(|record| record.files = files).await?;
        self.tidy().await
    }

    /// Takes a message of the guest; an error ends the sandbox.
    pub(super) fn hear(&self, message: GuestMessage) -> Option<SandboxError> {
        match message {
            GuestMessage::Failed { message } => Some(ending::guest_failed(&message)),
            message => {
                hear_log(&self.log, message);
                None
            }
        }
    }

    // ---- stopped ----

    async fn watch_stopped(&mut self) -> Turn {
        loop {
            let command = match self.next_command().await {
                Ok(command) => command,
                Err(turn) => return turn,
            };
            match command {
                Command::Delete(cause, answer) => {
                    self.waiting.push(answer);
                    return Turn::Delete(cause);
                }
                // Stopped already.
                Command::Pause(answer) => drop(answer.send(Ok(self.record()))),
                Command::Resume(order, answer) => match self.resume(order).await {
                    Ok(running) => {
                        let _ = answer.send(Ok(self.record()));
                        return Turn::Resumed(Box::new(running));
                    }
                    Err(setback) => {
                        if let Some(turn) = self.set_back(setback, answer) {
                            return turn;
                        }
                    }
                },
                Command::Snapshot(order, answer) => {
                    let result = self.checkpoint_stopped(order).await;
                    let _ = answer.send(result);
                }
                command => self.handle_record(None, command).await,
            }
        }
    }

    // ---- failed ----

    async fn watch_failed(&mut self) -> Turn {
        loop {
            match self.next_command().await {
                Err(turn) => return turn,
                Ok(Command::Delete(cause, answer)) => {
                    self.waiting.push(answer);
                    return Turn::Delete(cause);
                }
                Ok(other) => other.refuse(ChangeError::State(SandboxState::Failed)),
            }
        }
    }

    // ---- helpers ----

    /// The next command to a sandbox that does not run, those that were put off first; or what ends its phase.
    async fn next_command(&mut self) -> Result<Command, Turn> {
        let leave = self.context.leave.clone();
        loop {
            if let Some(command) = self.postponed.pop_front() {
                return Ok(command);
            }
            let remaining = self.record().removed_at().map(remaining);
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                return Err(Turn::Delete(DeleteCause::Timeout));
            }
            tokio::select! {
                () = leave.cancelled() => return Err(Turn::Leave),
                command = next_command(&mut self.commands) => return Ok(command),
                () = sleep(remaining.unwrap_or_default().min(CLOCK_CHECK)), if remaining.is_some() => {}
            }
        }
    }

    /// Keeps a command for later while something else is being done; the cause when it is a delete, which does not wait.
    pub(super) fn postpone(&mut self, command: Command) -> Option<DeleteCause> {
        let state = self.record().state;
        match command {
            Command::Delete(cause, answer) => {
                self.waiting.push(answer);
                return Some(cause);
            }
            // Nobody knows yet whether there will be a sandbox to change.
            Command::Update(..) | Command::Expose(..) | Command::Close(..) if state == SandboxState::Creating => {
                command.refuse(ChangeError::State(state));
            }
            command if self.postponed.len() >= POSTPONED => command.refuse(ChangeError::State(state)),
            // A wake that came before it must not have the guest run under the older policy. Of two policies the newer one
            // stays, in whatever order.
            policy @ Command::SetNetwork(..) => self.postponed.push_front(policy),
            command => self.postponed.push_back(command),
        }
        None
    }

    /// Changes the record: on disk first, then for everybody to see.
    pub(super) async fn change(&mut self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        let before = self.record();
        let mut record = (*before).clone();
        change(&mut record);
        let paths = self.context.paths.sandbox(&record.id);
        let save = move || {
            record_file::save(&paths, &record)?;
            if before.state == SandboxState::Creating {
                // Until now the sandbox's folder was of no importance to anybody.
                durable::sync_parent(&paths.state)?;
            }
            Ok::<_, io::Error>(record)
        };
        let record = tokio::task::spawn_blocking(save).await.map_err(io::Error::other)??;
        self.published.send_replace(Arc::new(record));
        Ok(())
    }

    /// As [`Self::change`], for what is so whatever the file says: an agent that reads the older record comes to the same.
    pub(super) async fn change_regardless(&mut self, change: impl Fn(&mut Record)) {
        if let Err(error) = self.change(&change).await {
            tracing::error!(sandbox = self.record().id, %error, "cannot write a sandbox's record");
            let mut record = (*self.record()).clone();
            change(&mut record);
            self.published.send_replace(Arc::new(record));
        }
    }

    /// Removes layers and states from the sandbox's folder that its record does not name.
    pub(super) async fn tidy(&self) -> io::Result<()> {
        let record = self.record();
        let folder = self.context.paths.sandbox(&record.id).state;
        tokio::task::spawn_blocking(move || record.files.remove_others(&folder)).await.map_err(io::Error::other)?
    }

    /// What the sandbox's monitor is prepared for.
    pub(super) fn shape(&self) -> Shape {
        let record = self.record();
        snapshots::shape(record.cpu, record.memory_mb)
    }

    /// The tenant's environment variables.
    pub(super) fn unseal(&self) -> Envs {
        let record = self.record();
        self.context.sealer.unseal(&record.id, &record.envs).unwrap_or_else(|error| {
            tracing::error!(sandbox = record.id, %error, "the sandbox goes on without its environment variables");
            Envs::new()
        })
    }

    pub(super) async fn explain(&self, ended: Ended) -> SandboxError {
        let paths = self.context.paths.sandbox(&self.record().id);
        let explained = tokio::task::spawn_blocking(move || ending::explain(&paths, &ended)).await;
        explained.unwrap_or_else(|_| ending::error("monitor_failed", "The monitor ended".into()))
    }

    /// What ended a machine, in words for its owner.
    pub(super) async fn explain_over(&self, over: Over) -> SandboxError {
        match over {
            Over::Ended(ended) => self.explain(ended).await,
            Over::OutOfControl => ending::out_of_control(),
            Over::Failed(message) => ending::guest_failed(&message),
        }
    }

    /// Tells the owner what the host's disk did to the sandbox, and the operator which file it was.
    pub(super) fn hear_disk(&self, event: &DiskEvent) {
        let record = self.record();
        let file = |failure: &DiskFailure| {
            let layer = usize::try_from(failure.layer).ok().and_then(|layer| record.files.disk.get(layer));
            layer.map(|layer| self.context.paths.sandbox(&record.id).file(&layer.name))
        };
        match event {
            DiskEvent::Full(failure) => {
                tracing::error!(sandbox = record.id, file = ?file(failure), "no room for what is written to this file");
                self.log.host("the host has no room for what the sandbox wrote: it stands still until there is");
            }
            DiskEvent::Room => self.log.host("the host has room again: the sandbox goes on"),
            DiskEvent::Failed { failure, total } => {
                tracing::error!(sandbox = record.id, file = ?file(failure), "this file cannot be read or written");
                self.log.host(format!("the host's disk failed: the guest has seen {total} I/O errors of it"));
            }
        }
    }

    /// Puts what the guest prints into the log, if it has a console. An adopted guest has one if its own agent gave it one.
    pub(super) fn follow_console(&self) -> Option<Console> {
        let path = self.context.paths.sandbox(&self.record().id).console_log();
        let log = self.log.clone();
        path.exists().then(|| Console::follow(path, move |line: &str| log.push(LogSource::Console, line)))
    }

    async fn bound_monitor_log(&self) {
        let path = self.context.paths.sandbox(&self.record().id).monitor_log();
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || console::bound_file(&path)).await {
            tracing::warn!(sandbox = self.record().id, %error, "cannot bound a monitor's log");
        }
    }
}

/// Puts what a guest says into its log.
pub(super) fn hear_log(log: &SandboxLog, message: GuestMessage) {
    if let GuestMessage::Log { level, message } = message {
        let mark = match level {
            LogLevel::Info => "",
            LogLevel::Warn => "warning: ",
            LogLevel::Error => "error: ",
        };
        log.push(LogSource::Guest, &format!("{mark}{message}"));
    }
}

/// How far away a moment is; nothing once it has passed.
fn remaining(until: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default()
}

/// The next command. The registry holds the other end as long as the sandbox is here, so there is always a next one.
pub(super) async fn next_command(commands: &mut mpsc::Receiver<Command>) -> Command {
    match commands.recv().await {
        Some(command) => command,
        None => pending().await,
    }
}
