//! Pages of this face: the next one's token is in the header `X-Next-Token`.

use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");

/// A page, and the token of the next one.
pub fn response<T: Serialize>(page: &[T], next_token: Option<String>) -> Response {
    with_next(axum::Json(page), next_token)
}

/// A response with the token of the next page.
pub fn with_next(page: impl IntoResponse, next_token: Option<String>) -> Response {
    let mut response = page.into_response();
    // Tokens are base64.
    if let Some(token) = next_token.and_then(|token| HeaderValue::try_from(token).ok()) {
        response.headers_mut().insert(NEXT_TOKEN, token);
    }
    response
}
