//! What a sandbox may reach.

use reqwest::Method;
pub use sandpiper_protocol::agent::NetworkPolicy;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Client, ClientError};

/// A sandbox's network as the API shows it; `raw` has every field.
#[derive(Debug, Clone, Deserialize)]
pub struct Network {
    #[serde(flatten)]
    pub policy: NetworkPolicy,
    /// `applied`, or `pending` until the host has the policy.
    pub apply_status: String,
    /// Why it is pending, where the host said why.
    #[serde(default)]
    pub apply_error: Option<String>,
    #[serde(skip)]
    pub raw: Value,
}

/// What a sandbox was kept from reaching.
#[derive(Debug, Clone, Deserialize)]
pub struct DeniedList {
    /// Packets and requests, also those that `denied` does not tell of.
    pub total: u64,
    /// The latest first.
    pub denied: Vec<Denied>,
    next_token: Option<String>,
}

/// Attempts to reach one destination.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Denied {
    /// Of the last attempt.
    pub time: String,
    pub protocol: String,
    pub host: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What denied it.
    pub rule: String,
    pub count: u64,
}

impl Client {
    /// What a sandbox may reach.
    pub async fn network(&self, id: &str) -> Result<Network, ClientError> {
        let path = format!("/sandboxes/{id}");
        let response = self.call(Method::GET, &path, None).await?;
        self.read_network(&path, response)
    }

    /// Replaces the whole policy of a sandbox: a [`NetworkPolicy`], or any JSON object with such fields, of which those left
    /// out return to their defaults.
    pub async fn replace_network(&self, id: &str, policy: &impl Serialize) -> Result<Network, ClientError> {
        let path = format!("/sandboxes/{id}/network");
        let body = serde_json::to_value(policy).map_err(|error| self.malformed(&path, &error.to_string()))?;
        let response = self.call(Method::PUT, &path, Some(body)).await?;
        self.read_network(&path, response)
    }

    /// What a sandbox was kept from reaching.
    pub async fn denied(&self, id: &str) -> Result<DeniedList, ClientError> {
        let path = format!("/sandboxes/{id}/network/denied");
        let page = async |query: String| -> Result<DeniedList, ClientError> {
            self.parse(&path, self.call(Method::GET, &format!("{path}?limit=100{query}"), None).await?)
        };
        let mut list = page(String::new()).await?;
        while let Some(token) = list.next_token.take() {
            let next = page(format!("&next_token={token}")).await?;
            list.denied.extend(next.denied);
            list.next_token = next.next_token;
        }
        Ok(list)
    }

    /// Names of the host's egress profiles.
    pub async fn egress_profiles(&self) -> Result<Vec<String>, ClientError> {
        let profiles = self.pages("/egress_profiles", "limit=100", "profiles").await?;
        self.parse("/egress_profiles", profiles.into())
    }

    /// The `network` of a response.
    fn read_network(&self, path: &str, mut response: Value) -> Result<Network, ClientError> {
        let raw = response.get_mut("network").map(Value::take).unwrap_or_default();
        let network: Network = self.parse(path, raw.clone())?;
        Ok(Network { raw, ..network })
    }
}
