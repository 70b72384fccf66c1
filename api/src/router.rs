//! All routes of the sandbox side: `/v1`, the document that describes it, and the paths of the E2B SDKs.

use axum::{Router, middleware};

use crate::mutation::{self, Face};
use crate::state::App;
use crate::{document, e2b, v1};

/// The routes. What changes something passes [`mutation`] first: authentication, body, idempotency key; the rest runs to
/// its end even if the client hangs up, and is written to the audit.
pub fn router(app: &App) -> Router {
    let (routes, document) = document::of(v1::router());
    let guarded = |routes: Router<App>, face: Face| {
        routes.route_layer(middleware::from_fn_with_state((app.clone(), face), mutation::run))
    };
    guarded(routes, v1::replay::FACE)
        .merge(document::router(&document))
        .merge(guarded(e2b::router(), e2b::replay::FACE))
        .with_state(app.clone())
}
