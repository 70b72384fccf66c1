//! What a sandbox may reach, and what it was kept from reaching.

use axum::Json as JsonResponse;
use axum::extract::{Path, State};
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::{NoParameters, Pairs, unknown};
use sandpiper_policy::{Destination, Entry};
use sandpiper_protocol::agent::{self, ExplainNetwork, NetworkDecision, NetworkPolicy};
use sandpiper_protocol::error_chain::chain;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::egress_profiles;
use super::page::{List, Paging, keys_by_time};
use super::sandboxes::body::{ApplyStatus, NetworkBody};
use super::sandboxes::validate::Problems;
use super::sandboxes::{check_not_failed, owned};
use crate::agent_client::AgentError;
use crate::auth::{Caller, ReadAccess, WriteAccess};
use crate::errors;
use crate::orchestration;
use crate::orchestration::network::ApplyError;
use crate::state::App;
use crate::store::sandbox_row::{SandboxRow, State as SandboxState};

/// Entries together, bytes: a policy travels in one message to the agent.
const MAX_ENTRIES_SIZE: usize = 512 * 1024;
/// Of each list no more wrong entries are named than this.
const MAX_BLAMED: usize = 20;
/// Destinations that one request asks about.
const MAX_DESTINATIONS: usize = 100;

/// The whole policy: a field that is left out returns to its default.
///
/// The first that has something to say decides: protected ranges and `localhost` (denied), `allow_out`, `deny_out`, the
/// profiles, `allow_internet_access`.
///
/// An entry is a host name (ASCII, others in punycode), `*.` and a name for all names below it but not itself, an address, or a
/// CIDR that begins with its first address; each with an optional `:port`, without which ICMP is meant as well. UDP to port 443
/// is never opened for a name's sake, as QUIC hides the name. While `deny_out` has a name, ports 53 and 853 of all resolvers but
/// the sandbox's own are denied unless an entry opens them. `0.0.0.0/0`, or ranges that add up to it, stands for every name, too;
/// IPv6 addresses are `::/0`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReplaceNetwork)]
pub struct NetworkRequest {
    /// Whether what nothing else here decides may be reached.
    #[schema(default = true)]
    pub allow_internet_access: Option<bool>,
    /// The same as the egress profile `package-registries`; but where the operator has none of this name, it opens nothing and
    /// is no error.
    #[schema(default = false)]
    pub allow_package_registry_access: Option<bool>,
    /// What may be reached, unless it is protected: `host`, `*.host`, an address or a CIDR, each with an optional `:port`.
    #[schema(example = json!(["api.example.com:443", "*.example.org", "198.51.100.0/24"]))]
    pub allow_out: Option<Vec<String>>,
    /// What may not be reached, also where a profile has it, unless `allow_out` names it; entries as there.
    pub deny_out: Option<Vec<String>>,
    /// One profile; the same as `egress_profiles` with it.
    pub egress_profile: Option<String>,
    /// The operator's lists of what may be reached; `GET /v1/egress_profiles` names them.
    pub egress_profiles: Option<Vec<String>>,
}

impl NetworkRequest {
    /// Checks all that needs no knowledge of this host; the profiles are still to be looked up.
    pub fn check(self, problems: &mut Problems) -> NetworkWish {
        let default = NetworkPolicy::default();
        let allow_out = self.allow_out.unwrap_or_default();
        let deny_out = self.deny_out.unwrap_or_default();
        for (field, entries) in [("allow_out", &allow_out), ("deny_out", &deny_out)] {
            let wrong = entries.iter().enumerate().filter_map(|(index, entry)| {
                entry.parse::<Entry>().err().map(|error| (format!("{field}[{index}]"), error.to_string()))
            });
            for (field, reason) in wrong.take(MAX_BLAMED) {
                problems.add(field, reason);
            }
        }
        if allow_out.len() + deny_out.len() > sandpiper_policy::MAX_ENTRIES {
            let limit = sandpiper_policy::MAX_ENTRIES;
            problems.add("allow_out", format!("and deny_out must have at most {limit} entries together"));
        }
        if allow_out.iter().chain(&deny_out).map(String::len).sum::<usize>() > MAX_ENTRIES_SIZE {
            problems.add("allow_out", format!("and deny_out must be at most {MAX_ENTRIES_SIZE} bytes together"));
        }
        let mut profiles: Vec<NamedProfile> = Vec::new();
        let one = self.egress_profile.map(|name| NamedProfile { field: "egress_profile".to_owned(), name });
        let more = self.egress_profiles.unwrap_or_default().into_iter().enumerate();
        let more = more.map(|(index, name)| NamedProfile { field: format!("egress_profiles[{index}]"), name });
        for named in one.into_iter().chain(more) {
            if profiles.iter().all(|known| known.name != named.name) {
                profiles.push(named);
            }
        }
        let policy = NetworkPolicy {
            allow_internet_access: self.allow_internet_access.unwrap_or(default.allow_internet_access),
            allow_package_registry_access: self
                .allow_package_registry_access
                .unwrap_or(default.allow_package_registry_access),
            allow_out,
            deny_out,
            egress_profiles: profiles.iter().map(|profile| profile.name.clone()).collect(),
        };
        NetworkWish { policy, profiles }
    }
}

