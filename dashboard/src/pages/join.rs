//! Accepting an invitation.

use axum::extract::State;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect, Response};
use sandpiper_web::entrance::{self, Begun, Entered};
use serde::Deserialize;
use serde_json::json;

use super::oidc;
use crate::api::{Api, Call};
use crate::form::Entrance;
use crate::response::SITE;
use crate::session::MaybeSession;

#[derive(Deserialize)]
struct Accepted {
    team: AcceptedTeam,
    /// Of somebody new.
    session: Option<Begun>,
}

#[derive(Deserialize)]
struct AcceptedTeam {
    slug: String,
}

/// `GET /dashboard/join`
pub(crate) async fn show(State(api): State<Api>, MaybeSession(session): MaybeSession) -> Response {
    let provider = oidc::provider(&api).await;
    entrance::join(&SITE, &Entered { is_signed_in: session.is_some(), provider, ..Entered::default() }, None)
}

/// `POST /dashboard/join`: as somebody new, or as who is signed in.
pub(crate) async fn join(
    State(api): State<Api>,
    MaybeSession(session): MaybeSession,
    Entrance(fields): Entrance,
) -> Response {
    let field = |name| fields.text(name).unwrap_or_default().to_owned();
    let session = session.filter(|_| fields.is_ticked("as_me"));
    let (token, email, name) = (field("token"), field("email"), field("name"));
    let body = match &session {
        Some(_) => json!({"token": token}),
        None => json!({"token": token, "email": email, "name": name, "password": fields.exact("password")}),
    };
    let call = Call { session: session.as_ref(), ..Call::default() };
    match api.call::<Accepted>(Method::POST, "/v1/invitations/accept", Some(body), call).await {
        Ok(Accepted { session: Some(begun), .. }) => begun.enter(&SITE),
        Ok(Accepted { team, .. }) => Redirect::to(&format!("/dashboard/{}/sandboxes", team.slug)).into_response(),
        Err(problem) => {
            let provider = oidc::provider(&api).await;
            let entered = Entered { is_signed_in: session.is_some(), token, email, name, provider };
            entrance::join(&SITE, &entered, Some(&problem))
        }
    }
}
