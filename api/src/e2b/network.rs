//! What a sandbox may reach, in the words of the SDKs; `PUT /sandboxes/{id}/network`.
//!
//! There, what is allowed beats what is denied, and what is neither may be reached. All of that holds here as well, where a
//! policy has also a boolean for the rest: it is false when everything is denied, for IPv6 too, of which the SDKs know
//! nothing.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use serde::Deserialize;
use serde_json::Value;

use super::current;
use crate::auth::WriteAccess;
use crate::state::App;
use crate::v1::network::{NetworkRequest, NetworkWish, set};
use crate::v1::sandboxes::validate::Problems;

/// Everything, as the SDKs write it.
const ALL: &str = "0.0.0.0/0";

/// The network of a new sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkConfig {
    /// False: ports are for holders of the traffic token.
    pub allow_public_traffic: Option<bool>,
    /// What servers in the sandbox read as `Host`; `${PORT}` stands for the port.
    pub mask_request_host: Option<String>,
    /// Names and addresses that may be reached.
    allow_out: Option<Vec<String>>,
    /// Addresses that may not.
    deny_out: Option<Vec<String>>,
    dns_servers: Option<Vec<String>>,
    egress_proxy: Option<Value>,
    https_ports: Option<Vec<u16>>,
    rules: Option<Value>,
}

/// The network that a sandbox is to have from now on: all of it, what is left out is as if it never was.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkUpdate {
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    dns_servers: Option<Vec<String>>,
    egress_proxy: Option<Value>,
    rules: Option<Value>,
}

/// Replace a sandbox's network policy.
pub async fn replace(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
    Json(request): Json<NetworkUpdate>,
) -> Result<StatusCode, ApiError> {
    let row = current(&app, &caller, &id).await?;
    let NetworkUpdate { allow_internet_access, allow_out, deny_out, dns_servers, egress_proxy, rules } = request;
    let config = NetworkConfig { allow_out, deny_out, dns_servers, egress_proxy, rules, ..NetworkConfig::default() };
    let mut problems = Problems::default();
    let wish = config.check(allow_internet_access, &mut problems);
    problems.into_result()?;
    set(&app, &caller, &row, wish).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl NetworkConfig {
    /// The policy that this stands for.
    pub fn check(self, allow_internet_access: Option<bool>, problems: &mut Problems) -> NetworkWish {
        let later = "is not available yet on this host; leave it out";
        if self.dns_servers.is_some_and(|servers| !servers.is_empty()) {
            problems.add("network.dnsServers", "cannot be chosen on this host, whose resolver enforces the policy");
        }
        if self.egress_proxy.is_some_and(|proxy| !proxy.is_null()) {
            problems.add("network.egressProxy", later);
        }
        if self.https_ports.is_some_and(|ports| !ports.is_empty()) {
            problems.add("network.httpsPorts", later);
        }
        if self.rules.is_some_and(|rules| !is_empty(&rules)) {
            problems.add("network.rules", later);
        }
        if self.mask_request_host.is_some_and(|mask| !is_host(&mask)) {
            problems.add("network.maskRequestHost", "must be a host name, with ${PORT} in it or not");
        }
        let (allow_out, deny_out) = (self.allow_out.unwrap_or_default(), self.deny_out.unwrap_or_default());
        for entry in deny_out.iter().filter(|entry| is_name(entry)) {
            problems.add("network.denyOut", format!("has {entry:?}, and takes addresses and CIDRs only"));
        }
        let denies_all = allow_internet_access == Some(false) || deny_out.iter().any(|entry| entry == ALL);
        if !denies_all && allow_out.iter().any(|entry| is_name(entry)) {
            let reason = format!("has names, which mean something only if denyOut has {ALL:?}");
            problems.add("network.allowOut", reason);
        }
        let request = NetworkRequest {
            allow_internet_access: Some(!denies_all),
            allow_out: Some(allow_out),
            deny_out: Some(deny_out),
            ..NetworkRequest::default()
        };
        request.check(problems)
    }
}

/// Whether an entry is a name, not an address.
fn is_name(entry: &str) -> bool {
    let address = entry.split('/').next().unwrap_or_default();
    address.parse::<IpAddr>().is_err() && address.parse::<SocketAddr>().is_err()
}

fn is_empty(rules: &Value) -> bool {
    rules.is_null() || rules.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Whether the agent takes it as a mask.
fn is_host(mask: &str) -> bool {
    let host = mask.replace("${PORT}", "65535");
    (1..=253).contains(&host.len())
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_addresses() {
        for name in ["example.com", "*.example.com", "example.com:443"] {
            assert!(is_name(name), "{name}");
        }
        for address in ["192.0.2.1", "192.0.2.0/24", "192.0.2.1:80", "2001:db8::/32", ALL] {
            assert!(!is_name(address), "{address}");
        }
    }
}
