//! The way in: one listener for every sandbox's data plane and preview ports, and for the API where it is told so.
//!
//! ```text
//!   client ──TLS, HTTP/1.1 or HTTP/2──▶ listener ─▶ proxy ──vsock, HTTP/1.1 or HTTP/2──▶ guest: data plane,
//!                                                     │                                     or 127.0.0.1:<port>
//!                                            Directory (which sandbox), Sessions (may it)
//! ```
//!
//! * [`listener`]: connections of clients, their limits and their end. [`framing`]: what is refused before it is parsed.
//! * [`tls`]: the certificate, be it given, ordered from an issuer ([`acme`]) or our own authority's ([`ca`]).
//! * [`proxy`]: one request. [`host`], [`route`] and [`address`] read whom it is for, [`credentials`] and [`signed`] what it
//!   shows, [`forwarded`] whom it is from; [`grant`] whether it may pass and go on; [`headers`] says which fields pass; [`exchange`] carries it over a [`link`] into the guest, which speaks
//!   HTTP/1.1 ([`http1`]) or HTTP/2; [`upgrade`] makes WebSockets tunnels; [`refusal`] and [`page`] are what clients get
//!   when it does not come that far. [`api`] forwards what is for the API.
//! * [`idle`], [`limits`], [`memory`], [`upload`]: what keeps one client or one sandbox from holding up the others.
//! * [`session`]: access tokens, which the agent mints and the proxy verifies; [`lasting`] those without an end. [`vsock`]: connections into a guest,
//!   and [`question`] what the agent itself asks there.
//!
//! Bodies are passed on piece by piece in both directions and never collected, so size is no limit and a slow reader slows
//! its own sender only. No address of a guest is used: everything goes through the monitor's vsock socket, so a server
//! that listens on 127.0.0.1 in the guest is reached and nothing else is.

mod acme;
mod address;
mod api;
mod body;
mod ca;
mod config;
mod cors;
mod credentials;
mod envelopes;
mod exchange;
mod forwarded;
mod framing;
#[cfg(fuzzing)]
pub mod fuzzing;
mod grant;
mod headers;
mod host;
mod http1;
mod idle;
mod lasting;
mod limits;
mod link;
mod listener;
mod memory;
mod page;
mod proxy;
pub mod question;
mod refusal;
mod route;
pub mod session;
mod signed;
mod stats;
#[cfg(test)]
mod tests;
mod tls;
mod upgrade;
mod upload;
mod urls;
pub mod vsock;

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandpiper_durable as durable;
use sandpiper_protocol::agent::{ExposedPort, Previews, SandboxState};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

pub use self::config::{AcmeConfig, ConfigError, IngressConfig, Tls};
use self::forwarded::TrustedProxies;
use self::limits::{InFlight, Limit};
use self::listener::Listener;
use self::memory::Memory;
pub use self::memory::SANDBOX_KIB;
use self::proxy::Proxy;
use self::session::Sessions;
pub use self::stats::Stats;
pub use self::tls::{ALPN_H2, ListenerTls, TlsError};
pub use self::urls::Urls;

/// Where the proxy finds the sandbox that a host name stands for.
pub trait Directory: Send + Sync + 'static {
    /// The sandbox of this route token or id (lower-case letters and digits), or `None`, as it is.
    fn find(&self, name: &str) -> impl Future<Output = Option<Target>> + Send;

    /// Ids of all sandboxes.
    fn ids(&self) -> Vec<String>;

    /// Has a sandbox go on that is paused, and waits until it does, for a time that has a limit. Asked only for a request
    /// that may pass, and of a sandbox of which [`Target::wakes`] says so.
    fn wake(&self, sandbox_id: &str) -> impl Future<Output = Result<(), WakeError>> + Send;
}

/// Why a sandbox was not woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeError {
    /// The host has no memory for it now.
    NoRoom,
    /// Its team's other sandboxes hold all that the team may.
    QuotaExceeded,
    /// Nothing of its team may run.
    TeamDisabled,
    /// Another sandbox has one of its volumes, or a program of the sandbox holds it.
    VolumeTaken,
    Failed,
    TimedOut,
}

