//! What every request passes through: its id, its span in the log, its time-out.

use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sandpiper_protocol::id;
use tracing::Instrument;

use crate::error::ApiError;
use crate::metrics::RequestMetrics;

/// The header of [`RequestId`].
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest request id taken from a client.
const MAX_REQUEST_ID: usize = 128;

/// Identifies a request in its response, in the log and in the audit: the client's own, if it is sane, or a new one.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

/// Gives an error its body.
pub type Render = fn(Response, &str) -> Response;

/// What [`observe`] works with.
#[derive(Debug, Clone)]
pub struct Observer {
    pub metrics: RequestMetrics,
    /// The envelope of errors under a path.
    pub envelope: fn(&str) -> Render,
}

/// Outermost: gives the request an id and a span, counts it, and writes the body of errors.
///
/// Logged are method, route, status and duration; never a header, a query or a body, which may hold secrets.
pub async fn observe(State(observer): State<Observer>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let request_id = request_id(&request);
    let method = known_method(request.method());
    // The route, not the path: as many as there are handlers, whatever clients ask for.
    let route = route(&request);
    let render = (observer.envelope)(request.uri().path());
    let span = tracing::info_span!("request", request_id, method, route);
    request.extensions_mut().insert(RequestId(request_id.clone()));

    let response = next.run(request).instrument(span.clone()).await;

    let mut response = span.in_scope(|| render(response, &request_id));
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let elapsed = started.elapsed();
    observer.metrics.request(method, &route, response.status().as_u16(), elapsed);
    span.in_scope(|| {
        tracing::info!(status = response.status().as_u16(), ms = elapsed.as_secs_f64() * 1e3, "responded");
    });
    response
}

/// How long requests may take.
#[derive(Debug, Clone, Copy)]
pub struct TimeLimit {
    pub of_all: Duration,
    /// But for those whose body is a stream of any length: who reads it bounds its silence.
    pub streams: fn(&Request) -> bool,
}

/// Ends a request that takes too long. What it changes goes on where that runs on a task of its own.
pub async fn time_out(State(limit): State<TimeLimit>, request: Request, next: Next) -> Response {
    if (limit.streams)(&request) {
        return next.run(request).await;
    }
    let limit = limit.of_all;
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::timed_out().into_response(),
    }
}

/// The route that a request matched, as written in the document.
pub fn route(request: &Request) -> String {
    let matched = request.extensions().get::<MatchedPath>();
    matched.map_or_else(|| "(none)".to_owned(), |path| path.as_str().to_owned())
}

fn request_id(request: &Request) -> String {
    let sane = |text: &str| {
        (1..=MAX_REQUEST_ID).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(|text| sane(text));
    given.map_or_else(|| id::generate("req"), str::to_owned)
}

/// A method as a label; clients may invent methods, and each label costs memory for good.
fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "OTHER",
    }
}
