//! Writing the body of a request as it arrives, in memory that does not grow with it.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use sandpiper_durable::Interrupted;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// Bytes of a file that are read or written at once, and held in memory for each transfer.
pub(super) const PIECE: usize = 256 * 1024;

/// For the next piece of a body to arrive.
pub(super) const PIECE_TIMEOUT: Duration = Duration::from_secs(120);

/// Why not everything was written.
#[derive(Debug)]
pub(super) enum PourError {
    /// The body did not go on.
    Late,
    /// It broke off.
    Broken(String),
    Write(io::Error),
    Task(Interrupted),
}

/// Gives `body` to `write`, [`PIECE`] bytes or more at a time, while the next ones arrive. Returns the writer.
///
/// What arrives is copied together in one of two buffers, which are used again and again, and whoever reads the connection
/// can use its own buffer again, too. Kept until it is written, what was read would keep that buffer: the page faults of a
/// new one for every read cost more than the copy.
pub(super) async fn pour<W: Send + 'static>(
    body: impl Stream<Item = Result<Bytes, String>>,
    writer: W,
    write: fn(&mut W, &[u8]) -> io::Result<()>,
) -> Result<W, PourError> {
    let mut writing = spawn_blocking(move || Ok::<_, io::Error>((writer, Vec::new())));
    let mut filled = Vec::new();
    let mut body = std::pin::pin!(body);
    loop {
        let mut is_whole = false;
        while filled.len() < PIECE && !is_whole {
            match timeout(PIECE_TIMEOUT, body.next()).await.map_err(|_| PourError::Late)? {
                Some(piece) => filled.extend_from_slice(&piece.map_err(PourError::Broken)?),
                None => is_whole = true,
            }
        }
        let (mut writer, free) = end(writing).await?;
        let mut full = std::mem::replace(&mut filled, free);
        writing = spawn_blocking(move || {
            write(&mut writer, &full)?;
            full.clear();
            Ok((writer, full))
        });
        if is_whole {
            return end(writing).await.map(|(writer, _)| writer);
        }
    }
}

async fn end<T>(writing: JoinHandle<io::Result<T>>) -> Result<T, PourError> {
    writing.await.map_err(|error| PourError::Task(error.into()))?.map_err(PourError::Write)
}
