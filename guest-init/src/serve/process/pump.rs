//! Reading what a process writes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::output::{Output, Source};
use crate::capture::Tap;
use crate::fd::FdStream;

/// Bytes read at once from a pipe and from a terminal, which become one event each.
const PIPE_PIECE: usize = 32 * 1024;
const PTY_PIECE: usize = 16 * 1024;

/// For how long after the process's exit more output is waited for, where others still hold its streams: `server &` in a
/// shell that exits leaves a server that never closes them.
const GRACE: Duration = Duration::from_secs(1);

/// What may be in a pipe at the end of that time, at most (`/proc/sys/fs/pipe-max-size`).
const LARGEST_PIPE: usize = 1024 * 1024;

/// How long the rest of a line is waited for before the log has what is there of it.
const LINE_PAUSE: Duration = Duration::from_secs(1);

/// Reads a stream into `output`. The receiver gets its value when no more of it belongs to the process: at its end, or
/// some time after `exited` tells when the process ended. After that it is read on and thrown away, so that what was left
/// behind is not killed by writing to a closed pipe. `tap` hears all of it.
pub(super) fn pump(
    source: Source,
    stream: Arc<FdStream>,
    tap: Option<Tap>,
    output: Arc<Output>,
    exited: watch::Receiver<Option<Instant>>,
) -> oneshot::Receiver<()> {
    let (done, pumped) = oneshot::channel();
    tokio::spawn(async move {
        let mut buffer = Vec::with_capacity(if source == Source::Pty { PTY_PIECE } else { PIPE_PIECE });
        let mut stream = Tapped { stream, tap };
        let ended = read_to_end(source, &mut stream, &output, exited, &mut buffer).await;
        // Nobody waits any more if the runtime is going down.
        let _ = done.send(());
        if !ended {
            while matches!(stream.read(&mut buffer).await, Ok(count) if count > 0) {}
        }
        stream.flush();
    });
    pumped
}

/// A stream, and who listens to it for the log.
struct Tapped {
    stream: Arc<FdStream>,
    tap: Option<Tap>,
}

impl Tapped {
    /// Reads, as soon as there is something. Cancelling loses nothing.
    async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let read = loop {
            let Some(tap) = self.tap.as_mut().filter(|tap| tap.has_partial()) else {
                break self.stream.read(buffer).await;
            };
            match timeout(LINE_PAUSE, self.stream.read(buffer)).await {
                Ok(read) => break read,
                Err(_) => tap.flush(),
            }
        };
        if read.is_ok() {
            self.hear(buffer);
        }
        read
    }

    /// Reads what is there already.
    fn try_read(&mut self, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let read = self.stream.try_read(buffer);
        if let Ok(Some(_)) = read {
            self.hear(buffer);
        }
        read
    }

    fn hear(&mut self, piece: &[u8]) {
        if let Some(tap) = &mut self.tap {
            tap.take(piece);
        }
    }

    /// The last line may have no end.
    fn flush(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.flush();
        }
    }
}

/// True at the end of the stream, false if it goes on without the process.
async fn read_to_end(
    source: Source,
    stream: &mut Tapped,
    output: &Output,
    mut exited: watch::Receiver<Option<Instant>>,
    buffer: &mut Vec<u8>,
) -> bool {
    let mut give_up: Option<Instant> = None;
    loop {
        let count = match give_up {
            None => tokio::select! {
                count = stream.read(buffer) => count,
                // An error means that the watcher is gone; then there is no reason to hurry.
                Ok(exit) = exited.wait_for(Option::is_some) => {
                    give_up = exit.map(|exit| exit + GRACE);
                    continue;
                }
            },
            Some(time) => match timeout_at(time, stream.read(buffer)).await {
                Ok(count) => count,
                Err(_) => return drain(source, stream, output, buffer).await,
            },
        };
        match count {
            // A copy, no larger than what was read.
            Ok(count) if count > 0 => output.push(source, Bytes::copy_from_slice(buffer)).await,
            _ => return true,
        }
    }
}

/// Takes what is in the pipe already, and no more.
async fn drain(source: Source, stream: &mut Tapped, output: &Output, buffer: &mut Vec<u8>) -> bool {
    let mut taken = 0;
    while taken < LARGEST_PIPE {
        match stream.try_read(buffer) {
            Ok(None) => return false,
            Ok(Some(count)) if count > 0 => {
                taken += count;
                output.push(source, Bytes::copy_from_slice(buffer)).await;
            }
            _ => return true,
        }
    }
    false
}
