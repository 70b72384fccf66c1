//! How much a slot's proxy passed on, counted so that it outlives the process.
//!
//! Packets that are forwarded are counted by the kernel for as long as there is the slot. What the proxy passes on is counted here,
//! by the bytes that it sent to servers and got from them: in the memory of a file in the agent's runtime folder, which is the
//! kernel's too, and is still there after a process was killed. It is not synced: it goes with the host, as the slot does.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use sandpiper_protocol::interval::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What the file holds.
#[repr(C)]
struct Counts {
    egress: AtomicU64,
    ingress: AtomicU64,
}

const LENGTH: usize = size_of::<Counts>();

/// The counts of one slot.
#[derive(Debug)]
pub struct Meter {
    /// The beginning of a mapping of the file, which is unmapped when this is dropped.
    counts: NonNull<Counts>,
}

// SAFETY: the mapping belongs to no thread, and all that is done with it is done by atomics.
unsafe impl Send for Meter {}
// SAFETY: likewise.
unsafe impl Sync for Meter {}

impl Meter {
    /// Goes on with the counts in this file, which begins with nothing where there is none. Blocks for a moment.
    ///
    /// # Errors
    /// The file cannot be made or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        if file.metadata()?.len() != LENGTH as u64 {
            // Written, so that it has its place on the file system: a full one is an error here, and no signal at the first count.
            file.write_all_at(&[0; LENGTH], 0)?;
            file.set_len(LENGTH as u64)?;
        }
        let counts = map(&file)?;
        Ok(Self { counts })
    }

    /// What the file of a meter says, which another process may have had. Blocks for a moment.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn read_file(path: &Path) -> io::Result<Bytes> {
        let content = fs::read(path)?;
        let number = |from: usize| content.get(from..)?.first_chunk().copied().map(u64::from_ne_bytes);
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is no meter", path.display()));
        number(0).zip(number(8)).map(|(egress, ingress)| Bytes { egress, ingress }).ok_or_else(wrong)
    }

    /// What was passed on since the file was made.
    pub fn read(&self) -> Bytes {
        let Counts { egress, ingress } = self.counts();
        Bytes { egress: egress.load(Ordering::Relaxed), ingress: ingress.load(Ordering::Relaxed) }
    }

    /// A connection to a server, of which all is counted.
    pub(crate) fn of<S>(self: &Arc<Self>, stream: S) -> Metered<S> {
        Metered { stream, meter: Arc::clone(self) }
    }

    fn counts(&self) -> &Counts {
        // SAFETY: the mapping is as long as `Counts`, aligned to a page, readable and writable, and there until this is dropped; any
        // bytes are two numbers. The file is as long, and nobody makes it shorter: its folder is the agent's own.
        unsafe { self.counts.as_ref() }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // SAFETY: this is what `map` mapped, and nothing that was lent of it is left.
        unsafe { libc::munmap(self.counts.as_ptr().cast(), LENGTH) };
    }
}

/// Maps the beginning of a file that is long enough, for all to see.
fn map(file: &File) -> io::Result<NonNull<Counts>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: where the mapping comes to lie is the kernel's choice, so that it replaces nothing; the descriptor is open.
    let start = unsafe { libc::mmap(ptr::null_mut(), LENGTH, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("a file was mapped at address 0"))
}

/// Makes the folder of meters, for this user alone. Blocks.
///
/// # Errors
/// Those of the file system.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The names of all meters in a folder. Blocks.
///
/// # Errors
/// Those of the file system.
pub(crate) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose()).collect()
}

/// Takes a meter away. Fine if there is none. Blocks.
///
/// # Errors
/// Those of the file system.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A connection whose bytes are counted.
#[derive(Debug)]
pub(crate) struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub(crate) fn get_ref(&self) -> &S {
        &self.stream
    }

    fn count_sent(&self, poll: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(length)) = poll {
            self.meter.counts().egress.fetch_add(*length as u64, Ordering::Relaxed);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        let length = buf.filled().len().saturating_sub(before);
        self.meter.counts().ingress.fetch_add(length as u64, Ordering::Relaxed);
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.count_sent(&poll);
        poll
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.count_sent(&poll);
        poll
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn bytes(egress: u64, ingress: u64) -> Bytes {
        Bytes { egress, ingress }
    }

    #[tokio::test]
    async fn what_passes_is_counted_each_way_and_what_does_not_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let meter = Arc::new(Meter::open(&folder.path().join("sp-1")).unwrap());
        let (near, mut far) = tokio::io::duplex(10);
        let mut near = meter.of(near);

        assert_eq!(near.write(&[0; 25]).await.unwrap(), 10, "as much as there is room for");
        far.read_exact(&mut [0; 10]).await.unwrap();
        far.write_all(&[0; 7]).await.unwrap();
        near.read_exact(&mut [0; 7]).await.unwrap();

        drop(far);
        near.write_all(&[0; 5]).await.unwrap_err();
        assert_eq!(meter.read(), bytes(10, 7));
    }

    #[tokio::test]
    async fn another_process_finds_what_a_killed_one_had_counted_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sp-1");
        assert!(Meter::read_file(&path).is_err());
        // Never dropped, as of a process that was killed.
        let killed = std::mem::ManuallyDrop::new(Arc::new(Meter::open(&path).unwrap()));
        killed.of(tokio::io::sink()).write_all(&[0; 1000]).await.unwrap();
        assert_eq!(Meter::read_file(&path).unwrap(), bytes(1000, 0));

        let next = Arc::new(Meter::open(&path).unwrap());
        next.of(tokio::io::sink()).write_all(&[0; 5]).await.unwrap();
        next.of(&[0_u8; 30][..]).read_to_end(&mut Vec::new()).await.unwrap();

        assert_eq!((next.read(), Meter::read_file(&path).unwrap()), (bytes(1005, 30), bytes(1005, 30)));
        assert_eq!(names(folder.path()).unwrap(), ["sp-1"]);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(names(folder.path()).unwrap(), [""; 0]);
    }
}
