//! Connects the host to TCP servers of the guest, those that listen on 127.0.0.1 included.
//!
//! The host writes a decimal port and a newline, and reads one line back; after [`FORWARD_OK`] the stream is that of the
//! server. Either side may finish sending before the other.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use sandpiper_protocol::guest::{FORWARD_OK, FORWARD_REFUSED};
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy_bidirectional_with_sizes,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::gate::Gate;
use crate::net::{Listener, accept_each};

/// Forwarded connections at a time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 1024;

/// Five digits and the newline.
const MAX_REQUEST: u64 = 6;

/// For the request line to arrive, and for the answer to leave.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// For the guest's own loopback to answer; only a full backlog takes longer than no time at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes in flight, each way.
const BUFFER: usize = 64 * 1024;

/// Forwards without end what passes the gate.
pub(crate) async fn serve<L: Listener>(listener: L, gate: Gate) {
    accept_each(listener, MAX_CONNECTIONS, |stream, permit| {
        let gate = gate.clone();
        tokio::spawn(async move {
            gate.pass().await;
            // A connection that breaks has no one to tell but its two ends, which see it.
            let _ = forward(stream).await;
            drop(permit);
        });
    })
    .await;
}

async fn forward<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> io::Result<()> {
    let mut host = BufReader::new(stream);
    let port = timeout(HANDSHAKE_TIMEOUT, read_port(&mut host)).await??;
    let server = match port {
        Some(port) => connect(port).await,
        None => None,
    };
    let answer = if server.is_some() { FORWARD_OK } else { FORWARD_REFUSED };
    timeout(HANDSHAKE_TIMEOUT, host.write_all(format!("{answer}\n").as_bytes())).await??;
    match server {
        Some(mut server) => copy_bidirectional_with_sizes(&mut host, &mut server, BUFFER, BUFFER).await.map(|_| ()),
        None => host.shutdown().await,
    }
}

/// The port that the host asks for; `None` if the line names none.
async fn read_port(host: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<Option<u16>> {
    let mut line = String::new();
    host.take(MAX_REQUEST).read_line(&mut line).await?;
    Ok(line.strip_suffix('\n').and_then(|port| port.parse().ok()).filter(|port| *port != 0))
}

async fn connect(port: u16) -> Option<TcpStream> {
    for address in [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))] {
        if let Ok(Ok(stream)) = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            // Fails only on a connection that is gone again, which the copying will notice.
            let _ = stream.set_nodelay(true);
            return Some(stream);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, UnixListener, UnixStream};

    async fn client() -> (UnixStream, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("forward");
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(serve(listener, Gate::default()));
        (UnixStream::connect(&path).await.unwrap(), folder)
    }

    #[tokio::test]
    async fn bytes_sent_before_the_answer_reach_the_server_and_half_closing_works() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let echo = tokio::spawn(async move {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.unwrap();
            stream.write_all(&received).await.unwrap();
        });
        let (mut client, _folder) = client().await;

        client.write_all(format!("{port}\nhello").as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();

        assert_eq!(answer, "ok\nhello");
        echo.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_on_the_ipv6_loopback_is_found() {
        let server = TcpListener::bind("[::1]:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let (mut client, _folder) = client().await;

        client.write_all(format!("{port}\n").as_bytes()).await.unwrap();
        let (mut stream, _) = server.accept().await.unwrap();
        stream.write_all(b"hi").await.unwrap();
        drop(stream);
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();

        assert_eq!(answer, "ok\nhi");
    }

    #[tokio::test]
    async fn closed_ports_and_nonsense_are_refused() {
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        for line in [format!("{unused}\n"), "0\n".into(), "70000\n".into(), "http\n".into(), "999999999".into()] {
            let (mut client, _folder) = client().await;
            client.write_all(line.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer, "refused\n", "for {line:?}");
        }
    }
}
