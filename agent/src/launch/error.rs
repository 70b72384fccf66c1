//! Why no machine could be launched.

use std::io;

use sandpiper_images::layers::LayerError;
use sandpiper_machine::MachineError;

/// Why no machine could be launched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// The host's fault.
    #[error("Cannot {what}")]
    Host { what: &'static str, source: io::Error },
    #[error(transparent)]
    Disk(#[from] LayerError),
    #[error("The agent is ending; try again")]
    ShuttingDown,
}

impl From<MachineError> for LaunchError {
    fn from(error: MachineError) -> Self {
        match error {
            MachineError::Host { what, source } => Self::Host { what, source },
            MachineError::Closed => Self::ShuttingDown,
        }
    }
}