/// A policy whose entries make sense.
#[derive(Debug, Clone)]
pub struct NetworkWish {
    policy: NetworkPolicy,
    profiles: Vec<NamedProfile>,
}

/// A profile, and where the request names it.
#[derive(Debug, Clone)]
struct NamedProfile {
    field: String,
    name: String,
}

impl NetworkWish {
    /// The policy, if this host has its profiles.
    pub async fn policy(self, app: &App) -> Result<NetworkPolicy, ApiError> {
        if self.profiles.is_empty() {
            return Ok(self.policy);
        }
        let wanted: Vec<&str> = self.profiles.iter().map(|profile| profile.name.as_str()).collect();
        let known = app.profiles.names(&app.agent, app.clock.now(), &wanted).await?;
        let mut problems = Problems::default();
        for profile in self.profiles.iter().filter(|profile| !known.contains(&profile.name)).take(MAX_BLAMED) {
            problems.add(&profile.field, egress_profiles::unknown(&profile.name, &known));
        }
        problems.into_result()?;
        Ok(self.policy)
    }
}

/// The policy that was recorded, and whether it holds already.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReplacedNetwork {
    pub network: NetworkBody,
    pub apply_status: ApplyStatus,
}

/// Replace a sandbox's network policy
///
/// All of it: what is left out returns to its default. Recorded first, then applied to the running sandbox, whose
/// connections that it forbids are cut. Where the host does not respond, `apply_status` is `pending`, and the policy is
/// applied as soon as the host can; a stopped sandbox has it before it sends anything again. `allow_public_traffic` stays.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{id}/network",
    operation_id = "replace_network",
    tag = "network",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = NetworkRequest,
    responses((status = 200, description = "Recorded, and applied or pending", body = ReplacedNetwork))
)]
pub async fn replace(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
    Json(request): Json<NetworkRequest>,
) -> Result<JsonResponse<ReplacedNetwork>, ApiError> {
    let row = owned(&app, &caller, &id).await?;
    let mut problems = Problems::default();
    let wish = request.check(&mut problems);
    problems.into_result()?;
    check_not_failed(&row)?;
    set(&app, &caller, &row, wish).await?;
    let network = NetworkBody::from(&owned(&app, &caller, &id).await?);
    Ok(JsonResponse(ReplacedNetwork { apply_status: network.apply_status, network }))
}

/// Records a policy for the sandbox of `row`, and waits a while for it to be applied.
///
/// # Errors
///
/// 400 on a profile that this host does not have, 409 on a sandbox that has failed.
pub async fn set(app: &App, caller: &Caller, row: &SandboxRow, wish: NetworkWish) -> Result<(), ApiError> {
    let id = &row.id;
    let policy = wish.policy(app).await?;

    if app.store.sandboxes.replace_policy(id, &policy).await?.is_none() {
        // It has failed or ended since.
        check_not_failed(&owned(app, caller, id).await?)?;
    }
    // One that is being made is at the agent when that is done; the worker sees it then.
    if row.state != SandboxState::Creating {
        let applying = orchestration::network::apply(app, id);
        match tokio::time::timeout(app.settings.timing.apply_wait, applying).await {
            Ok(Ok(())) => {}
            Ok(Err(ApplyError::Store(error))) => return Err(error.into()),
            Ok(Err(ApplyError::Agent(error))) => {
                tracing::warn!(sandbox = id, error = chain(&error), "network policy recorded, not applied yet");
                if error.is_not_found() {
                    orchestration::sync::follow(app, &caller.team.id, id).await?;
                }
            }
            Err(_) => tracing::warn!(sandbox = id, "network policy recorded; the agent takes long to apply it"),
        }
    }
    Ok(())
}

