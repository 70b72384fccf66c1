//! How a supervisor ends its sandbox's machine, and its sandbox.

use std::time::Duration;

use jiff::Timestamp;
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_protocol::agent::{SandboxError, SandboxState};
use tokio::time::sleep;

use crate::launch::Running;
use crate::sandbox::command::Command;
use crate::sandbox::delete_cause::DeleteCause;
use crate::sandbox::ending;
use crate::sandbox::errors::ChangeError;
use crate::sandbox::supervisor::Supervisor;

/// Pause between attempts to remove files that could not be removed.
const REMOVE_AGAIN: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Keeps the disk of a sandbox whose machine ended by itself, and frees everything else.
    pub(crate) async fn lose_machine(&mut self, machine: Option<Running>, error: SandboxError) {
        // Its interval ends here: what is cleared away and synced below takes time, and is not its team's.
        let (record, now) = (self.record(), Timestamp::now());
        tracing::warn!(
            sandbox = record.id.as_str(),
            code = error.code,
            error = error.message,
            "a machine ended unexpectedly"
        );
        self.log.host(format!("ended, its disk is kept: {} ({})", error.message, error.code));
        self.context.metrics.ended(&error.code);
        let traffic = self.traffic(machine.as_ref().and_then(|machine| machine.network.as_ref())).await;
        if let Some(machine) = machine {
            // Before its slot goes: an agent that is killed until the record says so finds it in the journal.
            self.journal_traffic(traffic);
            self.keep_interval().await;
            self.end_process(machine).await;
        }
        let paths = self.context.paths.sandbox(&record.id);
        let disk = record.files.disk_only();
        if let Err(error) = durable::blocking(move || disk.sync(&paths.state)).await {
            // What the guest had flushed is there already; for the rest there is no other place.
            tracing::error!(sandbox = record.id.as_str(), %error, "cannot sync the disk of a machine that ended");
        }
        // Should the file not be written: the monitor is gone whatever it says, and a restarted agent comes to the same end.
        self.keep_interval().await;
        self.change_regardless(|record| {
            record.note_traffic(traffic);
            record.lose_machine(error.clone(), now);
        })
        .await;
        self.follow_interval();
        // After the record: the reason is in the exit record, which goes with the process's files.
        self.put_away(None).await;
        if let Err(error) = self.tidy().await {
            tracing::warn!(sandbox = record.id.as_str(), %error, "cannot remove what a machine leaves that ended");
        }
        self.context.changed.send_replace(());
    }

    /// Ends the machine of a sandbox that is stopped, as its record says already, and removes what belonged to it.
    pub(crate) async fn put_away(&mut self, machine: Option<Running>) {
        if let Some(machine) = machine {
            self.end_process(machine).await;
        }
        CrashPoint::PauseMonitorEnded.pass();
        let paths = self.context.paths.sandbox(&self.record().id);
        if let Err(error) = durable::blocking(move || ending::remove_process_files(&paths)).await {
            tracing::warn!(sandbox = self.record().id.as_str(), %error, "cannot remove the files of a monitor that ended");
        }
    }

    pub(crate) async fn delete(
        mut self,
        mut machine: Option<Running>,
        cause: DeleteCause,
        forget: impl FnOnce() + Send,
    ) {
        let id = self.record().id.clone();
        self.keep_interval().await;
        let traffic = self.traffic(machine.as_ref().and_then(|machine| machine.network.as_ref())).await;
        let now = Timestamp::now();
        // Full disk, perhaps: deleting is the cure. Should we be killed before it is written down, the sandbox lives on; nobody
        // was told otherwise.
        self.change_regardless(|record| {
            record.state = SandboxState::Stopping;
            record.pausing = false;
            record.note_traffic(traffic);
            record.end_interval(now.as_millisecond(), cause.end_reason());
        })
        .await;
        self.follow_interval();
        CrashPoint::DeleteRecorded.pass();
        self.log.host(format!("deleted: {}", cause.as_str()));
        if let Some(running) = &mut machine {
            self.flush_volumes(running).await;
        }
        self.take_away(machine).await;
        CrashPoint::DeleteRemoved.pass();
        tracing::info!(target: "audit", sandbox = id.as_str(), ?cause, "deleted");
        self.context.metrics.deleted(cause.as_label());
        forget();
        self.answer_deletes();
    }

    /// Ends the process and removes every file, the record last. Goes on until that is done.
    pub(crate) async fn take_away(&mut self, machine: Option<Running>) {
        if let Some(machine) = machine {
            self.end_process(machine).await;
        }
        CrashPoint::DeleteMonitorEnded.pass();
        let record = self.record();
        loop {
            let paths = self.context.paths.sandbox(&record.id);
            let samples = self.context.samples.find(&record.id);
            let intervals = self.context.intervals.clone();
            let log = self.log.clone();
            let remove = move || {
                // A file that came into the folder now would keep it there.
                log.close();
                if let Some(samples) = samples {
                    samples.close();
                }
                // Until the journal has the end of its interval, the record does not go. Everything else does: that may be what
                // the journal has no room for.
                if let Err(error) = intervals.write() {
                    ending::free(&paths)?;
                    return Err(error);
                }
                CrashPoint::DeleteCounted.pass();
                ending::remove(&paths)
            };
            match durable::blocking(remove).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(sandbox = record.id.as_str(), %error, "cannot remove a sandbox's files; trying again")
                }
            }
            tokio::select! {
                // The record says what is going on: the next agent finishes it.
                () = self.context.leave.cancelled() => return,
                () = sleep(REMOVE_AGAIN) => {}
            }
        }
    }

    /// Ends the monitor and frees what it held.
    pub(crate) async fn end_process(&self, running: Running) {
        if let Err(error) = running.end(&self.context.launcher).await {
            tracing::error!(sandbox = self.record().id.as_str(), %error, "cannot end a monitor");
        }
    }

    /// Tells those who asked, and those who ask while the last of it goes.
    pub(crate) fn answer_deletes(&mut self) {
        self.commands.close();
        while let Some(command) = self.postponed.pop_front().or_else(|| self.commands.try_recv().ok()) {
            match command {
                Command::Delete(_, answer) => self.waiting.push(answer),
                other => other.refuse(ChangeError::NotFound),
            }
        }
        for answer in self.waiting.drain(..) {
            let _ = answer.send(());
        }
    }
}
