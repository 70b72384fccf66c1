//! `GET/PATCH /v1/me`, `GET /v1/me/sessions`, `DELETE /v1/me/sessions/{id}`, `DELETE /v1/me/identities/{id}`

use axum::Json as JsonBody;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use sandpiper_accounts::User;
use sandpiper_accounts::oidc::{Identity, Unlinked};
use sandpiper_accounts::sessions::{LoginSession, LoginSessionId};
use sandpiper_accounts::sign_in::check_name;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::{NoParameters, Pairs};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;
use zeroize::Zeroizing;

use super::login::UserBody;
use super::page::{List, Paging};
use super::teams::body::TeamBody;
use crate::auth::{Caller, OwnAccess, UserAccess};
use crate::state::App;
use crate::store::keys::Capability;

/// Who asks.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Me)]
pub struct MeBody {
    /// Who is signed in; null for an API key.
    pub user: Option<UserBody>,
    /// How the user signs in; null for an API key.
    pub sign_in: Option<SignInBody>,
    /// The key; null for a user.
    pub key: Option<OwnKeyBody>,
    /// The team that this request acts for.
    pub team: TeamBody,
}

/// How one signs in.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OwnSignIn)]
pub struct SignInBody {
    /// Whether there is a password.
    pub has_password: bool,
    /// At providers of OpenID Connect, oldest first.
    pub identities: Vec<IdentityBody>,
}

/// Who one is at a provider of OpenID Connect.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OwnIdentity)]
pub struct IdentityBody {
    pub id: String,
    /// The provider.
    pub issuer: String,
    pub linked_at: Timestamp,
    pub last_used_at: Timestamp,
}

impl From<Identity> for IdentityBody {
    fn from(identity: Identity) -> Self {
        let Identity { id, issuer, created_at, last_used_at } = identity;
        Self { id: id.to_string(), issuer, linked_at: created_at, last_used_at }
    }
}

/// The key of the request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OwnKey)]
pub struct OwnKeyBody {
    pub id: String,
    pub capability: Capability,
}

/// What of oneself is to change.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateMe)]
pub struct UpdateRequest {
    /// At most 200 bytes.
    pub name: Option<String>,
    /// A new password, of 10 to 256 bytes. All other sessions end.
    pub password: Option<String>,
    /// Needed for another password, where there is one.
    pub current_password: Option<String>,
}

/// A login session of one's own.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OwnSession)]
pub struct SessionBody {
    pub id: String,
    /// Whether it is the one of this request.
    pub is_current: bool,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    /// To a minute.
    pub last_used_at: Option<Timestamp>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OwnSessionList)]
pub struct SessionList {
    /// Newest first.
    pub sessions: Vec<SessionBody>,
    /// For the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// Show who asks
///
/// A user or an API key, and the team that the request acts for.
#[utoipa::path(
    get,
    path = "/v1/me",
    operation_id = "show_me",
    tag = "accounts",
    responses((status = 200, description = "Who asks", body = MeBody))
)]
pub async fn show(
    OwnAccess(caller): OwnAccess,
    State(app): State<App>,
    _: NoParameters,
) -> Result<JsonBody<MeBody>, ApiError> {
    Ok(JsonBody(me(&app, caller).await?))
}

/// Change oneself
///
/// The name, or the password.
#[utoipa::path(
    patch,
    path = "/v1/me",
    operation_id = "update_me",
    tag = "accounts",
    request_body = UpdateRequest,
    responses((status = 200, description = "Changed", body = MeBody))
)]
pub async fn update(
    UserAccess { caller, signed_in }: UserAccess,
    State(app): State<App>,
    _: NoParameters,
    Json(UpdateRequest { name, password, current_password }): Json<UpdateRequest>,
) -> Result<JsonBody<MeBody>, ApiError> {
    if let Some(name) = &name {
        check_name(name)?;
    }
    if let Some(password) = password.map(Zeroizing::new) {
        let current = Zeroizing::new(current_password.unwrap_or_default());
        app.accounts.change_password(&signed_in.id, current, password, &caller.key_id, app.clock.now()).await?;
    }
    if let Some(name) = &name {
        app.store.users.rename(&signed_in.id, name).await?;
    }
    Ok(JsonBody(me(&app, caller).await?))
}

