//! What is around all routes, from outside in:
//!
//! 0. where origins are configured, [`cors`];
//! 1. [`request::observe`]: request id, span, metrics, error envelope;
//! 2. catch-panic and time-out, each an error in the envelope.

use axum::response::{IntoResponse, Response};
use axum::{Router, middleware};
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;

use crate::error::ApiError;
use crate::request::{Observer, TimeLimit};
use crate::{cors, request};

/// Puts the layers around the routes.
pub fn around(router: Router, observer: Observer, time_limit: TimeLimit, cors_origins: &[String]) -> Router {
    router
        .layer(middleware::from_fn_with_state(time_limit, request::time_out))
        .layer(CatchPanicLayer::custom(response_to_panic))
        .layer(middleware::from_fn_with_state(observer, request::observe))
        .layer(option_layer(cors::layer(cors_origins)))
}

/// A panic is a bug here; its message may hold anything, so it goes to the log only.
fn response_to_panic(panic: Box<dyn std::any::Any + Send>) -> Response {
    let what = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    ApiError::internal(format!("panic: {what}")).into_response()
}
