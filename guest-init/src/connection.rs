//! Streams of vsock that notice a restore.
//!
//! A restored guest's connections are all cut off, and the kernel reports that as an error of the socket without saying
//! that it could be read (`virtio_vsock_reset_sock`). Who waits only for something to read, as streams of the runtime
//! and of its vsock library do, waits for ever, and holds one of the places that connections have.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::fd::FdStream;

/// A connected socket.
pub struct Connection {
    socket: Arc<FdStream>,
    /// Waiting for the socket to fail, since the first time that there was nothing to read.
    failure: Option<Pin<Box<dyn Future<Output = io::Error> + Send>>>,
}

impl Connection {
    /// Takes `socket` over. To be called on a runtime.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: Arc::new(FdStream::new(socket)?), failure: None })
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // What arrived before the failure comes first.
        if let Poll::Ready(read) = this.socket.poll_read(context, buffer) {
            return Poll::Ready(read);
        }
        let failure = this.failure.get_or_insert_with(|| {
            let socket = Arc::clone(&this.socket);
            Box::pin(async move { socket.failure().await })
        });
        let error = ready!(failure.as_mut().poll(context));
        this.failure = None;
        Poll::Ready(Err(error))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.socket.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(self.socket.as_raw_fd(), Shutdown::Write).map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream as StdStream;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    /// For anything that a test waits for.
    const TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn more_than_a_buffer_goes_both_ways_and_each_way_ends_by_itself() {
        let (ours, theirs) = StdStream::pair().unwrap();
        let mut connection = Connection::new(ours.into()).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let (mut read, mut write) = UnixStream::from_std(theirs).unwrap().into_split();
        let echo = tokio::spawn(async move { tokio::io::copy(&mut read, &mut write).await.unwrap() });
        let sent: Vec<u8> = (0..2_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();

        let (mut reader, mut writer) = tokio::io::split(&mut connection);
        let write = async {
            writer.write_all(&sent).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let both = async { tokio::join!(write, reader.read_to_end(&mut received)).1.unwrap() };
        timeout(TIMEOUT, both).await.unwrap();

        assert_eq!(echo.await.unwrap(), 2_000_000);
        assert_eq!(received, sent);
    }

    /// So that a file's bytes are sent from where they were read to, and a head with them.
    #[tokio::test]
    async fn several_slices_go_in_one_write() {
        let (ours, theirs) = StdStream::pair().unwrap();
        let mut connection = Connection::new(ours.into()).unwrap();

        let slices = [IoSlice::new(b"head "), IoSlice::new(b"and body")];
        let written = connection.write_vectored(&slices).await.unwrap();

        assert!(connection.is_write_vectored());
        let mut received = [0; 13];
        assert_eq!((written, std::io::Read::read(&mut &theirs, &mut received).unwrap()), (13, 13));
        assert_eq!(&received, b"head and body");
    }

    /// A datagram that nobody takes leaves its socket as a restore leaves a connection: an error, and nothing to read.
    #[tokio::test]
    async fn an_error_with_nothing_to_read_ends_the_waiting() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(closed).unwrap();
        let mut connection = Connection::new(socket.try_clone().unwrap().into()).unwrap();
        let link = FdStream::new(socket.try_clone().unwrap().into()).unwrap();

        let mut byte = [0];
        let waiting = timeout(Duration::from_millis(50), connection.read(&mut byte)).await;
        assert!(waiting.is_err(), "there is nothing to read yet");
        socket.send(b"x").unwrap();
        let of_connection = timeout(TIMEOUT, connection.read(&mut byte)).await.unwrap();
        let mut byte = Vec::with_capacity(1);
        let read = async { tokio::join!(link.read(&mut byte), async { socket.send(b"x") }).0 };
        let of_link = timeout(TIMEOUT, read).await.unwrap();

        assert_eq!(of_connection.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(of_link.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
