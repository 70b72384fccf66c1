//! Accepting connections: from the host on vsock, in tests on a Unix socket.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use sandpiper_protocol::guest::HOST_CID;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_vsock::{VMADDR_CID_ANY, VsockAddr, VsockListener};

use crate::connection::Connection;

/// Connections that wait to be accepted; more are refused. As many as a monitor lets through: all requests that wake a
/// guest come at once.
const WAITING: i32 = 1024;
/// How long to wait after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Something that connections come out of.
#[expect(async_fn_in_trait, reason = "only used with the types here, on one thread's runtime")]
pub trait Listener {
    /// The stream of one connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection from a peer that may connect.
    async fn accept(&self) -> io::Result<Self::Stream>;
}

impl Listener for VsockListener {
    type Stream = Connection;

    /// Only the host is let in: a process of the guest could otherwise speak as root over vsock's loopback.
    async fn accept(&self) -> io::Result<Self::Stream> {
        loop {
            let (stream, peer) = poll_fn(|context| self.poll_accept_std(context)).await?;
            if peer.cid() == HOST_CID {
                return Connection::new(stream.into());
            }
        }
    }
}

impl Listener for UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }
}

/// Listens on a vsock port of this guest.
pub(crate) fn listen(port: u32) -> io::Result<VsockListener> {
    let listener = VsockListener::bind(VsockAddr::new(VMADDR_CID_ANY, port))?;
    // SAFETY: `listener` is an open socket for the length of the call, which has no other arguments to misread.
    let result = unsafe { libc::listen(listener.as_raw_fd(), WAITING) };
    if result == 0 { Ok(listener) } else { Err(io::Error::last_os_error()) }
}

/// Accepts connections without end, no more than `limit` at a time, and gives each to `handle` with the permit that it
/// must hold for as long as it lives.
pub(crate) async fn accept_each<L: Listener>(
    listener: L,
    limit: usize,
    mut handle: impl FnMut(L::Stream, OwnedSemaphorePermit),
) {
    let slots = Arc::new(Semaphore::new(limit));
    loop {
        // Never closed, so this only waits.
        let Ok(permit) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok(stream) => handle(stream, permit),
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Whether an accept failed for a connection that was gone before it was accepted, as all are that were waiting when a
/// snapshot was taken. The next one is not to wait for that.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | NotConnected | BrokenPipe)
}
