//! What is checked before a build begins.

use std::io;

use sandpiper_durable::Interrupted;
use sandpiper_machine::link::{self, Envs};
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::error_chain;
use sandpiper_protocol::ids::VersionId;
use sandpiper_protocol::template::{BUILDER_TEMPLATE, BuildSource, ImageSettings, StartBuild, Steps, StepsBase};

use crate::helpers;
use crate::sandbox::Context;
use crate::service::{self, DiskSpaceError, Sandboxes};
use crate::uploads::Uploads;

/// Longest command of a version.
const MAX_COMMAND: usize = 16 * 1024;

/// Why no build is begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Conflict(String),
    /// The host cannot build from this.
    #[error("{0}")]
    Unavailable(String),
    #[error(transparent)]
    Space(#[from] DiskSpaceError),
    #[error("The agent is ending; try again")]
    ShuttingDown,
    #[error("The build is just being written down; try again")]
    Beginning,
    #[error("Cannot {what}")]
    Storage { what: &'static str, source: io::Error },
}

impl From<Interrupted> for StartError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Storage { what: "begin the build", source: interrupted.into() }
    }
}

/// Whether the order is one that this host takes. Blocks for a moment.
pub(super) fn check_order(context: &Context, order: &StartBuild) -> Result<(), StartError> {
    if context.leave.is_cancelled() {
        return Err(StartError::ShuttingDown);
    }
    let invalid = |message: String| Err(StartError::Invalid(message));
    if !order.id.is_valid() {
        return invalid(format!("id: must be `{}` and 22 characters of base32", VersionId::PREFIX));
    }
    if order.slug.is_empty() || order.slug.len() > 255 || order.team.is_empty() || order.team.len() > 255 {
        return invalid("slug, team: must be 1 to 255 bytes".into());
    }
    let (host, builds) = (&context.config.limits, &context.config.builds);
    // The first start would wait for more in vain.
    let memory_mb = context.capacity.usable_mb().min(host.max_memory_mb.into());
    let ranges = [
        ("baseline.cpu", order.baseline.cpu.into(), 1, host.max_vcpus.into()),
        ("baseline.memory_mb", order.baseline.memory_mb.into(), 32, memory_mb),
        ("disk_gib", order.disk_gib.into(), 1, host.max_disk_gib.into()),
        ("sandbox_disk_gib", order.sandbox_disk_gib.into(), 0, host.max_disk_gib.into()),
        ("limits.cpu", order.limits.cpu.into(), 1, host.max_vcpus.into()),
        ("limits.memory_mb", order.limits.memory_mb.into(), 32, host.max_memory_mb.into()),
        ("limits.seconds", order.limits.seconds, 1, builds.max_seconds),
        ("limits.log_bytes", order.limits.log_bytes, 1, builds.max_log_bytes),
    ];
    for (field, value, least, most) in ranges {
        if !(least..=most).contains(&value) {
            return invalid(format!("{field}: must be between {least} and {most} on this host, not {value}"));
        }
    }
    if let Some(start) = &order.start {
        let texts = [Some(&start.command), start.ready.as_ref()];
        if texts.into_iter().flatten().any(|text| text.is_empty() || text.contains('\0') || text.len() > MAX_COMMAND) {
            return invalid(format!("start: commands must be 1 to {MAX_COMMAND} bytes, without a NUL"));
        }
        if !link::envs_fit(&Envs::new(), &ImageSettings::default(), Some(start)) {
            return invalid("start: both commands together must be less than 60 KiB".into());
        }
    }
    if let Some(network) = context.network() {
        let checked = network.check(&order.network.policy);
        checked.map_err(|error| StartError::Invalid(format!("network: {}", error_chain::chain(&error))))?;
    }
    Ok(service::check_disk_space(context)?)
}

/// Whether there is what a new build is to be made of.
pub(super) fn check_source(sandboxes: &Sandboxes, uploads: &Uploads, order: &StartBuild) -> Result<(), StartError> {
    let context = sandboxes.context();
    if context.templates.find_any(&order.id).is_some() {
        return Err(StartError::Conflict(format!("There is a version {} already; choose another id", order.id)));
    }
    match &order.source {
        BuildSource::Checkpoint { checkpoint } => match context.checkpoints.find(checkpoint) {
            Some(_) => Ok(()),
            None => Err(StartError::Invalid(format!("source: the checkpoint {checkpoint} is not on this host"))),
        },
        BuildSource::Sandbox { sandbox } => match sandboxes.find(sandbox).map(|record| record.state) {
            Some(SandboxState::Stopped) => Ok(()),
            Some(_) => Err(StartError::Conflict(format!("The sandbox {sandbox} is not stopped; pause it first"))),
            None => Err(StartError::Invalid(format!("source: the sandbox {sandbox} is not on this host"))),
        },
        source => check_machines_source(context, uploads, source),
    }
}

/// Whether there is what a machine is to make a version of, and such a machine.
fn check_machines_source(context: &Context, uploads: &Uploads, source: &BuildSource) -> Result<(), StartError> {
    if helpers::newest_own(&context.templates, BUILDER_TEMPLATE).is_none() {
        return Err(StartError::Unavailable(format!(
            "This host has no template `{BUILDER_TEMPLATE}`, whose machines build others; its operator makes it with \
             scripts/builder-template"
        )));
    }
    if let Some(id) = source.uploads().into_iter().find(|id| uploads.find(id).is_none()) {
        return Err(StartError::Invalid(format!("source: the upload {id} is not on this host; send it first")));
    }
    if let BuildSource::Steps(Steps { from: StepsBase::Version { version }, .. }) = source
        && context.templates.find(version).is_none_or(|template| helpers::is_own(&template.version))
    {
        return Err(StartError::Invalid(format!("source: the version {version} is not on this host")));
    }
    Ok(())
}
