//! `GET/POST /v1/teams`, `GET /v1/teams/{team}`; members and invitations in files of their own.

use axum::Extension;
use axum::Json as JsonBody;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandpiper_accounts::Role;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::{NoParameters, Pairs};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use self::body::TeamBody;
use super::page::{List, Paging};
use crate::auth::{OwnAccess, ReadAccess, UserAccess};
use crate::plan::Plan;
use crate::state::App;
use crate::store::teams::{SLUG_RULE, is_slug};

pub mod body;
pub mod invitations;
pub mod members;

/// Teams that one user may own besides the personal one.
const MOST_OWNED: usize = 20;

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct TeamList {
    /// By slug.
    pub teams: Vec<TeamBody>,
    /// For the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// The team to found.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateTeam, example = json!({"slug": "acme"}))]
pub struct CreateRequest {
    /// 1 to 40 of `a-z`, `0-9` and `-`, beginning with a letter; no other team has it.
    pub slug: String,
}

/// List teams
///
/// Those that one is a member of; for an API key, its own.
#[utoipa::path(
    get,
    path = "/v1/teams",
    operation_id = "list_teams",
    tag = "accounts",
    params(
        ("limit" = Option<u32>, Query, description = "Teams per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = TeamList))
)]
pub async fn list(
    OwnAccess(caller): OwnAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<JsonBody<TeamList>, ApiError> {
    let paging = Paging::alone(query)?;
    let teams = match &caller.signed_in {
        Some(signed_in) => {
            let teams = app.store.members.teams_of(&signed_in.id).await?;
            teams.into_iter().map(|(team, role)| TeamBody::new(team, Some(role))).collect()
        }
        None => vec![TeamBody::new(caller.team, None)],
    };
    let teams = teams.into_iter().map(|team| (team.slug.clone(), team));
    let (teams, next_token) = paging.cut(&List::of_keys(&json!(["teams", caller.key_id])), teams)?;
    Ok(JsonBody(TeamList { teams, next_token }))
}

/// Found a team
///
/// With oneself as its owner, on the plan `basic`; the operator gives it another.
#[utoipa::path(
    post,
    path = "/v1/teams",
    operation_id = "create_team",
    tag = "accounts",
    request_body = CreateRequest,
    responses((status = 201, description = "Founded", body = TeamBody))
)]
pub async fn create(
    UserAccess { signed_in, .. }: UserAccess,
    State(app): State<App>,
    _: NoParameters,
    Json(CreateRequest { slug }): Json<CreateRequest>,
) -> Result<Response, ApiError> {
    if !is_slug(&slug) {
        return Err(ApiError::invalid_field("slug", SLUG_RULE));
    }
    let teams = app.store.members.teams_of(&signed_in.id).await?;
    let owned = teams.iter().filter(|(team, role)| *role == Role::Owner && team.personal_of.is_none()).count();
    if owned >= MOST_OWNED {
        let message = format!("One user owns {MOST_OWNED} teams at most; have somebody else found this one");
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "too_many_teams", message));
    }
    let team = app.store.members.found(&signed_in.id, &slug, Plan::Basic, app.clock.now()).await?;
    let team = team.ok_or_else(|| ApiError::conflict(format!("There is a team {slug:?}; choose another slug")))?;
    let location = [(header::LOCATION, format!("/v1/teams/{}", team.slug))];
    let acted = Extension(Acted(vec![team.id.to_string()]));
    Ok((StatusCode::CREATED, location, acted, JsonBody(TeamBody::new(team, Some(Role::Owner)))).into_response())
}

/// Show a team
#[utoipa::path(
    get,
    path = "/v1/teams/{team}",
    operation_id = "show_team",
    tag = "accounts",
    params(("team" = String, Path, description = "Slug or id of the team")),
    responses((status = 200, description = "The team", body = TeamBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    _: NoParameters,
    Path(team): Path<String>,
) -> Result<JsonBody<TeamBody>, ApiError> {
    caller.check_team(Some(&team))?;
    let role = caller.signed_in.map(|signed_in| signed_in.role);
    Ok(JsonBody(TeamBody::new(caller.team, role)))
}
