//! What lets pages of the configured origins call the API from a browser, and none else.
//!
//! Keys travel in a header that a page must set itself, never in cookies, so credentials of the browser's are not allowed.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::idempotency::{IDEMPOTENCY_KEY, REPLAYED};
use crate::request::REQUEST_ID;

/// How long a browser may remember the response to its preflight.
const REMEMBERED: Duration = Duration::from_secs(3600);
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The layer; `None` without origins.
pub fn layer(origins: &[String]) -> Option<CorsLayer> {
    // Origins were checked with the configuration: each can stand in a header.
    let origins: Vec<HeaderValue> = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            API_KEY,
            header::CONTENT_TYPE,
            header::IF_NONE_MATCH,
            IDEMPOTENCY_KEY,
            REQUEST_ID,
        ])
        .expose_headers([REQUEST_ID, REPLAYED, header::RETRY_AFTER, header::LOCATION, header::ETAG])
        .max_age(REMEMBERED);
    (!origins.is_empty()).then(|| layer.allow_origin(AllowOrigin::list(origins)))
}
