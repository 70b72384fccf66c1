//! `POST /v1/login`, `POST /v1/logout`

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json as JsonBody};
use jiff::Timestamp;
use sandpiper_accounts::passwords::Busy;
use sandpiper_accounts::sessions::Begun;
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
    app.login_limits.check(&email.to_string())?;
    let (user, hash) = app.store.users.by_email(&email).await?.unzip();
    let is_right = app.passwords.is_right(password, hash.clone()).await.map_err(busy)?;
    let now = app.clock.now();
    let begun = match user.as_ref().zip(hash) {
        Some((user, hash)) if is_right => app.store.login_sessions.begin(&user.id, &hash, now).await?,
        _ => None,
    };
    if let Some(user) = &user {
        let personal = app.store.members.personal(&user.id).await?;
        let entry = audit::Entry {
            at: now,
            team_id: personal.map(|(team, _)| team.id.to_string()).unwrap_or_default(),
            key_id: begun.as_ref().map_or_else(|| "-".to_owned(), |begun| begun.session.id.to_string()),
            user_id: Some(user.id.to_string()),
            request_id: request_id.map(|Extension(id)| id.0).unwrap_or_default(),
            action: "POST /v1/login".to_owned(),
            resource: None,
            status: if begun.is_some() { 200 } else { 401 },
        };
        app.store.audit.keep(vec![entry]).await;
    }
    // The same for an address that nobody has.
    let wrong = || ApiError::unauthorized("The address or the password is wrong");
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

/// 503 where too many sign in at a time.
pub fn busy(error: Busy) -> ApiError {
    let message = "Too many users sign in at this moment; try again in a few seconds";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "capacity_unavailable", message)
        .retry_after(5)
        .because(error.to_string())
}
