//! Descriptors that the runtime waits for: pipes, terminals, and sockets of vsock.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{getsockopt, sockopt};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, ReadBuf};

/// A stream descriptor that is read and written without blocking, through a shared reference: one task may read while
/// another writes.
#[derive(Debug)]
pub(crate) struct FdStream {
    inner: AsyncFd<OwnedFd>,
}

impl FdStream {
    /// Takes `fd` over and makes it non-blocking. To be called on a runtime.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        // SAFETY: the descriptor is owned by the value that is registered, which nothing replaces or closes before the
        // `AsyncFd` is dropped, so its number means the same file for as long as it is registered.
        let inner = unsafe { AsyncFd::register(fd)? };
        Ok(Self { inner })
    }

    /// Has `buffer` hold what is there, as much as it has room for, and says how much that is; 0 at the end of the stream.
    /// Memory that nothing is read into is not touched: buffers are larger than most reads.
    pub(crate) async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        // A vsock connection that a restore has cut off reports an error and nothing else.
        self.inner.async_io(Interest::READABLE | Interest::ERROR, |fd| read(fd, buffer)).await
    }

    /// As [`Self::read`], of what is there now, or `None`.
    pub(crate) fn try_read(&self, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
        match read(self.inner.get_ref(), buffer) {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes all of `bytes`, waiting while the other side is full.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self
                .inner
                .async_io(Interest::WRITABLE, |fd| nix::unistd::write(fd, bytes).map_err(io::Error::from))
                .await?;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Reads what is there, without noticing an error that comes without anything to read. For one task at a time. Memory
    /// that nothing is read into is not touched.
    pub(crate) fn poll_read(&self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.inner.poll_read_ready(context))?;
            // SAFETY: only `read` gets it, which makes nothing uninitialized that was initialized.
            let free = unsafe { buffer.unfilled_mut() };
            let read = guard.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut *free).map(|(read, _)| read.len())?));
            if let Ok(count) = read {
                let count = count?;
                // SAFETY: the kernel has written so many bytes to the beginning of what is unfilled.
                unsafe { buffer.assume_init(count) };
                buffer.advance(count);
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Waits until a socket has failed, and says why.
    pub(crate) async fn failure(&self) -> io::Error {
        loop {
            let mut guard = match self.inner.ready(Interest::ERROR).await {
                Ok(guard) => guard,
                Err(error) => return error,
            };
            match getsockopt(self.inner.get_ref(), sockopt::SocketError) {
                Ok(0) => guard.clear_ready(),
                Ok(error) => return io::Error::from_raw_os_error(error),
                Err(error) => return error.into(),
            }
        }
    }

    /// Writes some of `bytes`. For one task at a time.
    pub(crate) fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.inner.poll_write_ready(context))?;
            if let Ok(written) = guard.try_io(|fd| nix::unistd::write(fd, bytes).map_err(io::Error::from)) {
                return Poll::Ready(written);
            }
        }
    }

    /// Writes some of the slices, from the first on. For one task at a time.
    pub(crate) fn poll_write_vectored(
        &self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.inner.poll_write_ready(context))?;
            if let Ok(written) = guard.try_io(|fd| Ok(rustix::io::writev(fd, slices)?)) {
                return Poll::Ready(written);
            }
        }
    }

    /// Waits until the descriptor can be written, as a socket can once it is connected.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.inner.writable().await.map(|_| ())
    }

    /// The descriptor, for calls that neither read nor write.
    pub(crate) fn get_ref(&self) -> &OwnedFd {
        self.inner.get_ref()
    }
}

impl AsRawFd for FdStream {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.inner.as_raw_fd()
    }
}

fn read(fd: &OwnedFd, buffer: &mut Vec<u8>) -> io::Result<usize> {
    buffer.clear();
    match rustix::io::read(fd, rustix::buffer::spare_capacity(buffer)) {
        // The master side of a terminal whose last user is gone.
        Err(rustix::io::Errno::IO) => Ok(0),
        other => other.map_err(io::Error::from),
    }
}
