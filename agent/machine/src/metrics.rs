//! How machines fare with the host's disk, for Prometheus.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Of all machines. Cheap to clone; all clones count together.
#[derive(Debug, Clone, Default)]
pub struct DiskMetrics {
    held: Gauge,
    failures: Counter,
}

/// One machine stands still because the host's disk is full, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held(Gauge);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl DiskMetrics {
    /// Makes these metrics known under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "sandboxes_held",
            "Sandboxes that stand still until the host's disk has room",
            self.held.clone(),
        );
        registry.register(
            "disk_failures",
            "I/O errors that guests were told of because the host's disk failed",
            self.failures.clone(),
        );
    }

    /// A machine stands still because the host's disk is full.
    pub(crate) fn held(&self) -> Held {
        self.held.inc();
        Held(self.held.clone())
    }

    /// A monitor has told its guest of so many I/O errors more.
    pub(crate) fn failed(&self, count: u64) {
        self.failures.inc_by(count);
    }
}