/// What a sandbox was kept from reaching.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeniedList)]
pub struct DeniedListBody {
    /// Packets and requests that were refused since the sandbox started, also those that `denied` does not tell of.
    pub total: u64,
    /// By destination, the latest first; older ones are forgotten.
    pub denied: Vec<DeniedBody>,
    /// For the next page, of the same list; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// Attempts to reach one destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Denied)]
pub struct DeniedBody {
    /// Of the last attempt.
    pub time: Timestamp,
    /// `tcp`, `udp`, `icmp`, `dns` (a name was not resolved), `http` or `tls` (by the name that a request or a handshake
    /// named), or another protocol's number.
    #[schema(example = "tcp")]
    pub protocol: String,
    /// An address, or a name.
    pub host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What denied it.
    pub rule: String,
    /// Packets or requests.
    pub count: u64,
}

impl From<agent::Denied> for DeniedBody {
    fn from(denied: agent::Denied) -> Self {
        let agent::Denied { time, protocol, host, port, rule, count } = denied;
        Self { time, protocol, host, port, rule, count }
    }
}

/// List what a sandbox was denied
///
/// Connections and requests that its network policy refused. Asked of the host, and forgotten when the sandbox ends.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/network/denied",
    operation_id = "list_denied",
    tag = "network",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("limit" = Option<u32>, Query, description = "Destinations per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = DeniedListBody))
)]
pub async fn denied(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<JsonResponse<DeniedListBody>, ApiError> {
    owned(&app, &caller, &id).await?;
    let paging = Paging::alone(query)?;
    let page = app
        .agent
        .denied(&id)
        .await
        .map_err(|error: AgentError| if error.is_not_found() { errors::no_sandbox(&id) } else { error.into() })?;
    // The latest comes first.
    let keys: Vec<_> = keys_by_time(page.entries.iter().map(|entry| -entry.time.as_microsecond())).collect();
    let entries = page.entries.into_iter().map(DeniedBody::from);
    let (denied, next_token) = paging.cut(&List::of_keys(&json!(["denied", id])), keys.into_iter().zip(entries))?;
    Ok(JsonResponse(DeniedListBody { total: page.total, denied, next_token }))
}

/// What a policy would mean for each destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NetworkExplanation)]
pub struct ExplanationBody {
    /// In the order of the request.
    pub decisions: Vec<DecisionBody>,
}

/// What a policy would mean for one destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NetworkDecision)]
pub struct DecisionBody {
    /// As it was given.
    #[schema(example = "tcp:api.example.com:443")]
    pub destination: String,
    pub allowed: bool,
    /// What in the policy decided.
    #[schema(example = "allow_out \"api.example.com:443\"")]
    pub rule: String,
}

/// Explain a network policy
///
/// What a policy would allow and deny, and by which of its rules; nothing is changed. The host decides by what its firewall, its
/// resolver and its proxy go by: its egress profiles and protected ranges count. About a name, as far as that does not depend on
/// the addresses that the name has.
#[utoipa::path(
    get,
    path = "/v1/network/explain",
    operation_id = "explain_network",
    tag = "network",
    params(
        ("destination" = String, Query, description = "`tcp:HOST:PORT`, `udp:HOST:PORT` or `icmp:HOST`, of a name or an address, \
            IPv6 in brackets; may be given 100 times", example = "tcp:api.example.com:443"),
        ("allow_internet_access" = Option<bool>, Query, description = "As in a policy; true by default"),
        ("allow_package_registry_access" = Option<bool>, Query, description = "As in a policy; false by default"),
        ("allow_out" = Option<String>, Query, description = "An entry of the policy's; may be given several times"),
        ("deny_out" = Option<String>, Query, description = "An entry of the policy's; may be given several times"),
        ("egress_profile" = Option<String>, Query, description = "A profile; may be given several times"),
    ),
    responses((status = 200, description = "What the policy would mean", body = ExplanationBody))
)]
pub async fn explain(
    _: ReadAccess,
    State(app): State<App>,
    Pairs(pairs): Pairs,
) -> Result<JsonResponse<ExplanationBody>, ApiError> {
    let (mut request, mut destinations) = (NetworkRequest::default(), Vec::new());
    for (name, value) in pairs {
        match name.as_str() {
            "destination" => destinations.push(value),
            "allow_internet_access" => request.allow_internet_access = Some(flag(&name, &value)?),
            "allow_package_registry_access" => request.allow_package_registry_access = Some(flag(&name, &value)?),
            "allow_out" => request.allow_out.get_or_insert_default().push(value),
            "deny_out" => request.deny_out.get_or_insert_default().push(value),
            "egress_profile" => request.egress_profiles.get_or_insert_default().push(value),
            _ => return Err(unknown(&name)),
        }
    }
    let mut problems = Problems::default();
    if destinations.is_empty() || destinations.len() > MAX_DESTINATIONS {
        problems.add("destination", format!("must be given once, and at most {MAX_DESTINATIONS} times"));
    }
    for (index, text) in destinations.iter().enumerate().take(MAX_DESTINATIONS) {
        if let Err(error) = text.parse::<Destination>() {
            problems.add(format!("destination[{index}]"), error.to_string());
        }
    }
    let wish = request.check(&mut problems);
    problems.into_result()?;
    let policy = wish.policy(&app).await?;
    let explained = app.agent.explain_network(&ExplainNetwork { policy, destinations: destinations.clone() }).await?;
    let body =
        |(destination, NetworkDecision { is_allowed, rule })| DecisionBody { destination, allowed: is_allowed, rule };
    let decisions = destinations.into_iter().zip(explained.decisions).map(body).collect();
    Ok(JsonResponse(ExplanationBody { decisions }))
}

fn flag(name: &str, value: &str) -> Result<bool, ApiError> {
    value.parse().map_err(|_| ApiError::invalid_field(name, "must be true or false"))
}
