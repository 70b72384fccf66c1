//! The control plane as the E2B SDKs speak it: a second face of the same sandboxes that [`crate::v1`] shows, with bodies and
//! errors of its own, on the same store and the same work with the agent.
//!
//! | routes | file |
//! |---|---|
//! | `POST /v2/sandboxes`, `POST /sandboxes` | [`create`] |
//! | `GET /v2/sandboxes`, `GET /sandboxes` | [`list`] |
//! | `GET /sandboxes/{id}` | [`show`] |
//! | `DELETE /sandboxes/{id}` | [`kill`] |
//! | `POST /v2/sandboxes/{id}/connect`, `POST /sandboxes/{id}/connect`, `POST /sandboxes/{id}/resume` | [`connect`] |
//! | `POST /sandboxes/{id}/timeout`, `POST /sandboxes/{id}/refreshes` | [`timeout`] |
//! | `POST /sandboxes/{id}/pause` | [`pause`] |
//! | `POST /sandboxes/{id}/snapshots`, `GET /snapshots`, `DELETE /templates/{id}` | [`snapshots`] |
//! | `POST /sandboxes/{id}/fork` | [`fork`] |
//! | `PUT /sandboxes/{id}/network` | [`network`] |
//! | `GET /sandboxes/{id}/metrics`, `GET /sandboxes/metrics` | [`metrics`] |
//! | `GET /v2/sandboxes/{id}/logs`, `GET /sandboxes/{id}/logs` | [`logs`] |
//! | `POST /volumes`, `GET /volumes`, `GET/DELETE /volumes/{id}` | [`volumes`] |
//! | `…/volumecontent/{id}/path`, `…/dir`, `…/file`, with a token of [`volume_token`] | [`volume_content`] |
//! | templates, secrets | [`not_yet`] |
//!
//! What the paths, fields and status codes are is E2B's to say; `docs/e2b.md` says how far this goes and what differs. Fields
//! that are not known are refused, as in `/v1`: a request to keep something from a sandbox must not be ignored.

use axum::Router;
use axum::routing::{MethodRouter, any, delete, get, post, put};
use sandpiper_http::error::ApiError;

use crate::auth::Caller;
use crate::errors;
use crate::orchestration;
use crate::state::App;
use crate::store::sandbox_row::{SandboxRow, State};
use crate::v1::sandboxes::owned;

pub mod body;
pub mod connect;
pub mod create;
pub mod error;
pub mod fork;
pub mod kill;
pub mod list;
pub mod logs;
pub mod metrics;
pub mod network;
pub mod not_yet;
pub mod pages;
pub mod pause;
pub mod reference;
pub mod replay;
pub mod show;
pub mod snapshots;
pub mod timeout;
pub mod volume_content;
pub mod volume_token;
pub mod volumes;

/// A path, its methods, and who serves them.
#[derive(Debug)]
pub struct Route {
    pub methods: &'static [&'static str],
    pub path: &'static str,
    serve: MethodRouter<App>,
}

fn route(methods: &'static [&'static str], path: &'static str, serve: MethodRouter<App>) -> Route {
    Route { methods, path, serve }
}

/// All paths that are served.
pub fn routes() -> Vec<Route> {
    let not_yet = || any(not_yet::refuse);
    vec![
        route(&["GET", "POST"], "/v2/sandboxes", get(list::list).post(create::create)),
        route(&["GET", "POST"], "/sandboxes", get(list::list_running).post(create::create)),
        route(&["GET", "DELETE"], "/sandboxes/{id}", get(show::show).delete(kill::kill)),
        route(&["POST"], "/v2/sandboxes/{id}/connect", post(connect::connect)),
        route(&["POST"], "/sandboxes/{id}/connect", post(connect::connect)),
        route(&["POST"], "/sandboxes/{id}/resume", post(connect::resume)),
        route(&["POST"], "/sandboxes/{id}/timeout", post(timeout::set)),
        route(&["POST"], "/sandboxes/{id}/refreshes", post(timeout::refresh)),
        route(&["POST"], "/sandboxes/{id}/pause", post(pause::pause)),
        route(&["POST"], "/sandboxes/{id}/snapshots", post(snapshots::create)),
        route(&["GET"], "/snapshots", get(snapshots::list)),
        route(&["DELETE"], "/templates/{id}", delete(snapshots::delete).fallback(not_yet::refuse)),
        route(&["POST"], "/sandboxes/{id}/fork", post(fork::fork)),
        route(&["PUT"], "/sandboxes/{id}/network", put(network::replace)),
        route(&["GET"], "/sandboxes/{id}/metrics", get(metrics::of_one)),
        route(&["GET"], "/sandboxes/metrics", get(metrics::of_many)),
        route(&["GET"], "/v2/sandboxes/{id}/logs", get(logs::logs)),
        route(&["GET"], "/sandboxes/{id}/logs", get(logs::old)),
        route(&["GET"], "/templates", not_yet()),
        route(&["POST"], "/templates/tags", not_yet()),
        route(&["GET"], "/templates/aliases/{alias}", not_yet()),
        route(&["GET"], "/templates/{id}/tags", not_yet()),
        route(&["GET"], "/templates/{id}/files/{hash}", not_yet()),
        route(&["GET"], "/templates/{id}/builds/{build}/status", not_yet()),
        route(&["GET"], "/templates/{id}/builds/{build}/logs", not_yet()),
        route(&["GET"], "/v2/templates", not_yet()),
        route(&["PATCH"], "/v2/templates/{id}", not_yet()),
        route(&["POST"], "/v2/templates/{id}/builds/{build}", not_yet()),
        route(&["POST"], "/v3/templates", not_yet()),
        route(&["GET", "POST"], "/volumes", get(volumes::list).post(volumes::create)),
        route(&["GET", "DELETE"], "/volumes/{id}", get(volumes::show).delete(volumes::delete)),
        route(&["POST"], "/secrets", not_yet()),
        route(&["GET"], "/secrets/{id}", not_yet()),
    ]
}

/// The routes, to be served.
pub fn router() -> Router<App> {
    routes().into_iter().fold(Router::new(), |router, Route { path, serve, .. }| router.route(path, serve))
}

/// The caller's sandbox of this id, as the agent has it now.
///
/// # Errors
///
/// 404, also on one that failed to start: for the SDKs it never was.
async fn current(app: &App, caller: &Caller, id: &str) -> Result<SandboxRow, ApiError> {
    let row = owned(app, caller, id).await?;
    let row = orchestration::sync::refresh(app, row).await?.filter(|row| row.state != State::Failed);
    row.ok_or_else(|| errors::no_sandbox(id))
}

/// Likewise, if it runs.
///
/// # Errors
///
/// 404 on a paused one, too.
async fn running(app: &App, caller: &Caller, id: &str) -> Result<SandboxRow, ApiError> {
    let row = current(app, caller, id).await?;
    match row.state {
        State::Stopped => Err(ApiError::not_found(format!("The sandbox {id} is paused; connect to it first"))),
        _ => Ok(row),
    }
}
