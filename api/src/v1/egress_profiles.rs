//! The operator's lists of what sandboxes may reach.

use axum::Json;
use axum::extract::State;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::Pairs;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::page::{List, Paging};
use crate::auth::ReadAccess;
use crate::state::App;

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EgressProfiles)]
pub struct EgressProfilesBody {
    /// Names, for `egress_profiles` of a sandbox.
    pub profiles: Vec<String>,
    /// For the next page, of the same list; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// List egress profiles
///
/// Names of the lists of destinations that the operator keeps; a network policy may name them.
#[utoipa::path(
    get,
    path = "/v1/egress_profiles",
    operation_id = "list_egress_profiles",
    tag = "network",
    params(
        ("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default"),
        ("limit" = Option<u32>, Query, description = "Profiles per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = EgressProfilesBody))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<Json<EgressProfilesBody>, ApiError> {
    let paging = Paging::of_team(query, &caller)?;
    let mut names = app.profiles.names(&app.agent, app.clock.now(), &[]).await?;
    names.sort();
    let names = names.into_iter().map(|name| (name.clone(), name));
    let (profiles, next_token) = paging.cut(&List::of_keys(&json!(["egress_profiles"])), names)?;
    Ok(Json(EgressProfilesBody { profiles, next_token }))
}

/// What to say of a name that is not `known`.
pub fn unknown(name: &str, known: &[String]) -> String {
    match known {
        [] => format!("{name:?} is no egress profile; this host has none"),
        known => format!("{name:?} is no egress profile of this host; it has: {}", known.join(", ")),
    }
}
