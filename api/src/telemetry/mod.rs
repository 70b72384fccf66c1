//! Traces and metrics for a collector, as OpenTelemetry has them: OTLP over HTTP, in protobuf
//! (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>). Off unless `[telemetry]` names one.
//!
//! ```text
//!   traces that end ──▶ a bounded queue ──┐
//!   the agent's parts of them ────────────┼── every `interval_seconds`, one task ──▶ POST …/v1/traces
//!   this process's metrics ───────────────┘                                    └──▶ POST …/v1/metrics
//! ```
//!
//! No request waits for any of it: what does not fit into the queue, or is not taken by the collector in time, is dropped and
//! counted (`sandpiper_api_telemetry_dropped_traces_total`). Spans have the names of steps and the id of the sandbox, and nothing that a
//! tenant has written.

mod metrics;
mod spans;

use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use sandpiper_client::Client;
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::trace::Trace;
use sandpiper_trace::{Traces, now_us};
use serde::Deserialize;
use tokio::sync::watch;
use url::Url;

use crate::agent_client::AgentClient;
use crate::service::Service;
use crate::traces::join;

/// Traces that wait for being sent, at most.
pub const WAITING: usize = 512;
/// For one request to the collector.
const TIMEOUT: Duration = Duration::from_secs(5);

/// `[telemetry]`: where traces and metrics are sent.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The collector, such as `http://127.0.0.1:4318`; `/v1/traces` and `/v1/metrics` are below it. Without it, nothing is sent.
    pub endpoint: Option<String>,
    /// From one time to the next.
    pub interval_seconds: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { endpoint: None, interval_seconds: 10 }
    }
}

impl Settings {
    /// Why they cannot be used: the key, and what is wrong with it.
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        if let Some(endpoint) = &self.endpoint {
            let Ok(url) = Url::parse(endpoint) else {
                return Some(("telemetry.endpoint", "must be an http:// or https:// URL"));
            };
            if !matches!(url.scheme(), "http" | "https") {
                return Some(("telemetry.endpoint", "must be an http:// or https:// URL"));
            }
            if !url.username().is_empty() || url.password().is_some() {
                let problem =
                    "must have no user and no password: run a collector on this host that has those of others";
                return Some(("telemetry.endpoint", problem));
            }
        }
        let is_sane = (1..=3600).contains(&self.interval_seconds);
        (!is_sane).then_some(("telemetry.interval_seconds", "must be between 1 and 3600"))
    }
}

/// Sends what there is, again and again.
pub struct Exporter {
    endpoint: Url,
    interval: Duration,
    http: reqwest::Client,
    traces: Traces,
    ended: Receiver<Trace>,
    service: Service,
    began: Timestamp,
    /// The last request came to nothing, and the log says so.
    is_failing: bool,
}

impl Exporter {
    /// Of the traces that end from now on, and of what `service` counts. `None` where no collector is set.
    ///
    /// # Errors
    ///
    /// The settings cannot be used, the traces are followed already, or the HTTP client cannot be made.
    pub fn new(settings: &Settings, traces: &Traces, service: Service) -> anyhow::Result<Option<Self>> {
        let Some(endpoint) = &settings.endpoint else { return Ok(None) };
        let endpoint = Url::parse(endpoint).context("Setting telemetry.endpoint")?;
        let ended = traces.follow(WAITING).context("Traces are followed already")?;
        let http = Client::http_builder().timeout(TIMEOUT).build().context("Cannot make a client of the collector")?;
        let interval = Duration::from_secs(settings.interval_seconds);
        let (traces, began) = (traces.clone(), Timestamp::now());
        Ok(Some(Self { endpoint, interval, http, traces, ended, service, began, is_failing: false }))
    }

    /// Sends until `stop` changes, then once more.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tracing::info!(endpoint = %self.endpoint, "traces and metrics go to a collector");
        loop {
            let is_last = tokio::select! {
                () = tokio::time::sleep(self.interval) => false,
                _ = stop.changed() => true,
            };
            self.send_all().await;
            if is_last {
                return;
            }
        }
    }

    /// Sends what there is now.
    pub async fn send_all(&mut self) {
        let mut traces: Vec<_> = self.ended.try_iter().take(WAITING).collect();
        let counts = self.service.telemetry.clone();
        counts.dropped_traces.inc_by(self.traces.take_dropped());
        if !traces.is_empty() {
            if let Some(app) = &self.service.sandboxes {
                add_parts_of(&app.agent, &mut traces).await;
            }
            let number = traces.len() as u64;
            let request = spans::request(resource(), &traces, unix_epoch_us());
            let taken = self.post("v1/traces", request.encode_to_vec()).await;
            if taken { &counts.sent_traces } else { &counts.dropped_traces }.inc_by(number);
        }
        match self.service.exposition().await {
            Ok(text) => {
                let request = metrics::request(resource(), &text, self.began, Timestamp::now());
                self.post("v1/metrics", request.encode_to_vec()).await;
            }
            Err(error) => tracing::warn!(error = error.message(), "metrics not sent for now"),
        }
    }

    /// Whether the collector took it.
    async fn post(&mut self, path: &str, body: Vec<u8>) -> bool {
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path.split('/'));
        }
        let request = self.http.post(url).header("content-type", "application/x-protobuf").body(body);
        let result = match request.send().await {
            Ok(response) => response.error_for_status().map(drop),
            Err(error) => Err(error),
        };
        let Err(error) = result else {
            if std::mem::take(&mut self.is_failing) {
                tracing::info!(endpoint = %self.endpoint, "the collector takes traces and metrics again");
            }
            return true;
        };
        self.service.telemetry.failed_requests.inc();
        // Once, not every few seconds.
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(
                error = chain(&error),
                "the collector takes no traces and metrics; they are dropped for now"
            );
        }
        false
    }
}

/// Adds what the agent did for these traces; nothing where it does not respond.
async fn add_parts_of(agent: &AgentClient, traces: &mut Vec<Trace>) {
    match agent.traces(None).await {
        Ok(parts) => {
            let (own, parts) = (traces.len(), parts.into_iter());
            let parts = parts.filter(|part| traces.iter().any(|trace| trace.id == part.id)).collect();
            join(traces, parts);
            traces.truncate(own);
        }
        Err(error) => tracing::debug!(error = chain(&error), "traces are sent without the agent's part"),
    }
}

/// Who sends.
fn resource() -> Resource {
    let attributes = vec![text("service.name", "sandpiper-api"), text("service.version", env!("CARGO_PKG_VERSION"))];
    Resource { attributes, ..Resource::default() }
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

/// When the clock of traces was 0, in microseconds since 1970.
fn unix_epoch_us() -> u64 {
    let now = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default();
    now.saturating_sub(now_us())
}
