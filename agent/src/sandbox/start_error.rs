//! Why a sandbox did not start, and whether it may from something else.

use std::io;

use sandpiper_images::layers::LayerError;
use sandpiper_protocol::agent::SandboxError;

use super::delete_cause::DeleteCause;
use crate::launch::LaunchError;
use crate::volumes::VolumeError;

/// Why the machine of a sandbox did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The host's fault.
    #[error("Cannot {what}")]
    Host { what: &'static str, source: io::Error },
    #[error(transparent)]
    Disk(#[from] LayerError),
    /// The guest did not come up, or the monitor refused it.
    #[error("{} ({})", .0.message, .0.code)]
    Guest(SandboxError),
    /// The snapshot cannot be restored here: it is damaged, or was made by another monitor, processor or kernel.
    #[error("The snapshot cannot be restored: {0}")]
    BadSnapshot(String),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("The sandbox was deleted while it started")]
    Deleted(DeleteCause),
    #[error("The agent is ending; try again")]
    ShuttingDown,
}

impl From<LaunchError> for StartError {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::Host { what, source } => Self::Host { what, source },
            LaunchError::Disk(error) => Self::Disk(error),
            LaunchError::ShuttingDown => Self::ShuttingDown,
        }
    }
}

impl StartError {
    /// Whether the start may go well from something else than this snapshot.
    pub(crate) fn is_of_its_source(&self) -> bool {
        matches!(self, Self::Disk(_) | Self::Guest(_) | Self::BadSnapshot(_) | Self::Volume(VolumeError::NoSlot))
    }

    /// Whether a file of the source is bad or missing: anything else may be a host that has too much to do.
    pub(crate) fn is_bad_file(&self) -> bool {
        match self {
            Self::BadSnapshot(_) | Self::Disk(LayerError::Length { .. }) => true,
            Self::Disk(LayerError::Link { source, .. } | LayerError::Open { source, .. }) => {
                source.kind() == io::ErrorKind::NotFound
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_that_went_away_is_bad_and_something_else_may_be_started_from() {
        let gone = LayerError::Link { from: "gone".into(), to: "here".into(), source: io::ErrorKind::NotFound.into() };
        let error = StartError::from(LaunchError::Disk(gone));
        assert!(error.is_of_its_source() && error.is_bad_file(), "{error}");
        let host =
            StartError::from(LaunchError::Host { what: "open /dev/kvm", source: io::ErrorKind::NotFound.into() });
        assert!(!host.is_of_its_source() && !host.is_bad_file(), "{host}");
    }
}
