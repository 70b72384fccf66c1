//! What the agent does in the background for all sandboxes and checkpoints: it measures what they hold of the disk, keeps their
//! chains of layers short, and has warm snapshots and parked machines ready for the next ones.

mod ahead;
mod parking;
mod scrub;
mod stalled;
pub(crate) mod warm;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_images::layers::{Files, Layer, digest, merge, usage};
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::error_chain;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::stalled::Stalled;
use crate::sandbox::{ChangeError, Command};
use crate::service::{Ordered, Sandboxes};

/// How often everything is measured, when nothing has happened.
const MEASURE: Duration = Duration::from_secs(30);
/// Pause between two pieces that are merged or read, a MiB each, so that guests find the disk free: about 60 MiB a second at
/// most.
pub(crate) const PACE: Duration = Duration::from_millis(16);

/// Where layers are.
pub(crate) struct Owner {
    pub(crate) kind: OwnerKind,
    pub(crate) id: String,
    /// Of a sandbox, so that one life of it can be told from the next.
    pub(crate) generation: u64,
    pub(crate) folder: PathBuf,
    pub(crate) files: Files,
    /// How many layers of the disk, from the top, may be written to; none unless its machine runs.
    pub(crate) written: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnerKind {
    Sandbox,
    Checkpoint,
    WarmSnapshot,
    Template {
        /// It was imported by the host's operator, for everybody.
        is_hosts: bool,
    },
}

/// Two neighbouring layers of one owner.
struct Merge {
    owner: Owner,
    lower: String,
    upper: String,
}

/// Begins all of it, and makes the warm snapshots that are `ordered`; it ends with the agent.
pub(crate) fn begin(sandboxes: &Sandboxes, ordered: Ordered) {
    sandboxes.spawn(warm::make_all(sandboxes.context_owned(), ordered));
    if sandboxes.context().config.warm.ahead {
        sandboxes.spawn(ahead::keep(sandboxes.context_owned()));
    }
    sandboxes.spawn(parking::keep(sandboxes.context_owned()));
    sandboxes.spawn(sandboxes.clone().keep_up());
    sandboxes.spawn(sandboxes.clone().scrub());
}

impl Sandboxes {
    /// Looks after the layers until the agent ends.
    async fn keep_up(self) {
        let leave = self.context().leave.clone();
        let mut changes = self.context().changed.subscribe();
        let mut stalled = Stalled::default();
        loop {
            self.measure().await;
            self.merge_some(&leave, &mut stalled).await;
            tokio::select! {
                () = leave.cancelled() => return,
                _ = changes.changed() => {}
                () = sleep(MEASURE) => {}
            }
        }
    }

    async fn measure(&self) {
        let owners = self.all_owners();
        let holder = |owner: Owner| usage::Holder {
            is_hosts: owner.is_hosts(),
            id: owner.id,
            folder: owner.folder,
            files: owner.files,
        };
        let measure = move || usage::measure(&owners.into_iter().map(holder).collect::<Vec<_>>());
        if let Ok(bytes) = tokio::task::spawn_blocking(measure).await {
            self.context().usage.replace(bytes);
        }
    }

    /// Merges until no chain is too long but those that cannot be merged now.
    async fn merge_some(&self, leave: &CancellationToken, stalled: &mut Stalled) {
        while !leave.is_cancelled() {
            let mut owners = self.owners();
            stalled.retain(|id| owners.iter().any(|owner| owner.id == id));
            owners.retain(|owner| !stalled.is_delayed(&owner.id, Instant::now()));
            let next = tokio::task::spawn_blocking(move || owners.into_iter().find_map(Owner::next_merge)).await;
            let Ok(Some(merge)) = next else { return };
            let id = merge.owner.id.clone();
            match self.merge(merge, leave.clone()).await {
                Ok(()) => stalled.go_on(&id),
                Err(error) => {
                    if stalled.stall(&id, Instant::now()) {
                        tracing::warn!(owner = id, %error, "cannot merge layers; retrying with growing delays");
                    }
                }
            }
        }
    }

