//! `/host`, `/metrics`, `/healthz`: the host itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::header::CONTENT_TYPE;
use http::{HeaderName, StatusCode};
use prometheus_client::encoding::text::encode;
use sandpiper_protocol::agent::HostInfo;

use super::App;
use super::error::ApiError;
use crate::host;
use crate::metrics::Holdings;

/// `GET /host`
pub(super) async fn info(State(app): State<Arc<App>>) -> Result<Json<HostInfo>, ApiError> {
    let memory =
        host::memory().map_err(|error| ApiError::internal(format!("Cannot read the host's memory: {error}")))?;
    Ok(Json(HostInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cpus: host::cpus(),
        memory_mb: memory.total_mb,
        memory_available_mb: memory.available_mb,
        sandboxes_live: app.sandboxes.context().capacity.sandboxes(),
        sandboxes_max: app.config.limits.max_sandboxes,
        vcpus_max: app.config.limits.max_vcpus,
        data_plane_host: app.config.ingress.data_plane_host.clone(),
    }))
}

/// `GET /metrics`
pub(super) async fn metrics(
    State(app): State<Arc<App>>,
) -> Result<([(HeaderName, &'static str); 1], String), ApiError> {
    let records = app.sandboxes.list();
    let context = app.sandboxes.context();
    let holdings = Holdings {
        parked_machines: context.parking.count(),
        idle_monitors: context.launcher.pool.waiting(),
        starts_waiting: context.turns.waiting(),
        checkpoints: context.checkpoints.list().len(),
        warm_snapshots: context.warm.count(),
        retained_bytes: context.usage.total(),
    };
    context.metrics.count(records.iter().map(|record| record.state), holdings);
    let mut text = String::new();
    encode(&mut text, &app.registry).map_err(|_| ApiError::internal("Cannot encode the metrics"))?;
    Ok(([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text))
}

/// `GET /healthz`
pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}
