//! The task that owns one sandbox: what it has in every phase, how it changes the record, and how it hears the guest. What a
//! machine holds is [`Running`](crate::launch::Running)'s. What is done with them is in `life` and the operations.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_durable as durable;
use sandpiper_images::{layers, snapshots};
use sandpiper_machine::console::Console;
use sandpiper_machine::link::{Envs, Guest};
use sandpiper_machine::process::Ended;
use sandpiper_machine::{MachinePaths, Termination};
use sandpiper_network::Attachment;
use sandpiper_protocol::agent::{LogSource, SandboxError, SandboxState};
use sandpiper_protocol::guest::{GuestMessage, LogLevel};
use sandpiper_protocol::vmm::{DiskEvent, DiskFailure, DiskLimits, NetLimits, Shape};
use tokio::sync::{mpsc, oneshot, watch};

use super::command::Command;
use super::context::Context;
use super::delete_cause::DeleteCause;
use super::errors::ChangeError;
use super::record::{self, Record};
use super::{ending, record_file};
use crate::launch::{self, Attachments};
use crate::logs::SandboxLog;

/// Commands that wait for the end of what is being done.
const POSTPONED: usize = 32;

/// The task's state.
pub(crate) struct Supervisor {
    pub(crate) context: Arc<Context>,
    pub(crate) log: SandboxLog,
    /// What others see of the record: never newer than the file.
    pub(crate) published: watch::Sender<Arc<Record>>,
    pub(crate) commands: mpsc::Receiver<Command>,
    /// Commands that came while something else was being done, oldest first.
    pub(crate) postponed: VecDeque<Command>,
    /// Deletes that wait for the end.
    pub(crate) waiting: Vec<oneshot::Sender<()>>,
    /// The deadline has passed once, and the sandbox could not be paused.
    pub(crate) overdue: bool,
}

impl Supervisor {
    pub(crate) fn record(&self) -> Arc<Record> {
        self.published.borrow().clone()
    }

    /// Has others see what the file says by now.
    pub(crate) fn publish(&self, record: Record) {
        self.published.send_replace(Arc::new(record));
        self.context.revision.advance();
    }

    /// Sees to it that the deadline is at least this far away. Where that cannot be written down, it holds all the same
    /// while this agent runs.
    pub(crate) async fn extend(&mut self, least: Duration) {
        let deadline = record::deadline(Timestamp::now(), least.as_secs());
        if self.record().deadline < deadline {
            self.change_regardless(|record| record.deadline = deadline).await;
        }
    }

    /// Drops a layer whose content is in the one above it. A monitor that runs on it has it open.
    pub(crate) async fn absorb(&mut self, lower: &str, upper: &str) -> io::Result<()> {
        let mut files = self.record().files.clone();
        if !files.absorb(lower, upper) {
            return Ok(());
        }
        self.change(|record| record.files = files).await?;
        self.tidy().await
    }

    /// Takes a message of the guest; an error ends the sandbox.
    pub(crate) fn hear(&self, message: GuestMessage) -> Option<SandboxError> {
        match message {
            GuestMessage::Failed { message } => Some(ending::guest_failed(&message)),
            GuestMessage::Ready { captures_output, .. } => {
                self.check_capture(captures_output);
                None
            }
            message => {
                self.ear().hear(message);
                None
            }
        }
    }

    /// Says so where a guest does not do what its sandbox asks for.
    pub(crate) fn check_capture(&self, captures_output: bool) {
        if self.record().capture_output && !captures_output {
            self.log.host(
                "process output is not captured: the guest's init is of an earlier version; build its template again to have it",
            );
        }
    }

    /// What puts the guest's words into the log.
    pub(crate) fn ear(&self) -> Ear {
        Ear { log: self.log.clone(), captures_output: self.record().capture_output }
    }

