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
//! | `POST /v3/templates`, `POST /v2/templates`, `GET /v2/templates`, `GET /templates`, `GET /templates/{id}`, `PATCH /v2/templates/{id}`, `PATCH /templates/{id}`, `GET /templates/aliases/{alias}` | [`templates`] |
//! | `POST /templates/tags`, `DELETE /templates/tags`, `GET /templates/{id}/tags` | [`tags`] |
//! | `GET /templates/{id}/files/{hash}`, and `PUT` with the link that it gives | [`build_files`] |
//! | `POST /v2/templates/{id}/builds/{build}`, `GET /templates/{id}/builds/{build}/status`, `…/logs` | [`builds`] |
//! | secrets, `POST /templates` | [`not_yet`] |
//!
//! What the paths, fields and status codes are is E2B's to say; `docs/e2b.md` says how far this goes and what differs. Fields
//! that are not known are refused, as in `/v1`: a request to keep something from a sandbox must not be ignored.

use axum::Router;
use axum::routing::{MethodRouter, any, get, patch, post, put};
use sandpiper_http::error::ApiError;

use crate::auth::Caller;
use crate::errors;
use crate::orchestration;
use crate::state::App;
use crate::store::sandbox_row::{SandboxRow, State};
use crate::v1::sandboxes::owned;

pub mod body;
pub mod build_files;
pub mod build_id;
pub mod builds;
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
pub mod tags;
pub mod templates;
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
        route(
            &["GET", "PATCH", "DELETE"],
            "/templates/{id}",
            get(templates::show).patch(templates::update).delete(snapshots::delete),
        ),
        route(&["POST"], "/sandboxes/{id}/fork", post(fork::fork)),
        route(&["PUT"], "/sandboxes/{id}/network", put(network::replace)),
        route(&["GET"], "/sandboxes/{id}/metrics", get(metrics::of_one)),
        route(&["GET"], "/sandboxes/metrics", get(metrics::of_many)),
        route(&["GET"], "/v2/sandboxes/{id}/logs", get(logs::logs)),
        route(&["GET"], "/sandboxes/{id}/logs", get(logs::old)),
        route(&["GET", "POST"], "/templates", get(templates::list_all).post(not_yet::pushed_image)),
        route(&["POST", "DELETE"], "/templates/tags", post(tags::assign).delete(tags::remove)),
        route(&["GET"], "/templates/aliases/{alias}", get(templates::alias)),
        route(&["GET"], "/templates/{id}/tags", get(tags::list)),
        route(&["GET"], build_files::PATH, get(build_files::link)),
        route(&["GET"], "/templates/{id}/builds/{build}/status", get(builds::show)),
        route(&["GET"], "/templates/{id}/builds/{build}/logs", get(builds::log)),
        route(&["GET", "POST"], "/v2/templates", get(templates::list).post(templates::announce)),
        route(&["PATCH"], "/v2/templates/{id}", patch(templates::update)),
        route(&["POST"], "/v2/templates/{id}/builds/{build}", post(builds::start)),
        route(&["POST"], "/v3/templates", post(templates::announce)),
        route(&["GET", "POST"], "/volumes", get(volumes::list).post(volumes::create)),
        route(&["GET", "DELETE"], "/volumes/{id}", get(volumes::show).delete(volumes::delete)),
        route(&["POST"], "/secrets", any(not_yet::secrets)),
        route(&["GET"], "/secrets/{id}", any(not_yet::secrets)),
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
