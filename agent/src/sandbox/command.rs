//! What a supervisor is asked to do.

use std::path::PathBuf;
use std::sync::Arc;

use sandpiper_images::snapshots::Manifest;
use sandpiper_protocol::agent::{DeniedPage, ExposedPort, Network, ResumeSandbox, UpdateSandbox};
use sandpiper_protocol::ids::CheckpointId;
use tokio::sync::oneshot;
use tracing::Span;

use super::delete_cause::DeleteCause;
use super::errors::ChangeError;
use super::record::Record;

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
    /// Answered when the sandbox is stopped; with `force` also from programs that have files on a volume open.
    Pause {
        force: bool,
        answer: Answer<Arc<Record>>,
    },
    /// Has a stopped sandbox forget its memory: from its disk it boots.
    DropMemory(Answer<Arc<Record>>),
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

/// A snapshot that is asked for.
#[derive(Debug)]
pub(crate) struct SnapshotOrder {
    pub(crate) id: CheckpointId,
    /// An empty folder for its files, on the file system of the sandbox's.
    pub(crate) folder: PathBuf,
    /// With the memory, so that processes go on.
    pub(crate) memory: bool,
    /// Also where files on a volume are open, which are taken from who has them for it.
    pub(crate) force: bool,
    /// Its memory is to outlast a power cut, as its disk does.
    pub(crate) lasts: bool,
}

/// Where a command's result goes.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    sender: oneshot::Sender<Result<T, ChangeError>>,
    within: Span,
}

impl<T> Answer<T> {
    /// Whoever waits for the result has it as the receiver.
    pub(crate) fn new() -> (Self, oneshot::Receiver<Result<T, ChangeError>>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender, within: Span::current() }, receiver)
    }

    /// What the command was given in: what it takes is a part of that.
    pub(crate) fn span(&self) -> Span {
        self.within.clone()
    }

    pub(crate) fn send(self, result: Result<T, ChangeError>) {
        // Whoever asked may be gone.
        let _ = self.sender.send(result);
    }
}

impl Command {
    /// Answers that it was not done.
    pub(crate) fn refuse(self, error: ChangeError) {
        match self {
            Self::Update(_, answer)
            | Self::Expose(_, answer)
            | Self::Close(_, answer)
            | Self::SetNetwork(_, answer)
            | Self::Pause { answer, .. }
            | Self::DropMemory(answer)
            | Self::Resume(_, answer)
            | Self::Absorb { answer, .. } => answer.send(Err(error)),
            Self::Denied(answer) => answer.send(Err(error)),
            Self::Snapshot(_, answer) => answer.send(Err(error)),
            Self::Delete(_, answer) => drop(answer),
        }
    }
}
