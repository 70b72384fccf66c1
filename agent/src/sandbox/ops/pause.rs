//! How a supervisor pauses its sandbox: everything that it is goes to the disk, and its process ends.
//!
//! ```text
//!   ready ──record: stopping, pausing──▶ volumes away, freeze the guest ──▶ monitor writes down state and memory, and stays paused
//!     ▲                                       │                      │
//!     │                                       ▼ failed               ▼
//!     └── volumes back ◀── thaw ◀── monitor goes on ◀─ sync ──▶ record: stopped ──▶ answer ──▶ the process ends
//! ```
//!
//! The record is the moment of truth. Before it says `stopped`, whatever goes wrong leaves the sandbox running, and an agent
//! that is killed has its successor do the same. After it, the process is of no use any more.
//!
//! A guest has some time to quiesce. Its monitor has all the time that it needs: until it has answered or ended, the
//! sandbox is `stopping`, which only a delete cuts short.
//!
//! The layer that the guest wrote to becomes the snapshot's top as it is; a resume puts a new one over it.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_images::layers::{self, Files, Layer, Role};
use sandpiper_machine::{Machine, Unanswered, sanitize};
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::error_chain;
use sandpiper_protocol::guest::{GuestMessage, HostMessage};
use sandpiper_protocol::vmm::{Reply, Request, SnapshotConfig, SnapshotStats, Then};
use sandpiper_trace as trace;
use tokio::time::Instant;
use tracing::Instrument;

use crate::launch::Running;
use crate::sandbox::errors::{ChangeError, OperationError};
use crate::sandbox::record_file;
use crate::sandbox::supervisor::{Supervisor, next_command};

/// How long a guest may take to quiesce its file systems: it may have much to write.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a guest may take to go on.
const THAW_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the guest must have quiesced before it is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quiesce {
    Required,
    /// A guest that does not quiesce, perhaps because it does not want to, is written down as it runs. Its memory
    /// and disk are of one moment all the same; only a boot from the disk alone would miss what it had not written yet.
    IfPossible,
}

/// What is kept of a sandbox that is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Everything,
    /// The disk, which is frozen first: all is written down with it, and the memory never becomes part of the record.
    Disk,
}

impl Supervisor {
    /// Pauses the sandbox. When it is done, the record says `stopped`, and the machine is to be ended.
    /// Volumes are taken from programs that have files of them open if `force` says so.
    pub(crate) async fn pause(
        &mut self,
        running: &mut Running,
        quiesce: Quiesce,
        keep: Keep,
        force: bool,
    ) -> Result<(), OperationError> {
        let began = Instant::now();
        let result = self.pause_unmeasured(running, quiesce, keep, force).await;
        self.context.metrics.paused(result.is_ok(), began.elapsed());
        let id = self.record().id.clone();
        match &result {
            Ok(()) => {
                running.reservation.leave_team();
                // The monitor has let go of them, and the record says that the sandbox is stopped.
                running.volumes.release().await;
                tracing::info!(target: "audit", sandbox = id.as_str(), ?keep, took_ms = millis(began), "paused");
                self.log.host(match keep {
                    Keep::Everything => "paused",
                    Keep::Disk => "paused without its memory, to boot from its disk",
                });
                if keep == Keep::Disk
                    && let Err(error) = self.tidy().await
                {
                    tracing::warn!(sandbox = id.as_str(), %error, "cannot remove the memory of a sandbox that keeps its disk alone");
                }
                self.context.changed.send_replace(());
            }
            Err(OperationError::Refused(error)) => {
                let error = error_chain::chain(error);
                tracing::warn!(target: "audit", sandbox = id.as_str(), error, "not paused");
                self.log.host(format!("not paused: {error}"));
                // The tenant's time does not run while the agent has the sandbox.
                let lost = began.elapsed();
                self.change_regardless(|record| {
                    record.deadline = record.deadline.checked_add(lost).unwrap_or(record.deadline);
                })
                .await;
            }
            Err(OperationError::Ended(_) | OperationError::Delete(_)) => {}
        }
        result
    }

