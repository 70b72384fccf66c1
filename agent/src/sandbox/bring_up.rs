//! How a supervisor brings its sandbox up: from the record to a guest that says that it is ready.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use jiff::Timestamp;
use sandpiper_protocol::agent::{SandboxError, SandboxState};
use sandpiper_protocol::guest::GuestMessage;
use sandpiper_protocol::vmm::{Reply, Timings};
use tokio::time::{Instant, sleep_until};

use super::machine::{Machine, MachineEvent};
use super::monitor::RequestError;
use super::process::{self, MonitorProcess};
use super::seal::Envs;
use super::start::{self, Prepared, StartError};
use super::supervisor::{Supervisor, next_command};
use super::{ending, record};
use crate::host;
use crate::logs::sanitize;
use crate::templates::Template;

impl Supervisor {
    pub(super) async fn prepare(&mut self, template: Template) -> Result<Prepared, StartError> {
        let context = Arc::clone(&self.context);
        let mut record = (*self.record()).clone();
        let work = tokio::task::spawn_blocking(move || {
            let result = start::prepare(&context, &mut record, &template);
            (record, result)
        });
        let (record, result) =
            work.await.map_err(|error| StartError::Host { what: "prepare", source: io::Error::other(error) })?;
        self.published.send_replace(Arc::new(record));
        result
    }

    /// Boots the guest and waits until it is ready. On failure the machine comes back, to be taken away.
    pub(super) async fn bring_up(
        &mut self,
        prepared: Prepared,
        envs: Envs,
    ) -> Result<Machine, (StartError, Option<Machine>)> {
        let record = self.record();
        let give_up_at = Instant::now() + self.context.config.boot_timeout();
        let spawned_at_us = prepared.spawned_at_us;
        let (request, fds) = prepared.boot_request(&record, &self.context.config.kernel_args);
        let pidfd = match prepared.pidfd.try_clone().and_then(MonitorProcess::watch) {
            Ok(process) => process,
            Err(source) => {
                // Cannot be watched, so it is killed right here.
                let killed = process::kill_blocking(prepared.pidfd.as_fd());
                tracing::error!(sandbox = record.id, ?killed, %source, "a new monitor cannot be watched");
                return Err((StartError::Host { what: "watch the monitor", source }, None));
            }
        };
        let control = self.context.paths.sandbox(&record.id).control_socket();
        let mut machine = Machine::new(&record.id, pidfd, control, envs);
        let booted = tokio::select! {
            booted = machine.request(request, &fds, self.context.config.boot_timeout()) => booted,
            error = self.interruption(give_up_at) => return Err((error, Some(machine))),
        };
        drop(fds);
        drop(prepared);
        let timings = match booted {
            Ok(Reply::Booted(timings)) => timings,
            Ok(_) => Timings::default(),
            Err(error) => {
                let error = self.boot_refused(&mut machine, &error).await;
                return Err((StartError::Guest(error), Some(machine)));
            }
        };
        match self.await_ready(&mut machine, spawned_at_us, timings, give_up_at).await {
            Ok(()) => Ok(machine),
            Err(error) => Err((error, Some(machine))),
        }
    }

    /// The monitor's own account of its end says more than a closed connection.
    async fn boot_refused(&self, machine: &mut Machine, error: &RequestError) -> SandboxError {
        if matches!(error, RequestError::Refused(_)) {
            return ending::error("monitor_failed", crate::chain(error));
        }
        match tokio::time::timeout(self.context.config.stop_timeout(), machine.next()).await {
            Ok(MachineEvent::Ended(ended)) => self.explain(ended).await,
            _ => ending::error("monitor_failed", crate::chain(error)),
        }
    }

    async fn await_ready(
        &mut self,
        machine: &mut Machine,
        spawned_at_us: u64,
        mut timings: Timings,
        give_up_at: Instant,
    ) -> Result<(), StartError> {
        loop {
            let event = tokio::select! {
                event = machine.next() => event,
                error = self.interruption(give_up_at) => return Err(error),
            };
            match event {
                MachineEvent::Guest(GuestMessage::Ready { init_version }) => {
                    let now_us = host::monotonic_us();
                    self.log.host(format!("the guest's init is {}", sanitize(&init_version)));
                    self.set_ready(spawned_at_us, now_us, timings).await?;
                    return Ok(());
                }
                MachineEvent::LinkOpened => {
                    // The guest is busy with its first message now, so this costs the start nothing.
                    match machine.timings().await {
                        Ok(found) => timings = found,
                        Err(error) => tracing::debug!(error = %crate::chain(&error), "no timings"),
                    }
                }
                MachineEvent::Guest(message) => {
                    if let Some(error) = self.hear(message) {
                        return Err(StartError::Guest(error));
                    }
                }
                MachineEvent::Ended(ended) => return Err(StartError::Guest(self.explain(ended).await)),
                MachineEvent::OutOfControl => return Err(StartError::Guest(ending::out_of_control())),
            }
        }
    }

    /// Waits for what ends a start from outside: a delete, the agent's end, the time-out. May be dropped and called again.
    async fn interruption(&mut self, give_up_at: Instant) -> StartError {
        let leave = self.context.leave.clone();
        loop {
            tokio::select! {
                () = leave.cancelled() => return StartError::ShuttingDown,
                () = sleep_until(give_up_at) => {
                    let seconds = self.context.config.boot_timeout_seconds;
                    let message = format!("The guest was not ready within {seconds} seconds");
                    return StartError::Guest(ending::error("guest_failed", message));
                }
                command = next_command(&mut self.commands) => {
                    if self.handle_while_busy(command).is_some() {
                        return StartError::Deleted;
                    }
                }
            }
        }
    }

    async fn set_ready(&mut self, spawned_at_us: u64, now_us: u64, timings: Timings) -> Result<(), StartError> {
        let since = |step: u64| if step == 0 { 0 } else { step.saturating_sub(spawned_at_us) };
        let saved = self.change(|record| {
            let now = Timestamp::now();
            record.state = SandboxState::Ready;
            record.started_at = Some(now);
            record.deadline = record::deadline(now, record.timeout_seconds);
            record.timings.first_instruction_us = since(timings.first_instruction_us);
            record.timings.guest_init_us = since(timings.guest_init_us);
            record.timings.data_plane_ready_us = since(now_us);
        });
        saved.await.map_err(|source| StartError::Host { what: "write the sandbox's record", source })
    }
}
