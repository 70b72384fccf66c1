//! A client that asks the same again and again, over so many connections at a time, each of which is kept.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use support::Samples;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::connection::Connection;
use crate::report::Report;

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
    /// How long each response took to be complete, in milliseconds.
    pub(crate) times: Vec<f64>,
    /// Responses a second.
    pub(crate) rate: f64,
}

/// What several rounds came to.
#[derive(Default)]
pub(crate) struct Rounds {
    pub(crate) rates: Vec<f64>,
    /// Of the rounds that had enough responses to have one.
    p99: Vec<f64>,
}

impl Load {
    /// Asks for so long, on the runtime where this is called.
    pub(crate) async fn run(self, time: Duration) -> anyhow::Result<Round> {
        let begin = Instant::now();
        let clients = (0..self.connections).map(|_| {
            let load = self.clone();
            async move { tokio::spawn(async move { load.client(begin + time).await }).await? }
        });
        let times: Vec<f64> = try_join_all(clients).await?.into_iter().flatten().collect();
        let rate = f64::from(u32::try_from(times.len())?) / begin.elapsed().as_secs_f64();
        Ok(Round { times, rate })
    }

    /// One connection. How long each response took.
    async fn client(self, end: Instant) -> anyhow::Result<Vec<f64>> {
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

    async fn ask_until(&self, end: Instant, stream: impl AsyncRead + AsyncWrite + Unpin) -> anyhow::Result<Vec<f64>> {
        let key = self.key.as_ref().map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\nAccept: */*\r\n{key}\r\n", self.path, self.host);
        let mut connection = Connection::over(stream);
        let mut times = Vec::new();
        let mut begin = Instant::now();
        while begin < end {
            connection.exchange(&request).await?;
            let now = Instant::now();
            times.push((now - begin).as_secs_f64() * 1000.0);
            begin = now;
        }
        Ok(times)
    }
}

impl Rounds {
    pub(crate) fn add(&mut self, round: &Round) {
        self.rates.push(round.rate);
        self.p99.extend(Samples::new(&round.times).percentile(99));
    }

    /// Adds the results `name` and `name_p99`.
    pub(crate) fn report(&self, bench: &str, name: &str, report: &mut Report) {
        report.add(bench, name, "req/s", &self.rates);
        report.add(bench, &format!("{name}_p99"), "ms", &self.p99);
    }
}
