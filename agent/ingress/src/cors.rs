//! What lets a page of any origin call the data plane.
//!
//! Tokens travel in fields that a page must set itself, never in cookies, so a page can do with them only what whoever
//! gave it the token can do. Previews are the guests' own applications, which decide for themselves.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use http::request::Parts;
use http::{Method, Response, StatusCode};

use super::body::Body;

/// Whether a browser asks if a page may call. It sends no token with that question.
pub(super) fn is_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(ORIGIN)
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// It may.
pub(super) fn preflight(request: &Parts) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    headers.insert(
        VARY,
        HeaderValue::from_static("origin, access-control-request-method, access-control-request-headers"),
    );
    // `*` would leave out Authorization, so the question is given back as the response.
    let echo = [
        (ACCESS_CONTROL_REQUEST_METHOD, ACCESS_CONTROL_ALLOW_METHODS),
        (ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_ALLOW_HEADERS),
    ];
    for (question, answer) in echo {
        if let Some(value) = request.headers.get(question) {
            headers.insert(answer, value.clone());
        }
    }
    response
}

/// Lets the page read a response.
pub(super) fn open(headers: &mut HeaderMap) {
    headers.entry(ACCESS_CONTROL_ALLOW_ORIGIN).or_insert(HeaderValue::from_static("*"));
    headers.entry(ACCESS_CONTROL_EXPOSE_HEADERS).or_insert(HeaderValue::from_static("*"));
}
