//! `GET/POST /v1/teams/{team}/invitations`, `DELETE /v1/teams/{team}/invitations/{id}`, `POST /v1/invitations/accept`
//!
//! Nothing is sent: who invites hands the token on. It is as good as the role that it gives, so it is shown once, and stored as a
//! hash.

use axum::Extension;
use axum::Json as JsonBody;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use sandpiper_accounts::membership::{AcceptError, INVITATION, TOKEN, gone};
use sandpiper_accounts::sign_in::{busy, check_name, check_password};
use sandpiper_accounts::{Email, Role};
use sandpiper_db::audit;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::{BodyLimit, Json, parse, read};
use sandpiper_http::keys;
use sandpiper_http::query::{NoParameters, Pairs};
use sandpiper_http::request::RequestId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;
use zeroize::Zeroizing;

use super::body::TeamBody;
use super::members::only_owners;
use crate::auth::{ManageAccess, UserAccess};
use crate::plan::Plan;
use crate::state::App;
use crate::store::members::{Invitation, NewInvitation, NewUser};
use crate::v1::login::LoginBody;
use crate::v1::page::{List, Paging};

/// Invitations to one team that can be accepted at a time.
const MOST: u32 = 100;

/// An invitation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Invitation)]
pub struct InvitationBody {
    pub id: String,
    pub role: Role,
    /// The only one who may accept it; null: whoever has the token.
    pub email: Option<String>,
    /// Id of a user; null: the operator.
    pub invited_by: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    /// `spi_…`, in the response to its creation only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl InvitationBody {
    /// What somebody is told of an invitation, with its token in the response to its creation.
    pub fn new(invitation: Invitation, token: Option<String>) -> Self {
        let Invitation { id, role, email, invited_by, created_at, expires_at } = invitation;
        let invited_by = invited_by.map(|user| user.to_string());
        Self { id, role, email, invited_by, created_at, expires_at, token }
    }
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct InvitationList {
    /// Newest first.
    pub invitations: Vec<InvitationBody>,
    /// For the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// The invitation to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateInvitation, example = json!({"role": "member", "email": "ada@example.com"}))]
pub struct CreateRequest {
    pub role: Role,
    /// The only one who may accept it; whoever has the token by default.
    pub email: Option<String>,
}

/// Who accepts an invitation. A user who is signed in sends the token alone; somebody new the rest, too.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AcceptInvitation)]
pub struct AcceptRequest {
    /// `spi_…`
    pub token: String,
    pub email: Option<String>,
    /// At most 200 bytes.
    pub name: Option<String>,
    /// 10 to 256 bytes.
    pub password: Option<String>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Accepted)]
pub struct AcceptedBody {
    /// The team that one is a member of now.
    pub team: TeamBody,
    /// Of somebody new, who is signed in with this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<LoginBody>,
}

/// List invitations
///
/// Those that can be accepted, newest first. Needs an admin.
#[utoipa::path(
    get,
    path = "/v1/teams/{team}/invitations",
    operation_id = "list_invitations",
    tag = "accounts",
    params(
        ("team" = String, Path, description = "Slug or id of the team"),
        ("limit" = Option<u32>, Query, description = "Invitations per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = InvitationList))
)]
pub async fn list(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    Path(team): Path<String>,
    query: Pairs,
) -> Result<JsonBody<InvitationList>, ApiError> {
    caller.check_team(Some(&team))?;
    let paging = Paging::alone(query)?;
    let list = List::of_ids(INVITATION, &json!([caller.team.id]));
    let (after, now) = (paging.after(&list)?, app.clock.now());
    let members = &app.store.members;
    let mut open = members.invitations(&caller.team.id, after.as_deref(), paging.limit + 1, now).await?;
    let next_token = list.cut(&mut open, paging.limit, |invitation| invitation.id.clone());
    let invitations = open.into_iter().map(|invitation| InvitationBody::new(invitation, None)).collect();
    Ok(JsonBody(InvitationList { invitations, next_token }))
}

/// Invite somebody
///
/// Makes a token for somebody who accepts it within seven days with `POST /v1/invitations/accept`. Nothing is sent: hand it on. Needs
/// an admin, for an owner an owner.
#[utoipa::path(
    post,
    path = "/v1/teams/{team}/invitations",
    operation_id = "create_invitation",
    tag = "accounts",
    params(("team" = String, Path, description = "Slug or id of the team")),
    request_body = CreateRequest,
    responses((status = 201, description = "Made", body = InvitationBody))
)]
pub async fn create(
    ManageAccess { caller, signed_in }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(team): Path<String>,
    Json(CreateRequest { role, email }): Json<CreateRequest>,
) -> Result<Response, ApiError> {
    caller.check_team(Some(&team))?;
    if role > signed_in.role {
        return Err(only_owners());
    }
    let email = email.map(|email| email.parse::<Email>()).transpose();
    let email = email.map_err(|reason| ApiError::invalid_field("email", reason))?;
    let now = app.clock.now();
    let open = app.store.members.invitations(&caller.team.id, None, MOST, now).await?;
    if open.len() >= MOST as usize {
        return Err(ApiError::conflict(format!("The team has {MOST} open invitations; withdraw one first")));
    }
    let token = keys::generate(TOKEN);
    let hash = keys::hash(TOKEN, &token).ok_or_else(|| ApiError::internal("a new token has no hash"))?;
    let new = NewInvitation { role, email: email.as_ref(), invited_by: Some(&signed_in.id), hash: &hash };
    let invitation = app.store.members.invite(&caller.team.id, &new, now).await?;
    let acted = Extension(Acted(vec![invitation.id.clone()]));
    let body = InvitationBody::new(invitation, Some(token.to_string()));
    Ok((StatusCode::CREATED, acted, JsonBody(body)).into_response())
}