    async fn pause_unmeasured(
        &mut self,
        running: &mut Running,
        quiesce: Quiesce,
        keep: Keep,
        force: bool,
    ) -> Result<(), OperationError> {
        let saved = self.change_for_now(|record| {
            record.state = SandboxState::Stopping;
            record.pausing = true;
        });
        let saved = saved.instrument(trace::step("record that it is being paused")).await;
        saved.map_err(|error| OperationError::Refused(ChangeError::Storage(error)))?;
        CrashPoint::PauseRecorded.pass();
        let written = match self.put_volumes_away(running, force, quiesce == Quiesce::IfPossible).await {
            Ok(()) => self.write_down(&mut running.machine, quiesce, keep).await,
            Err(error) => Err(error),
        };
        let stopped = match written {
            Ok(files) => self.stop(running, files, keep).await,
            Err(error) => Err(error),
        };
        match stopped {
            Err(OperationError::Refused(error)) => {
                self.let_go_on(&mut running.machine).await?;
                self.bring_volumes_back(running).await?;
                self.is_ready_again().await;
                Err(OperationError::Refused(error))
            }
            result => {
                CrashPoint::PauseStopped.pass();
                result
            }
        }
    }

    /// Has guest and monitor write down everything. The machine is paused then, and nothing on stable storage yet.
    async fn write_down(
        &mut self,
        machine: &mut Machine,
        quiesce: Quiesce,
        keep: Keep,
    ) -> Result<Files, OperationError> {
        self.tidy().await.map_err(|source| OperationError::host("remove what an earlier attempt left", source))?;
        let frozen = self.freeze(machine, true, keep == Keep::Disk).instrument(trace::step("freeze")).await;
        match (frozen, quiesce) {
            (Err(OperationError::Refused(error)), Quiesce::IfPossible) => {
                self.log.host(format!("paused without the guest's consent: {}", error_chain::chain(&error)));
            }
            (result, _) => result?,
        }
        CrashPoint::PauseFrozen.pass();
        let record = self.record();
        let folder = self.context.paths.sandbox(&record.id).state;
        let mut files = record.files.clone();
        // All that was written since the machine was restored goes into one layer.
        files.written.clear();
        let written = self.meanwhile(snapshot(machine, &folder, &mut files, true));
        written.instrument(trace::step("monitor")).await??;
        CrashPoint::PauseWritten.pass();
        Ok(files)
    }

    /// Has the record say that the sandbox is stopped, once these files of the paused machine are on stable storage. It is written
    /// ahead, while they get there.
    async fn stop(&mut self, running: &Running, files: Files, keep: Keep) -> Result<(), OperationError> {
        let storage = |error| OperationError::Refused(ChangeError::Storage(error));
        self.keep_interval().await;
        let mut record = (*self.record()).clone();
        record.note_traffic(self.traffic(running.network.as_ref()).await);
        let kept = match keep {
            Keep::Everything => files.clone(),
            Keep::Disk => files.disk_only(),
        };
        record.stop(kept, Timestamp::now());
        let paths = self.context.paths.sandbox(&record.id);
        let folder = paths.state.clone();
        let synced = durable::blocking(move || files.sync(&folder)).instrument(trace::step("sync"));
        let prepared =
            durable::blocking(move || Ok::<_, io::Error>((record_file::prepare(&paths, &record)?, paths, record)));
        let (synced, prepared) = tokio::join!(synced, prepared.instrument(trace::step("prepare the record")));
        CrashPoint::PauseSynced.pass();
        synced.map_err(|source| OperationError::host("sync the snapshot", source))?;
        let (prepared, paths, record) = prepared.map_err(storage)?;
        let put = durable::blocking(move || record_file::put_in_place(&paths, prepared));
        put.instrument(trace::step("record that it is paused")).await.map_err(storage)?;
        self.publish(record);
        self.follow_interval();
        Ok(())
    }

    /// Has machine and guest go on after a pause that did not come about, or what an earlier agent had begun.
    pub(crate) async fn let_go_on(&mut self, machine: &mut Machine) -> Result<(), OperationError> {
        if let Err(ended) = self.meanwhile(machine.go_on()).await? {
            return Err(OperationError::Ended(self.explain(ended).await));
        }
        self.thaw(machine).await
    }

    /// Writes down that a sandbox goes on which was not paused after all: its machine runs, with its volumes.
    pub(crate) async fn is_ready_again(&mut self) {
        self.change_regardless(|record| {
            record.state = SandboxState::Ready;
            record.pausing = false;
        })
        .await;
        if let Err(error) = self.tidy().await {
            tracing::warn!(sandbox = self.record().id.as_str(), %error, "cannot remove what a pause left that failed");
        }
    }

