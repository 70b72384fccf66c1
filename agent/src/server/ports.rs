//! `/sandboxes/{id}/ports/{port}`: TCP ports of the guest that have a preview URL.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use sandpiper_ingress::Directory;
use sandpiper_ingress::vsock::{self, ForwardError};
use sandpiper_protocol::agent::{ExposedPort, PortProtocol, PortRecord, PortStatus, SandboxState};
use sandpiper_protocol::ids::SandboxId;

use super::App;
use super::error::{ApiError, Body};
use crate::sandbox::{Command, Record};
use crate::service::check_port;

/// How long the guest may take to say whether a port is open.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// `GET /sandboxes/{id}/ports/{port}`
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path((id, port)): Path<(SandboxId, u16)>,
) -> Result<Json<PortRecord>, ApiError> {
    let record = app.find(&id)?;
    let exposed = record.exposed_ports.iter().find(|exposed| exposed.port == port).copied();
    let of_all = ExposedPort { port, protocol: PortProtocol::Http, public: true };
    let exposed = exposed.or((record.previews.all_ports && port > 0).then_some(of_all));
    let exposed = exposed.ok_or_else(|| ApiError::not_found("exposed port"))?;
    Ok(Json(app.describe(&record, exposed).await))
}

/// `PUT /sandboxes/{id}/ports/{port}`
pub(super) async fn expose(
    State(app): State<Arc<App>>,
    Path((id, port)): Path<(SandboxId, u16)>,
    Body(exposed): Body<ExposedPort>,
) -> Result<Json<PortRecord>, ApiError> {
    check_port(&exposed).map_err(ApiError::invalid)?;
    if exposed.port != port {
        return Err(ApiError::invalid(format!("port: the path says {port}, the body {}", exposed.port)));
    }
    let record = app.sandboxes.change(&id, |answer| Command::Expose(exposed, answer)).await?;
    Ok(Json(app.describe(&record, exposed).await))
}

/// `DELETE /sandboxes/{id}/ports/{port}`
pub(super) async fn close(
    State(app): State<Arc<App>>,
    Path((id, port)): Path<(SandboxId, u16)>,
) -> Result<StatusCode, ApiError> {
    app.sandboxes.change(&id, |answer| Command::Close(port, answer)).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl App {
    async fn describe(&self, record: &Record, exposed: ExposedPort) -> PortRecord {
        let status = if record.state == SandboxState::Ready {
            self.probe(&record.route_token, exposed.port).await
        } else {
            PortStatus::Unknown
        };
        PortRecord {
            port: exposed.port,
            host: self.urls.port_host(&record.route_token, exposed.port),
            url: self.urls.port_url(&record.route_token, exposed.port),
            protocol: exposed.protocol,
            public: exposed.public && record.allow_public_traffic,
            status,
        }
    }

    async fn probe(&self, route_token: &str, port: u16) -> PortStatus {
        let Some(target) = Directory::find(&self.sandboxes, route_token).await else { return PortStatus::Unknown };
        match vsock::forward(&target.vsock, port, PROBE_TIMEOUT).await {
            Ok(_) => PortStatus::Open,
            Err(ForwardError::Refused { .. }) => PortStatus::Closed,
            Err(_) => PortStatus::Unknown,
        }
    }
}
