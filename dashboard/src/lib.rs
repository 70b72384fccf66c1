//! The dashboard: pages under `/dashboard` on which people look at what their teams have, and change it.
//!
//! A page does nothing by itself. Whatever it shows and does, it asks of the API's own routes within the process, with the
//! login session of who looks ([`api`]): rights, limits, refusals and the audit are the API's, and there is no second logic.
//!
//! * The cookie of the session, forms, the style and what keeps pages safe are those of all pages for people (`sandpiper-web`).
//! * Without that script every page still shows and does the same; with it, what changes is shown as it changes.
//!
//! # Rooms
//!
//! [`pages`] one file per page · [`visit`] who looks at which team · [`terminal`] a shell in a sandbox, by way of its data
//! plane ([`data_planes`]) · [`files`] of forms · [`shares`] what each team may have open · [`view`] texts and charts in pages ·
//! [`response`] where they are

pub mod api;
pub mod data_planes;
pub mod files;
pub mod pages;
pub mod response;
pub mod shares;
pub mod terminal;
pub mod view;
pub mod visit;

use axum::extract::{DefaultBodyLimit, FromRef};
use axum::http::Method;
use axum::routing::get;
use axum::{Router, middleware};
use sandpiper_web::response::with_headers;
pub use sandpiper_web::{form, session};

use crate::api::Api;
use crate::data_planes::DataPlanes;
use crate::response::SITE;

/// Where a provider of OpenID Connect sends browsers back to.
pub const OIDC_CALLBACK: &str = "/dashboard/sign-in/oidc/callback";

/// Longest form, in bytes.
const MAX_FORM: usize = 128 * 1024;

/// What handlers work with.
#[derive(Debug, Clone, FromRef)]
pub struct Dashboard {
    api: Api,
    data_planes: DataPlanes,
}

/// Whether the body of this request, which matched `route`, may have any length.
pub fn is_stream(method: &Method, route: &str) -> bool {
    pages::is_upload(method, route)
}

/// `/dashboard` and all below it, in front of these routes of the API.
pub fn router(api: Router, data_planes: DataPlanes) -> Router {
    Router::new()
        .nest("/dashboard", pages::router())
        .route("/dashboard/", get(pages::home::to_home))
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .layer(middleware::from_fn_with_state(SITE, with_headers))
        .with_state(Dashboard { api: Api::new(api), data_planes })
}
