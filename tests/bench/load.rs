//! A client that asks the same again and again, over so many connections at a time, each of which is kept.
//!
//! It does as little as can be done for each answer, because it takes its time from the same processors as what is
//! measured: it looks for the status and the length, and throws the rest away.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures_util::future::try_join_all;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// For one answer: something has gone wrong long before.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whom to ask, and how.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) address: SocketAddr,
    pub(crate) host: String,
    pub(crate) path: String,
    /// What `Authorization` says after `Bearer`.
    pub(crate) key: Option<String>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) connections: usize,
}

/// What came of it.
pub(crate) struct Round {
    pub(crate) answers: u32,
    /// Answers a second.
    pub(crate) rate: f64,
    /// The 99th percentile of the answers' times, in milliseconds.
    pub(crate) p99: f64,
}

impl Load {
    /// Asks for so long, on the runtime where this is called.
    pub(crate) async fn run(self, time: Duration) -> anyhow::Result<Round> {
        let begin = Instant::now();
        let clients = (0..self.connections).map(|_| {
            let load = self.clone();
            async move { tokio::spawn(async move { load.client(begin + time).await }).await? }
        });
        let mut times: Vec<Duration> = try_join_all(clients).await?.into_iter().flatten().collect();
        let seconds = begin.elapsed().as_secs_f64();
        times.sort_unstable();
        let p99 = times.get(times.len() * 99 / 100).context("no answer came")?.as_secs_f64() * 1000.0;
        let answers = u32::try_from(times.len())?;
        Ok(Round { answers, rate: f64::from(answers) / seconds, p99 })
    }

    /// One connection. How long each answer took to be complete.
    async fn client(self, end: Instant) -> anyhow::Result<Vec<Duration>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => self.ask_until(end, stream).await,
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone())?;
                self.ask_until(end, TlsConnector::from(tls.clone()).connect(name, stream).await?).await
            }
        }
    }

    async fn ask_until(
        &self,
        end: Instant,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
    ) -> anyhow::Result<Vec<Duration>> {
        let key = self.key.as_ref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\nAccept: */*\r\n{key}\r\n", self.path, self.host);
        let (mut times, mut buffer) = (Vec::new(), vec![0; 128 << 10]);
        let mut begin = Instant::now();
        while begin < end {
            let answer = async {
                stream.write_all(request.as_bytes()).await?;
                read_answer(&mut stream, &mut buffer).await
            };
            tokio::time::timeout(PATIENCE, answer).await.context("no answer came in time")??;
            let now = Instant::now();
            times.push(now - begin);
            begin = now;
        }
        Ok(times)
    }
}

/// Reads one whole answer, which must be a 200 with a length.
async fn read_answer(stream: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> anyhow::Result<()> {
    let mut filled = 0;
    let head = loop {
        let length = stream.read(&mut buffer[filled..]).await?;
        ensure!(length > 0, "the connection ended before an answer: {}", String::from_utf8_lossy(&buffer[..filled]));
        filled += length;
        if let Some(end) = buffer[..filled].windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = std::str::from_utf8(&buffer[..head])?;
    ensure!(text.starts_with("HTTP/1.1 200") || text.starts_with("HTTP/1.0 200"), "the answer is {text}");
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    let Some(length) = length else { bail!("the answer has no length: {text}") };
    let mut left = (head + length?).checked_sub(filled).context("more came than was asked for")?;
    while left > 0 {
        let most = left.min(buffer.len());
        let length = stream.read(&mut buffer[..most]).await?;
        ensure!(length > 0, "the connection ended in the middle of an answer");
        left -= length;
    }
    Ok(())
}
