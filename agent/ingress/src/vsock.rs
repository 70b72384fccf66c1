//! Connections into a guest, through the Unix socket that its monitor listens on.
//!
//! ```text
//!   us ── "CONNECT 49983\n" ──▶ monitor          us ── "CONNECT 1025\n" ─▶ monitor
//!      ◀─ "OK 1073741824\n" ───                     ◀─ "OK 1073741825\n" ──
//!      ◀═ stream of the guest's vsock port ═▶       ── "8000\n" ──▶ forwarder in the guest
//!                                                   ◀─ "ok\n" ─────
//!                                                   ◀═ stream of 127.0.0.1:8000 in the guest ═▶
//! ```
//!
//! The answers are read byte by byte: what follows the newline already belongs to the stream, and a server in the guest
//! may speak first. Both ends are foreign, so every answer is limited in length and every wait in time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandpiper_protocol::guest::{FORWARD_OK, FORWARD_PORT, FORWARD_REFUSED};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

/// Longest answer of the monitor or the forwarder, newline included. `OK 4294967295\n` has 14 bytes.
const MAX_ANSWER: usize = 32;

/// Why a vsock port of a guest could not be connected to.
#[derive(Debug, thiserror::Error)]
pub enum VsockError {
    /// The monitor is not there, or not any more.
    #[error("No monitor answers on {}", path.display())]
    Unreachable { path: PathBuf, source: io::Error },
    /// The monitor closed the connection without an answer: nothing in the guest listens on the port.
    #[error("The guest refused vsock port {port}")]
    Refused { port: u32 },
    /// The monitor said something that is not in the protocol.
    #[error("The monitor sent an unexpected response for vsock port {port}")]
    BadAnswer { port: u32 },
    /// The connection broke before the answer was complete.
    #[error("The connection to vsock port {port} broke")]
    Broken { port: u32, source: io::Error },
    /// No answer within the time given.
    #[error("The guest did not accept a connection to vsock port {port} within {} ms", waited.as_millis())]
    TimedOut { port: u32, waited: Duration },
}

/// Why a TCP port of a guest's loopback could not be connected to.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// Nothing in the guest listens on 127.0.0.1:`port`.
    #[error("Nothing listens on port {port} in the sandbox")]
    Refused { port: u16 },
    /// The guest's forwarder could not be reached.
    #[error("The guest's port forwarder could not be reached")]
    Guest(#[from] VsockError),
}

/// Connects to vsock port `port` of the guest whose monitor listens on `path`; `timeout` covers all of it.
pub async fn connect(path: &Path, port: u32, timeout: Duration) -> Result<UnixStream, VsockError> {
    let deadline = Instant::now() + timeout;
    match timeout_at(deadline, open(path, port)).await {
        Ok(result) => result,
        Err(_) => Err(VsockError::TimedOut { port, waited: timeout }),
    }
}

/// Connects to 127.0.0.1:`tcp_port` inside the guest whose monitor listens on `path`; `timeout` covers all of it.
pub async fn forward(path: &Path, tcp_port: u16, timeout: Duration) -> Result<UnixStream, ForwardError> {
    let deadline = Instant::now() + timeout;
    let attempt = async {
        let mut stream = open(path, FORWARD_PORT).await?;
        let broken = |source| VsockError::Broken { port: FORWARD_PORT, source };
        stream.write_all(format!("{tcp_port}\n").as_bytes()).await.map_err(broken)?;
        match read_answer(&mut stream).await.map_err(broken)?.as_deref() {
            Some(FORWARD_OK) => Ok(stream),
            Some(FORWARD_REFUSED) => Err(ForwardError::Refused { port: tcp_port }),
            Some(_) => Err(VsockError::BadAnswer { port: FORWARD_PORT }.into()),
            None => Err(VsockError::Refused { port: FORWARD_PORT }.into()),
        }
    };
    match timeout_at(deadline, attempt).await {
        Ok(result) => result,
        Err(_) => Err(VsockError::TimedOut { port: FORWARD_PORT, waited: timeout }.into()),
    }
}

async fn open(path: &Path, port: u32) -> Result<UnixStream, VsockError> {
    let mut stream = UnixStream::connect(path)
        .await
        .map_err(|source| VsockError::Unreachable { path: path.to_path_buf(), source })?;
    let broken = |source| VsockError::Broken { port, source };
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).await.map_err(broken)?;
    match read_answer(&mut stream).await {
        Ok(Some(answer)) if is_ok(&answer) => Ok(stream),
        Ok(Some(_)) => Err(VsockError::BadAnswer { port }),
        Ok(None) => Err(VsockError::Refused { port }),
        // A monitor that closes without having read our line resets the connection instead.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(VsockError::Refused { port }),
        Err(source) => Err(broken(source)),
    }
}

