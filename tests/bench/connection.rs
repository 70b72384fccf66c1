//! One connection to a server on this machine, which is kept. As in [`crate::load`], little is done for each answer.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// For one answer: something has gone wrong long before.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Connection(TcpStream);

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// The body of the answer to a request, which must succeed.
    pub(crate) async fn ask(&mut self, method: &str, path: &str, key: &str, body: &str) -> anyhow::Result<Vec<u8>> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = async {
            self.0.write_all(request.as_bytes()).await?;
            self.read().await
        };
        tokio::time::timeout(PATIENCE, answer).await.with_context(|| format!("{method} {path}: no answer in time"))?
    }

    async fn read(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(4096);
        let end = loop {
            ensure!(self.0.read_buf(&mut bytes).await? > 0, "the connection ended before an answer");
            if let Some(end) = head_end(&bytes) {
                break end;
            }
        };
        let mut body = bytes.split_off(end);
        let head = String::from_utf8(bytes)?;
        let length: usize = header(&head, "content-length").context("an answer without a length")?.parse()?;
        while body.len() < length {
            ensure!(self.0.read_buf(&mut body).await? > 0, "the connection ended in the middle of an answer");
        }
        ensure!(head.starts_with("HTTP/1.1 2"), "{head}{}", String::from_utf8_lossy(&body));
        Ok(body)
    }
}

/// Where the body begins.
pub(crate) fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|position| position + 4)
}

/// The value of a header that a head has once.
pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}
