//! `/traces`: where the time of requests went. Those that change something are traced, the newest of them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{MatchedPath, Query, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use sandpiper_protocol::trace::{TRACEPARENT, TraceList};
use sandpiper_trace as trace;
use serde::Deserialize;
use tracing::Instrument;

use super::App;

/// Which are asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    sandbox: Option<String>,
}

/// `GET /traces`
pub(super) async fn list(State(app): State<Arc<App>>, Query(wanted): Query<Wanted>) -> Json<TraceList> {
    Json(TraceList { traces: app.traces.list(wanted.sandbox.as_deref()) })
}

/// Traces a request that changes something, as part of the trace of whoever made it.
pub(super) async fn traced(request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let name = format!("{} {route}", request.method());
    let traceparent = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let span = trace::begin_within(traceparent, &name);
    next.run(request).instrument(span).await
}
