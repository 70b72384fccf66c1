//! Members of a team, and who is invited.

use askama::Template;
use axum::extract::Path;
use axum::http::{HeaderMap, Method};
use axum::response::{Redirect, Response};
use jiff::Timestamp;
use sandpiper_web::view::own_url;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::no_action;
use crate::response::{Refusal, page};
use crate::view::{self, segment};
use crate::visit::{Order, Role, Visit};

#[derive(Template)]
#[template(path = "members.html")]
struct Page {
    visit: Visit,
    members: Vec<Member>,
    invitations: Vec<Invitation>,
    /// The link of an invitation that was just made.
    link: Option<String>,
}

#[derive(Deserialize)]
struct Members {
    members: Vec<Member>,
}

#[derive(Deserialize)]
struct Member {
    user: String,
    email: String,
    name: String,
    role: String,
    since: Timestamp,
}

#[derive(Deserialize)]
struct Invitations {
    invitations: Vec<Invitation>,
}

#[derive(Deserialize)]
struct Invitation {
    id: String,
    role: String,
    email: Option<String>,
    expires_at: Timestamp,
}

#[derive(Deserialize)]
struct Invited {
    token: String,
}

/// `GET /dashboard/{team}/members`
pub(crate) async fn list(visit: Visit) -> Result<Response, Refusal> {
    respond(visit, None).await
}

/// `POST /dashboard/{team}/members`: the only page that shows the link.
pub(crate) async fn invite(visit: Visit, headers: HeaderMap, order: Order) -> Result<Response, Refusal> {
    let mut body = json!({"role": order.fields.text("role").unwrap_or_default()});
    if let Some(email) = order.fields.text("email") {
        body["email"] = json!(email);
    }
    let path = format!("/v1/teams/{}/invitations", segment(&order.team));
    let Invited { token } = order.send(Method::POST, &path, Some(body)).await?;
    let link = format!("{}/dashboard/join#{token}", own_url(&headers));
    respond(visit, Some(link)).await
}

async fn respond(visit: Visit, link: Option<String>) -> Result<Response, Refusal> {
    let path = format!("/v1/teams/{}", visit.team.slug);
    let Members { members } = visit.get(&format!("{path}/members?limit=100")).await?;
    let invitations = if visit.may_manage() {
        visit.get::<Invitations>(&format!("{path}/invitations?limit=100")).await?.invitations
    } else {
        Vec::new()
    };
    Ok(page(&Page { visit, members, invitations, link }))
}

/// `POST /dashboard/{team}/members/{user}/do`: gives another role, or removes.
pub(crate) async fn act(Path((team, user)): Path<(String, String)>, order: Order) -> Result<Redirect, Refusal> {
    let path = format!("/v1/teams/{}/members/{}", segment(&team), segment(&user));
    match order.fields.text("action").unwrap_or_default() {
        "role" => {
            let body = json!({"role": order.fields.text("role").unwrap_or_default()});
            order.send::<IgnoredAny>(Method::PATCH, &path, Some(body)).await?;
            Ok(order.then("members"))
        }
        "remove" => {
            order.send::<IgnoredAny>(Method::DELETE, &path, None).await?;
            // Who has left sees the team no more.
            let home = || Redirect::to("/dashboard");
            Ok(if order.fields.is_ticked("oneself") { home() } else { order.then("members") })
        }
        other => Err(no_action(other).into()),
    }
}

/// `POST /dashboard/{team}/invitations/{id}/withdraw`
pub(crate) async fn withdraw(Path((team, id)): Path<(String, String)>, order: Order) -> Result<Redirect, Refusal> {
    let path = format!("/v1/teams/{}/invitations/{}", segment(&team), segment(&id));
    order.send::<IgnoredAny>(Method::DELETE, &path, None).await?;
    Ok(order.then("members"))
}
