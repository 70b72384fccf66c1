//! Metrics of webhooks, for Prometheus.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::outcome::FailureClass;
use crate::store::Endpoint;
use crate::store::claims::{Decision, Finished};
use crate::store::line::Load;

/// Seconds, from a receiver next door to the limit of an attempt.
const DURATIONS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 31.0];
/// Seconds, from at once to a day's backlog.
const LAGS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0, 60.0, 600.0, 3600.0, 86400.0];
const NUMBERS: [f64; 9] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 75.0, 100.0];

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AttemptLabels {
    /// What became of the delivery.
    outcome: &'static str,
    /// `2xx`, `503`, `timeout`, …
    class: String,
    trigger: String,
    attempt: &'static str,
}

/// Which endpoint: two labels, named by [`Endpoint::LABELS`].
type EndpointLabels = Vec<(&'static str, String)>;

/// What is counted.
#[derive(Debug)]
pub struct WebhookMetrics {
    attempts: Family<AttemptLabels, Counter>,
    numbers: Histogram,
    durations: Histogram,
    lags: Histogram,
    exhausted: Counter,
    blocked: Counter,
    unsigned: Counter,
    reclaimed: Counter,
    backlog: Family<EndpointLabels, Gauge>,
    in_flight: Family<EndpointLabels, Gauge>,
}

impl Default for WebhookMetrics {
    fn default() -> Self {
        Self {
            attempts: Family::default(),
            numbers: Histogram::new(NUMBERS),
            durations: Histogram::new(DURATIONS),
            lags: Histogram::new(LAGS),
            exhausted: Counter::default(),
            blocked: Counter::default(),
            unsigned: Counter::default(),
            reclaimed: Counter::default(),
            backlog: Family::default(),
            in_flight: Family::default(),
        }
    }
}

impl WebhookMetrics {
    /// Makes them part of what is shown, under names that begin with `prefix`.
    pub fn register(&self, registry: &mut Registry, prefix: &str) {
        let registry = registry.sub_registry_with_prefix(prefix);
        registry.register("attempts", "Attempts that are over", self.attempts.clone());
        registry.register("attempt_number", "Which attempt of its delivery each was", self.numbers.clone());
        registry.register(
            "attempt_duration_seconds",
            "Time of an attempt, names and TLS included",
            self.durations.clone(),
        );
        registry.register("lag_seconds", "From the time an attempt was due to its start", self.lags.clone());
        registry.register("exhausted", "Deliveries that ended without being acknowledged", self.exhausted.clone());
        registry.register("blocked", "Attempts that a non-public address prevented", self.blocked.clone());
        registry.register(
            "unsigned",
            "Attempts that were held because they could not be signed",
            self.unsigned.clone(),
        );
        registry.register("reclaimed", "Attempts whose process died in them", self.reclaimed.clone());
        registry.register("backlog", "Deliveries that wait for an attempt, by endpoint", self.backlog.clone());
        registry.register("in_flight", "Deliveries with an attempt under way, by endpoint", self.in_flight.clone());
    }

    /// An attempt begins, so long after it was due.
    pub(super) fn started(&self, lag: Duration) {
        self.lags.observe(lag.as_secs_f64());
    }

    /// An attempt is over, or was held.
    pub(super) fn finished<E>(&self, finished: &Finished<E>) {
        let claimed = &finished.claimed;
        let class = match finished.result {
            Ok(200..=299) => "2xx".to_owned(),
            Ok(status) => status.to_string(),
            Err(class) => class.to_string(),
        };
        let labels = AttemptLabels {
            outcome: outcome(&finished.decision),
            class,
            trigger: claimed.trigger.clone(),
            attempt: if claimed.attempt == 1 { "first" } else { "retry" },
        };
        self.attempts.get_or_create(&labels).inc();
        if let Decision::Hold(_) = finished.decision {
            self.unsigned.inc();
            return;
        }
        self.numbers.observe(f64::from(claimed.attempt));
        self.durations.observe(finished.duration.as_secs_f64());
        if finished.result == Err(FailureClass::BlockedAddress) {
            self.blocked.inc();
        }
        if outcome(&finished.decision) == "exhausted" {
            self.exhausted.inc();
        }
    }

    /// Deliveries ended because their seven days were over.
    pub(super) fn expired(&self, count: usize) {
        self.exhausted.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// Claims of dead processes were taken back.
    pub(super) fn reclaimed(&self, count: usize) {
        self.reclaimed.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// What waits at the endpoints now; others have nothing that waits, and no sample.
    pub fn loads<E: Endpoint>(&self, loads: &[Load<E>]) {
        self.backlog.clear();
        self.in_flight.clear();
        for load in loads {
            let labels: EndpointLabels = E::LABELS.into_iter().zip(load.endpoint.key().map(str::to_owned)).collect();
            self.backlog.get_or_create(&labels).set(i64::try_from(load.pending).unwrap_or(i64::MAX));
            self.in_flight.get_or_create(&labels).set(i64::try_from(load.in_flight).unwrap_or(i64::MAX));
        }
    }
}

/// What became of the delivery, in a word.
pub(super) fn outcome(decision: &Decision) -> &'static str {
    match decision {
        Decision::End(state) => state.as_str(),
        Decision::Retry(_) => "retry",
        Decision::Hold(_) => "held",
    }
}