/// List one's login sessions
///
/// Those that are not over, newest first.
#[utoipa::path(
    get,
    path = "/v1/me/sessions",
    operation_id = "list_my_sessions",
    tag = "accounts",
    params(
        ("limit" = Option<u32>, Query, description = "Sessions per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = SessionList))
)]
pub async fn sessions(
    UserAccess { caller, signed_in }: UserAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<JsonBody<SessionList>, ApiError> {
    let paging = Paging::alone(query)?;
    let list = List::of_ids(LoginSessionId::PREFIX, &json!([signed_in.id]));
    let (after, now) = (paging.after(&list)?, app.clock.now());
    let mut read = app.store.login_sessions.of(&signed_in.id, after.as_deref(), paging.limit + 1, now).await?;
    let next_token = list.cut(&mut read, paging.limit, |session| session.id.to_string());
    let body = |LoginSession { id, created_at, expires_at, last_used_at, .. }: LoginSession| {
        let is_current = id.as_str() == caller.key_id;
        SessionBody { id: id.to_string(), is_current, created_at, expires_at, last_used_at }
    };
    Ok(JsonBody(SessionList { sessions: read.into_iter().map(body).collect(), next_token }))
}

/// End one of one's login sessions
///
/// And with it what it has given access to.
#[utoipa::path(
    delete,
    path = "/v1/me/sessions/{id}",
    operation_id = "end_my_session",
    tag = "accounts",
    params(("id" = String, Path, description = "The session")),
    responses((status = 204, description = "Ended"))
)]
pub async fn end_session(
    UserAccess { signed_in, .. }: UserAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    match app.store.login_sessions.end(&signed_in.id, &id, app.clock.now()).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found(format!("There is no session {id} of yours"))),
    }
}

/// Unlink one of one's identities
///
/// Who one is at a provider of OpenID Connect. All other sessions end. Another way to sign in must be left: a password, or an identity
/// at this host's provider.
#[utoipa::path(
    delete,
    path = "/v1/me/identities/{id}",
    operation_id = "unlink_my_identity",
    tag = "accounts",
    params(("id" = String, Path, description = "The identity")),
    responses((status = 204, description = "Unlinked"))
)]
pub async fn unlink(
    UserAccess { caller, signed_in }: UserAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let issuer = app.oidc.as_ref().map(|provider| provider.settings.issuer.as_str());
    let identities = &app.store.identities;
    match identities.unlink(&signed_in.id, &id, issuer, &caller.key_id, app.clock.now()).await? {
        Unlinked::Done => Ok(StatusCode::NO_CONTENT),
        Unlinked::None => Err(ApiError::not_found(format!("There is no identity {id} of yours"))),
        Unlinked::LastWay => {
            Err(ApiError::conflict("You could not sign in any more; set a password first, with PATCH /v1/me"))
        }
    }
}

async fn me(app: &App, caller: Caller) -> Result<MeBody, ApiError> {
    let role = caller.signed_in.as_ref().map(|signed_in| signed_in.role);
    let (user, sign_in) = match &caller.signed_in {
        Some(signed_in) => {
            let found = app.store.users.by_id(&signed_in.id).await?;
            let (user, hash): (User, _) = found.ok_or_else(|| ApiError::not_found("There is no such user any more"))?;
            let identities = app.store.identities.of(&user.id).await?.into_iter().map(IdentityBody::from).collect();
            (Some(user.into()), Some(SignInBody { has_password: hash.is_some(), identities }))
        }
        None => (None, None),
    };
    let key = caller.signed_in.is_none().then_some(OwnKeyBody { id: caller.key_id, capability: caller.capability });
    Ok(MeBody { user, sign_in, key, team: TeamBody::new(caller.team, role) })
}
