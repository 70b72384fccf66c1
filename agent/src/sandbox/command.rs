//! What a supervisor is asked to do, and why it may not come about.

use std::io;
use std::sync::Arc;

use sandpiper_images::snapshots::Manifest;
use sandpiper_protocol::agent::{DeniedPage, ExposedPort, Network, ResumeSandbox, SandboxError, UpdateSandbox};
use tokio::sync::oneshot;

use super::checkpoint::SnapshotOrder;
use super::record::Record;
use super::registry::ChangeError;

/// What a supervisor is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    Update(UpdateSandbox, Answer<Arc<Record>>),
    /// Adds or replaces a port.
    Expose(ExposedPort, Answer<Arc<Record>>),
    /// Removes a port.
    Close(u16, Answer<Arc<Record>>),
    /// Answered when the policy is enforced, or written down.
    SetNetwork(Network, Answer<Arc<Record>>),
    Denied(Answer<DeniedPage>),
    /// Answered when the sandbox is stopped.
    Pause(Answer<Arc<Record>>),
    /// Answered when the sandbox is ready.
    Resume(ResumeSandbox, Answer<Arc<Record>>),
    /// Writes down what the sandbox is, durably.
    Snapshot(SnapshotOrder, Answer<Manifest>),
    /// Drops the first of two neighbouring layers, whose content is in the second now.
    Absorb {
        lower: String,
        upper: String,
        answer: Answer<Arc<Record>>,
    },
    /// Answered when nothing of the sandbox is left.
    Delete(DeleteCause, oneshot::Sender<()>),
}

/// Where a command's result goes.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, ChangeError>>;

impl Command {
    /// Answers that it was not done.
    pub(super) fn refuse(self, error: ChangeError) {
        // Whoever asked may be gone.
        match self {
            Self::Update(_, answer)
            | Self::Expose(_, answer)
            | Self::Close(_, answer)
            | Self::SetNetwork(_, answer)
            | Self::Pause(answer)
            | Self::Resume(_, answer)
            | Self::Absorb { answer, .. } => drop(answer.send(Err(error))),
            Self::Denied(answer) => drop(answer.send(Err(error))),
            Self::Snapshot(_, answer) => drop(answer.send(Err(error))),
            Self::Delete(_, answer) => drop(answer),
        }
    }
}

/// Why a sandbox is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeleteCause {
    Requested,
    Timeout,
    AgentEnds,
    /// Another sandbox of the same fork could not be made.
    ForkFailed,
}

impl DeleteCause {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "it was asked for",
            Self::Timeout => "its time is over",
            Self::AgentEnds => "the agent ends",
            Self::ForkFailed => "the fork that it belongs to failed",
        }
    }

    /// For the figures.
    pub(crate) fn as_label(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Timeout => "timeout",
            Self::AgentEnds => "agent_ends",
            Self::ForkFailed => "fork_failed",
        }
    }
}

/// Why something that was begun with a sandbox did not come about.
pub(super) enum Setback {
    /// The sandbox goes on, or stays stopped.
    Refused(ChangeError),
    /// The sandbox has ended meanwhile.
    Over(SandboxError),
    /// The sandbox is to be deleted.
    Delete(DeleteCause),
}

impl Setback {
    pub(super) fn host(what: &'static str, source: io::Error) -> Self {
        Self::Refused(ChangeError::Host { what, source })
    }
}
