//! The way in: one listener for every sandbox's data plane and preview ports.
//!
//! ```text
//!   client ──TLS, HTTP/1.1 or HTTP/2──▶ listener ─▶ proxy ──vsock, HTTP/1.1──▶ guest: data plane, or 127.0.0.1:<port>
//!                                                     │
//!                                            Directory (which sandbox), Sessions (may it)
//! ```
//!
//! * [`listener`]: connections of clients, their limits and their end. [`tls`], [`ca`]: certificates.
//! * [`proxy`]: one request; [`route`] reads its host name, [`credentials`] its token, [`headers`] says which fields pass,
//!   [`upgrade`] makes WebSockets tunnels, [`refusal`] is what clients get when it does not come that far.
//! * [`idle`], [`limits`]: what keeps one client or one sandbox from holding up the others.
//!
//! Bodies are passed on piece by piece in both directions and never collected, so size is no limit and a slow reader slows
//! its own sender only. No address of a guest is used: everything goes through the monitor's vsock socket, so a server
//! that listens on 127.0.0.1 in the guest is reached and nothing else is.

mod body;
mod ca;
mod config;
mod credentials;
mod headers;
mod idle;
mod limits;
mod listener;
mod proxy;
mod refusal;
mod route;
mod stats;
#[cfg(test)]
mod tests;
mod tls;
mod upgrade;
mod urls;

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandpiper_protocol::agent::{ExposedPort, SandboxState};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

#[cfg(test)]
use self::config::Tls;
pub(crate) use self::config::{ConfigError, IngressConfig};
use self::limits::InFlight;
use self::listener::Listener;
use self::proxy::Proxy;
pub(crate) use self::stats::Stats;
use self::tls::{Certificates, TlsError};
pub(crate) use self::urls::Urls;
use crate::session::Sessions;

/// Where the proxy finds the sandbox that a host name stands for.
pub(crate) trait Directory: Send + Sync + 'static {
    /// The sandbox of this route token (lower-case letters and digits), or `None`, as it is.
    fn find(&self, route_token: &str) -> impl Future<Output = Option<Target>> + Send;

    /// Has a sandbox go on that is paused, and waits until it does, for a time that has a limit. Asked only for a request
    /// that may pass, and of a sandbox of which [`Target::wakes`] says so.
    fn wake(&self, sandbox_id: &str) -> impl Future<Output = Result<(), WakeError>> + Send;
}

/// Why a sandbox was not woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeError {
    /// The host has no memory for it now.
    NoRoom,
    Failed,
    TimedOut,
}

/// A sandbox as the proxy sees it, at the moment of one request.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) sandbox_id: String,
    pub(crate) state: SandboxState,
    /// It is paused, or about to be, and goes on when it is asked for something.
    pub(crate) wakes: bool,
    /// Unix socket of its monitor.
    pub(crate) vsock: PathBuf,
    pub(crate) exposed_ports: Vec<ExposedPort>,
    /// False: every preview port needs the access token.
    pub(crate) allow_public_traffic: bool,
}

/// Why the listener could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error("The ingress configuration is not valid")]
    Config(#[from] ConfigError),
    #[error("The listener has no certificate: correct ingress.tls")]
    Tls(#[from] TlsError),
    #[error("Cannot listen on {address}: choose another ingress.listen")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("The certificate could not be prepared")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// The listener and everything behind it.
pub(crate) struct Ingress<D> {
    listener: Listener<D>,
    certificates: Option<Arc<Certificates>>,
    address: SocketAddr,
    urls: Urls,
}

impl<D: Directory> Ingress<D> {
    /// Listens as `config` says; a local authority is kept under `state_dir`. Clients that connect before
    /// [`serve`](Ingress::serve) wait.
    pub(crate) async fn bind(
        config: &IngressConfig,
        state_dir: &Path,
        directory: Arc<D>,
        sessions: Arc<Sessions>,
    ) -> Result<Ingress<D>, BindError> {
        config.validate()?;
        let certificates = {
            let (tls, host, state_dir) = (config.tls.clone(), config.data_plane_host.clone(), state_dir.to_path_buf());
            // Reads and writes files.
            tokio::task::spawn_blocking(move || Certificates::open(&tls, &state_dir, &host)).await??
        };
        let tls = certificates.as_ref().map(Certificates::acceptor).transpose()?;
        let listen = |source| BindError::Listen { address: config.listen, source };
        let socket = TcpListener::bind(config.listen).await.map_err(listen)?;
        let address = socket.local_addr().map_err(listen)?;
        let urls =
            Urls::new(tls.is_some(), &config.data_plane_host, config.public_port.unwrap_or_else(|| address.port()));
        let proxy = Proxy {
            directory,
            sessions,
            data_plane_host: config.data_plane_host.clone(),
            scheme: urls.scheme(),
            idle_timeout: config.idle_timeout(),
            in_flight: InFlight::new(config.max_requests_per_sandbox),
            stats: Arc::default(),
            stop: CancellationToken::new(),
        };
        let listener = Listener { socket, tls, proxy: Arc::new(proxy), max_connections: config.max_connections };
        let ingress = Ingress { listener, certificates, address, urls };
        match ingress.ca_certificate() {
            Some(ca) => {
                info!(%address, ca = %ca.display(), "Ingress listens; clients must trust the certificate authority")
            }
            None => info!(%address, "Ingress listens"),
        }
        Ok(ingress)
    }

    /// The names under which sandboxes are reached.
    pub(crate) fn urls(&self) -> Urls {
        self.urls.clone()
    }

    /// What has passed so far.
    pub(crate) fn stats(&self) -> Arc<Stats> {
        self.listener.proxy.stats.clone()
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The local authority's certificate, where there is one.
    pub(crate) fn ca_certificate(&self) -> Option<&Path> {
        self.certificates.as_ref().and_then(|certificates| certificates.ca_certificate())
    }

    /// Serves until `shutdown`, then lets requests in flight end for a moment.
    pub(crate) async fn serve(self, shutdown: CancellationToken) {
        let _fresh =
            self.certificates.map(|certificates| AbortOnDropHandle::new(tokio::spawn(certificates.keep_fresh())));
        self.listener.run(shutdown).await;
    }
}
