//! Why something was not done with a sandbox.

use std::io;

use sandpiper_images::layers::LayerError;
use sandpiper_machine::control::RequestError;
use sandpiper_protocol::agent::{SandboxError, SandboxState};

use super::delete_cause::DeleteCause;
use super::record::MAX_PORTS;
use super::start_error::StartError;
use crate::capacity::Full;
use crate::volumes::VolumeError;

/// Why a sandbox was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("There is no such sandbox, or no such port")]
    NotFound,
    #[error("The host cannot read what it keeps of the sandbox; its operator has to see to it: {0}")]
    Unreadable(String),
    #[error("The sandbox is {0:?}; this needs a ready one, or one that is stopped")]
    State(SandboxState),
    #[error("{0}")]
    Invalid(String),
    #[error("The sandbox has {} exposed ports already; close one first", MAX_PORTS)]
    TooManyPorts,
    #[error(
        "The sandbox has been checkpointed so often of late that its layers are being merged; try again in a minute"
    )]
    Layers,
    #[error("Cannot write the sandbox's record")]
    Storage(#[source] io::Error),
    #[error(transparent)]
    Full(#[from] Full),
    /// The guest did not do its part; it goes on, or has ended.
    #[error("{0}")]
    Guest(String),
    #[error("Cannot {what}")]
    Host { what: &'static str, source: io::Error },
    #[error(transparent)]
    Layer(LayerError),
    #[error("The monitor could not do it")]
    Monitor(#[source] RequestError),
    #[error("The monitor sent a reply of another kind than was asked for")]
    Unexpected,
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Why something that was begun with a sandbox did not come about.
pub(crate) enum OperationError {
    /// The sandbox goes on, or stays stopped.
    Refused(ChangeError),
    /// The sandbox has ended meanwhile.
    Ended(SandboxError),
    /// The sandbox is to be deleted.
    Delete(DeleteCause),
}

impl OperationError {
    pub(crate) fn host(what: &'static str, source: io::Error) -> Self {
        Self::Refused(ChangeError::Host { what, source })
    }
}