/// Withdraw an invitation
///
/// Needs an admin.
#[utoipa::path(
    delete,
    path = "/v1/teams/{team}/invitations/{id}",
    operation_id = "delete_invitation",
    tag = "accounts",
    params(
        ("team" = String, Path, description = "Slug or id of the team"),
        ("id" = String, Path, description = "The invitation"),
    ),
    responses((status = 204, description = "Withdrawn"))
)]
pub async fn delete(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((team, id)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    caller.check_team(Some(&team))?;
    if !app.store.members.withdraw(&caller.team.id, &id).await? {
        return Err(ApiError::not_found(format!("There is no invitation {id:?} to the team")));
    }
    Ok((StatusCode::NO_CONTENT, Extension(Acted(vec![id]))).into_response())
}

/// Accept an invitation
///
/// Somebody new becomes a user, with an address, a password and a personal team, and is signed in. Who has a login session already
/// sends its token as `Authorization`, and that of the invitation alone.
#[utoipa::path(
    post,
    path = "/v1/invitations/accept",
    operation_id = "accept_invitation",
    tag = "accounts",
    security((), ("api_key" = [])),
    request_body = AcceptRequest,
    responses((status = 200, description = "Accepted", body = AcceptedBody))
)]
pub async fn accept(State(app): State<App>, _: NoParameters, request: Request) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let request_id = parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
    let signed_in = match parts.headers.contains_key(header::AUTHORIZATION) {
        true => Some(UserAccess::from_request_parts(&mut parts, &app).await?),
        false => None,
    };
    let body = read(Request::new(body), BodyLimit(app.settings.request_body_limit)).await?;
    let AcceptRequest { token, email, name, password } = parse(&body)?;
    let hash = keys::hash(TOKEN, &token).ok_or_else(gone)?;
    app.accounts.limits.check(&hash)?;
    let now = app.clock.now();
    // Before a password is hashed: whoever has no token costs next to nothing.
    if !app.store.members.is_open(&hash, now).await? {
        return Err(gone());
    }
    let (team, key_id, user_id, session) = match signed_in {
        Some(UserAccess { caller, signed_in }) => {
            let user = app.store.users.by_id(&signed_in.id).await?;
            let (user, _) = user.ok_or_else(|| ApiError::unauthorized("There is no such user any more"))?;
            let (team, role) = app.store.members.accept(&hash, &user, now).await.map_err(refused)?;
            (TeamBody::new(team, Some(role)), caller.key_id, user.id, None)
        }
        None => {
            let new =
                (email.unwrap_or_default(), name.unwrap_or_default(), Zeroizing::new(password.unwrap_or_default()));
            let (email, name, password) = new;
            let email: Email = email.parse().map_err(|reason: &str| ApiError::invalid_field("email", reason))?;
            check_name(&name)?;
            check_password(&password)?;
            let password = app.accounts.passwords.hash(password).await.map_err(busy)?;
            let new = NewUser { email: &email, name: &name, password: &password, plan: Plan::Basic };
            let (user, (team, role), begun) = app.store.members.accept_new(&hash, &new, now).await.map_err(refused)?;
            let (session, user_id) = (begun.session.id.to_string(), user.id.clone());
            (TeamBody::new(team, Some(role)), session, user_id, Some(LoginBody::new(user, &begun)))
        }
    };
    let entry = audit::Entry {
        at: now,
        team_id: team.id.clone(),
        key_id,
        user_id: Some(user_id.to_string()),
        request_id,
        action: "POST /v1/invitations/accept".to_owned(),
        resource: Some(user_id.to_string()),
        status: 200,
    };
    app.store.audit.keep(vec![entry]).await;
    Ok(JsonBody(AcceptedBody { team, session }).into_response())
}

/// Why an invitation was not accepted, to whom it was not.
pub fn refused(error: AcceptError) -> ApiError {
    match error {
        AcceptError::Gone => gone(),
        AcceptError::ForAnother => ApiError::new(
            StatusCode::FORBIDDEN,
            "insufficient_scope",
            "The invitation is for another address; accept it as the user with that one",
        ),
        AcceptError::UserExists => ApiError::conflict(
            "There is a user with this address: sign in with POST /v1/login, and accept the invitation with that session",
        ),
        AcceptError::IsMember => ApiError::conflict("You are a member of the team already"),
        AcceptError::Store(error) => error.into(),
    }
}
