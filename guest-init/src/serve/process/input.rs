//! What is written to a process: one task owns the descriptor and writes in the order of the requests, each of which is
//! answered when its bytes are in the pipe. So nothing piles up here: a client that waits for its answers is slowed down to
//! the process's own pace.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use sandpiper_protocol::connect::Code;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::fd::FdStream;
use crate::serve::connect::Error;

/// Requests that wait behind the one being written; more wait outside.
const QUEUE: usize = 1;

/// What bytes go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Pipe,
    Terminal,
}

struct Request {
    /// `None` closes.
    bytes: Option<Vec<u8>>,
    done: oneshot::Sender<io::Result<()>>,
}

/// The way into a process.
#[derive(Debug)]
pub(super) struct Feeder {
    kind: Option<Kind>,
    queue: Mutex<Option<mpsc::Sender<Request>>>,
    task: Option<AbortHandle>,
}

/// Starts to feed a stream; with none, the process has no input.
pub(super) fn feeder(target: Option<(Kind, Arc<FdStream>)>) -> Feeder {
    let Some((kind, stream)) = target else {
        return Feeder { kind: None, queue: Mutex::new(None), task: None };
    };
    let (sender, receiver) = mpsc::channel(QUEUE);
    let task = tokio::spawn(write(stream, receiver));
    Feeder { kind: Some(kind), queue: Mutex::new(Some(sender)), task: Some(task.abort_handle()) }
}

async fn write(stream: Arc<FdStream>, mut queue: mpsc::Receiver<Request>) {
    while let Some(request) = queue.recv().await {
        match request.bytes {
            Some(bytes) => drop(request.done.send(stream.write_all(&bytes).await)),
            None => {
                drop(stream);
                drop(request.done.send(Ok(())));
                return;
            }
        }
    }
}

impl Feeder {
    /// Writes `bytes`; returns when the process's pipe or terminal has taken them.
    pub(super) async fn send(&self, kind: Kind, bytes: Vec<u8>) -> Result<(), Error> {
        match (self.kind, kind) {
            (None, _) => {
                return Err(Error::new(Code::FailedPrecondition, "The process was started without standard input"));
            }
            (Some(Kind::Terminal), Kind::Pipe) => {
                return Err(Error::invalid("The process has a terminal: send the input as pty, not as stdin"));
            }
            (Some(Kind::Pipe), Kind::Terminal) => {
                return Err(Error::invalid("The process has no terminal: send the input as stdin, not as pty"));
            }
            _ => {}
        }
        self.request(Some(bytes)).await
    }

    /// Ends a pipe, after what was sent before.
    pub(super) async fn close(&self) -> Result<(), Error> {
        match self.kind {
            None => Ok(()),
            Some(Kind::Terminal) => {
                Err(Error::new(Code::FailedPrecondition, "A terminal has no end of input: send ^D (0x04) as pty"))
            }
            Some(Kind::Pipe) => match self.request(None).await {
                Err(error) if error == closed() => Ok(()),
                other => other,
            },
        }
    }

    async fn request(&self, bytes: Option<Vec<u8>>) -> Result<(), Error> {
        let sender = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(closed)?;
        let (done, answer) = oneshot::channel();
        sender.send(Request { bytes, done }).await.map_err(|_| closed())?;
        match answer.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => Err(closed()),
            Ok(Err(error)) => Err(Error::new(Code::Internal, format!("The input cannot be written: {error}"))),
            Err(_) => Err(closed()),
        }
    }

    /// Gives up what was not taken, because the process has ended.
    pub(super) fn stop(&self) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

fn closed() -> Error {
    Error::new(Code::FailedPrecondition, "The process no longer takes input")
}
