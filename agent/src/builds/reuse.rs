//! Versions of a disk that is there already: of a checkpoint, or of a stopped sandbox. Its layers are linked, not copied.

use std::path::Path;

use jiff::Timestamp;
use sandpiper_durable as durable;
use sandpiper_images::snapshots::Snapshot;
use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::ids::{CheckpointId, SandboxId};
use sandpiper_protocol::template::StartBuild;

use super::Builds;
use super::run::{Stop, failed, host_failed};
use crate::sandbox::{ChangeError, Context};
use crate::service::CheckpointError;

impl Builds {
    /// Makes the version of a checkpoint's disk.
    pub(super) async fn reuse_checkpoint(&self, order: &StartBuild, checkpoint: &CheckpointId) -> Result<(), Stop> {
        let context = self.inner.sandboxes.context_owned();
        let (order, checkpoint) = (order.clone(), checkpoint.clone());
        let work = move || {
            let missing = || failed("source_refused", format!("The checkpoint {checkpoint} is gone"));
            let (manifest, _pin) = context.checkpoints.pin(&checkpoint).ok_or_else(missing)?;
            publish(&context, &order, &manifest.snapshot, &context.checkpoints.folder(&checkpoint))
        };
        durable::blocking(work).await
    }

    /// Makes the version of a stopped sandbox's disk.
    pub(super) async fn reuse_sandbox(&self, order: &StartBuild, sandbox: &SandboxId) -> Result<(), Stop> {
        let (manifest, draft) = self.inner.sandboxes.disk_of(sandbox).await.map_err(|error| match error {
            CheckpointError::Sandbox(ChangeError::NotFound) => {
                failed("source_refused", format!("The sandbox {sandbox} is gone"))
            }
            error => host_failed("write the sandbox's disk down", &error),
        })?;
        let (context, order) = (self.inner.sandboxes.context_owned(), order.clone());
        durable::blocking(move || publish(&context, &order, &manifest.snapshot, draft.folder())).await
    }
}

/// Makes a pending version of the disk of a snapshot, whose files are in `folder`. Blocks.
fn publish(context: &Context, order: &StartBuild, snapshot: &Snapshot, folder: &Path) -> Result<(), Stop> {
    let storage = |error: &dyn std::error::Error| host_failed("make the version", error);
    let draft = context.templates.draft(&order.id).map_err(|error| storage(&error))?;
    let files = snapshot.files.disk_only();
    files.link_layers(folder, draft.folder()).map_err(|error| storage(&error))?;
    // What it was made from may be gone, and then this is not known any more.
    let base = context.templates.find_any(&snapshot.template_version).map(|template| template.version);
    let (command, images) = base.map(|base| (base.command, base.images)).unwrap_or_default();
    let version = TemplateVersion {
        id: order.id.to_string(),
        slug: order.slug.clone(),
        digest: String::new(),
        key: None,
        created_at: Timestamp::now(),
        baseline: order.baseline,
        team: Some(order.team.clone()),
        disk_gib: order.disk_gib.max(snapshot.disk_gib),
        settings: snapshot.defaults.settings.clone(),
        start: order.start.clone().or_else(|| snapshot.defaults.start.clone()),
        command,
        images,
        retained_bytes: 0,
    };
    context.templates.publish(draft, version, files.disk).map_err(|error| storage(&error))
}
