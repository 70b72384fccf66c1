//! What is made of a sandbox: checkpoints, and other sandboxes.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable::{Interrupted, blocking};
use sandpiper_images::snapshots::{Draft, DraftError, Manifest};
use sandpiper_protocol::agent::{Allowance, CreateCheckpoint, CreateSandbox, ForkSandbox};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::ids::{CheckpointId, SandboxId};
use sandpiper_trace as trace;
use tracing::Instrument;

use super::Sandboxes;
use super::validation::{self, CreateError, DiskSpaceError, Origin};
use crate::sandbox::{ChangeError, Command, DeleteCause, Record, SnapshotOrder, StartError};

/// Most sandboxes of one fork.
const MAX_FORKS: usize = 20;
/// So many of them start at a time.
const AT_A_TIME: usize = 4;

/// What is to be written down of a sandbox, as in [`CreateCheckpoint`].
struct Wanted {
    memory: bool,
    force: bool,
    /// As in [`SnapshotOrder`].
    lasts: bool,
}

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error(transparent)]
    Draft(#[from] DraftError),
    #[error(transparent)]
    DiskSpace(#[from] DiskSpaceError),
    #[error(transparent)]
    Sandbox(#[from] ChangeError),
    #[error("Cannot {what}")]
    Storage { what: &'static str, source: io::Error },
}

impl From<Interrupted> for CheckpointError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Storage { what: "finish this", source: interrupted.into() }
    }
}

/// Why there is no fork.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForkError {
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Create(#[from] CreateError),
}

impl Sandboxes {
    /// Takes a checkpoint of the sandbox `id`; durable when it returns. Dropping the future does not stop that.
    pub(crate) async fn checkpoint(
        &self,
        id: &SandboxId,
        request: CreateCheckpoint,
    ) -> Result<Arc<Manifest>, CheckpointError> {
        let (this, id) = (self.clone(), id.clone());
        let work = async move {
            let checkpoints = this.context().checkpoints.clone();
            let checkpoint = request.id;
            let draft = blocking(move || Ok::<_, CheckpointError>(checkpoints.draft(&checkpoint)?)).await?;
            let what = Wanted { memory: request.memory, force: request.force, lasts: true };
            let (manifest, draft) = this.write_down(&id, draft, what).await?;
            let checkpoints = this.context().checkpoints.clone();
            let published = blocking(move || checkpoints.publish(draft, manifest)).await;
            this.context().changed.send_replace(());
            published.map_err(|source| CheckpointError::Storage { what: "publish the checkpoint", source })
        };
        self.in_background(work).await
    }

    /// The disk of a sandbox as it is now, in a folder that is gone when the draft is dropped.
    pub(crate) async fn disk_of(&self, id: &SandboxId) -> Result<(Manifest, Draft), CheckpointError> {
        let (this, id) = (self.clone(), id.clone());
        let work = async move {
            let checkpoints = this.context().checkpoints.clone();
            let draft = blocking(move || Ok::<_, CheckpointError>(checkpoints.scratch()?)).await?;
            this.write_down(&id, draft, Wanted { memory: false, force: false, lasts: true }).await
        };
        self.in_background(work).await
    }

    /// Removes the checkpoint `id`; false when there is none. Sandboxes that were made from it go on.
    pub(crate) async fn delete_checkpoint(&self, id: &CheckpointId) -> Result<bool, CheckpointError> {
        let (checkpoints, owned) = (self.context().checkpoints.clone(), id.clone());
        let deleted = blocking(move || checkpoints.delete(&owned)).await;
        let deleted = deleted.map_err(|source| CheckpointError::Storage { what: "delete the checkpoint", source })?;
        if deleted {
            tracing::info!(target: "audit", checkpoint = id.as_str(), "checkpoint deleted");
            self.context().changed.send_replace(());
        }
        Ok(deleted)
    }

    /// Makes sandboxes of these ids that go on from where the sandbox `id` is: all or none. Dropping the future does not
    /// stop that.
    pub(crate) async fn fork(&self, id: &SandboxId, order: ForkSandbox) -> Result<Vec<Arc<Record>>, ForkError> {
        check_ids(&order.ids).map_err(ForkError::Invalid)?;
        let (this, id) = (self.clone(), id.clone());
        self.in_background(async move { this.fork_all(&id, order).await }).await
    }

    async fn fork_all(&self, id: &SandboxId, order: ForkSandbox) -> Result<Vec<Arc<Record>>, ForkError> {
        let ForkSandbox { ids, timeout_seconds, allowance, force } = order;
        if let Some(taken) = ids.iter().find(|id| self.find(id).is_some()) {
            return Err(CreateError::Exists(taken.clone()).into());
        }
        let source = self.find(id).ok_or(ChangeError::NotFound).map_err(CheckpointError::from)?;
        let checkpoints = self.context().checkpoints.clone();
        let draft = blocking(move || Ok::<_, CheckpointError>(checkpoints.scratch()?));
        let draft = draft.instrument(trace::step("make a folder")).await?;
        let (manifest, draft) = self.write_down(id, draft, Wanted { memory: true, force, lasts: false }).await?;
        CrashPoint::ForkWritten.pass();
        let origin = Origin { folder: draft.folder().to_owned(), manifest: Arc::new(manifest), pin: None };
        let create = |id: &SandboxId| {
            let (this, like, origin) = (self.clone(), self.like(&source, id, allowance.clone()), origin.clone());
            async move {
                let like = like?;
                let timeout_seconds = timeout_seconds.unwrap_or(like.timeout_seconds);
                let create = this.create_from(CreateSandbox { timeout_seconds, ..like }, Some(origin));
                create.instrument(trace::step("start one")).await
            }
        };
        let creates: Vec<_> = ids.iter().map(create).collect();
        let results: Vec<_> = stream::iter(creates).buffered(AT_A_TIME).collect().await;
        CrashPoint::ForkMade.pass();
        // The new sandboxes have links of their own.
        remove(draft).instrument(trace::step("remove the folder")).await?;
        CrashPoint::ForkCleaned.pass();
        let mut made = Vec::new();
        let mut failure = None;
        for result in results {
            match result {
                Ok(record) => made.push(record),
                Err(error) => failure = Some(error),
            }
        }
        let Some(error) = failure else {
            tracing::info!(target: "audit", sandbox = id.as_str(), count = made.len(), "forked");
            return Ok(made);
        };
        tracing::warn!(target: "audit", sandbox = id.as_str(), error = %error_chain::chain(&error), "not forked");
        for record in made {
            // Gone already, perhaps.
            let _ = self.delete(&record.id, DeleteCause::ForkFailed).await;
        }
        Err(error.into())
    }

    /// Has the sandbox `id` written down into `draft`.
    async fn write_down(
        &self,
        id: &SandboxId,
        draft: Draft,
        Wanted { memory, force, lasts }: Wanted,
    ) -> Result<(Manifest, Draft), CheckpointError> {
        let context = self.context_owned();
        let space = blocking(move || Ok::<_, CheckpointError>(validation::check_disk_space(&context)?)).await;
        let order = SnapshotOrder { id: draft.id().clone(), folder: draft.folder().to_owned(), memory, force, lasts };
        let written = match space {
            Ok(()) => self.change(id, |answer| Command::Snapshot(order, answer)).await.map_err(CheckpointError::from),
            Err(error) => Err(error),
        };
        match written {
            Ok(manifest) => Ok((manifest, draft)),
            Err(error) => {
                remove(draft).await?;
                Err(error)
            }
        }
    }

    /// A request for a sandbox `id` that is like `source`, and of the same team where no other is named.
    fn like(
        &self,
        source: &Record,
        id: &SandboxId,
        allowance: Option<Allowance>,
    ) -> Result<CreateSandbox, CreateError> {
        let known = || self.context().allowances.of(source.team.as_ref()?);
        let envs = self.context().sealer.unseal(&source.id, &source.envs);
        let envs = envs.map_err(|error| StartError::Host {
            what: "read the sandbox's environment variables",
            source: io::Error::other(error),
        })?;
        Ok(CreateSandbox {
            id: id.clone(),
            template_version: source.template_version.clone(),
            checkpoint: None,
            cpu: source.cpu,
            memory_mb: source.memory_mb,
            disk_gib: source.disk_gib,
            timeout_seconds: source.timeout_seconds,
            lifecycle: source.lifecycle,
            envs,
            exposed_ports: source.exposed_ports.clone(),
            allow_public_traffic: source.allow_public_traffic,
            previews: source.previews.clone(),
            network: source.network.clone(),
            // One sandbox has a volume.
            volume_mounts: Vec::new(),
            capture_output: source.capture_output,
            allowance: allowance.or_else(known),
        })
    }

    /// Does this whether or not anybody waits for it.
    async fn in_background<T: Send + 'static, E: From<CheckpointError> + Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        self.spawn(work.in_current_span()).await.map_err(|error| E::from(Interrupted::from(error).into()))?
    }
}

