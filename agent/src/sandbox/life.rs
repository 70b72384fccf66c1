//! The life of one sandbox, from its record's first line to its last file's removal. See the module above for the states; here
//! is what happens in each. What takes longer has files of its own: `bring_up`, `pause`, `resume`, `checkpoint`, `removal`.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_machine::MachineEvent;
use sandpiper_machine::console;
use sandpiper_machine::link::Envs;
use sandpiper_machine::process::MonitorProcess;
use sandpiper_network::Attachment;
use sandpiper_protocol::agent::{OnTimeout, SandboxError, SandboxState, UpdateSandbox};
use sandpiper_protocol::error_chain;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, sleep};
use tracing::{Instrument, Span};

use super::command::{Answer, Command};
use super::delete_cause::DeleteCause;
use super::ending;
use super::errors::{ChangeError, OperationError};
use super::ops::pause::{Keep, Quiesce};
use super::ops::start::Attempt;
use super::record::{self, MAX_PORTS, Record};
use super::start_error::StartError;
use super::supervisor::{Supervisor, next_command};
use crate::capacity::Reservation;
use crate::launch::{Attachments, Running};

/// How often the wall clock is compared with the deadline: it may be set while we sleep.
const CLOCK_CHECK: Duration = Duration::from_secs(30);
/// How often it is read what went through its network. What is lost of it, if the host loses its power, is at most this old.
const TRAFFIC_EVERY: Duration = Duration::from_secs(60);
/// How much longer a sandbox runs that could not be paused at its deadline. Then that is tried again.
const PAUSE_AGAIN: u64 = 60;

/// What ends one phase of a sandbox's life.
enum Transition {
    Delete(DeleteCause),
    Ended(SandboxError),
    /// The record says that the sandbox is stopped; the machine is paused and not needed any more.
    Stopped,
    Resumed(Box<Running>),
    /// The agent ends and leaves the sandbox as it is.
    Leave,
}

/// Where a sandbox is in its life, and what it holds there.
enum Life {
    Creating(Creation),
    Live(Box<Running>),
    Stopped,
    Failed,
}

/// A sandbox that comes into being.
pub(crate) struct Creation {
    /// Ways to start it; the first that works is taken.
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) envs: Envs,
    pub(crate) reservation: Reservation,
    /// Whoever asked for it; learns how the start went.
    pub(crate) started: oneshot::Sender<Result<Arc<Record>, StartError>>,
    /// What it is a part of, until it is there.
    pub(crate) within: Span,
}

/// A sandbox that did not come into being, and what is left of it.
struct NotCreated {
    error: StartError,
    machine: Option<Running>,
    started: oneshot::Sender<Result<Arc<Record>, StartError>>,
}

impl Supervisor {
    /// Creates the sandbox and stays with it. `forget` is called when nothing is left.
    pub(crate) async fn create(self, creation: Creation, forget: impl FnOnce() + Send) {
        self.stay(Life::Creating(creation), forget).await;
    }

    /// Takes over a running sandbox of an earlier agent.
    pub(crate) async fn adopt(
        mut self,
        pidfd: OwnedFd,
        reservation: Reservation,
        mut volumes: Attachments,
        forget: impl FnOnce() + Send,
    ) {
        let record = self.record();
        let Some(known) = record.process.clone() else { return };
        let network = self.adopt_network().await;
        let guest = self.guest(self.unseal(), network.as_ref(), &volumes);
        let paths = self.context.paths.sandbox(&record.id);
        match MonitorProcess::watch(pidfd) {
            Ok(process) => {
                tracing::info!(sandbox = record.id.as_str(), "sandbox adopted");
                self.log.host("the agent was restarted; the sandbox went on");
                let machine = self.context.launcher.machine(guest, known, process, None, &paths);
                let mut running = Running { machine, network, reservation, console: self.follow_console(), volumes };
                let life = match self.take_up(&mut running).await {
                    Ok(()) | Err(OperationError::Refused(_)) => {
                        // Should something have had the counters begin anew, they have not come far yet.
                        self.measure_traffic(running.network.as_ref()).await;
                        Life::Live(Box::new(running))
                    }
                    Err(OperationError::Ended(error)) => {
                        self.lose_machine(Some(running), error).await;
                        Life::Stopped
                    }
                    Err(OperationError::Delete(cause)) => return self.delete(Some(running), cause, forget).await,
                };
                self.stay(life, forget).await;
            }
            // Only for want of descriptors or memory: the process lives on, and the next agent finds it.
            Err(error) => {
                volumes.withhold();
                tracing::error!(sandbox = record.id.as_str(), %error, "cannot watch a monitor; restart the agent")
            }
        }
    }

