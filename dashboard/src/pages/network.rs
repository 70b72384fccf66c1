//! What one sandbox may reach: its policy, what that means for destinations, and what was denied.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::{Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use url::Url;
use url::form_urlencoded::Serializer;

use crate::api::Problem;
use crate::form::Fields;
use crate::response::{Refusal, page};
use crate::view::{self, segment};
use crate::visit::{Order, Visit};

/// Where a connection goes that is named without a port.
const DEFAULT_PORT: u16 = 443;

#[derive(Template)]
#[template(path = "network.html")]
struct Page {
    visit: Visit,
    id: String,
    /// As it is, or as it was entered.
    policy: Policy,
    /// Whether it is in force; nothing of one that was only entered.
    status: Option<Status>,
    /// As they were entered.
    destinations: String,
    decisions: Vec<Decision>,
    /// Why that cannot be explained.
    problem: Option<Problem>,
    denied: Vec<Denied>,
}

#[derive(Deserialize)]
pub(super) struct Policy {
    pub(super) allow_internet_access: bool,
    allow_package_registry_access: bool,
    allow_out: Vec<String>,
    deny_out: Vec<String>,
    egress_profiles: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Status {
    pub(super) apply_status: String,
    pub(super) apply_error: Option<String>,
}

/// What a policy means for a destination.
#[derive(Deserialize)]
struct Decision {
    destination: String,
    allowed: bool,
    rule: String,
}

#[derive(Deserialize)]
struct Decisions {
    decisions: Vec<Decision>,
}

#[derive(Deserialize)]
struct DeniedList {
    denied: Vec<Denied>,
}

/// Attempts to reach one destination.
#[derive(Deserialize)]
pub(super) struct Denied {
    pub(super) time: Timestamp,
    pub(super) protocol: String,
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) rule: String,
    pub(super) count: u64,
}

#[derive(Deserialize)]
struct Sandbox {
    network: Network,
}

#[derive(Deserialize)]
pub(super) struct Network {
    #[serde(flatten)]
    pub(super) policy: Policy,
    #[serde(flatten)]
    pub(super) status: Status,
}

impl Policy {
    /// As a form has it; nothing where its fields were switched off.
    fn entered(fields: &Fields) -> Option<Self> {
        let lines = |name| fields.lines(name).into_iter().map(str::to_owned).collect();
        fields.is_ticked("policy").then(|| Self {
            allow_internet_access: fields.is_ticked("internet"),
            allow_package_registry_access: fields.is_ticked("registries"),
            allow_out: lines("allow_out"),
            deny_out: lines("deny_out"),
            egress_profiles: lines("egress_profiles"),
        })
    }

    /// What asks the API for its meaning.
    fn explain(&self, destinations: &[String]) -> String {
        let mut query = Serializer::new("/v1/network/explain?".to_owned());
        query.append_pair("allow_internet_access", &self.allow_internet_access.to_string());
        query.append_pair("allow_package_registry_access", &self.allow_package_registry_access.to_string());
        let lists = [
            ("destination", destinations),
            ("allow_out", &self.allow_out),
            ("deny_out", &self.deny_out),
            ("egress_profile", &self.egress_profiles),
        ];
        for (name, values) in lists {
            query.extend_pairs(values.iter().map(|value| (name, value)));
        }
        query.finish()
    }
}

/// The last ones; none where the host does not tell.
pub(super) async fn denied(visit: &Visit, id: &str) -> Vec<Denied> {
    let path = format!("/v1/sandboxes/{}/network/denied?limit=50", segment(id));
    visit.get::<DeniedList>(&path).await.map(|list| list.denied).unwrap_or_default()
}

/// `GET /dashboard/{team}/sandboxes/{id}/network`
pub(crate) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Result<Response, Refusal> {
    let path = format!("/v1/sandboxes/{}", segment(&id));
    let (sandbox, denied) = tokio::join!(visit.get::<Sandbox>(&path), denied(&visit, &id));
    let Network { policy, status } = sandbox?.network;
    let (destinations, decisions, problem) = (String::new(), Vec::new(), None);
    Ok(page(&Page { visit, id, policy, status: Some(status), destinations, decisions, problem, denied }))
}

