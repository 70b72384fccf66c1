//! One file per page: what it asks of the API, and what its forms have the API do.
//!
//! A page of a team is `/dashboard/{team}/{page}`; what belongs to no team has one part only, or stands under `/dashboard/-`.

use axum::Router;
use axum::extract::{OriginalUri, Path};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};

use crate::Dashboard;
use crate::api::Problem;
use crate::response::{Refusal, SITE};

mod account;
mod audit;
mod changes;
mod checkpoints;
mod files;
pub(crate) mod home;
mod join;
mod keys;
mod limits;
mod lineage;
mod members;
mod network;
mod new_sandbox;
mod oidc;
mod sandbox;
mod sandboxes;
mod sign_in;
mod templates;
mod terminal;
mod usage;
mod volumes;
mod webhooks;

/// Where files are sent to.
const UPLOADS: [&str; 2] = ["/{team}/sandboxes/{id}/files", "/{team}/volumes/{id}/files"];

/// All of them, below `/dashboard`.
pub(crate) fn router() -> Router<Dashboard> {
    Router::new()
        .route("/", get(home::to_home))
        .route("/sign-in", get(sign_in::show).post(sign_in::sign_in))
        .route("/sign-in/oidc", get(oidc::begin))
        .route("/sign-in/oidc/callback", get(oidc::complete))
        .route("/join/oidc", post(oidc::join))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/join", get(join::show).post(join::join))
        .route("/account", get(account::show))
        .route("/-/name", post(account::rename))
        .route("/-/password", post(account::change_password))
        .route("/-/sessions/end", post(account::end_session))
        .route("/-/identities/unlink", post(account::unlink))
        .route("/-/teams", post(account::found_team))
        .route("/-/assets/{version}/{name}", get(asset))
        .route("/{team}/sandboxes", get(sandboxes::list))
        .route("/{team}/new", get(new_sandbox::show).post(new_sandbox::create))
        .route("/{team}/sandboxes/{id}", get(sandbox::show))
        .route("/{team}/sandboxes/{id}/terminal", get(terminal::show))
        .route("/{team}/sandboxes/{id}/terminal/socket", get(terminal::open))
        .route(UPLOADS[0], get(files::show).post(files::upload))
        .route("/{team}/sandboxes/{id}/files/content", get(files::content))
        .route("/{team}/sandboxes/{id}/files/do", post(files::act))
        .route("/{team}/sandboxes/{id}/do", post(sandbox::act))
        .route("/{team}/sandboxes/{id}/network", get(network::show).post(network::replace))
        .route("/{team}/sandboxes/{id}/network/explain", post(network::explain))
        .route("/{team}/sandboxes/{id}/ports", post(sandbox::change_port))
        .route("/{team}/changes", get(changes::follow))
        .route("/{team}/checkpoints", get(checkpoints::list))
        .route("/{team}/checkpoints/{id}/do", post(checkpoints::act))
        .route("/{team}/templates", get(templates::list))
        .route("/{team}/templates/{slug}", get(templates::show))
        .route("/{team}/templates/{slug}/versions/{version}", get(templates::version))
        .route("/{team}/volumes", get(volumes::list).post(volumes::create))
        .route("/{team}/volumes/{id}", get(volumes::show))
        .route(UPLOADS[1], post(files::upload))
        .route("/{team}/volumes/{id}/files/content", get(files::content))
        .route("/{team}/volumes/{id}/files/do", post(files::act))
        .route("/{team}/volumes/{id}/delete", post(volumes::delete))
        .route("/{team}/keys", get(keys::list).post(keys::create))
        .route("/{team}/keys/{id}/revoke", post(keys::revoke))
        .route("/{team}/webhooks", get(webhooks::list).post(webhooks::create))
        .route("/{team}/webhooks/{id}", get(webhooks::show))
        .route("/{team}/webhooks/{id}/do", post(webhooks::act))
        .route("/{team}/members", get(members::list).post(members::invite))
        .route("/{team}/members/{user}/do", post(members::act))
        .route("/{team}/invitations/{id}/withdraw", post(members::withdraw))
        .route("/{team}/audit", get(audit::list))
        .route("/{team}/limits", get(limits::show))
        .route("/{team}/usage", get(usage::show))
        .fallback(no_page)
}

/// `GET /dashboard/-/assets/{version}/{name}`
async fn asset(Path((version, name)): Path<(String, String)>) -> Response {
    SITE.assets.show(&version, &name)
}

async fn no_page(OriginalUri(uri): OriginalUri) -> Refusal {
    Problem::new(StatusCode::NOT_FOUND, format!("There is no page {}", uri.path())).into()
}

/// A form that no page here has.
fn no_action(name: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, format!("There is no action {name:?}"))
}

/// Whether a request is as long as the files in it.
pub(crate) fn is_upload(method: &Method, route: &str) -> bool {
    method == Method::POST && UPLOADS.iter().any(|path| route.strip_prefix("/dashboard") == Some(*path))
}
