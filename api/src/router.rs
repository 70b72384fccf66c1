//! All routes of the sandbox side: `/v1`, and the document that describes it.

use axum::{Router, middleware};

use crate::state::App;
use crate::{document, v1};

/// The routes. What changes something passes [`v1::mutation`] first: authentication, body, idempotency key; the rest runs to
/// its end even if the client hangs up, and is written to the audit.
pub fn router(app: &App) -> Router {
    let (routes, document) = document::of(v1::router());
    routes
        .route_layer(middleware::from_fn_with_state(app.clone(), v1::mutation::run))
        .merge(document::router(&document))
        .with_state(app.clone())
}
