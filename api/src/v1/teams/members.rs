//! `GET /v1/teams/{team}/members`, `PATCH/DELETE /v1/teams/{team}/members/{user}`

use axum::Extension;
use axum::Json as JsonBody;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use sandpiper_accounts::membership::Changed;
use sandpiper_accounts::{Role, UserId};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::{NoParameters, Pairs};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::auth::{Caller, ManageAccess, ReadAccess, SignedIn, UserAccess};
use crate::state::App;
use crate::store::members::Member;
use crate::v1::page::{List, Paging, keys_by_time};

/// A member of a team.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Member)]
pub struct MemberBody {
    /// Id of the user.
    pub user: String,
    pub email: String,
    pub name: String,
    pub role: Role,
    /// When this user became one.
    pub since: Timestamp,
}

impl From<Member> for MemberBody {
    fn from(member: Member) -> Self {
        let Member { user_id, email, name, role, since } = member;
        Self { user: user_id.to_string(), email, name, role, since }
    }
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct MemberList {
    /// Who is there for longest first.
    pub members: Vec<MemberBody>,
    /// For the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// What of a member is to change.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateMember)]
pub struct UpdateRequest {
    pub role: Role,
}

/// List a team's members
///
/// Who is there for longest first, page by page.
#[utoipa::path(
    get,
    path = "/v1/teams/{team}/members",
    operation_id = "list_members",
    tag = "accounts",
    params(
        ("team" = String, Path, description = "Slug or id of the team"),
        ("limit" = Option<u32>, Query, description = "Members per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = MemberList))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(team): Path<String>,
    query: Pairs,
) -> Result<JsonBody<MemberList>, ApiError> {
    caller.check_team(Some(&team))?;
    let paging = Paging::alone(query)?;
    let members = app.store.members.of(&caller.team.id).await?;
    let keys: Vec<_> = keys_by_time(members.iter().map(|member| member.since.as_millisecond())).collect();
    let members = keys.into_iter().zip(members.into_iter().map(MemberBody::from));
    let (members, next_token) = paging.cut(&List::of_keys(&json!(["members", caller.team.id])), members)?;
    Ok(JsonBody(MemberList { members, next_token }))
}

/// Give a member another role
///
/// Needs an admin; to make an owner of somebody, or to take that away, an owner. Sessions of a member who may do less end. The last
/// owner stays one: 409.
#[utoipa::path(
    patch,
    path = "/v1/teams/{team}/members/{user}",
    operation_id = "update_member",
    tag = "accounts",
    params(
        ("team" = String, Path, description = "Slug or id of the team"),
        ("user" = String, Path, description = "Id of the user"),
    ),
    request_body = UpdateRequest,
    responses((status = 200, description = "Changed", body = MemberBody))
)]
pub async fn update(
    ManageAccess { caller, signed_in }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((team, user)): Path<(String, String)>,
    Json(UpdateRequest { role }): Json<UpdateRequest>,
) -> Result<Response, ApiError> {
    caller.check_team(Some(&team))?;
    let user = UserId::from(user);
    change(&app, &caller, &signed_in, &user, Some(role)).await?;
    let members = app.store.members.of(&caller.team.id).await?;
    let member = members.into_iter().find(|member| member.user_id == user).ok_or_else(|| no_member(&user))?;
    let acted = Extension(Acted(vec![user.to_string()]));
    Ok((acted, JsonBody(MemberBody::from(member))).into_response())
}

/// Remove a member
///
/// Needs an admin, for an owner an owner; everybody may leave. The sessions of who is removed end; keys that were made stay. The
/// last owner stays: 409.
#[utoipa::path(
    delete,
    path = "/v1/teams/{team}/members/{user}",
    operation_id = "delete_member",
    tag = "accounts",
    params(
        ("team" = String, Path, description = "Slug or id of the team"),
        ("user" = String, Path, description = "Id of the user"),
    ),
    responses((status = 204, description = "Removed"))
)]
pub async fn delete(
    UserAccess { caller, signed_in }: UserAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((team, user)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    caller.check_team(Some(&team))?;
    caller.check_enabled()?;
    let user = UserId::from(user);
    if signed_in.id != user {
        signed_in.check_manages()?;
    }
    change(&app, &caller, &signed_in, &user, None).await?;
    Ok((StatusCode::NO_CONTENT, Extension(Acted(vec![user.to_string()]))).into_response())
}

/// 403 on what only owners have to do with: who owns the team.
pub fn only_owners() -> ApiError {
    let message = "Only an owner of the team makes owners of others, or takes that away";
    ApiError::new(StatusCode::FORBIDDEN, "insufficient_scope", message)
}

async fn change(
    app: &App,
    caller: &Caller,
    signed_in: &SignedIn,
    user: &UserId,
    role: Option<Role>,
) -> Result<(), ApiError> {
    if caller.team.personal_of.as_ref() == Some(user) {
        return Err(ApiError::conflict("A personal team stays that of its user"));
    }
    match app.store.members.change(&caller.team.id, &signed_in.id, user, role, app.clock.now()).await? {
        Changed::Done => Ok(()),
        Changed::NoMember => Err(no_member(user)),
        Changed::LastOwner => {
            Err(ApiError::conflict("The team's last owner stays one; make somebody else an owner first"))
        }
        Changed::Forbidden => Err(only_owners()),
    }
}

fn no_member(user: &str) -> ApiError {
    ApiError::not_found(format!("There is no member {user:?} of the team"))
}
