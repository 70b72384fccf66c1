//! All routes of this side: `/merchant`, `/operator`, `/portal`, and the document that describes them.

use axum::{Router, middleware};
use sandpiper_accounts::operators::audited;

use crate::error::RpcError;
use crate::state::App;
use crate::{document, merchant, operator, portal};

/// The routes. Under `/operator`, what changes something runs to its end even if the client hangs up, and is written to the
/// audit ([`audited`]).
pub fn router(app: &App) -> Router {
    let audited = middleware::from_fn_with_state(app.operators.clone(), audited::run::<RpcError>);
    let (routes, document) = document::of(merchant::router(), operator::router().route_layer(audited));
    routes.merge(portal::router()).merge(document::router(&document)).with_state(app.clone())
}
