//! Signing in and out, and accepting an invitation.

use axum::extract::{FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, RequestExt};
use jiff::Timestamp;
use sandpiper_accounts::membership::{AcceptError, TOKEN, gone};
use sandpiper_accounts::sessions::Begun;
use sandpiper_accounts::sign_in::{Attempt, busy, check_name, check_password, wrong};
use sandpiper_accounts::{Email, UserId};
use sandpiper_db::audit;
use sandpiper_http::error::ApiError;
use sandpiper_http::keys;
use sandpiper_http::request::RequestId;
use sandpiper_web::Problem;
use sandpiper_web::entrance::{self, Entered};
use sandpiper_web::form::{Entrance, Fields, Sent};
use sandpiper_web::response::Refusal;
use sandpiper_web::session::MaybeSession;
use zeroize::Zeroizing;

use super::SITE;
use super::visit::Visitor;
use crate::state::App;
use crate::store::merchant_users::NewUser;

/// Whose requests without a merchant are in the audit.
const NOBODY: &str = "-";

/// `GET /portal/sign-in`
pub(super) async fn show_sign_in() -> Response {
    entrance::sign_in(&SITE, "", None, None)
}

/// `POST /portal/sign-in`
pub(super) async fn sign_in(
    State(app): State<App>,
    request_id: Option<Extension<RequestId>>,
    Entrance(fields): Entrance,
) -> Response {
    let email = fields.text("email").unwrap_or_default();
    let request_id = request_id.map(|Extension(id)| id.0).unwrap_or_default();
    match try_sign_in(&app, email, fields.exact("password"), request_id).await {
        Ok(begun) => enter(&begun),
        Err(error) => entrance::sign_in(&SITE, email, None, Some(&problem(error))),
    }
}

async fn try_sign_in(app: &App, email: &str, password: &str, request_id: String) -> Result<Begun, ApiError> {
    let email: Email = email.parse().map_err(|reason: &str| ApiError::invalid_field("email", reason))?;
    let now = app.clock.now();
    let Attempt { user, begun } = app.accounts.sign_in(&email, Zeroizing::new(password.to_owned()), now).await?;
    if let Some(user) = &user {
        let status = if begun.is_some() { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
        let session = begun.as_ref().map_or(NOBODY, |begun| &begun.session.id);
        write_down(app, (NOBODY, "POST /portal/sign-in"), &user.id, session, request_id, status, now).await;
    }
    begun.ok_or_else(wrong)
}

/// `POST /portal/sign-out`
pub(super) async fn sign_out(State(app): State<App>, visitor: Visitor, _: Sent) -> Result<Response, Refusal> {
    let Visitor { session_id, user, .. } = visitor;
    app.accounts.sessions.end(&user.id, &session_id, app.clock.now()).await.map_err(ApiError::from)?;
    Ok(entrance::signed_out(&SITE))
}

/// `GET /portal/join`
pub(super) async fn show_join(MaybeSession(session): MaybeSession) -> Response {
    entrance::join(&SITE, &Entered { is_signed_in: session.is_some(), ..Entered::default() }, None)
}

/// `POST /portal/join`: as somebody new, or as who is signed in.
pub(super) async fn join(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    let (mut parts, body) = request.into_parts();
    let request_id = parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
    let visitor = Visitor::from_request_parts(&mut parts, &app).await.ok();
    let Entrance(fields) = Request::from_parts(parts, body).extract_with_state(&app).await?;
    let is_signed_in = visitor.is_some();
    let joined = match visitor.filter(|_| fields.is_ticked("as_me")) {
        Some(visitor) => join_as(&app, visitor, &fields).await,
        None => join_as_new(&app, &fields, request_id).await,
    };
    let field = |name| fields.text(name).unwrap_or_default().to_owned();
    let (token, email, name) = (field("token"), field("email"), field("name"));
    let entered = || Entered { is_signed_in, token, email, name, provider: None };
    Ok(joined.unwrap_or_else(|error| entrance::join(&SITE, &entered(), Some(&problem(error)))))
}

async fn join_as(app: &App, visitor: Visitor, fields: &Fields) -> Result<Response, ApiError> {
    let (hash, now) = (open(app, fields).await?, app.clock.now());
    let merchant = app.store.merchant_users.accept(&hash, &visitor.user, now).await.map_err(refused)?;
    let entry = visitor.entry(app, &merchant, "POST /portal/join", visitor.user.id.to_string());
    app.store.audit.keep(vec![entry]).await;
    Ok(Redirect::to(SITE.root).into_response())
}

async fn join_as_new(app: &App, fields: &Fields, request_id: String) -> Result<Response, ApiError> {
    let (hash, now) = (open(app, fields).await?, app.clock.now());
    let email = fields.text("email").unwrap_or_default();
    let email: Email = email.parse().map_err(|reason: &str| ApiError::invalid_field("email", reason))?;
    let (name, password) = (fields.text("name").unwrap_or_default(), fields.exact("password"));
    check_name(name)?;
    check_password(password)?;
    let password = app.accounts.passwords.hash(Zeroizing::new(password.to_owned())).await.map_err(busy)?;
    let new = NewUser { email: &email, name, password: &password };
    let (user, merchant, begun) = app.store.merchant_users.accept_new(&hash, &new, now).await.map_err(refused)?;
    let action = (merchant.as_str(), "POST /portal/join");
    write_down(app, action, &user.id, &begun.session.id, request_id, StatusCode::OK, now).await;
    Ok(enter(&begun))
}

/// The hash of the token that was sent, if it can be accepted: looked at before a password is hashed.
async fn open(app: &App, fields: &Fields) -> Result<String, ApiError> {
    let hash = keys::hash(TOKEN, fields.text("token").unwrap_or_default()).ok_or_else(gone)?;
    app.accounts.limits.check(&hash)?;
    let is_open = app.store.merchant_users.is_open(&hash, app.clock.now()).await?;
    if is_open { Ok(hash) } else { Err(gone()) }
}

fn refused(error: AcceptError) -> ApiError {
    match error {
        AcceptError::Gone => gone(),
        AcceptError::ForAnother => ApiError::new(
            StatusCode::FORBIDDEN,
            "insufficient_scope",
            "The invitation is for another address; accept it as the user with that one",
        ),
        AcceptError::UserExists => {
            ApiError::conflict("There is a user with this address: sign in, and open the invitation's link again")
        }
        AcceptError::IsMember => ApiError::conflict("You are a user of this merchant already"),
        AcceptError::Store(error) => error.into(),
    }
}

fn enter(begun: &Begun) -> Response {
    let Begun { session, token } = begun;
    entrance::Begun { token: token.to_string(), expires_at: session.expires_at }.enter(&SITE)
}

fn problem(error: ApiError) -> Problem {
    Problem::from(&error)
}

/// Writes down what somebody did, at a merchant, who was not signed in before.
async fn write_down(
    app: &App,
    (merchant, action): (&str, &str),
    user: &UserId,
    session: &str,
    request_id: String,
    status: StatusCode,
    at: Timestamp,
) {
    let entry = audit::Entry {
        at,
        team_id: merchant.to_owned(),
        key_id: session.to_owned(),
        user_id: Some(user.to_string()),
        request_id,
        action: action.to_owned(),
        resource: Some(user.to_string()),
        status: status.as_u16(),
    };
    app.store.audit.keep(vec![entry]).await;
}