fn check_ids(ids: &[SandboxId]) -> Result<(), String> {
    if !(1..=MAX_FORKS).contains(&ids.len()) {
        return Err(format!("ids: must be 1 to {MAX_FORKS}"));
    }
    if let Some(id) = ids.iter().find(|id| !id.is_valid()) {
        return Err(format!("ids: {:?} is not `{}` and 22 characters of base32", id.as_str(), SandboxId::PREFIX));
    }
    if ids.iter().collect::<BTreeSet<_>>().len() < ids.len() {
        return Err("ids: one is named twice".into());
    }
    Ok(())
}

async fn remove(draft: Draft) -> Result<(), CheckpointError> {
    blocking(move || {
        drop(draft);
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_has_between_one_and_twenty_new_names() {
        let ids = |count: usize| (0..count).map(|_| SandboxId::generate()).collect::<Vec<_>>();
        check_ids(&ids(1)).unwrap();
        check_ids(&ids(20)).unwrap();
        assert!(check_ids(&[]).unwrap_err().contains("1 to 20"));
        assert!(check_ids(&ids(21)).unwrap_err().contains("1 to 20"));
        let id = SandboxId::generate();
        assert!(check_ids(&[id.clone(), id]).unwrap_err().contains("twice"));
        assert!(check_ids(&["sbx/../etc".into()]).unwrap_err().contains("sbx/../etc"));
    }
}