    /// Has a machine go on that the earlier agent paused or checkpointed when it ended: only then its sandbox is `ready`.
    async fn take_up(&mut self, running: &mut Running) -> Result<(), OperationError> {
        if self.record().state == SandboxState::Ready {
            return Ok(());
        }
        self.let_go_on(&mut running.machine).await?;
        self.remount_volumes(running).await?;
        self.is_ready_again().await;
        Ok(())
    }

    /// Stays with a sandbox that an earlier agent left stopped; or failed, as it was called when nothing was kept.
    pub(crate) async fn keep(self, forget: impl FnOnce() + Send) {
        let life = if self.record().state == SandboxState::Stopped { Life::Stopped } else { Life::Failed };
        self.stay(life, forget).await;
    }

    /// Stays with a sandbox until it is gone.
    async fn stay(mut self, mut life: Life, forget: impl FnOnce() + Send) {
        loop {
            let (transition, running) = match life {
                Life::Creating(creation) => match self.bring_about_within(creation).await {
                    Ok(running) => {
                        life = Life::Live(Box::new(running));
                        continue;
                    }
                    Err(failed) => return self.undo_creation(failed, forget).await,
                },
                Life::Live(mut running) => (self.watch(&mut running).await, Some(*running)),
                Life::Stopped => (self.watch_stopped().await, None),
                Life::Failed => (self.watch_failed().await, None),
            };
            life = match transition {
                Transition::Leave => return,
                Transition::Delete(cause) => return self.delete(running, cause, forget).await,
                Transition::Ended(error) => {
                    self.overdue = false;
                    self.lose_machine(running, error).await;
                    Life::Stopped
                }
                Transition::Stopped => {
                    self.overdue = false;
                    self.put_away(running).await;
                    Life::Stopped
                }
                Transition::Resumed(running) => Life::Live(running),
            };
        }
    }

    async fn bring_about_within(&mut self, creation: Creation) -> Result<Running, NotCreated> {
        let within = creation.within.clone();
        self.bring_about(creation).instrument(within).await
    }

    /// Brings the sandbox up, and says so to whoever asked for it.
    async fn bring_about(&mut self, creation: Creation) -> Result<Running, NotCreated> {
        let Creation { attempts, envs, reservation, started, within: _ } = creation;
        let start = self.context.launcher.pool.begin(self.shape());
        let result = self.bring_up_new(attempts, &envs, &reservation).await;
        let result = match result {
            Ok(running) => {
                self.log.host("ready");
                // Nobody may be waiting any more; the sandbox lives all the same.
                let _ = started.send(Ok(self.record()));
                Ok(running)
            }
            Err((error, machine)) => Err(NotCreated { error, machine, started }),
        };
        drop(start);
        result
    }

    /// Takes back all of a sandbox that did not come into being, before it says so.
    async fn undo_creation(mut self, failed: NotCreated, forget: impl FnOnce() + Send) {
        let NotCreated { error, machine, started } = failed;
        self.log.host(format!("not started: {}", error_chain::chain(&error)));
        self.take_away(machine).await;
        forget();
        let _ = started.send(Err(error));
        self.answer_deletes();
    }

