//! What a team used, by hours or days.

use jiff::Timestamp;
use reqwest::{Method, Url};
use serde::Deserialize;
use serde_json::Value;

use super::{Client, ClientError};

/// What a team used; `raw` has every field.
#[derive(Debug, Clone, Deserialize)]
pub struct Usage {
    /// What costs are in; `None` where nothing is charged.
    pub currency: Option<String>,
    /// Oldest first.
    pub buckets: Vec<UsageBucket>,
    /// The sums of all buckets.
    pub totals: UsageAmounts,
    #[serde(skip)]
    pub raw: Value,
}

/// What a team used in one hour or day.
#[derive(Debug, Clone, Deserialize)]
pub struct UsageBucket {
    pub from: Timestamp,
    pub to: Timestamp,
    #[serde(flatten)]
    pub amounts: UsageAmounts,
}

/// Decimal text, as exact as it is; traffic in bytes.
#[derive(Debug, Clone, Deserialize)]
pub struct UsageAmounts {
    pub vcpu_seconds: String,
    pub memory_gib_seconds: String,
    pub storage_gib_hours: String,
    /// Nothing, of a host that does not count it yet.
    #[serde(default)]
    pub egress_bytes: u64,
    #[serde(default)]
    pub ingress_bytes: u64,
    /// `None` where nothing is charged.
    pub cost: Option<String>,
}

impl Client {
    /// What this client's team used. `filters`: `from`, `to`, `granularity`, `sandbox_id`.
    ///
    /// # Errors
    ///
    /// Fails if the range has too many hours or days, or the API cannot be reached.
    pub async fn usage(&self, filters: &[(&str, &str)]) -> Result<Usage, ClientError> {
        let url = Url::parse_with_params("http://localhost/", filters);
        let query = url.ok().and_then(|url| url.query().map(str::to_owned)).unwrap_or_default();
        let path = format!("/usage?{query}");
        let raw = self.call(Method::GET, &path, None).await?;
        let usage: Usage = self.parse("/usage", raw.clone())?;
        Ok(Usage { raw, ..usage })
    }
}
