//! The operator's lists of what sandboxes may reach.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::App;
use crate::auth::ReadAccess;
use crate::dispatch;
use crate::error::ApiError;

/// All profiles.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EgressProfiles)]
pub struct EgressProfilesBody {
    /// Names, for `egress_profiles` of a sandbox.
    pub profiles: Vec<String>,
}

/// List egress profiles
///
/// Names of the lists of destinations that the operator keeps; a network policy may name them.
#[utoipa::path(
    get,
    path = "/v1/egress_profiles",
    operation_id = "list_egress_profiles",
    tag = "network",
    responses((status = 200, description = "The profiles", body = EgressProfilesBody))
)]
pub async fn list(_access: ReadAccess, State(app): State<App>) -> Result<Json<EgressProfilesBody>, ApiError> {
    Ok(Json(EgressProfilesBody { profiles: dispatch::profiles::names(&app, &[]).await? }))
}

/// What to say of a name that is not `known`.
pub fn unknown(name: &str, known: &[String]) -> String {
    match known {
        [] => format!("{name:?} is no egress profile; this host has none"),
        known => format!("{name:?} is no egress profile of this host; it has: {}", known.join(", ")),
    }
}