    async fn merge(&self, Merge { owner, lower, upper }: Merge, leave: CancellationToken) -> io::Result<()> {
        let (lower_path, upper_path) = (owner.folder.join(&lower), owner.folder.join(&upper));
        let context = self.context_owned();
        let fill = move || {
            let go_on = || !leave.is_cancelled();
            // What is damaged is not to be spread.
            if digest::check(&lower_path, &context.visits, PACE, go_on)? == Some(false) {
                return Ok(false);
            }
            merge::fill(&lower_path, &upper_path, &context.visits, PACE, go_on)
        };
        let filled = durable::blocking(fill).await;
        match filled {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            // The owner was deleted, or did the same itself: nothing is left to do.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        tracing::debug!(owner = owner.id, lower, upper, "merged");
        match owner.kind {
            OwnerKind::Sandbox => {}
            OwnerKind::Checkpoint => {
                let checkpoints = self.context().checkpoints.clone();
                return durable::blocking(move || checkpoints.absorb(&owner.id.into(), &lower, &upper)).await;
            }
            OwnerKind::Template { .. } => {
                let templates = self.context().templates.clone();
                return durable::blocking(move || templates.absorb(&owner.id, &lower, &upper)).await;
            }
            // Made of others' layers and one of its own.
            OwnerKind::WarmSnapshot => return Ok(()),
        }
        let command = |answer| Command::Absorb { lower, upper, answer };
        match self.change(&owner.id.into(), command).await {
            // A sandbox that is gone has no layers any more.
            Ok(_) | Err(ChangeError::NotFound | ChangeError::State(SandboxState::Failed)) => Ok(()),
            Err(error) => Err(io::Error::other(error_chain::chain(&error))),
        }
    }

    /// Those whose chains of layers are kept short: sandboxes, checkpoints and templates.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        let context = self.context();
        let sandboxes = self.list().into_iter().map(|record| Owner {
            kind: OwnerKind::Sandbox,
            id: record.id.to_string(),
            generation: record.generation,
            folder: context.paths.sandbox(&record.id).state,
            files: record.files.clone(),
            written: record.written_layers(),
        });
        let checkpoints = context.checkpoints.list().into_iter().map(|manifest| Owner {
            kind: OwnerKind::Checkpoint,
            id: manifest.id.to_string(),
            generation: 0,
            folder: context.checkpoints.folder(&manifest.id),
            files: manifest.snapshot.files.clone(),
            written: 0,
        });
        let templates = context.templates.all().into_iter().map(|(template, _)| Owner {
            kind: OwnerKind::Template { is_hosts: template.version.team.is_none() },
            id: template.version.id,
            generation: 0,
            folder: template.folder,
            files: Files::of_disk(template.disk),
            written: 0,
        });
        sandboxes.chain(checkpoints).chain(templates).collect()
    }
}

impl Owner {
    pub(crate) fn runs(&self) -> bool {
        self.written > 0
    }

    /// Its files are here for every sandbox.
    fn is_hosts(&self) -> bool {
        matches!(self.kind, OwnerKind::WarmSnapshot | OwnerKind::Template { is_hosts: true })
    }

    /// Blocks.
    fn next_merge(self) -> Option<Merge> {
        // Of a running machine only the disk below what it may write to is still: the monitor has the memory layers mapped, which is
        // no harm either, but nobody gains by it before the next pause.
        let still = self.files.disk.len().saturating_sub(self.written);
        let disk = merge::candidates(&self.folder, &self.files.disk[..still], merge::LONG_DISK);
        let memory = if self.runs() { &[][..] } else { &self.files.memory[..] };
        let found = disk.or_else(|| merge::candidates(&self.folder, memory, merge::LONG_MEMORY));
        let (lower, upper) = found.map(names)?;
        Some(Merge { owner: self, lower, upper })
    }
}

fn names((lower, upper): (&Layer, &Layer)) -> (String, String) {
    (lower.name.clone(), upper.name.clone())
}
