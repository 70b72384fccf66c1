//! What one process serves: sandboxes, payments, or both. Only this and the command line know both sides.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use sandpiper_dashboard::data_planes::DataPlanes;
use sandpiper_db::Database;
use sandpiper_http::error::{self, ApiError};
use sandpiper_http::layers;
use sandpiper_http::metrics::RequestMetrics;
use sandpiper_http::request::{Observer, Render, TimeLimit, route};
use sandpiper_protocol::error_chain::chain;
use sandpiper_trace::Traces;
use serde_json::json;

use crate::config::Config;
use crate::e2b;
use crate::mcp::Mcp;
use crate::metrics::TelemetryMetrics;
use crate::operator;
use crate::state::App;
use crate::traces;
use crate::v1::team_metrics::CONTENT_TYPE;

/// The state of the sides that this process serves, and what they share.
#[derive(Debug, Clone)]
pub struct Service {
    pub sandboxes: Option<App>,
    pub payments: Option<sandpiper_payments::state::App>,
    database: Database,
    requests: RequestMetrics,
    pub telemetry: TelemetryMetrics,
    registry: Arc<Registry>,
    traces: Traces,
    mcp: Option<Mcp>,
    dashboard: Option<DataPlanes>,
}

impl Service {
    /// Enters the metrics of the sides that there are.
    pub fn new(database: Database, sandboxes: Option<App>, payments: Option<sandpiper_payments::state::App>) -> Self {
        let (requests, mut registry) = (RequestMetrics::default(), Registry::with_prefix("sandpiper_api"));
        requests.register(&mut registry);
        let telemetry = TelemetryMetrics::default();
        telemetry.register(&mut registry);
        if let Some(app) = &sandboxes {
            app.metrics.register(&mut registry);
            app.webhooks.metrics.register(&mut registry, "team_webhook");
        }
        if let Some(app) = &payments {
            app.webhooks.metrics.register(&mut registry, "webhook");
        }
        Self {
            sandboxes,
            payments,
            database,
            requests,
            telemetry,
            registry: Arc::new(registry),
            traces: Traces::default(),
            mcp: None,
            dashboard: None,
        }
    }

    /// Shows these, to which a [`sandpiper_trace::layer`] writes.
    #[must_use]
    pub fn with_traces(self, traces: Traces) -> Self {
        Self { traces, ..self }
    }

    /// With `/mcp`, whose tools call what this serves without it.
    #[must_use]
    pub fn with_mcp(self, mcp: Mcp) -> Self {
        Self { mcp: Some(mcp), ..self }
    }

    /// With `/dashboard`, whose pages call the sandbox side.
    #[must_use]
    pub fn with_dashboard(self, data_planes: DataPlanes) -> Self {
        Self { dashboard: Some(data_planes), ..self }
    }

    /// What is served to operators and their monitoring, on a listener of its own: what all teams do, without a key.
    pub fn metrics_router(&self) -> Router {
        let agent = self.sandboxes.as_ref().map(|app| app.agent.clone());
        let traces = traces::Sources { own: self.traces.clone(), agent };
        Router::new()
            .route("/metrics", get(metrics))
            .with_state(self.clone())
            .route("/traces", get(traces::list).with_state(traces))
    }

    /// All metrics of this process, in the text format of Prometheus.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn exposition(&self) -> Result<String, ApiError> {
        if let Some(app) = &self.sandboxes {
            app.metrics.sandboxes(&app.store.sandboxes.counts().await?);
            app.webhooks.metrics.loads(&app.store.webhooks.sent.loads().await?);
        }
        if let Some(app) = &self.payments {
            app.webhooks.metrics.loads(&app.store.webhook_endpoints.loads().await?);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(text)
    }

    /// Everything else that is served.
    pub fn router(&self, config: &Config) -> Router {
        let mut routes = Router::new().route("/healthz", get(healthz)).with_state(self.clone());
        if let Some(app) = &self.sandboxes {
            let api = crate::router::router(app);
            if let Some(data_planes) = &self.dashboard {
                let within = self.around(api.clone(), config, &[]);
                routes = routes.merge(sandpiper_dashboard::router(within, data_planes.clone()));
            }
            routes = routes.merge(api);
        }
        if let Some(mcp) = &self.mcp {
            routes = routes.merge(mcp.router());
        }
        if let Some(app) = &self.payments {
            routes = routes.merge(sandpiper_payments::router::router(app));
        }
        self.around(routes, config, &config.cors_origins)
    }

    /// Puts around routes what is around all.
    fn around(&self, routes: Router, config: &Config, cors_origins: &[String]) -> Router {
        let envelope = match (&self.sandboxes, &self.payments) {
            (Some(_), Some(_)) => envelope_by_path,
            (Some(_), None) => envelope_of_sandboxes,
            (None, _) => envelope_of_payments,
        };
        let observer = Observer { metrics: self.requests.clone(), envelope };
        let limit = TimeLimit { of_all: config.timing.request, streams: is_stream };
        layers::around(routes, observer, limit, cors_origins)
    }
}

/// Whether the body of this request may have any length.
fn is_stream(request: &Request) -> bool {
    crate::router::is_stream(request) || sandpiper_dashboard::is_stream(request.method(), &route(request))
}

/// The envelope of errors under a path, where both sides are served.
fn envelope_by_path(path: &str) -> Render {
    let is_of_payments = sandpiper_payments::error::speaks(path) || sandpiper_payments::portal::speaks(path);
    if is_of_payments && !operator::speaks(path) { envelope_of_payments(path) } else { envelope_of_sandboxes(path) }
}

/// The envelope of errors under a path of the payments side.
fn envelope_of_payments(path: &str) -> Render {
    if sandpiper_payments::portal::speaks(path) {
        return sandpiper_payments::portal::render;
    }
    sandpiper_payments::error::render
}

/// The envelope of errors under a path of the sandbox side.
fn envelope_of_sandboxes(path: &str) -> Render {
    if sandpiper_dashboard::response::speaks(path) {
        return sandpiper_dashboard::response::render;
    }
    if e2b::error::speaks(path) { e2b::error::render } else { error::render }
}

/// `GET /metrics`
async fn metrics(State(service): State<Service>) -> Result<Response, ApiError> {
    let text = service.exposition().await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

/// `GET /healthz`: 200 while requests can be served. The agent's health is reported, where sandboxes are served, and does
/// not decide: without it, reads still work.
async fn healthz(State(service): State<Service>) -> Response {
    let (status, word) = match service.database.ping().await {
        Ok(()) => (StatusCode::OK, "ok"),
        Err(error) => {
            tracing::error!(error = chain(&error), "health check failed: the database does not respond");
            (StatusCode::SERVICE_UNAVAILABLE, "database_unavailable")
        }
    };
    let mut health = json!({"status": word});
    if let Some(app) = &service.sandboxes {
        health["agent"] = json!(if app.metrics.agent_is_up() { "up" } else { "down" });
    }
    (status, axum::Json(health)).into_response()
}
