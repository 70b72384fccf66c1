//! `POST /v1/login`, `POST /v1/logout`

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as JsonBody};
use jiff::Timestamp;
use sandpiper_accounts::sessions::Begun;
use sandpiper_accounts::sign_in::{Attempt, wrong};
use sandpiper_accounts::{Email, User};
use sandpiper_db::audit;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use sandpiper_http::request::RequestId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use crate::auth::UserAccess;
use crate::plan::Plan;
use crate::state::App;

/// Who signs in.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Login)]
pub struct LoginRequest {
    pub email: String,
    pub password: String,
}

/// A login session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LoginSession)]
pub struct LoginBody {
    /// `sps_…`, shown this once: for `Authorization: Bearer <token>`.
    pub token: String,
    /// When it ends by itself.
    pub expires_at: Timestamp,
    pub user: UserBody,
}

/// A user.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = User)]
pub struct UserBody {
    pub id: String,
    pub email: String,
    pub name: String,
    pub created_at: Timestamp,
}

impl From<User> for UserBody {
    fn from(user: User) -> Self {
        let User { id, email, name, created_at } = user;
        Self { id: id.to_string(), email, name, created_at }
    }
}

impl LoginBody {
    /// What somebody is told whose session has begun.
    pub fn new(user: User, begun: &Begun) -> Self {
        Self { token: begun.token.to_string(), expires_at: begun.session.expires_at, user: user.into() }
    }
}

/// Sign in
///
/// With an address and a password. The session lasts 30 days, or until it is ended. It acts for one team in each request: the one
/// in the path, in `team` of query or body, in the header `Sandpiper-Team`, or else the personal team.
#[utoipa::path(
    post,
    path = "/v1/login",
    operation_id = "log_in",
    tag = "accounts",
    security(()),
    request_body = LoginRequest,
    responses((status = 200, description = "Signed in", body = LoginBody))
)]
pub async fn log_in(
    State(app): State<App>,
    _: NoParameters,
    request_id: Option<Extension<RequestId>>,
    Json(LoginRequest { email, password }): Json<LoginRequest>,
) -> Result<JsonBody<LoginBody>, ApiError> {
    let password = Zeroizing::new(password);
    let email: Email = email.parse().map_err(|reason: &str| ApiError::invalid_field("email", reason))?;
    let now = app.clock.now();
    let Attempt { user, begun } = app.accounts.sign_in(&email, password, now).await?;
    if let Some(user) = &user {
        // Who became a user in the merchants' portal has none yet.
        let personal = match begun {
            Some(_) => Some(app.store.members.ensure_personal(user, Plan::Basic, now).await?),
            None => app.store.members.personal(&user.id).await?.map(|(team, _)| team),
        };
        let entry = audit::Entry {
            at: now,
            team_id: personal.map(|team| team.id.to_string()).unwrap_or_default(),
            key_id: begun.as_ref().map_or_else(|| "-".to_owned(), |begun| begun.session.id.to_string()),
            user_id: Some(user.id.to_string()),
            request_id: request_id.map(|Extension(id)| id.0).unwrap_or_default(),
            action: "POST /v1/login".to_owned(),
            resource: None,
            status: if begun.is_some() { 200 } else { 401 },
        };
        app.store.audit.keep(vec![entry]).await;
    }
    let (user, begun) = user.zip(begun).ok_or_else(wrong)?;
    Ok(JsonBody(LoginBody::new(user, &begun)))
}

/// Sign out
///
/// Ends the session of the token that is sent, and with it what it has given access to.
#[utoipa::path(
    post,
    path = "/v1/logout",
    operation_id = "log_out",
    tag = "accounts",
    responses((status = 204, description = "Ended"))
)]
pub async fn log_out(
    UserAccess { caller, signed_in }: UserAccess,
    State(app): State<App>,
    _: NoParameters,
) -> Result<StatusCode, ApiError> {
    app.store.login_sessions.end(&signed_in.id, &caller.key_id, app.clock.now()).await?;
    Ok(StatusCode::NO_CONTENT)
}
