//! The server behind both proxies: it reads a request's head and answers with as many bytes as the path says.

use std::path::PathBuf;

use anyhow::Context;
use sandpiper_protocol::guest::FORWARD_PORT;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

/// Room for a line of a request.
const LINE: usize = 1024;

/// How a connection begins.
#[derive(Clone, Copy)]
pub(super) enum Opening {
    /// With a request.
    Http,
    /// As at a monitor's socket, for a TCP port of the guest: see `sandpiper_ingress::vsock`.
    Monitor,
}

/// Serves on a new Unix socket at `path`, until the runtime ends where this is called.
pub(super) async fn serve(path: PathBuf, opening: Opening) -> anyhow::Result<()> {
    let listener = UnixListener::bind(path)?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that leaves ends its connection only.
            tokio::spawn(async move { connection(BufReader::new(stream), opening).await });
        }
    });
    Ok(())
}

async fn connection(mut stream: BufReader<UnixStream>, opening: Opening) -> anyhow::Result<()> {
    let mut line = String::with_capacity(LINE);
    if let Opening::Monitor = opening {
        stream.read_line(&mut line).await?;
        anyhow::ensure!(line == format!("CONNECT {FORWARD_PORT}\n"), "not for a TCP port");
        stream.write_all(b"OK 1073741824\n").await?;
        stream.read_line(&mut line).await?;
        stream.write_all(b"ok\n").await?;
    }
    let mut answer = Vec::new();
    loop {
        let mut length = None;
        loop {
            line.clear();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            if let Some(path) = line.strip_prefix("GET /") {
                length = path.split(' ').next().and_then(|number| number.parse::<usize>().ok());
            }
            if line == "\r\n" {
                break;
            }
        }
        let length = length.context("no path")?;
        answer.clear();
        answer
            .extend(format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n").bytes());
        answer.resize(answer.len() + length, b'x');
        stream.write_all(&answer).await?;
    }
}
