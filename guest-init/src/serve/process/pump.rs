//! Reading what a process writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::output::{Output, Source};
use crate::fd::FdStream;
use bytes::Bytes;

/// Bytes read at once from a pipe and from a terminal, which become one event each.
const PIPE_PIECE: usize = 32 * 1024;
const PTY_PIECE: usize = 16 * 1024;

/// For how long after the process's exit more output is waited for, where others still hold its streams: `server &` in a
/// shell that exits leaves a server that never closes them.
const GRACE: Duration = Duration::from_secs(1);

/// What may be in a pipe at the end of that time, at most (`/proc/sys/fs/pipe-max-size`).
const LARGEST_PIPE: usize = 1024 * 1024;

/// Reads a stream into `output`. The receiver gets its value when no more of it belongs to the process: at its end, or
/// some time after `exited` tells when the process ended. After that it is read on and thrown away, so that what was left
/// behind is not killed by writing to a closed pipe.
pub(super) fn pump(
    source: Source,
    stream: Arc<FdStream>,
    output: Arc<Output>,
    exited: watch::Receiver<Option<Instant>>,
) -> oneshot::Receiver<()> {
    let (done, pumped) = oneshot::channel();
    tokio::spawn(async move {
        let mut buffer = vec![0; if source == Source::Pty { PTY_PIECE } else { PIPE_PIECE }];
        let ended = read_to_end(source, &stream, &output, exited, &mut buffer).await;
        // Nobody waits any more if the runtime is going down.
        let _ = done.send(());
        if !ended {
            while matches!(stream.read(&mut buffer).await, Ok(count) if count > 0) {}
        }
    });
    pumped
}

/// True at the end of the stream, false if it goes on without the process.
async fn read_to_end(
    source: Source,
    stream: &FdStream,
    output: &Output,
    mut exited: watch::Receiver<Option<Instant>>,
    buffer: &mut [u8],
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
            Ok(count) if count > 0 => output.push(source, piece(buffer, count)).await,
            _ => return true,
        }
    }
}

/// Takes what is in the pipe already, and no more.
async fn drain(source: Source, stream: &FdStream, output: &Output, buffer: &mut [u8]) -> bool {
    let mut taken = 0;
    while taken < LARGEST_PIPE {
        match stream.try_read(buffer) {
            Ok(None) => return false,
            Ok(Some(count)) if count > 0 => {
                taken += count;
                output.push(source, piece(buffer, count)).await;
            }
            _ => return true,
        }
    }
    false
}

/// A copy of what was read, no larger than it.
fn piece(buffer: &[u8], count: usize) -> Bytes {
    Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default())
}
