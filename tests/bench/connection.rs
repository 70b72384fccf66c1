//! One connection to a server on this machine, which is kept.
//!
//! As little as can be done is done for each response, because it takes its time from the same processors as what is
//! measured: it is looked through for the status and the length, and the rest is left as it is.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use support::http1::{head_end, header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// For one response: something has gone wrong long before.
const TIMEOUT: Duration = Duration::from_secs(60);
/// For the largest response that is asked for, so that the buffer need not grow while something is measured.
const ROOM: usize = 128 << 10;

pub(crate) struct Connection<S = TcpStream> {
    stream: S,
    /// The last response.
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }

    /// The body of the response to a request with JSON, which must succeed.
    pub(crate) async fn ask(&mut self, method: &str, path: &str, key: &str, body: &str) -> anyhow::Result<&[u8]> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.exchange(&request).await.with_context(|| format!("{method} {path}"))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self { stream, buffer: Vec::with_capacity(ROOM) }
    }

    /// Has room for a response of so many bytes, so that it is read to where it stays.
    pub(crate) fn with_room(mut self, bytes: usize) -> Self {
        self.buffer.reserve(bytes);
        self
    }

    /// The body of the response to a whole request, which must succeed.
    pub(crate) async fn exchange(&mut self, request: &str) -> anyhow::Result<&[u8]> {
        self.exchange_with(request, &[]).await
    }

    /// The same for a request of this head and body.
    pub(crate) async fn exchange_with(&mut self, head: &str, body: &[u8]) -> anyhow::Result<&[u8]> {
        let exchange = async {
            self.stream.write_all(head.as_bytes()).await?;
            self.stream.write_all(body).await?;
            self.read().await
        };
        let body = tokio::time::timeout(TIMEOUT, exchange).await.context("no response in time")??;
        Ok(&self.buffer[body..])
    }

    /// Reads one response; where its body begins.
    async fn read(&mut self) -> anyhow::Result<usize> {
        self.buffer.clear();
        let body = loop {
            self.read_some().await?;
            if let Some(end) = head_end(&self.buffer) {
                break end;
            }
        };
        let head = std::str::from_utf8(&self.buffer[..body])?;
        let is_success = head.starts_with("HTTP/1.1 2") || head.starts_with("HTTP/1.0 2");
        // Which never has a body, and does not say so.
        let is_empty = head.split(' ').nth(1) == Some("204");
        let length = header(head, "content-length").or(is_empty.then_some("0"));
        let length: usize = length.context("a response without a length")?.parse()?;
        while self.buffer.len() < body + length {
            self.read_some().await?;
        }
        ensure!(self.buffer.len() == body + length, "more came than was asked for");
        ensure!(is_success, "{}", String::from_utf8_lossy(&self.buffer));
        Ok(body)
    }

    async fn read_some(&mut self) -> anyhow::Result<()> {
        let length = self.stream.read_buf(&mut self.buffer).await?;
        ensure!(length > 0, "the connection ended in a response: {:?}", String::from_utf8_lossy(&self.buffer));
        Ok(())
    }
}
