//! Accepting an invitation: `/dashboard/join#spi_…`. What follows `#` never leaves the browser before the form is sent, so the
//! token is in no log of addresses.

use askama::Template;
use axum::extract::State;
use axum::http::Method;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use serde_json::json;

use super::sign_in::{Begun, in_words};
use crate::api::{Api, Call, Problem};
use crate::assets;
use crate::form::Entrance;
use crate::response::page;
use crate::session::MaybeSession;

#[derive(Template, Default)]
#[template(path = "join.html")]
struct Join {
    assets: String,
    is_signed_in: bool,
    token: String,
    email: String,
    name: String,
    problem: Option<String>,
}

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
pub(crate) async fn show(MaybeSession(session): MaybeSession) -> Response {
    page(&Join { assets: assets::folder(), is_signed_in: session.is_some(), ..Join::default() })
}

/// `POST /dashboard/join`: as somebody new, or as who is signed in.
pub(crate) async fn join(
    State(api): State<Api>,
    MaybeSession(session): MaybeSession,
    Entrance(fields): Entrance,
) -> Response {
    let field = |name| fields.text(name).unwrap_or_default().to_owned();
    let session = session.filter(|_| fields.is_ticked("as_me"));
    let token = field("token");
    let body = match &session {
        Some(_) => json!({"token": token}),
        None => json!({
            "token": token, "email": field("email"), "name": field("name"), "password": fields.exact("password"),
        }),
    };
    let call = Call { session: session.as_ref(), ..Call::default() };
    match api.call::<Accepted>(Method::POST, "/v1/invitations/accept", Some(body), call).await {
        Ok(Accepted { session: Some(begun), .. }) => begun.enter(),
        Ok(Accepted { team, .. }) => Redirect::to(&format!("/dashboard/{}/sandboxes", team.slug)).into_response(),
        Err(problem) => refused(&problem, session.is_some(), token, field("email"), field("name")),
    }
}

fn refused(problem: &Problem, is_signed_in: bool, token: String, email: String, name: String) -> Response {
    let form = Join { assets: assets::folder(), is_signed_in, token, email, name, problem: Some(in_words(problem)) };
    (problem.status, page(&form)).into_response()
}
