//! What a sandbox's machine uses: now, `GET /metrics` of its data plane; over time, the API's.

use jiff::Timestamp;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Client, ClientError, DataPlane};

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

/// What a sandbox used over time, as its host measured it; `raw` has every field.
#[derive(Debug, Clone, Deserialize)]
pub struct History {
    /// Seconds from one point to the next.
    pub step: u32,
    /// Oldest first.
    pub points: Vec<Point>,
    #[serde(skip)]
    pub raw: Value,
}

/// What a sandbox used until one moment.
#[derive(Debug, Clone, Deserialize)]
pub struct Point {
    pub time: Timestamp,
    /// Of all CPUs together: 100 is all of them.
    pub cpu_used_pct: f64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub received_bytes_per_second: u64,
    pub sent_bytes_per_second: u64,
}

impl Client {
    /// What a sandbox used since then.
    ///
    /// # Errors
    ///
    /// Fails if there is no such sandbox, or the API cannot be reached.
    pub async fn history(&self, id: &str, since: Timestamp) -> Result<History, ClientError> {
        let path = format!("/sandboxes/{id}/metrics?start={since}");
        let raw = self.call(Method::GET, &path, None).await?;
        let history: History = self.parse(&path, raw.clone())?;
        Ok(History { raw, ..history })
    }
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
