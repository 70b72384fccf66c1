//! Metrics for Prometheus. What exists at the moment of asking is counted then; what happens is counted when it happens.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use sandpiper_machine::DiskMetrics;
use sandpiper_protocol::agent::{SandboxState, StartKind};

/// What became of a request to create a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StartLabels {
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Kind {
    Cold,
    Bare,
    Warm,
    Parked,
    Restored,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: Operation,
    outcome: OperationOutcome,
}

/// What is done with a sandbox that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Operation {
    Pause,
    Resume,
    Checkpoint,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum OperationOutcome {
    Done,
    Failed,
}

/// How much there is of what is no sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holdings {
    pub(crate) idle_monitors: usize,
    pub(crate) starts_waiting: usize,
    pub(crate) parked_machines: usize,
    pub(crate) checkpoints: usize,
    pub(crate) warm_snapshots: usize,
    pub(crate) retained_bytes: u64,
}

/// The agent's own metrics. Cheap to clone; all clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    sandboxes: Family<StateLabels, Gauge>,
    creates: Family<CreateLabels, Counter>,
    failures: Family<FailureLabels, Counter>,
    deletes: Family<DeleteLabels, Counter>,
    create_seconds: Histogram,
    start_seconds: Family<StartLabels, Histogram>,
    operation_seconds: Family<OperationLabels, Histogram>,
    idle_monitors: Gauge,
    starts_waiting: Gauge,
    parked_machines: Gauge,
    checkpoints: Gauge,
    warm_snapshots: Gauge,
    retained_bytes: Gauge,
    damaged_files: Gauge,
    disk: DiskMetrics,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            sandboxes: Family::default(),
            creates: Family::default(),
            failures: Family::default(),
            deletes: Family::default(),
            create_seconds: histogram(),
            start_seconds: Family::new_with_constructor(histogram),
            operation_seconds: Family::new_with_constructor(histogram),
            idle_monitors: Gauge::default(),
            starts_waiting: Gauge::default(),
            parked_machines: Gauge::default(),
            checkpoints: Gauge::default(),
            warm_snapshots: Gauge::default(),
            retained_bytes: Gauge::default(),
            damaged_files: Gauge::default(),
            disk: DiskMetrics::default(),
        }
    }

    /// Registers the metrics under their names.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("sandboxes", "Sandboxes by state", self.sandboxes.clone());
        registry.register("sandbox_creates", "Requests to create a sandbox, by outcome", self.creates.clone());
        registry.register(
            "sandbox_failures",
            "Machines of sandboxes that ended unasked, by reason",
            self.failures.clone(),
        );
        registry.register("sandbox_deletes", "Sandboxes deleted, by cause", self.deletes.clone());
        registry.register_with_unit(
            "sandbox_create",
            "From the request to a serving data plane",
            Unit::Seconds,
            self.create_seconds.clone(),
        );
        registry.register_with_unit(
            "sandbox_start",
            "From asking for a monitor to a serving data plane, by what was started from",
            Unit::Seconds,
            self.start_seconds.clone(),
        );
        registry.register_with_unit(
            "sandbox_operation",
            "Pauses, resumes and checkpoints, by outcome",
            Unit::Seconds,
            self.operation_seconds.clone(),
        );
        registry.register("starts_waiting", "Starts that wait for their turns", self.starts_waiting.clone());
        registry.register("shells_waiting", "Monitors that wait for a sandbox", self.idle_monitors.clone());
        registry.register("parked_machines", "Machines that wait for a sandbox", self.parked_machines.clone());
        registry.register("checkpoints", "Checkpoints", self.checkpoints.clone());
        registry.register("warm_snapshots", "Warm snapshots of templates", self.warm_snapshots.clone());
        registry.register_with_unit(
            "retained",
            "Disk that sandboxes and checkpoints hold",
            Unit::Bytes,
            self.retained_bytes.clone(),
        );
        registry.register(
            "damaged_files",
            "Files that were found not to hold what was written to them",
            self.damaged_files.clone(),
        );
        self.disk.register(registry);
    }

    /// A sandbox is ready.
    pub(crate) fn started(&self, kind: StartKind, is_bare: bool, took: Duration) {
        let kind = match kind {
            StartKind::Cold if is_bare => Kind::Bare,
            StartKind::Cold => Kind::Cold,
            StartKind::Warm => Kind::Warm,
            StartKind::Parked => Kind::Parked,
            StartKind::Restored => Kind::Restored,
        };
        self.start_seconds.get_or_create(&StartLabels { kind }).observe(took.as_secs_f64());
    }

    pub(crate) fn paused(&self, done: bool, took: Duration) {
        self.operated(Operation::Pause, done, took);
    }

    pub(crate) fn resumed(&self, done: bool, took: Duration) {
        self.operated(Operation::Resume, done, took);
    }

    pub(crate) fn checkpointed(&self, done: bool, took: Duration) {
        self.operated(Operation::Checkpoint, done, took);
    }

    fn operated(&self, operation: Operation, done: bool, took: Duration) {
        let outcome = if done { OperationOutcome::Done } else { OperationOutcome::Failed };
        self.operation_seconds.get_or_create(&OperationLabels { operation, outcome }).observe(took.as_secs_f64());
    }

    /// A create has got its response.
    pub(crate) fn created(&self, outcome: Outcome, took: Duration) {
        if outcome == Outcome::Created {
            self.create_seconds.observe(took.as_secs_f64());
        }
        self.creates.get_or_create(&CreateLabels { outcome }).inc();
    }

    /// Those of all machines.
    pub(crate) fn disk(&self) -> &DiskMetrics {
        &self.disk
    }

    /// So many files are known to be damaged.
    pub(crate) fn damaged(&self, files: usize) {
        self.damaged_files.set(gauge(files));
    }

    /// The machine of a sandbox ended unasked.
    pub(crate) fn ended(&self, code: &str) {
        self.failures.get_or_create(&FailureLabels { code: code.to_owned() }).inc();
    }

    /// A sandbox is gone, for this cause.
    pub(crate) fn deleted(&self, cause: &str) {
        self.deletes.get_or_create(&DeleteLabels { cause: cause.to_owned() }).inc();
    }

    /// Counts what is here: sandboxes, by their states, and the rest.
    pub(crate) fn count(&self, sandboxes: impl Iterator<Item = SandboxState>, holdings: Holdings) {
        self.idle_monitors.set(gauge(holdings.idle_monitors));
        self.starts_waiting.set(gauge(holdings.starts_waiting));
        self.parked_machines.set(gauge(holdings.parked_machines));
        self.checkpoints.set(gauge(holdings.checkpoints));
        self.warm_snapshots.set(gauge(holdings.warm_snapshots));
        self.retained_bytes.set(i64::try_from(holdings.retained_bytes).unwrap_or(i64::MAX));
        let mut counts = [
            (SandboxState::Creating, "creating", 0),
            (SandboxState::Ready, "ready", 0),
            (SandboxState::Checkpointing, "checkpointing", 0),
            (SandboxState::Stopped, "stopped", 0),
            (SandboxState::Restoring, "restoring", 0),
            (SandboxState::Stopping, "stopping", 0),
            (SandboxState::Failed, "failed", 0),
        ];
        for sandbox in sandboxes {
            for (state, _, count) in &mut counts {
                *count += i64::from(*state == sandbox);
            }
        }
        for (_, state, count) in counts {
            self.sandboxes.get_or_create(&StateLabels { state: state.to_owned() }).set(count);
        }
    }
}

/// From 5 ms to 82 s.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 15))
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
