//! `/v1`: one file per resource, each with its routes' parameters, bodies and handlers.
//!
//! | route | file |
//! |---|---|
//! | `POST /v1/sandboxes` | [`sandboxes::create`] |
//! | `GET /v1/sandboxes` | [`sandboxes::list`] |
//! | `GET /v1/sandboxes/{id}` | [`sandboxes::show`] |
//! | `PATCH /v1/sandboxes/{id}` | [`sandboxes::update`] |
//! | `DELETE /v1/sandboxes/{id}` | [`sandboxes::delete`] |
//! | `POST /v1/sandboxes/{id}/connect`, `…/resume` | [`sandboxes::connect`] |
//! | `POST /v1/sandboxes/{id}/session` | [`sandboxes::session`] |
//! | `GET /v1/sandboxes/{id}/files`, `…/directories`, `…/path` | [`sandboxes::files`] |
//! | `POST /v1/sandboxes/{id}/pause`, `…/stop` | [`sandboxes::pause`] |
//! | `POST /v1/sandboxes/{id}/fork` | [`sandboxes::fork`] |
//! | `GET/POST /v1/sandboxes/{id}/checkpoints`, `GET /v1/checkpoints`, `GET/DELETE /v1/checkpoints/{id}` | [`checkpoints`] |
//! | `GET/PUT/DELETE /v1/sandboxes/{id}/ports/{port}` | [`ports`] |
//! | `GET/POST /v1/volumes`, `GET/DELETE /v1/volumes/{id}`, and `…/files`, `…/directories`, `…/path` below | [`volumes`] |
//! | `PUT /v1/sandboxes/{id}/network`, `GET /v1/sandboxes/{id}/network/denied`, `GET /v1/network/explain` | [`network`] |
//! | `GET /v1/egress_profiles` | [`egress_profiles`] |
//! | `GET /v1/sandboxes/{id}/logs` | [`logs`] |
//! | `GET /v1/sandboxes/{id}/metrics`, `GET /v1/sandboxes/metrics` | [`metrics`] |
//! | `GET /v1/metrics` | [`team_metrics`] |
//! | `GET /v1/sandbox_limits` | [`limits`] |
//! | `GET /v1/usage` | [`usage`] |
//! | `GET/POST /v1/templates`, `GET/PATCH/DELETE /v1/templates/{slug}`, and `…/versions`, `…/uploads` below | [`templates`] |
//! | `POST /v1/login`, `POST /v1/logout` | [`login`] |
//! | `GET/POST /v1/login/oidc`, `POST /v1/login/oidc/begin` | [`oidc`] |
//! | `GET/PATCH /v1/me`, `GET /v1/me/sessions`, `DELETE /v1/me/sessions/{id}`, `DELETE /v1/me/identities/{id}` | [`me`] |
//! | `GET/POST /v1/teams`, `GET /v1/teams/{team}`, and `…/members`, `…/invitations` below, `POST /v1/invitations/accept` | [`teams`] |
//! | `GET/POST /v1/api_keys`, `DELETE /v1/api_keys/{id}` | [`api_keys`] |
//! | `GET /v1/audit` | [`audit`] |
//! | `GET /v1/events` | [`events`] |
//! | `GET/POST /v1/webhooks`, `GET/PATCH/DELETE /v1/webhooks/{id}`, and `…/secret`, `…/test`, `…/deliveries` below | [`webhooks`] |
//!
//! Every handler's first parameter says what the caller must be able to do; what belongs to another team does not exist for it.

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::state::App;

pub mod api_keys;
pub mod audit;
pub mod checkpoints;
pub mod egress_profiles;
pub mod events;
pub mod limits;
pub mod login;
pub mod logs;
pub mod me;
pub mod metrics;
pub mod network;
pub mod oidc;
pub mod page;
pub mod ports;
pub mod replay;
pub mod sandboxes;
pub mod sse;
pub mod team_metrics;
pub mod teams;
pub mod templates;
pub mod usage;
pub mod volumes;
pub mod webhooks;

/// What needs neither a key nor a session: the ways to one.
pub fn entrance() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(login::log_in))
        .routes(routes!(oidc::show, oidc::complete))
        .routes(routes!(oidc::begin))
        .routes(routes!(teams::invitations::accept))
}

/// All other routes.
pub fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sandboxes::create::create, sandboxes::list::list))
        .routes(routes!(sandboxes::show::show, sandboxes::update::update, sandboxes::delete::delete))
        .routes(routes!(sandboxes::connect::connect))
        .routes(routes!(sandboxes::connect::resume))
        .routes(routes!(sandboxes::session::create))
        .routes(routes!(sandboxes::pause::pause))
        .routes(routes!(sandboxes::pause::stop))
        .routes(routes!(sandboxes::fork::fork))
        .routes(routes!(checkpoints::create, checkpoints::list_of_sandbox))
        .routes(routes!(checkpoints::list))
        .routes(routes!(checkpoints::show, checkpoints::delete))
        .routes(routes!(volumes::create::create, volumes::list::list))
        .routes(routes!(volumes::show::show, volumes::delete::delete))
        .routes(routes!(volumes::files::read, volumes::files::write, volumes::files::delete))
        .routes(routes!(volumes::directories::list, volumes::directories::make))
        .routes(routes!(volumes::path::show, volumes::path::change, volumes::path::delete))
        .routes(routes!(ports::show, ports::expose, ports::unexpose))
        .routes(routes!(network::replace))
        .routes(routes!(network::denied))
        .routes(routes!(network::explain))
        .routes(routes!(sandboxes::files::read))
        .routes(routes!(sandboxes::files::list))
        .routes(routes!(sandboxes::files::show))
        .routes(routes!(egress_profiles::list))
        .routes(routes!(logs::logs))
        .routes(routes!(metrics::metrics))
        .routes(routes!(metrics::latest))
        .routes(routes!(team_metrics::scrape))
        .routes(routes!(limits::limits))
        .routes(routes!(usage::show))
        .routes(routes!(templates::list::list, templates::create::create))
        .routes(routes!(templates::uploads::list, templates::uploads::put))
        .routes(routes!(templates::uploads::delete))
        .routes(routes!(templates::change::show, templates::change::update, templates::change::delete))
        .routes(routes!(templates::versions::list, templates::versions::create))
        .routes(routes!(templates::versions::show, templates::versions::delete))
        .routes(routes!(templates::versions::cancel))
        .routes(routes!(templates::logs::logs))
        .routes(routes!(login::log_out))
        .routes(routes!(me::show, me::update))
        .routes(routes!(me::sessions))
        .routes(routes!(me::end_session))
        .routes(routes!(me::unlink))
        .routes(routes!(teams::list, teams::create))
        .routes(routes!(teams::show))
        .routes(routes!(teams::members::list))
        .routes(routes!(teams::members::update, teams::members::delete))
        .routes(routes!(teams::invitations::list, teams::invitations::create))
        .routes(routes!(teams::invitations::delete))
        .routes(routes!(api_keys::list, api_keys::create))
        .routes(routes!(api_keys::revoke))
        .routes(routes!(audit::list))
        .routes(routes!(events::read))
        .routes(routes!(webhooks::list, webhooks::create::create))
        .routes(routes!(webhooks::show, webhooks::change::update, webhooks::delete))
        .routes(routes!(webhooks::change::rotate_secret))
        .routes(routes!(webhooks::deliveries::test))
        .routes(routes!(webhooks::deliveries::list))
        .routes(routes!(webhooks::deliveries::show))
        .routes(routes!(webhooks::deliveries::redeliver))
}
