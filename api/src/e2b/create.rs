//! `POST /v2/sandboxes`, `POST /sandboxes`

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::agent::Previews;
use serde::Deserialize;
use serde_json::Value;

use super::body::{Names, SandboxBody, Tokens, VolumeMount};
use super::network::NetworkConfig;
use super::reference;
use crate::auth::{Caller, WriteAccess};
use crate::mutation::SessionOf;
use crate::pending_audit::PendingAudit;
use crate::plan::PlanLimits;
use crate::state::App;
use crate::store::idempotency::Claim;
use crate::store::sandbox_row::SandboxRow;
use crate::v1::sandboxes::body::OnTimeout;
use crate::v1::sandboxes::create::{made_before, make};
use crate::v1::sandboxes::validate::{Create, LifecycleRequest, Problems, Start};

/// Seconds, when a request names none: of the newer path, and of the older one.
const TIMEOUT: u64 = 300;
const OLD_TIMEOUT: u64 = 15;

/// The sandbox to create.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    timeout: Option<u64>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    /// Every sandbox is: a request that asks for less gets more.
    #[serde(rename = "secure")]
    _secure: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<NetworkConfig>,
    metadata: Option<BTreeMap<String, Value>>,
    env_vars: Option<BTreeMap<String, String>>,
    mcp: Option<Value>,
    iam: Option<Value>,
    volume_mounts: Option<Vec<VolumeMount>>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct AutoResume {
    enabled: bool,
}

/// Create a sandbox.
pub async fn create(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    uri: Uri,
    _: NoParameters,
    claim: Option<Extension<Claim>>,
    Extension(pending_audit): Extension<PendingAudit>,
    Json(request): Json<NewSandbox>,
) -> Result<Response, ApiError> {
    let limits = &app.offer.of(caller.team.plan);
    let default_timeout = if uri.path().starts_with("/v2/") { TIMEOUT } else { OLD_TIMEOUT };
    let start = reference::find(&app, &caller, &request.template_id).await?;
    let wanted = request.check(start, default_timeout, limits)?;
    let claim = claim.map(|Extension(claim)| claim);
    let audit = pending_audit.of_success(StatusCode::CREATED);
    let (row, _) = make(&app, &caller, wanted, (None, None), claim.as_ref(), audit).await?;
    response(&app, row, StatusCode::CREATED).await
}

/// The response with a way into the sandbox of `row`.
///
/// # Errors
///
/// Those of the agent.
pub async fn response(app: &App, row: SandboxRow, status: StatusCode) -> Result<Response, ApiError> {
    let tokens = app.agent.tokens(&row.id).await?;
    let body = SandboxBody { names: Names::from(&row), tokens: Tokens::new(&row, tokens) };
    let marks = (Extension(Acted(vec![row.id.clone()])), Extension(SessionOf(vec![row.id])));
    Ok((status, marks.0, marks.1, axum::Json(body)).into_response())
}

/// The response for a sandbox that an earlier request with the same idempotency key made; `None` if nothing usable came of
/// it.
///
/// # Errors
///
/// Those of the database and the agent.
pub async fn response_for_existing(app: &App, caller: &Caller, id: &str) -> Result<Option<Response>, ApiError> {
    match made_before(app, caller, id).await? {
        Some(row) => response(app, row, StatusCode::CREATED).await.map(Some),
        None => Ok(None),
    }
}

impl NewSandbox {
    fn check(self, start: Start, default_timeout: u64, limits: &PlanLimits) -> Result<Create, ApiError> {
        let mut problems = Problems::default();
        let timeout = self.timeout.unwrap_or(default_timeout.min(limits.max_timeout));
        problems.timeout(timeout, limits);
        let pauses = self.auto_pause == Some(true);
        let lifecycle = LifecycleRequest {
            on_timeout: Some(if pauses { OnTimeout::Pause } else { OnTimeout::Kill }),
            auto_resume: self.auto_resume.map(|auto_resume| auto_resume.enabled),
            pause_memory: self.auto_pause_memory.filter(|_| pauses),
        };
        let lifecycle = problems.lifecycle(lifecycle, false, sandpiper_protocol::agent::Lifecycle::default());
        if lifecycle.auto_resume && !lifecycle.pause_memory {
            problems.add(
                "autoPauseMemory",
                "must not be false with autoResume, as with E2B: connect to the sandbox instead",
            );
        }
        let metadata = problems.metadata(self.metadata.unwrap_or_default());
        let envs = self.env_vars.unwrap_or_default();
        problems.envs(&envs);
        if self.mcp.is_some_and(|mcp| !mcp.is_null()) {
            problems.add("mcp", "is not available yet on this host; leave it out");
        }
        if self.iam.is_some_and(|iam| !iam.is_null()) {
            problems.add("iam", "is not available yet on this host; leave it out");
        }
        let mounts = self.volume_mounts.unwrap_or_default();
        problems.volume_mounts("volumeMounts", mounts.iter().map(|mount| (mount.path.as_str(), mount.name.as_str())));
        let config = self.network.unwrap_or_default();
        let (allow_public_traffic, mask_host) = (config.allow_public_traffic, config.mask_request_host.clone());
        let network = config.check(self.allow_internet_access, &mut problems);
        problems.into_result()?;
        Ok(Create {
            start,
            timeout,
            lifecycle,
            metadata,
            envs,
            exposed_ports: Vec::new(),
            allow_public_traffic: allow_public_traffic.unwrap_or(true),
            capture_output: false,
            previews: Previews { all_ports: true, mask_host },
            network,
            volume_mounts: mounts.into_iter().map(|mount| (mount.path, mount.name)).collect(),
        })
    }
}
