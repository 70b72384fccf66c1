//! What a sandbox's machine uses: `GET /metrics` of its data plane.

use reqwest::Method;
use serde::{Deserialize, Serialize};

use super::{ClientError, DataPlane};

/// What a machine has and uses, as it says itself. Sizes are in bytes.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct Metrics {
    /// Seconds since 1970.
    pub ts: i64,
    pub cpu_count: u32,
    /// Of all CPUs together: 100 is all of them.
    pub cpu_used_pct: f64,
    pub mem_used: u64,
    pub mem_total: u64,
    /// Of the memory that is not used, what holds files.
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

impl DataPlane {
    /// What the machine uses now.
    ///
    /// # Errors
    ///
    /// Fails if the data plane cannot be reached, or serves no metrics.
    pub async fn metrics(&self) -> Result<Metrics, ClientError> {
        let response = self.check(self.request(Method::GET, "/metrics").send().await).await?;
        self.json(response).await
    }
}