    /// Keeps a command for later while something else is being done; the cause when it is a delete, which does not wait.
    pub(crate) fn postpone(&mut self, command: Command) -> Option<DeleteCause> {
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

    /// Puts off what waits to be heard, so that all of it is done in one order: a policy first, whatever came before it. The
    /// cause when a delete is among it.
    pub(crate) fn postpone_waiting(&mut self) -> Option<DeleteCause> {
        while self.postponed.len() < POSTPONED {
            let command = self.commands.try_recv().ok()?;
            if let Some(cause) = self.postpone(command) {
                return Some(cause);
            }
        }
        None
    }

    /// Changes the record: on disk first, then for everybody to see.
    pub(crate) async fn change(&mut self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        self.change_by(record_file::save, change).await
    }

    /// As [`Self::change`], until the next one, or a power cut, which ends the machine, undoes it.
    pub(crate) async fn change_for_now(&mut self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        self.change_by(record_file::save_draft, change).await
    }

    async fn change_by(
        &mut self,
        save: fn(&MachinePaths, &Record) -> io::Result<()>,
        change: impl FnOnce(&mut Record),
    ) -> io::Result<()> {
        let mut record = (*self.record()).clone();
        change(&mut record);
        let paths = self.context.paths.sandbox(&record.id);
        let record = durable::blocking(move || save(&paths, &record).map(|()| record)).await?;
        self.publish(record);
        Ok(())
    }

    /// As [`Self::change`], where the interval of the sandbox's machine begins or ends: the journal follows.
    pub(crate) async fn change_interval(&mut self, change: impl FnOnce(&mut Record)) -> io::Result<()> {
        self.keep_interval().await;
        self.change(change).await?;
        self.follow_interval();
        Ok(())
    }

    /// Sees to it that the journal has what the record says of an interval, before the record says something else.
    pub(crate) fn keep_interval(&self) -> impl Future<Output = ()> + use<> {
        let (record, intervals) = (self.record(), self.context.intervals.clone());
        async move {
            let is_unwritten = record.interval.as_ref().is_some_and(|interval| intervals.is_unwritten(&interval.id));
            if is_unwritten && let Err(error) = durable::blocking(move || intervals.write()).await {
                tracing::error!(sandbox = record.id.as_str(), %error, "cannot write the journal of intervals");
            }
        }
    }

    /// Has the journal say what the record says.
    pub(crate) fn follow_interval(&self) {
        if let Some(interval) = &self.record().interval {
            self.context.intervals.follow(interval);
        }
    }

    /// As [`Self::change`], for what is so whatever the file says: an agent that reads the older record comes to the same.
    pub(crate) async fn change_regardless(&mut self, change: impl Fn(&mut Record)) {
        if let Err(error) = self.change(&change).await {
            tracing::error!(sandbox = self.record().id.as_str(), %error, "cannot write a sandbox's record");
            let mut record = (*self.record()).clone();
            change(&mut record);
            self.publish(record);
        }
    }

    /// Removes layers and states from the sandbox's folder that its record does not name.
    pub(crate) async fn tidy(&self) -> io::Result<()> {
        let record = self.record();
        let folder = self.context.paths.sandbox(&record.id).state;
        durable::blocking(move || record.files.remove_others(&folder)).await
    }

    /// What the sandbox's monitor is prepared for.
    pub(crate) fn shape(&self) -> Shape {
        let record = self.record();
        snapshots::shape(record.cpu, record.memory_mb)
    }

    /// How much network and disk of its machine do, at most.
    pub(crate) fn device_limits(&self) -> (NetLimits, DiskLimits) {
        let (record, allowances, launcher) = (self.record(), &self.context.allowances, &self.context.launcher);
        let team = record.team.as_ref();
        (allowances.network(team, launcher.net_limits()), allowances.disk(team, launcher.disk_limits()))
    }

    /// What the guest of its machine is told.
    pub(crate) fn guest(&self, envs: Envs, network: Option<&Attachment>, volumes: &Attachments) -> Guest {
        let record = self.record();
        Guest {
            id: record.id.to_string(),
            envs,
            generation: record.generation,
            root_bytes: Some(layers::disk_size(record.disk_gib)),
            network: launch::guest_network(network),
            mounts: volumes.mounts(),
            serves_volume: false,
            settings: record.defaults.settings.clone(),
            start: record.defaults.start.clone(),
            capture_output: record.capture_output,
        }
    }

    /// The tenant's environment variables.
    pub(crate) fn unseal(&self) -> Envs {
        let record = self.record();
        self.context.sealer.unseal(&record.id, &record.envs).unwrap_or_else(|error| {
            tracing::error!(sandbox = record.id.as_str(), %error, "cannot decrypt a sandbox's environment variables; it runs without them");
            Envs::new()
        })
    }

    pub(crate) async fn explain(&self, ended: Ended) -> SandboxError {
        let paths = self.context.paths.sandbox(&self.record().id);
        let explained = tokio::task::spawn_blocking(move || ending::explain(&paths, &ended)).await;
        explained.unwrap_or_else(|_| ending::error("monitor_failed", "The monitor ended".into()))
    }

    /// What ended a machine, in words for its owner.
    pub(crate) async fn explain_termination(&self, termination: Termination) -> SandboxError {
        match termination {
            Termination::Ended(ended) => self.explain(ended).await,
            Termination::OutOfControl => ending::out_of_control(),
            Termination::Failed(message) => ending::guest_failed(&message),
        }
    }

    /// Tells the owner what the host's disk did to the sandbox, and the operator which file it was.
    pub(crate) fn hear_disk(&self, event: &DiskEvent) {
        let record = self.record();
        let file = |failure: &DiskFailure| {
            // Of a volume the serial number is in the monitor's log.
            let is_root = failure.disk == 0;
            let layer =
                usize::try_from(failure.layer).ok().filter(|_| is_root).and_then(|layer| record.files.disk.get(layer));
            layer.map(|layer| self.context.paths.sandbox(&record.id).file(&layer.name))
        };
        match event {
            DiskEvent::Full(failure) => {
                tracing::error!(sandbox = record.id.as_str(), file = ?file(failure), "no space for what a sandbox writes to this file");
                self.log.host("the host has no room for what the sandbox wrote: it stands still until there is");
            }
            DiskEvent::Room => self.log.host("the host has room again: the sandbox goes on"),
            DiskEvent::Failed { failure, total } => {
                tracing::error!(sandbox = record.id.as_str(), file = ?file(failure), "a sandbox's file cannot be read or written");
                self.log.host(format!("the host's disk failed: the guest has seen {total} I/O errors of it"));
            }
        }
    }

    /// Puts what the guest prints into the log, if it has a console. An adopted guest has one if its own agent gave it one.
    pub(crate) fn follow_console(&self) -> Option<Console> {
        let path = self.context.paths.sandbox(&self.record().id).console_log();
        let log = self.log.clone();
        path.exists().then(|| Console::follow(path, move |line: &str| log.push(LogSource::Console, line)))
    }
}

/// Puts what a guest says into its log.
pub(crate) struct Ear {
    log: SandboxLog,
    /// What its processes write, too.
    captures_output: bool,
}

impl Ear {
    pub(crate) fn hear(&self, message: GuestMessage) {
        match message {
            GuestMessage::Log { level, message } => {
                let mark = match level {
                    LogLevel::Info => "",
                    LogLevel::Warn => "warning: ",
                    LogLevel::Error => "error: ",
                };
                self.log.push(LogSource::Guest, &format!("{mark}{message}"));
            }
            GuestMessage::Output { lines, left_out } if self.captures_output => self.log.output(lines, left_out),
            _ => {}
        }
    }
}

/// The next command. The registry holds the other end as long as the sandbox is here, so there is always a next one.
pub(crate) async fn next_command(commands: &mut mpsc::Receiver<Command>) -> Command {
    match commands.recv().await {
        Some(command) => command,
        None => pending().await,
    }
}
