//! What the agent does in the background for all sandboxes and checkpoints: it measures what they hold of the disk, and
//! keeps their chains of layers short.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::command::Command;
use super::registry::Sandboxes;
use crate::layers::{Files, Layer, merge, usage};

/// How often everything is measured, when nothing has happened.
const MEASURE: Duration = Duration::from_secs(30);
/// Rest between two pieces of a merge, a MiB each, so that guests find the disk free: about 60 MiB a second at most.
const PACE: Duration = Duration::from_millis(16);
/// How long a merge is left alone after one that failed: for want of space, perhaps.
const MERGE_AGAIN: Duration = Duration::from_secs(60);

/// Where layers are.
struct Owner {
    id: String,
    folder: PathBuf,
    files: Files,
    /// The top of the disk is being written to.
    runs: bool,
    is_checkpoint: bool,
}

/// Two neighbouring layers of one owner.
struct Merge {
    owner: Owner,
    lower: String,
    upper: String,
}

impl Sandboxes {
    /// Looks after the layers until the agent ends.
    pub(super) async fn keep_up(self) {
        let leave = self.context().leave.clone();
        let mut merge_after = Instant::now();
        loop {
            self.measure().await;
            if Instant::now() >= merge_after && !self.merge_some(&leave).await {
                merge_after = Instant::now() + MERGE_AGAIN;
            }
            tokio::select! {
                () = leave.cancelled() => return,
                () = self.context().changed.notified() => {}
                () = sleep(MEASURE) => {}
            }
        }
    }

    async fn measure(&self) {
        let owners = self.owners();
        let measure = move || -> HashMap<String, u64> {
            owners.into_iter().map(|owner| (owner.id, usage::measure(&owner.folder, &owner.files))).collect()
        };
        if let Ok(bytes) = tokio::task::spawn_blocking(measure).await {
            self.context().usage.replace(bytes);
        }
    }

    /// Merges until no chain is too long; false when that failed and had better wait.
    async fn merge_some(&self, leave: &CancellationToken) -> bool {
        while !leave.is_cancelled() {
            let owners = self.owners();
            let next = tokio::task::spawn_blocking(move || owners.into_iter().find_map(Owner::next_merge)).await;
            let Ok(Some(merge)) = next else { return true };
            let id = merge.owner.id.clone();
            if let Err(error) = self.merge(merge, leave.clone()).await {
                tracing::warn!(owner = id, %error, "cannot merge layers; trying later");
                return false;
            }
        }
        true
    }

    async fn merge(&self, Merge { owner, lower, upper }: Merge, leave: CancellationToken) -> io::Result<()> {
        let (lower_path, upper_path) = (owner.folder.join(&lower), owner.folder.join(&upper));
        let fill = move || merge::fill(&lower_path, &upper_path, PACE, || !leave.is_cancelled());
        let filled = tokio::task::spawn_blocking(fill).await.map_err(io::Error::other)?;
        match filled {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            // The owner was deleted, or did the same itself: nothing is left to do.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        tracing::debug!(owner = owner.id, lower, upper, "merged");
        if owner.is_checkpoint {
            let checkpoints = self.context().checkpoints.clone();
            let absorb = move || checkpoints.absorb(&owner.id, &lower, &upper);
            return tokio::task::spawn_blocking(absorb).await.map_err(io::Error::other)?;
        }
        let command = |answer: oneshot::Sender<_>| Command::Absorb { lower, upper, answer };
        // A sandbox that is gone, or has failed, has no layers any more.
        let _ = self.change(&owner.id, command).await;
        Ok(())
    }

    fn owners(&self) -> Vec<Owner> {
        use sandpiper_protocol::agent::SandboxState::{Checkpointing, Creating, Ready, Restoring, Stopping};
        let context = self.context();
        let sandboxes = self.list().into_iter().map(|record| Owner {
            id: record.id.clone(),
            folder: context.paths.sandbox(&record.id).state,
            files: record.files.clone(),
            runs: matches!(record.state, Creating | Ready | Checkpointing | Restoring | Stopping),
            is_checkpoint: false,
        });
        let checkpoints = context.checkpoints.list().into_iter().map(|manifest| Owner {
            id: manifest.id.clone(),
            folder: context.checkpoints.folder(&manifest.id),
            files: manifest.snapshot.files.clone(),
            runs: false,
            is_checkpoint: true,
        });
        sandboxes.chain(checkpoints).collect()
    }
}

impl Owner {
    /// Blocks.
    fn next_merge(self) -> Option<Merge> {
        // Of a running machine only the disk below its top is still: the monitor has the memory layers mapped, which is
        // no harm either, but nobody gains by it before the next pause.
        let still = self.files.disk.len().saturating_sub(usize::from(self.runs));
        let disk = merge::candidates(&self.folder, &self.files.disk[..still], merge::LONG_DISK);
        let memory = if self.runs { &[][..] } else { &self.files.memory[..] };
        let found = disk.or_else(|| merge::candidates(&self.folder, memory, merge::LONG_MEMORY));
        let (lower, upper) = found.map(names)?;
        Some(Merge { owner: self, lower, upper })
    }
}

/// Merges one pair of a stopped sandbox's layers right now; which, or `None` if there is none. Blocks.
pub(super) fn merge_now(
    folder: &Path,
    files: &Files,
    leave: &CancellationToken,
) -> io::Result<Option<(String, String)>> {
    let disk = merge::candidates(folder, &files.disk, merge::LONG_DISK);
    let Some(pair) = disk.or_else(|| merge::candidates(folder, &files.memory, merge::LONG_MEMORY)) else {
        return Ok(None);
    };
    let (lower, upper) = names(pair);
    let filled = merge::fill(&folder.join(&lower), &folder.join(&upper), Duration::ZERO, || !leave.is_cancelled())?;
    Ok(filled.then_some((lower, upper)))
}

fn names((lower, upper): (&Layer, &Layer)) -> (String, String) {
    (lower.name.clone(), upper.name.clone())
}