    /// Has the stopped sandbox keep its disk alone, to which all was written out before it stopped.
    pub(crate) async fn drop_memory(&mut self) -> io::Result<()> {
        if !self.record().files.has_memory() {
            return Ok(());
        }
        self.change(|record| record.files = record.files.disk_only()).await?;
        self.log.host("forgot its memory, to boot from its disk");
        self.tidy().await
    }

    /// Has the guest write out its disks, and with `processes` stops what the data plane started before. With `disks` nothing more
    /// is written to them: that is for whoever takes them without the memory.
    pub(crate) async fn freeze(
        &mut self,
        machine: &mut Machine,
        processes: bool,
        disks: bool,
    ) -> Result<(), OperationError> {
        let is_answer =
            |message: &GuestMessage| matches!(message, GuestMessage::Frozen { .. } | GuestMessage::NotFrozen { .. });
        let question = HostMessage::Freeze { processes, disks, stays: false };
        let reason = match self.ask(machine, question, is_answer, FREEZE_TIMEOUT).await? {
            Ok(GuestMessage::NotFrozen { message }) => sanitize(&message),
            Ok(_) => return Ok(()),
            Err(unanswered) => unanswered.to_string(),
        };
        Err(OperationError::Refused(ChangeError::Guest(format!("The guest could not be frozen: {reason}"))))
    }

    /// Lets the guest go on. One that does not answer does so by itself, soon.
    pub(crate) async fn thaw(&mut self, machine: &mut Machine) -> Result<(), OperationError> {
        let is_answer = |message: &GuestMessage| matches!(message, GuestMessage::Thawed);
        if let Err(error) = self.ask(machine, HostMessage::Thaw, is_answer, THAW_TIMEOUT).await? {
            tracing::warn!(sandbox = self.record().id.as_str(), %error, "a guest did not confirm that it is thawed; it thaws by itself");
        }
        Ok(())
    }

    /// Does something with the machine, while commands wait and a delete does not.
    pub(crate) async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, OperationError> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                result = &mut work => return Ok(result),
                command = next_command(&mut self.commands) => {
                    if let Some(cause) = self.postpone(command) {
                        return Err(OperationError::Delete(cause));
                    }
                }
            }
        }
    }

    /// Asks the guest.
    pub(crate) async fn ask(
        &mut self,
        machine: &mut Machine,
        question: HostMessage,
        is_answer: impl Fn(&GuestMessage) -> bool,
        timeout: Duration,
    ) -> Result<Result<GuestMessage, Unanswered>, OperationError> {
        let ear = self.ear();
        let ask = machine.ask(question, is_answer, timeout, |message| ear.hear(message));
        match self.meanwhile(ask).await? {
            Err(Unanswered::Terminated(termination)) => {
                Err(OperationError::Ended(self.explain_termination(termination).await))
            }
            answer => Ok(answer),
        }
    }
}

/// Has the monitor stop the machine and write it down into new files in `folder`, which become part of `files`. `past_cache` is as in
/// [`SnapshotConfig`].
pub(crate) async fn snapshot(
    machine: &mut Machine,
    folder: &Path,
    files: &mut Files,
    past_cache: bool,
) -> Result<SnapshotStats, OperationError> {
    let (state, memory) = (files.new_name(Role::State), files.new_name(Role::Memory));
    let (state_path, memory_path) = (folder.join(&state), folder.join(&memory));
    let create =
        move || Ok::<_, layers::LayerError>([layers::create(&state_path, 0)?, layers::create(&memory_path, 0)?]);
    let created = tokio::task::spawn_blocking(create).await;
    let created =
        created.map_err(|error| OperationError::host("create the snapshot's files", io::Error::other(error)))?;
    let [state_file, memory_file] = created.map_err(|error| OperationError::Refused(ChangeError::Layer(error)))?;
    CrashPoint::PauseFilesMade.pass();
    let request = Request::Snapshot(SnapshotConfig { push_layers: false, then: Then::Pause, past_cache });
    let fds = [state_file.as_fd(), memory_file.as_fd()];
    match machine.order(request, &fds).await {
        Ok(Reply::Snapshot(stats)) => {
            files.state = Some(state);
            files.memory.push(Layer::own(memory));
            Ok(stats)
        }
        Ok(_) => Err(OperationError::Refused(ChangeError::Unexpected)),
        Err(error) => Err(OperationError::Refused(ChangeError::Monitor(error))),
    }
}

pub(crate) fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
