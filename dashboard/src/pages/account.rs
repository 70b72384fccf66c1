//! One's own name, password, identities and login sessions, and founding a team.

use askama::Template;
use axum::extract::State;
use axum::http::Method;
use axum::response::{Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::api::{Api, Call, Problem};
use crate::form::Sent;
use crate::response::{Refusal, page};
use crate::view;
use crate::visit::Visit;

const HERE: &str = "/dashboard/account";

#[derive(Template)]
#[template(path = "account.html")]
struct Account {
    visit: Visit,
    sign_in: SignIn,
    sessions: Vec<LoginSession>,
}

#[derive(Deserialize)]
struct Me {
    sign_in: SignIn,
}

#[derive(Deserialize)]
struct SignIn {
    has_password: bool,
    identities: Vec<Identity>,
}

#[derive(Deserialize)]
struct Identity {
    id: String,
    issuer: String,
    linked_at: Timestamp,
    last_used_at: Timestamp,
}

#[derive(Deserialize)]
struct Sessions {
    sessions: Vec<LoginSession>,
}

#[derive(Deserialize)]
struct LoginSession {
    id: String,
    is_current: bool,
    created_at: Timestamp,
    expires_at: Timestamp,
    last_used_at: Option<Timestamp>,
}

/// `GET /dashboard/account`
pub(crate) async fn show(visit: Visit) -> Result<Response, Refusal> {
    let (Me { sign_in }, Sessions { sessions }) =
        tokio::try_join!(visit.get("/v1/me"), visit.get("/v1/me/sessions?limit=100"))?;
    Ok(page(&Account { visit, sign_in, sessions }))
}

/// `POST /dashboard/-/name`
pub(crate) async fn rename(State(api): State<Api>, sent: Sent) -> Result<Redirect, Refusal> {
    let body = json!({"name": sent.fields.text("name").unwrap_or_default()});
    change(&api, &sent, Method::PATCH, "/v1/me", Some(body)).await?;
    Ok(Redirect::to(HERE))
}

/// `POST /dashboard/-/password`
pub(crate) async fn change_password(State(api): State<Api>, sent: Sent) -> Result<Redirect, Refusal> {
    // Who has none has no field for it.
    let body = json!({"current_password": sent.fields.exact("current"), "password": sent.fields.exact("password")});
    change(&api, &sent, Method::PATCH, "/v1/me", Some(body)).await?;
    Ok(Redirect::to(HERE))
}

/// `POST /dashboard/-/sessions/end`
pub(crate) async fn end_session(State(api): State<Api>, sent: Sent) -> Result<Redirect, Refusal> {
    let path = format!("/v1/me/sessions/{}", view::segment(sent.fields.text("id").unwrap_or_default()));
    change(&api, &sent, Method::DELETE, &path, None).await?;
    Ok(Redirect::to(HERE))
}

/// `POST /dashboard/-/identities/unlink`
pub(crate) async fn unlink(State(api): State<Api>, sent: Sent) -> Result<Redirect, Refusal> {
    let path = format!("/v1/me/identities/{}", view::segment(sent.fields.text("id").unwrap_or_default()));
    change(&api, &sent, Method::DELETE, &path, None).await?;
    Ok(Redirect::to(HERE))
}

/// `POST /dashboard/-/teams`
pub(crate) async fn found_team(State(api): State<Api>, sent: Sent) -> Result<Redirect, Refusal> {
    let slug = sent.fields.text("slug").unwrap_or_default();
    change(&api, &sent, Method::POST, "/v1/teams", Some(json!({"slug": slug}))).await?;
    Ok(Redirect::to(&format!("/dashboard/{}/sandboxes", view::segment(slug))))
}

async fn change(api: &Api, sent: &Sent, method: Method, path: &str, body: Option<Value>) -> Result<(), Problem> {
    let call =
        Call { session: Some(&sent.session), team: None, idempotency_key: sent.fields.once(), ..Call::default() };
    api.call::<IgnoredAny>(method, path, body, call).await.map(|_| ())
}
