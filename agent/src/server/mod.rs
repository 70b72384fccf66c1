//! The agent API: HTTP/1.1 on a Unix socket, for the API process and for people with curl. Every route is in [`router`].
//!
//! ```text
//! curl --unix-socket /run/sandpiper/agent.sock http://agent/host
//! ```
//!
//! Who may connect is decided by the socket's mode; only root, and the agent's own user, may import templates, because
//! that reads a file of the host by its path.

mod allowances;
mod builds;
mod checkpoints;
mod error;
mod host;
mod intervals;
mod metrics;
mod network;
mod plans;
mod ports;
mod sandboxes;
mod sessions;
mod templates;
mod traces;
mod uploads;
mod usage;
mod volumes;

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use axum::serve::IncomingStream;
use prometheus_client::registry::Registry;
use sandpiper_durable as durable;
use sandpiper_ingress::Urls;
use sandpiper_ingress::session::Sessions;
use sandpiper_trace::Traces;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use self::error::ApiError;
use crate::builds::Builds;
use crate::config::{ApiSocket, Config};
use crate::service::Sandboxes;
use crate::uploads::Uploads;

/// Most bytes of a request's body; environment variables are the largest part.
const MAX_BODY: usize = 1024 * 1024;
/// Time for a request besides starting and stopping a guest.
const SLACK: Duration = Duration::from_secs(60);
/// Time for writing a machine down, or many of them: that is as long as the disk takes.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(900);
/// Time for copying and hashing an image.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time that requests in flight get when the agent ends.
const GRACE: Duration = Duration::from_secs(10);

/// What handlers work with.
pub(crate) struct App {
    pub(crate) config: Arc<Config>,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) builds: Builds,
    pub(crate) uploads: Uploads,
    pub(crate) urls: Urls,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) registry: Registry,
    pub(crate) traces: Traces,
}

/// Every route.
fn router(app: Arc<App>) -> Router {
    let config = &app.config;
    let timeout = config.boot_timeout() + 2 * config.stop_timeout() + SLACK;
    let quick = Router::new()
        .route("/sandboxes", get(sandboxes::list).post(sandboxes::create))
        .route("/sandboxes/changes", get(sandboxes::changes))
        .route("/sandboxes/{id}", get(sandboxes::show).patch(sandboxes::update).delete(sandboxes::delete))
        .route("/sandboxes/{id}/session", post(sandboxes::session))
        .route("/sandboxes/{id}/tokens", get(sessions::tokens))
        .route("/revocations", post(sessions::revoke))
        .route("/allowances", put(allowances::replace))
        .route("/plans", put(plans::replace))
        .route("/sandboxes/{id}/usage", get(usage::show))
        .route("/sandboxes/{id}/metrics", get(metrics::show))
        .route("/sandboxes/{id}/logs", get(sandboxes::logs))
        .route("/sandboxes/{id}/network", put(network::set))
        .route("/sandboxes/{id}/network/denied", get(network::denied))
        .route("/sandboxes/{id}/ports/{port}", put(ports::expose).get(ports::show).delete(ports::close))
        .route("/checkpoints", get(checkpoints::list))
        .route("/checkpoints/{id}", get(checkpoints::show).delete(checkpoints::delete))
        .route("/templates", get(templates::list))
        .route("/templates/{id}", delete(templates::delete))
        .route("/builds", get(builds::list).post(builds::start))
        .route("/builds/{id}", get(builds::show))
        .route("/builds/{id}/logs", get(builds::logs))
        .route("/builds/{id}/cancel", post(builds::cancel))
        .route("/uploads/{id}", get(uploads::show).delete(uploads::delete))
        .route("/volumes", get(volumes::list))
        .route("/volumes/{id}", put(volumes::create).get(volumes::show).delete(volumes::delete))
        .route("/intervals", get(intervals::list))
        .route("/intervals/acknowledge", post(intervals::acknowledge))
        .route("/egress-profiles", get(network::profiles))
        .route("/network/explain", post(network::explain))
        .route("/host", get(host::info))
        .route("/traces", get(traces::list))
        .route("/metrics", get(host::metrics))
        .route("/healthz", get(host::health))
        .layer(middleware::from_fn(move |request, next| bounded(timeout, request, next)));
    let snapshots = Router::new()
        .route("/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/sandboxes/{id}/resume", post(sandboxes::resume))
        .route("/sandboxes/{id}/fork", post(sandboxes::fork))
        .route("/sandboxes/{id}/checkpoints", post(checkpoints::create))
        .layer(middleware::from_fn(move |request, next| bounded(timeout + SNAPSHOT_TIMEOUT, request, next)));
    let slow = Router::new()
        .route("/templates", post(templates::import))
        .layer(middleware::from_fn(move |request, next| bounded(IMPORT_TIMEOUT, request, next)));
    // However long what is read or written: both ends are waited for as long as something moves.
    let streams = Router::new()
        .route("/uploads/{id}", put(uploads::receive))
        .route("/volumes/{id}/files", any(volumes::detached))
        .route("/volumes/{id}/directories", any(volumes::detached))
        .route("/volumes/{id}/path", any(volumes::detached));
    quick
        .merge(snapshots)
        .merge(slow)
        .merge(streams)
        .fallback(|| async { ApiError::not_found("route") })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(traces::traced))
        .with_state(app)
}

/// Ends a request that takes too long. What it started goes on: supervisors do not depend on who asked.
async fn bounded(timeout: Duration, request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let response = tokio::time::timeout(timeout, next.run(request)).await.unwrap_or_else(|_| {
        let seconds = timeout.as_secs();
        ApiError::internal(format!("Not done within {seconds} seconds; it goes on, ask for its state")).into_response()
    });
    tracing::debug!(%method, path, status = response.status().as_u16(), "responded");
    response
}

/// Who is on the other end of the socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    uid: Option<u32>,
}

impl Peer {
    /// Whether the peer could do with the host's files whatever this process can.
    fn is_trusted(self) -> bool {
        self.uid.is_some_and(|uid| uid == 0 || uid == nix::unistd::geteuid().as_raw())
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self { uid: stream.io().peer_cred().ok().map(|cred| cred.uid()) }
    }
}

/// Listens on `path`, replacing the socket of an agent that is gone. Only the holder of the state folder's lock calls it.
pub(crate) fn listen(path: &Path, access: &ApiSocket) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => durable::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let group = access.group.as_deref().map(group_id).transpose()?.or(access.gid);
    let listener = UnixListener::bind(path)?;
    // Owner before mode: nobody who loses access by it has it afterwards.
    std::os::unix::fs::chown(path, access.uid, group)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// The number of the group that is called `name`.
fn group_id(name: &str) -> io::Result<u32> {
    let group = nix::unistd::Group::from_name(name)?;
    let missing = || {
        let message = format!("there is no group {name:?}, which `api_socket.group` names; make it, or name another");
        io::Error::new(io::ErrorKind::NotFound, message)
    };
    Ok(group.ok_or_else(missing)?.gid.as_raw())
}

/// Serves until `shutdown`, then lets requests in flight end for a moment.
pub(crate) async fn serve(listener: UnixListener, app: App, shutdown: CancellationToken) -> io::Result<()> {
    let service = router(Arc::new(app)).into_make_service_with_connect_info::<Peer>();
    let stop = shutdown.clone();
    let serving = axum::serve(listener, service).with_graceful_shutdown(stop.cancelled_owned());
    let too_late = async {
        shutdown.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        result = async { serving.await } => result,
        () = too_late => {
            tracing::warn!("requests were cut off at shutdown");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
