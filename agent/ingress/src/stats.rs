//! What passed through the proxy, for the metrics page.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::EncodeLabelValue;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Counters and gauges of the ingress. All are atomics: counting never waits.
#[derive(Debug, Default)]
pub struct Stats {
    pub(crate) requests: Family<RequestLabels, Counter<u64, AtomicU64>>,
    pub(crate) connections: Gauge,
    pub(crate) connections_refused: Counter<u64, AtomicU64>,
    pub(crate) tunnels: Gauge,
    pub(crate) waking: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) kind: Kind,
    pub(crate) outcome: Outcome,
}

/// What a request was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Kind {
    DataPlane,
    Preview,
    /// The API, by its name below the data-plane host.
    Api,
    /// The host name is none of ours.
    Unknown,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    /// The guest or the API answered, whatever it said.
    Answered,
    /// Wrong on its face: host, framing, method.
    Invalid,
    /// No such sandbox or no such port.
    NotFound,
    Unauthorized,
    /// The sandbox, or this client of it, has too many requests in flight.
    Limited,
    /// The sandbox is not running, the port is closed, or the guest or the API broke off before it answered.
    Unavailable,
}

impl Stats {
    /// Adds everything to `registry`, which then shows the same counters.
    pub fn register(&self, registry: &mut Registry) {
        let ingress = registry.sub_registry_with_prefix("ingress");
        ingress.register("requests", "Requests by kind and outcome", self.requests.clone());
        ingress.register("connections", "Client connections open now", self.connections.clone());
        ingress.register(
            "connections_refused",
            "Client connections turned away at the limit",
            self.connections_refused.clone(),
        );
        ingress.register("tunnels", "Upgraded connections (WebSocket) open now", self.tunnels.clone());
        ingress.register("waking", "Requests that wait for a paused sandbox to go on", self.waking.clone());
    }

    /// Requests that wait for a paused sandbox to go on.
    pub fn waking(&self) -> i64 {
        self.waking.get()
    }

    /// Counts one request.
    pub(super) fn count(&self, kind: Kind, outcome: Outcome) {
        self.requests.get_or_create(&RequestLabels { kind, outcome }).inc();
    }

    /// Counts a client's connection as open until the guard is dropped.
    pub(super) fn connection(&self) -> Open {
        Open::new(&self.connections)
    }

    /// Counts a tunnel as open until the guard is dropped.
    pub(super) fn tunnel(&self) -> Open {
        Open::new(&self.tunnels)
    }

    /// Counts a request as waiting for its sandbox until the guard is dropped.
    pub(super) fn wake(&self) -> Open {
        Open::new(&self.waking)
    }
}

/// One in a gauge of open things.
pub(super) struct Open(Gauge);

impl Open {
    fn new(gauge: &Gauge) -> Open {
        gauge.inc();
        Open(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
