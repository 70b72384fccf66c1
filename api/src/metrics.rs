//! Figures for Prometheus, on a listener of their own, and the health check.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sandpiper_db::chain;
use sandpiper_http::error::ApiError;
use sandpiper_http::metrics::RequestMetrics;

use crate::app::App;
use crate::store::sandbox_row::State as SandboxState;
use crate::webhooks::metrics::WebhookMetrics;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CallLabels {
    operation: &'static str,
    result: &'static str,
}

/// What is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub requests: RequestMetrics,
    sandboxes: Family<StateLabels, Gauge>,
    agent_calls: Family<CallLabels, Counter>,
    agent_up: Gauge,
    sync_seconds: Gauge<f64, AtomicU64>,
    pub webhooks: WebhookMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let metrics = Self {
            registry: Registry::with_prefix("sandpiper_api"),
            requests: RequestMetrics::default(),
            sandboxes: Family::default(),
            agent_calls: Family::default(),
            agent_up: Gauge::default(),
            sync_seconds: Gauge::default(),
            webhooks: WebhookMetrics::default(),
        };
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let registry = &mut self.registry;
        self.requests.register(registry);
        registry.register("sandboxes", "Sandboxes by state", self.sandboxes.clone());
        registry.register("agent_calls", "Work on sandboxes asked of the agent", self.agent_calls.clone());
        registry.register("agent_up", "Whether the agent answered last time", self.agent_up.clone());
        registry.register("sync_seconds", "Duration of the last synchronisation", self.sync_seconds.clone());
        self.webhooks.register(registry);
        self
    }

    /// The agent was asked for something.
    pub fn agent_call(&self, operation: &'static str, success: bool) {
        let result = if success { "success" } else { "failure" };
        self.agent_calls.get_or_create(&CallLabels { operation, result }).inc();
    }

    /// A round of synchronisation ended.
    pub fn sync(&self, success: bool, elapsed: Duration) {
        self.agent_up.set(i64::from(success));
        self.sync_seconds.set(elapsed.as_secs_f64());
    }

    fn sandboxes(&self, counts: &[(SandboxState, u64)]) {
        for state in SandboxState::VISIBLE {
            let count = counts.iter().find(|(counted, _)| *counted == state).map_or(0, |(_, count)| *count);
            let labels = StateLabels { state: state.as_str() };
            self.sandboxes.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

/// `GET /metrics`
pub async fn metrics(State(app): State<App>) -> Result<Response, ApiError> {
    app.metrics.sandboxes(&app.store.sandboxes.counts().await?);
    app.metrics.webhooks.loads(&app.store.webhook_endpoints.loads().await?);
    let mut text = String::new();
    encode(&mut text, &app.metrics.registry).map_err(|error| ApiError::internal(error.to_string()))?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}

/// `GET /healthz`: 200 while requests can be served. The agent's health is reported and does not decide: without it,
/// reads are still answered.
pub async fn healthz(State(app): State<App>) -> Response {
    let agent = if app.metrics.agent_up.get() == 1 { "up" } else { "down" };
    match app.store.ping().await {
        Ok(()) => axum::Json(serde_json::json!({"status": "ok", "agent": agent})).into_response(),
        Err(error) => {
            tracing::error!(error = chain(&error), "health check");
            let body = serde_json::json!({"status": "database_unavailable", "agent": agent});
            (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response()
        }
    }
}
