//! Figures for Prometheus. What exists at the moment of asking is counted then; what happens is counted when it happens.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use sandpiper_protocol::agent::SandboxState;

use crate::sandbox::{CreateError, DeleteCause, Record, StartError};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Outcome {
    Created,
    /// The request was at fault.
    Refused,
    /// No room.
    Capacity,
    /// The guest did not start.
    Guest,
    /// The host was at fault.
    Host,
    /// Deleted meanwhile, or the agent ended.
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CreateLabels {
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeleteLabels {
    cause: String,
}

/// The agent's own figures. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    sandboxes: Family<StateLabels, Gauge>,
    creates: Family<CreateLabels, Counter>,
    failures: Family<FailureLabels, Counter>,
    deletes: Family<DeleteLabels, Counter>,
    create_seconds: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            sandboxes: Family::default(),
            creates: Family::default(),
            failures: Family::default(),
            deletes: Family::default(),
            // 10 ms to 82 s.
            create_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 14)),
        }
    }

    /// Makes the figures known under their names.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("sandboxes", "Sandboxes by state", self.sandboxes.clone());
        registry.register("sandbox_creates", "Requests to create a sandbox, by outcome", self.creates.clone());
        registry.register("sandbox_failures", "Sandboxes that ended unasked, by reason", self.failures.clone());
        registry.register("sandbox_deletes", "Sandboxes deleted, by cause", self.deletes.clone());
        registry.register_with_unit(
            "sandbox_create",
            "From the request to a serving data plane",
            Unit::Seconds,
            self.create_seconds.clone(),
        );
    }

    /// A create has been answered.
    pub(crate) fn created<T>(&self, result: &Result<T, CreateError>, took: Duration) {
        let outcome = match result {
            Ok(_) => {
                self.create_seconds.observe(took.as_secs_f64());
                Outcome::Created
            }
            Err(CreateError::Invalid(_) | CreateError::Exists(_)) => Outcome::Refused,
            Err(CreateError::Capacity(_)) => Outcome::Capacity,
            Err(CreateError::Start(StartError::Guest(_))) => Outcome::Guest,
            Err(CreateError::Start(StartError::Host { .. } | StartError::Disk(_))) => Outcome::Host,
            Err(CreateError::Start(StartError::Deleted | StartError::ShuttingDown)) => Outcome::Cancelled,
        };
        self.creates.get_or_create(&CreateLabels { outcome }).inc();
    }

    /// A sandbox has failed.
    pub(crate) fn ended(&self, code: &str) {
        self.failures.get_or_create(&FailureLabels { code: code.to_owned() }).inc();
    }

    /// A sandbox is gone.
    pub(crate) fn deleted(&self, cause: DeleteCause) {
        self.deletes.get_or_create(&DeleteLabels { cause: cause.as_label().to_owned() }).inc();
    }

    /// Counts the sandboxes that are here.
    pub(crate) fn count<'a>(&self, records: impl Iterator<Item = &'a Record>) {
        let mut counts = [
            (SandboxState::Creating, "creating", 0),
            (SandboxState::Ready, "ready", 0),
            (SandboxState::Stopping, "stopping", 0),
            (SandboxState::Failed, "failed", 0),
        ];
        for record in records {
            for (state, _, count) in &mut counts {
                *count += i64::from(*state == record.state);
            }
        }
        for (_, state, count) in counts {
            self.sandboxes.get_or_create(&StateLabels { state: state.to_owned() }).set(count);
        }
    }
}
