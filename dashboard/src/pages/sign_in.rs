//! Signing in with a password, and signing out.

use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use sandpiper_web::entrance::{self, Begun};
use serde_json::json;

use super::oidc;
use crate::api::{Api, Call};
use crate::form::{Entrance, Sent};
use crate::response::{Refusal, SITE};

/// `GET /dashboard/sign-in`
pub(crate) async fn show(State(api): State<Api>) -> Response {
    entrance::sign_in(&SITE, "", oidc::provider(&api).await.as_deref(), None)
}

/// `POST /dashboard/sign-in`
pub(crate) async fn sign_in(State(api): State<Api>, Entrance(fields): Entrance) -> Response {
    let email = fields.text("email").unwrap_or_default();
    let body = json!({"email": email, "password": fields.exact("password")});
    match api.call::<Begun>(Method::POST, "/v1/login", Some(body), Call::default()).await {
        Ok(begun) => begun.enter(&SITE),
        Err(problem) => entrance::sign_in(&SITE, email, oidc::provider(&api).await.as_deref(), Some(&problem)),
    }
}

/// `POST /dashboard/sign-out`
pub(crate) async fn sign_out(State(api): State<Api>, sent: Sent) -> Result<Response, Refusal> {
    let call = Call { session: Some(&sent.session), ..Call::default() };
    match api.call::<()>(Method::POST, "/v1/logout", None, call).await {
        // A session that is over is what was asked for.
        Err(problem) if problem.status != StatusCode::UNAUTHORIZED => Err(problem.into()),
        _ => Ok(entrance::signed_out(&SITE)),
    }
}