/// A sandbox as the proxy sees it, at the moment of one request.
#[derive(Debug, Clone)]
pub struct Target {
    pub sandbox_id: String,
    /// Nobody gets through to what its team has.
    pub team_disabled: bool,
    pub state: SandboxState,
    /// It is paused, or about to be, and goes on when it is asked for something.
    pub wakes: bool,
    /// Unix socket of its monitor.
    pub vsock: PathBuf,
    pub exposed_ports: Vec<ExposedPort>,
    /// False: every preview port needs the access token.
    pub allow_public_traffic: bool,
    pub previews: Previews,
}

/// Why the listener could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("The ingress configuration is not valid")]
    Config(#[from] ConfigError),
    #[error("The listener has no certificate: correct ingress.tls")]
    Tls(#[from] TlsError),
    #[error("Cannot listen on {address}: choose another ingress.listen")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("The certificate could not be prepared")]
    Interrupted(#[from] durable::Interrupted),
}

/// The listener and everything behind it.
pub struct Ingress<D> {
    listener: Listener<D>,
    tls: Option<ListenerTls>,
    address: SocketAddr,
    urls: Urls,
}

impl<D: Directory> Ingress<D> {
    /// Listens as `config` says; certificates of our own making are kept under `state_dir`. Clients that connect before
    /// [`serve`](Ingress::serve) wait.
    pub async fn bind(
        config: &IngressConfig,
        state_dir: &Path,
        directory: Arc<D>,
        sessions: Arc<Sessions>,
    ) -> Result<Ingress<D>, BindError> {
        config.validate()?;
        let certificate = {
            let (tls, host, state_dir) = (config.tls.clone(), config.data_plane_host.clone(), state_dir.to_path_buf());
            // Reads and writes files.
            durable::blocking(move || ListenerTls::open(&tls, &state_dir, &host).map_err(BindError::from)).await?
        };
        let tls = certificate.as_ref().map(ListenerTls::acceptor).transpose()?;
        let listen = |source| BindError::Listen { address: config.listen, source };
        let socket = TcpListener::bind(config.listen).await.map_err(listen)?;
        let address = socket.local_addr().map_err(listen)?;
        let urls =
            Urls::new(tls.is_some(), &config.data_plane_host, config.public_port.unwrap_or_else(|| address.port()));
        let memory = Memory::new(config.requests_memory_mb);
        let proxy = Proxy {
            directory,
            sessions,
            data_plane_host: config.data_plane_host.clone(),
            api: config.api,
            scheme: urls.scheme(),
            trusted: TrustedProxies::new(config.trusted_proxies.clone()),
            idle_timeout: config.idle_timeout(),
            body_timeout: config.body_timeout(),
            in_flight: InFlight::new(config.max_requests_per_sandbox, config.max_requests_per_client, memory.clone()),
            memory,
            pool: Arc::default(),
            stats: Arc::default(),
            stop: CancellationToken::new(),
        };
        let clients = Limit::new(config.max_connections_per_client);
        let proxy = Arc::new(proxy);
        let listener = Listener { socket, tls, proxy, max_connections: config.max_connections, clients };
        let ingress = Ingress { listener, tls: certificate, address, urls };
        match ingress.ca_certificate() {
            Some(ca) => {
                info!(%address, ca = %ca.display(), "Ingress listens; clients must trust the certificate authority")
            }
            None => info!(%address, "Ingress listens"),
        }
        Ok(ingress)
    }

    /// The names under which sandboxes are reached.
    pub fn urls(&self) -> Urls {
        self.urls.clone()
    }

    /// What has passed so far.
    pub fn stats(&self) -> Arc<Stats> {
        self.listener.proxy.stats.clone()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The local authority's certificate, where there is one.
    pub fn ca_certificate(&self) -> Option<&Path> {
        self.tls.as_ref().and_then(ListenerTls::ca_certificate)
    }

    /// Serves until `shutdown`, then lets requests in flight end for a moment.
    pub async fn serve(self, shutdown: CancellationToken) {
        let mut upkeep = vec![AbortOnDropHandle::new(tokio::spawn(self.listener.proxy.pool.clone().tidy()))];
        if let Some(tls) = self.tls {
            upkeep.push(AbortOnDropHandle::new(tokio::spawn(tls.keep_fresh())));
        }
        self.listener.run(shutdown).await;
    }
}
