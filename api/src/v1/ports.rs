//! Preview ports: TCP ports of a sandbox's 127.0.0.1 that have a URL.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::OptionalJson;
use sandpiper_http::query::NoParameters;
use sandpiper_protocol::agent::{self, ExposedPort, PortStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent_client::AgentError;
use crate::auth::{Caller, ReadAccess, WriteAccess};
use crate::errors;
use crate::orchestration;
use crate::state::App;
use crate::store::sandbox_row::SandboxRow;
use crate::v1::sandboxes::body::{PortProtocol, port_number};
use crate::v1::sandboxes::owned;

/// An exposed port.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Port)]
pub struct PortBody {
    pub port: u16,
    /// Host name of the preview.
    pub host: String,
    /// Where the preview is.
    pub url: String,
    pub protocol: PortProtocol,
    /// False: requests need the sandbox's access token.
    pub public: bool,
    pub status: Status,
}

/// Whether the preview would get a response from the sandbox.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PortStatus)]
pub enum Status {
    /// Something in the sandbox accepts connections.
    Open,
    Closed,
    /// The sandbox could not be asked.
    Unknown,
}

impl From<agent::PortRecord> for PortBody {
    fn from(record: agent::PortRecord) -> Self {
        Self {
            port: record.port,
            host: record.host,
            url: record.url,
            protocol: record.protocol.into(),
            public: record.public,
            status: match record.status {
                PortStatus::Open => Status::Open,
                PortStatus::Closed => Status::Closed,
                PortStatus::Unknown => Status::Unknown,
            },
        }
    }
}

/// How a port is exposed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExposePort {
    /// `http` is the only one.
    #[serde(default)]
    pub protocol: PortProtocol,
    /// Whether anybody who knows the URL may open it; otherwise requests need the sandbox's access token.
    #[serde(default)]
    pub public: bool,
}

/// Show a port
///
/// The preview of an exposed port; a port that is not exposed is 404.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/ports/{port}",
    operation_id = "show_port",
    tag = "ports",
    params(("id" = String, Path, description = "The sandbox"), ("port" = u16, Path, description = "1 to 65535")),
    responses((status = 200, description = "The port", body = PortBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((id, port)): Path<(String, String)>,
) -> Result<Json<PortBody>, ApiError> {
    let (_, port) = owned_port(&app, &caller, &id, &port).await?;
    let record = app.agent.port(&id, port).await.map_err(|error| not_exposed(error, &id, port))?;
    Ok(Json(record.into()))
}

/// Expose a port
///
/// Gives a port of the sandbox a preview URL, or changes whether it is public.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{id}/ports/{port}",
    operation_id = "expose_port",
    tag = "ports",
    params(("id" = String, Path, description = "The sandbox"), ("port" = u16, Path, description = "1 to 65535")),
    request_body = ExposePort,
    responses((status = 200, description = "The port", body = PortBody))
)]
pub async fn expose(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((id, port)): Path<(String, String)>,
    OptionalJson(request): OptionalJson<ExposePort>,
) -> Result<Json<PortBody>, ApiError> {
    let (row, port) = owned_port(&app, &caller, &id, &port).await?;
    let exposed = ExposedPort { port, protocol: request.protocol.into(), public: request.public };
    let record = app.agent.expose(&id, &exposed).await.map_err(|error| gone(error, &id))?;
    orchestration::sync::refresh(&app, row).await?;
    Ok(Json(record.into()))
}

/// Unexpose a port
///
/// Ends the preview of a port.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{id}/ports/{port}",
    operation_id = "unexpose_port",
    tag = "ports",
    params(("id" = String, Path, description = "The sandbox"), ("port" = u16, Path, description = "1 to 65535")),
    responses((status = 204, description = "Not exposed any more"))
)]
pub async fn unexpose(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((id, port)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (row, port) = owned_port(&app, &caller, &id, &port).await?;
    app.agent.unexpose(&id, port).await.map_err(|error| not_exposed(error, &id, port))?;
    orchestration::sync::refresh(&app, row).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The caller's sandbox, or 404; then the port's number.
async fn owned_port(app: &App, caller: &Caller, id: &str, port: &str) -> Result<(SandboxRow, u16), ApiError> {
    let row = owned(app, caller, id).await?;
    let port = port_number(port).ok_or_else(|| ApiError::invalid_field("port", "must be a number from 1 to 65535"))?;
    Ok((row, port))
}

fn not_exposed(error: AgentError, id: &str, port: u16) -> ApiError {
    if error.is_not_found() {
        ApiError::not_found(format!(
            "Port {port} of {id} is not exposed; expose it with PUT /v1/sandboxes/{id}/ports/{port}"
        ))
    } else {
        error.into()
    }
}

fn gone(error: AgentError, id: &str) -> ApiError {
    if error.is_not_found() { errors::no_sandbox(id) } else { error.into() }
}
