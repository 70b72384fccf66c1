//! All routes of the sandbox side: `/v1`, its part of `/operator`, the document that describes it, and the paths of the E2B SDKs.

use axum::extract::Request;
use axum::http::Method;
use axum::{Router, middleware};
use sandpiper_accounts::operators::audited;
use sandpiper_http::error::ApiError;
use sandpiper_http::request::route;

use crate::mutation::{self, Face};
use crate::state::App;
use crate::v1::volumes::files::is_octet_stream;
use crate::{document, e2b, operator, v1};

/// The routes. What changes something passes [`mutation`] first: authentication, body, idempotency key; the rest runs to
/// its end even if the client hangs up, and is written to the audit.
pub fn router(app: &App) -> Router {
    let ([routes, entrance, operator], document) = document::of([v1::router(), v1::entrance(), operator::router()]);
    let audited = middleware::from_fn_with_state(app.operators.clone(), audited::run::<ApiError>);
    let guarded = |routes: Router<App>, face: Face| {
        routes.route_layer(middleware::from_fn_with_state((app.clone(), face), mutation::run))
    };
    guarded(routes, v1::replay::FACE)
        .merge(entrance)
        .merge(operator.route_layer(audited))
        .merge(document::router(&document))
        .merge(guarded(e2b::router(), e2b::replay::FACE))
        // Whose requests bear another credential, which is looked at before all else.
        .merge(
            guarded(e2b::volume_content::router(), e2b::replay::FACE)
                .route_layer(middleware::from_fn_with_state(app.clone(), e2b::volume_token::authenticate)),
        )
        .merge(
            guarded(e2b::build_files::router(), e2b::replay::FACE)
                .route_layer(middleware::from_fn_with_state(app.clone(), e2b::build_files::authenticate)),
        )
        .with_state(app.clone())
}

/// Whether the body of this request is a stream of any length.
pub fn is_stream(request: &Request) -> bool {
    let route = route(request);
    let may_be = route == v1::volumes::files::PATH && is_octet_stream(request.headers());
    let is_one =
        [v1::templates::uploads::PATH, e2b::volume_content::FILE, e2b::build_files::PATH].contains(&route.as_str());
    request.method() == Method::PUT && (may_be || is_one)
}
