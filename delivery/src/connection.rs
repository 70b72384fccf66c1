//! One connection to a receiver: resolved, vetted, connected, and TLS begun. Nothing of it ever goes to an address that did
//! not pass the rule.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sandpiper_protocol::error_chain::chain;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use crate::addresses::AddressRule;
use crate::endpoint_url::{Authority, EndpointHost};
use crate::outcome::{Failure, FailureClass};
use crate::resolver::Resolver;

/// Of a response's head, in bytes and in lines.
const MAX_HEAD: usize = 64 * 1024;
const MAX_HEADERS: usize = 256;

/// What connections are opened with.
#[derive(Debug, Clone)]
pub struct Connector {
    pub resolver: Resolver,
    pub rule: AddressRule,
    pub tls: Arc<ClientConfig>,
}

/// Why a request got no response.
#[derive(Debug)]
pub struct NoResponse {
    pub failure: Failure,
    /// Nothing of the request was written: the connection was closed while it waited.
    pub unsent: bool,
}

/// A connection, closed when this is dropped.
#[derive(Debug)]
pub struct Connection {
    requests: SendRequest<Full<Bytes>>,
    /// Moves the bytes.
    _driver: AbortOnDropHandle<()>,
    opened_at: Instant,
}

impl Connector {
    /// Opens a connection, trying the addresses one after the other until the deadline.
    pub async fn open(&self, authority: &Authority, deadline: Instant) -> Result<Connection, Failure> {
        let addresses = self.vetted(&authority.host).await?;
        let tcp = connect(&addresses, authority.port, deadline).await?;
        let name = match &authority.host {
            EndpointHost::Name(name) => ServerName::try_from(name.clone())
                .map_err(|error| Failure::new(FailureClass::Dns, format!("{name} is no host name: {error}")))?,
            EndpointHost::Address(address) => ServerName::from(*address),
        };
        let tls = TlsConnector::from(self.tls.clone());
        let stream = tls.connect(name, tcp).await.map_err(|error| of_tls(&error))?;
        Connection::begin(stream).await
    }

    /// The addresses of a host, all of which may be connected to.
    async fn vetted(&self, host: &EndpointHost) -> Result<Vec<IpAddr>, Failure> {
        let addresses = match host {
            EndpointHost::Address(address) => vec![*address],
            EndpointHost::Name(name) => {
                let resolved = self.resolver.resolve(name).await;
                resolved.map_err(|reason| Failure::new(FailureClass::Dns, reason))?
            }
        };
        self.rule.check_all(&addresses).map_err(|refused| Failure::new(FailureClass::BlockedAddress, refused))?;
        Ok(addresses)
    }
}

/// Connects to the first address that takes the connection; each has a fair part of the time that is left.
async fn connect(addresses: &[IpAddr], port: u16, deadline: Instant) -> Result<TcpStream, Failure> {
    let mut failure = Failure::new(FailureClass::Dns, "the name has no addresses");
    for (index, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let to_try = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        failure = match timeout(left / to_try, TcpStream::connect(SocketAddr::new(*address, port))).await {
            Ok(Ok(stream)) => {
                // Requests are written whole: waiting for more only delays them. A failure costs nothing else.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => of_connect(&error),
            Err(_) => Failure::new(FailureClass::Timeout, format!("{address} did not take the connection")),
        };
    }
    Err(failure)
}

impl Connection {
    async fn begin(stream: TlsStream<TcpStream>) -> Result<Self, Failure> {
        let (requests, driver) = http1::Builder::new()
            .title_case_headers(true)
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEAD)
            .max_buf_size(2 * MAX_HEAD)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| of_http(&error))?;
        // What goes wrong on the connection is told to the request that is on it.
        let driver = AbortOnDropHandle::new(tokio::spawn(async move { drop(driver.await) }));
        Ok(Self { requests, _driver: driver, opened_at: Instant::now() })
    }

    /// When it was opened.
    pub fn opened_at(&self) -> Instant {
        self.opened_at
    }

    /// Whether the receiver has closed it.
    pub fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }

    /// Sends a request and reads the head of its response.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, NoResponse> {
        if let Err(error) = self.requests.ready().await {
            return Err(NoResponse { failure: of_http(&error), unsent: true });
        }
        self.requests.try_send_request(request).await.map_err(|mut error| {
            // It comes back only if the connection ended before any of it was written.
            let unsent = error.take_message().is_some();
            NoResponse { failure: of_http(error.error()), unsent }
        })
    }
}

fn of_connect(error: &io::Error) -> Failure {
    let class = match error.kind() {
        io::ErrorKind::ConnectionRefused => FailureClass::Refused,
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => FailureClass::Reset,
        io::ErrorKind::TimedOut => FailureClass::Timeout,
        _ => FailureClass::Unreachable,
    };
    Failure::new(class, error)
}

/// A handshake that was broken off tells nothing of certificates.
fn of_tls(error: &io::Error) -> Failure {
    let class = if closed(error.kind()) { FailureClass::Reset } else { FailureClass::Tls };
    Failure::new(class, error)
}

fn of_http(error: &hyper::Error) -> Failure {
    let mut class = if error.is_parse() { FailureClass::Malformed } else { FailureClass::Reset };
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>()
            && io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
        {
            class = FailureClass::Tls;
        }
        source = cause.source();
    }
    Failure::new(class, chain(error))
}

fn closed(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
    )
}
