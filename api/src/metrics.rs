//! Metrics of sandboxes, of the agent, and of what is sent to a collector.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::store::sandbox_row::State as SandboxState;

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
#[derive(Debug, Default)]
pub struct Metrics {
    sandboxes: Family<StateLabels, Gauge>,
    agent_calls: Family<CallLabels, Counter>,
    agent_up: Gauge,
    sync_seconds: Gauge<f64, AtomicU64>,
}

impl Metrics {
    /// Enters them in a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("sandboxes", "Sandboxes by state", self.sandboxes.clone());
        registry.register("agent_calls", "Work on sandboxes asked of the agent", self.agent_calls.clone());
        registry.register("agent_up", "Whether the agent responded last time", self.agent_up.clone());
        registry.register("sync_seconds", "Duration of the last synchronisation", self.sync_seconds.clone());
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

    /// Whether the agent responded last time.
    pub fn agent_is_up(&self) -> bool {
        self.agent_up.get() == 1
    }

    /// How many sandboxes there are in each state.
    pub fn sandboxes(&self, counts: &[(SandboxState, u64)]) {
        for state in SandboxState::VISIBLE {
            let count = counts.iter().find(|(counted, _)| *counted == state).map_or(0, |(_, count)| *count);
            let labels = StateLabels { state: state.as_str() };
            self.sandboxes.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

/// What the collector got of this process, where there is one ([`crate::telemetry`]).
#[derive(Debug, Clone, Default)]
pub struct TelemetryMetrics {
    pub sent_traces: Counter,
    pub dropped_traces: Counter,
    pub failed_requests: Counter,
}

impl TelemetryMetrics {
    /// Enters them in a registry.
    pub fn register(&self, registry: &mut Registry) {
        let Self { sent_traces, dropped_traces, failed_requests } = self.clone();
        registry.register("telemetry_sent_traces", "Traces that the collector took", sent_traces);
        registry.register("telemetry_dropped_traces", "Traces that the collector did not get", dropped_traces);
        registry.register("telemetry_failed_requests", "Requests that the collector did not take", failed_requests);
    }
}