    async fn watch(&mut self, running: &mut Running) -> Transition {
        let leave = self.context.leave.clone();
        let mut housekeeping = interval(CLOCK_CHECK);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut readings = interval_at(Instant::now() + TRAFFIC_EVERY, TRAFFIC_EVERY);
        readings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let remaining = remaining(self.record().deadline);
            if remaining.is_zero() {
                match self.time_is_over(running).await {
                    Some(transition) => return transition,
                    None => continue,
                }
            }
            if let Some(command) = self.postponed.pop_front() {
                match self.handle(running, command).await {
                    Some(transition) => return transition,
                    None => continue,
                }
            }
            tokio::select! {
                () = leave.cancelled() => return Transition::Leave,
                () = sleep(remaining) => {}
                _ = housekeeping.tick() => self.bound_monitor_log().await,
                _ = readings.tick() => self.measure_traffic(running.network.as_ref()).await,
                event = running.machine.next() => match event {
                    MachineEvent::Ended(ended) => return Transition::Ended(self.explain(ended).await),
                    MachineEvent::OutOfControl => return Transition::Ended(ending::out_of_control()),
                    MachineEvent::Disk(event) => self.hear_disk(&event),
                    MachineEvent::LinkOpened => tracing::debug!(sandbox = self.record().id.as_str(), "the guest opened its link again"),
                    MachineEvent::Guest(message) => {
                        if let Some(error) = self.hear(message) {
                            return Transition::Ended(error);
                        }
                    }
                },
                command = next_command(&mut self.commands) => {
                    if let Some(transition) = self.handle(running, command).await {
                        return transition;
                    }
                }
            }
        }
    }

    /// What `on_timeout` says; `None` when the sandbox goes on after all.
    async fn time_is_over(&mut self, running: &mut Running) -> Option<Transition> {
        if self.record().lifecycle.on_timeout == OnTimeout::Kill {
            return Some(Transition::Delete(DeleteCause::Timeout));
        }
        // A guest is asked once. What refuses then must not buy time that its owner has not been given.
        let quiesce = if std::mem::replace(&mut self.overdue, true) { Quiesce::IfPossible } else { Quiesce::Required };
        let keep = if self.record().lifecycle.pause_memory { Keep::Everything } else { Keep::Disk };
        match self.pause(running, quiesce, keep, true).await {
            Ok(()) => Some(Transition::Stopped),
            Err(OperationError::Refused(error)) => {
                let error = error_chain::chain(&error);
                tracing::warn!(
                    sandbox = self.record().id.as_str(),
                    error,
                    "cannot pause a sandbox whose deadline has passed; trying later"
                );
                self.extend(Duration::from_secs(PAUSE_AGAIN)).await;
                None
            }
            Err(OperationError::Ended(error)) => Some(Transition::Ended(error)),
            Err(OperationError::Delete(cause)) => Some(Transition::Delete(cause)),
        }
    }

    /// Does what a command says; what ends the phase is for the caller.
    async fn handle(&mut self, running: &mut Running, command: Command) -> Option<Transition> {
        match command {
            Command::Delete(cause, answer) => {
                self.waiting.push(answer);
                Some(Transition::Delete(cause))
            }
            Command::Pause { force, answer } => {
                let within = answer.span();
                match self.pause(running, Quiesce::Required, Keep::Everything, force).instrument(within).await {
                    Ok(()) => {
                        answer.send(Ok(self.record()));
                        Some(Transition::Stopped)
                    }
                    Err(error) => self.refuse(error, answer),
                }
            }
            Command::Resume(order, answer) => {
                let result = self.refresh(order.timeout_seconds).await.map_err(ChangeError::Storage);
                answer.send(result.map(|()| self.record()));
                None
            }
            Command::Snapshot(order, answer) => match self.checkpoint(running, order).instrument(answer.span()).await {
                Ok(manifest) => {
                    answer.send(Ok(manifest));
                    None
                }
                Err(error) => self.refuse(error, answer),
            },
            command => {
                self.handle_record(running.network.as_ref(), command).await;
                running.machine.capture_output(self.record().capture_output);
                None
            }
        }
    }

    /// Answers that something did not come about; what that comes to for the sandbox.
    fn refuse<T>(&mut self, error: OperationError, answer: Answer<T>) -> Option<Transition> {
        match error {
            OperationError::Refused(error) => {
                answer.send(Err(error));
                None
            }
            OperationError::Ended(error) => {
                answer.send(Err(ChangeError::Guest(error.message.clone())));
                Some(Transition::Ended(error))
            }
            OperationError::Delete(cause) => {
                answer.send(Err(ChangeError::NotFound));
                Some(Transition::Delete(cause))
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
            Command::Update(update, answer) => (self.update(update).await, answer),
            Command::Expose(port, answer) => {
                let record = self.record();
                let is_new = record.exposed_ports.iter().all(|other| other.port != port.port);
                if is_new && record.exposed_ports.len() >= MAX_PORTS {
                    answer.send(Err(ChangeError::TooManyPorts));
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
                    answer.send(Err(ChangeError::NotFound));
                    return;
                }
                let saved = self.change(|record| record.exposed_ports.retain(|other| other.port != port));
                (saved.await, answer)
            }
            Command::SetNetwork(policy, answer) => {
                answer.send(self.set_network(network, policy).await);
                return;
            }
            Command::Denied(answer) => {
                answer.send(self.denied(network).await);
                return;
            }
            Command::Absorb { lower, upper, answer } => (self.absorb(&lower, &upper).await, answer),
            other => return other.refuse(ChangeError::State(self.record().state)),
        };
        answer.send(saved.map(|()| self.record()).map_err(ChangeError::Storage));
    }

    async fn update(&mut self, update: UpdateSandbox) -> io::Result<()> {
        let captured = self.record().capture_output;
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
            if let Some(capture) = update.capture_output {
                record.capture_output = capture;
            }
        });
        saved.await?;
        match self.record().capture_output {
            now if now == captured => {}
            true => self.log.host("process output is captured from now on"),
            false => self.log.host("process output is not captured any more"),
        }
        Ok(())
    }

    async fn watch_stopped(&mut self) -> Transition {
        loop {
            let command = match self.next_command().await {
                Ok(command) => command,
                Err(transition) => return transition,
            };
            match command {
                Command::Delete(cause, answer) => {
                    self.waiting.push(answer);
                    return Transition::Delete(cause);
                }
                // Stopped already.
                Command::Pause { answer, .. } => answer.send(Ok(self.record())),
                Command::Resume(order, answer) => match self.resume(order).instrument(answer.span()).await {
                    Ok(running) => {
                        answer.send(Ok(self.record()));
                        return Transition::Resumed(Box::new(running));
                    }
                    Err(error) => {
                        if let Some(transition) = self.refuse(error, answer) {
                            return transition;
                        }
                    }
                },
                Command::DropMemory(answer) => {
                    let result = self.drop_memory().await;
                    answer.send(result.map(|()| self.record()).map_err(ChangeError::Storage));
                }
                Command::Snapshot(order, answer) => {
                    let result = self.checkpoint_stopped(order).instrument(answer.span()).await;
                    answer.send(result);
                }
                command => self.handle_record(None, command).await,
            }
        }
    }

    async fn watch_failed(&mut self) -> Transition {
        loop {
            match self.next_command().await {
                Err(transition) => return transition,
                Ok(Command::Delete(cause, answer)) => {
                    self.waiting.push(answer);
                    return Transition::Delete(cause);
                }
                Ok(other) => other.refuse(ChangeError::State(SandboxState::Failed)),
            }
        }
    }

    /// The next command to a sandbox that does not run, those that were put off first; or what ends its phase.
    async fn next_command(&mut self) -> Result<Command, Transition> {
        let leave = self.context.leave.clone();
        loop {
            if let Some(cause) = self.postpone_waiting() {
                return Err(Transition::Delete(cause));
            }
            if let Some(command) = self.postponed.pop_front() {
                return Ok(command);
            }
            let remaining = self.record().removed_at().map(remaining);
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                return Err(Transition::Delete(DeleteCause::Timeout));
            }
            tokio::select! {
                () = leave.cancelled() => return Err(Transition::Leave),
                command = next_command(&mut self.commands) => return Ok(command),
                () = sleep(remaining.unwrap_or_default().min(CLOCK_CHECK)), if remaining.is_some() => {}
            }
        }
    }

    async fn bound_monitor_log(&self) {
        let path = self.context.paths.sandbox(&self.record().id).monitor_log();
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || console::bound_file(&path)).await {
            tracing::warn!(sandbox = self.record().id.as_str(), %error, "cannot bound a monitor's log");
        }
    }
}

/// How far away a moment is; nothing once it has passed.
fn remaining(until: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default()
}
