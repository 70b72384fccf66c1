//! How a supervisor has its stopped sandbox go on: from its snapshot, with a new layer on top of its disk.
//!
//! Nothing of the snapshot is touched until the guest is ready, so a resume that fails leaves the sandbox stopped as it was.
//! A snapshot that this host cannot restore, after an update of its kernel perhaps, is not the end either: the disk is
//! there, and is booted. Processes are lost then, files are not. The same goes for one whose programs hold so many volumes that
//! were taken from them that no slot is left to mount the sandbox's in.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_images::layers::digest::Visits;
use sandpiper_images::layers::{Files, merge};
use sandpiper_machine::link::Envs;
use sandpiper_protocol::agent::{ResumeSandbox, SandboxState};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::vmm::MAX_FDS;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pause::millis;
use super::start::{Attempt, Way};
use crate::capacity::Reservation;
use crate::launch::{Running, Source};
use crate::sandbox::errors::{ChangeError, OperationError};
use crate::sandbox::start_error::StartError;
use crate::sandbox::supervisor::Supervisor;
use crate::volumes::VolumeError;

/// Descriptors of a start besides the layers: state, working set or kernel, the new top layer, vsock, tap, console.
const OTHER_FDS: usize = 6;

impl Supervisor {
    /// Has the sandbox go on.
    pub(crate) async fn resume(&mut self, order: ResumeSandbox) -> Result<Running, OperationError> {
        let ResumeSandbox { timeout_seconds: seconds, disk_only, allowance } = order;
        let began = Instant::now();
        let team = allowance.map(|allowance| allowance.team);
        if team.is_some() && self.record().team != team {
            let saved = self.change(|record| record.team = team).await;
            saved.map_err(|error| OperationError::Refused(ChangeError::Storage(error)))?;
        }
        let reservation = self.context.reserve(&self.record().demand());
        let reservation = reservation.map_err(|full| OperationError::Refused(full.into()))?;
        let start = self.context.launcher.pool.begin(self.shape());
        let result = self.resume_with(&reservation, seconds, disk_only).await;
        drop(start);
        self.context.metrics.resumed(result.is_ok(), began.elapsed());
        self.context.changed.send_replace(());
        let record = self.record();
        match &result {
            Ok(_) => {
                let kind = record.start;
                tracing::info!(target: "audit", sandbox = record.id.as_str(), ?kind, took_ms = millis(began), "resumed");
                self.log.host("resumed");
                // The state that it was restored from.
                if let Err(error) = self.tidy().await {
                    tracing::warn!(sandbox = record.id.as_str(), %error, "cannot remove a snapshot that is not needed any more");
                }
            }
            Err(OperationError::Refused(error)) => {
                let error = error_chain::chain(error);
                tracing::warn!(target: "audit", sandbox = record.id.as_str(), error, "not resumed");
                self.log.host(format!("not resumed: {error}"));
            }
            Err(OperationError::Ended(_) | OperationError::Delete(_)) => {}
        }
        result
    }

    async fn resume_with(
        &mut self,
        reservation: &Reservation,
        seconds: Option<u64>,
        disk_only: bool,
    ) -> Result<Running, OperationError> {
        self.shorten().await?;
        let envs = self.unseal();
        if self.record().files.has_memory() && !disk_only {
            match self.attempt(false, seconds, &envs, reservation).await {
                Err(error @ (StartError::BadSnapshot(_) | StartError::Volume(VolumeError::NoSlot))) => {
                    let reason = error_chain::chain(&error);
                    tracing::warn!(
                        sandbox = self.record().id.as_str(),
                        reason,
                        "booting a sandbox that cannot be restored"
                    );
                    self.log.host(format!("not restored, booting from its disk; its processes are lost: {reason}"));
                }
                result => return result.map_err(operation_error),
            }
        }
        self.attempt(true, seconds, &envs, reservation).await.map_err(operation_error)
    }

    /// One way to go on; the sandbox is stopped as before when it fails.
    async fn attempt(
        &mut self,
        cold: bool,
        seconds: Option<u64>,
        envs: &Envs,
        reservation: &Reservation,
    ) -> Result<Running, StartError> {
        let way = if cold { Way::Booted } else { Way::Restored };
        let source = Source::Own { files: self.record().files.clone(), cold };
        let attempt = Attempt { source, way, warm: None, timeout_seconds: seconds };
        let began = self.bring_up(attempt, envs, reservation, self.context.config.boot_timeout(), |record| {
            record.state = SandboxState::Restoring;
            record.generation = record.generation.saturating_add(1);
        });
        let (error, machine) = match began.await {
            Ok(machine) => return Ok(machine),
            Err(failed) => failed,
        };
        if self.record().state == SandboxState::Restoring {
            self.change_regardless(|record| record.undo_resume()).await;
        }
        self.put_away(machine).await;
        if let Err(error) = self.tidy().await {
            tracing::warn!(sandbox = self.record().id.as_str(), %error, "cannot remove what a resume left that failed");
        }
        Err(error)
    }

    /// Merges layers if there are more than a monitor can be given. Usually that has been done long ago.
    async fn shorten(&mut self) -> Result<(), OperationError> {
        loop {
            let record = self.record();
            if record.files.disk.len() + record.files.memory.len() + OTHER_FDS <= MAX_FDS {
                return Ok(());
            }
            let folder = self.context.paths.sandbox(&record.id).state;
            let context = Arc::clone(&self.context);
            let merge = move || merge_now(&folder, &record.files, &context.visits, &context.leave);
            let merged = durable::blocking(merge).await;
            match merged.map_err(|source| OperationError::host("merge the sandbox's layers", source))? {
                Some((lower, upper)) => self
                    .absorb(&lower, &upper)
                    .await
                    .map_err(|error| OperationError::Refused(ChangeError::Storage(error)))?,
                None => return Ok(()),
            }
        }
    }
}

/// Merges one pair of a stopped sandbox's layers right now; which, or `None` if there is none. Blocks.
fn merge_now(
    folder: &Path,
    files: &Files,
    visits: &Visits,
    leave: &CancellationToken,
) -> io::Result<Option<(String, String)>> {
    let disk = merge::candidates(folder, &files.disk, merge::LONG_DISK);
    let Some(pair) = disk.or_else(|| merge::candidates(folder, &files.memory, merge::LONG_MEMORY)) else {
        return Ok(None);
    };
    let (lower, upper) = (pair.0.name.clone(), pair.1.name.clone());
    let (lower_path, upper_path) = (folder.join(&lower), folder.join(&upper));
    let filled = merge::fill(&lower_path, &upper_path, visits, Duration::ZERO, || !leave.is_cancelled())?;
    Ok(filled.then_some((lower, upper)))
}

fn operation_error(error: StartError) -> OperationError {
    match error {
        StartError::Deleted(cause) => OperationError::Delete(cause),
        error => OperationError::Refused(ChangeError::Start(error)),
    }
}
