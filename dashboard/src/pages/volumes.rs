//! Volumes, and the files in them.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::checkpoints::From;
use super::files::{At, Browser, Place};
use crate::response::{Refusal, page};
use crate::view::{self, segment};
use crate::visit::{Order, Visit, with_query};

#[derive(Template)]
#[template(path = "volumes.html")]
struct ListPage {
    visit: Visit,
    volumes: Vec<Volume>,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "volume.html")]
struct OnePage {
    visit: Visit,
    volume: Volume,
    browser: Browser,
}

#[derive(Deserialize)]
struct List {
    volumes: Vec<Volume>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct Volume {
    id: String,
    name: String,
    size_gib: u64,
    state: String,
    retained_bytes: u64,
    created_at: Timestamp,
    attached_to: Option<String>,
}

/// `GET /dashboard/{team}/volumes`
pub(crate) async fn list(visit: Visit, Query(from): Query<From>) -> Result<Response, Refusal> {
    let wanted = [("limit", Some("50")), ("next_token", from.next_token.as_deref())];
    let List { volumes, next_token } = visit.get(&with_query("/v1/volumes", &wanted)).await?;
    let next = next_token.map(|token| with_query(&visit.path, &[("next_token", Some(&token))]));
    Ok(page(&ListPage { visit, volumes, next }))
}

/// `POST /dashboard/{team}/volumes`
pub(crate) async fn create(order: Order) -> Result<Redirect, Refusal> {
    let body = json!({"name": order.fields.text("name").unwrap_or_default()});
    order.send::<IgnoredAny>(Method::POST, "/v1/volumes", Some(body)).await?;
    Ok(order.then("volumes"))
}

/// `POST /dashboard/{team}/volumes/{id}/delete`
pub(crate) async fn delete(Path((_, id)): Path<(String, String)>, order: Order) -> Result<Redirect, Refusal> {
    order.send::<IgnoredAny>(Method::DELETE, &format!("/v1/volumes/{}", segment(&id)), None).await?;
    Ok(order.then("volumes"))
}

/// `GET /dashboard/{team}/volumes/{id}`: with what is at one of its paths. Looking into one that a sandbox has, or whose helper is
/// busy, is refused; the volume itself is still shown.
pub(crate) async fn show(visit: Visit, place: Place, Query(at): Query<At>) -> Result<Response, Refusal> {
    let volume: Volume = visit.get(&place.api()).await?;
    let browser = Browser::look(&visit, &place, at).await;
    Ok((browser.status(), page(&OnePage { visit, volume, browser })).into_response())
}