/// `POST /dashboard/{team}/sandboxes/{id}/network/explain`: the page, with what the policy that was entered means for the
/// destinations that were. For who may not change the policy, the one that there is.
pub(crate) async fn explain(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    order: Order,
) -> Result<Response, Refusal> {
    let sandbox: Sandbox = visit.get(&format!("/v1/sandboxes/{}", segment(&id))).await?;
    let entered = Policy::entered(&order.fields);
    let status = entered.is_none().then_some(sandbox.network.status);
    let policy = entered.unwrap_or(sandbox.network.policy);
    let wanted: Vec<String> = order.fields.lines("destinations").into_iter().map(destination).collect();
    let (decisions, problem) = if wanted.is_empty() {
        (Vec::new(), None)
    } else {
        match visit.get::<Decisions>(&policy.explain(&wanted)).await {
            Ok(Decisions { decisions }) => (decisions, None),
            Err(problem) => (Vec::new(), Some(problem)),
        }
    };
    let denied = denied(&visit, &id).await;
    let destinations = order.fields.lines("destinations").join("\n");
    Ok(page(&Page { visit, id, policy, status, destinations, decisions, problem, denied }))
}

/// `POST /dashboard/{team}/sandboxes/{id}/network`
pub(crate) async fn replace(Path((_, id)): Path<(String, String)>, order: Order) -> Result<Redirect, Refusal> {
    let id = segment(&id);
    let body = json!({
        "allow_internet_access": order.fields.is_ticked("internet"),
        "allow_package_registry_access": order.fields.is_ticked("registries"),
        "allow_out": order.fields.lines("allow_out"),
        "deny_out": order.fields.lines("deny_out"),
        "egress_profiles": order.fields.lines("egress_profiles"),
    });
    order.send::<IgnoredAny>(Method::PUT, &format!("/v1/sandboxes/{id}/network"), Some(body)).await?;
    Ok(order.then(&format!("sandboxes/{id}/network")))
}

/// What people write of a destination, as the API takes it: TCP where they name no protocol, and HTTPS where they name no port.
fn destination(text: &str) -> String {
    let of_url = Url::parse(text).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
    if let Some((host, port)) = of_url.as_ref().and_then(|url| Some((url.host_str()?, url.port_or_known_default()?))) {
        return format!("tcp:{host}:{port}");
    }
    if ["tcp:", "udp:", "icmp:"].iter().any(|protocol| text.starts_with(protocol)) {
        return text.to_owned();
    }
    // IPv6 has colons of its own, and brackets where a port follows.
    let has_port = text.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    let is_ipv6 = text.parse::<std::net::Ipv6Addr>().is_ok();
    match (has_port, is_ipv6) {
        (_, true) => format!("tcp:[{text}]:{DEFAULT_PORT}"),
        (true, _) => format!("tcp:{text}"),
        (false, _) => format!("tcp:{text}:{DEFAULT_PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_what_people_write() {
        for (text, expected) in [
            ("example.com", "tcp:example.com:443"),
            ("example.com:80", "tcp:example.com:80"),
            ("udp:example.com:53", "udp:example.com:53"),
            ("icmp:198.51.100.7", "icmp:198.51.100.7"),
            ("https://example.com/a?b", "tcp:example.com:443"),
            ("http://example.com:8080", "tcp:example.com:8080"),
            ("2001:db8::7", "tcp:[2001:db8::7]:443"),
            ("[2001:db8::7]", "tcp:[2001:db8::7]:443"),
            ("[2001:db8::7]:22", "tcp:[2001:db8::7]:22"),
            ("not a host", "tcp:not a host:443"),
        ] {
            assert_eq!(destination(text), expected, "{text}");
        }
    }
}