fn is_ok(answer: &str) -> bool {
    answer.strip_prefix("OK ").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// One line without its newline, and not a byte more; `None` when the peer closed without a complete one.
/// A line that is too long or no text comes back as the empty string, which is no answer of either protocol.
async fn read_answer(stream: &mut UnixStream) -> io::Result<Option<String>> {
    let mut line = Vec::with_capacity(MAX_ANSWER);
    while line.len() < MAX_ANSWER {
        let mut byte = [0];
        if stream.read(&mut byte).await? == 0 {
            return Ok(None);
        }
        if byte[0] == b'\n' {
            return Ok(Some(String::from_utf8(line).unwrap_or_default()));
        }
        line.push(byte[0]);
    }
    Ok(Some(String::new()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    const SOON: Duration = Duration::from_secs(10);

    /// A monitor for one connection: reads up to `expected`, answers `answer` and keeps the stream until told.
    async fn monitor(expected: &'static str, answer: &'static [u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("vsock");
        let listener = UnixListener::bind(&path).expect("a socket");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut said = vec![0; expected.len()];
            stream.read_exact(&mut said).await.expect("the request");
            assert_eq!(said, expected.as_bytes());
            stream.write_all(answer).await.expect("writable");
            stream.shutdown().await.expect("still open");
            // Until the other side is done, or its writes would fail.
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
        (folder, path)
    }

    #[tokio::test]
    async fn bytes_after_the_answer_belong_to_the_stream() {
        let (_folder, path) = monitor("CONNECT 49983\n", b"OK 1073741824\nhello").await;

        let mut stream = connect(&path, 49983, SOON).await.expect("connected");

        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.expect("readable");
        assert_eq!(rest, "hello");
    }

    #[tokio::test]
    async fn a_close_without_answer_is_a_refusal() {
        let (_folder, path) = monitor("CONNECT 7\n", b"").await;
        let error = connect(&path, 7, SOON).await.expect_err("refused");
        assert!(matches!(error, VsockError::Refused { port: 7 }), "{error:?}");
    }

    #[tokio::test]
    async fn an_endless_answer_is_given_up() {
        let (_folder, path) = monitor("CONNECT 7\n", &[b'O'; 4096]).await;
        let error = connect(&path, 7, SOON).await.expect_err("not the protocol");
        assert!(matches!(error, VsockError::BadAnswer { port: 7 }), "{error:?}");
    }

    #[tokio::test]
    async fn a_monitor_that_is_gone_is_unreachable() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = connect(&folder.path().join("vsock"), 7, SOON).await.expect_err("nobody there");
        assert!(matches!(error, VsockError::Unreachable { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn a_silent_monitor_times_out() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("vsock");
        let _listener = UnixListener::bind(&path).expect("a socket");
        let error = connect(&path, 7, Duration::from_millis(20)).await.expect_err("silent");
        assert!(matches!(error, VsockError::TimedOut { port: 7, .. }), "{error:?}");
    }

    #[tokio::test]
    async fn forwarding_yields_the_stream_of_the_tcp_port() {
        let (_folder, path) = forwarder(b"ok\nSSH-2.0").await;

        let mut stream = forward(&path, 8000, SOON).await.expect("connected");

        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.expect("readable");
        assert_eq!(rest, "SSH-2.0");
    }

    #[tokio::test]
    async fn a_closed_tcp_port_is_told_from_a_dead_guest() {
        let (_folder, path) = forwarder(b"refused\n").await;
        let error = forward(&path, 8000, SOON).await.expect_err("closed port");
        assert!(matches!(error, ForwardError::Refused { port: 8000 }), "{error:?}");

        let (_folder, path) = forwarder(b"").await;
        let error = forward(&path, 8000, SOON).await.expect_err("dead guest");
        assert!(matches!(error, ForwardError::Guest(VsockError::Refused { .. })), "{error:?}");
    }

    async fn forwarder(answer: &'static [u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("vsock");
        let listener = UnixListener::bind(&path).expect("a socket");
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut said = vec![0; "CONNECT 1025\n".len()];
            stream.read_exact(&mut said).await.expect("the request");
            stream.write_all(b"OK 5\n").await.expect("writable");
            let mut said = vec![0; "8000\n".len()];
            stream.read_exact(&mut said).await.expect("the port");
            stream.write_all(answer).await.expect("writable");
        });
        (folder, path)
    }
}
