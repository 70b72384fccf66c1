//! API keys: made here, shown once, revoked.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::{Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::checkpoints::From;
use crate::response::{Refusal, page};
use crate::view::{self, segment};
use crate::visit::{Order, Visit, with_query};

#[derive(Template)]
#[template(path = "keys.html")]
struct Page {
    visit: Visit,
    keys: Vec<Key>,
    next: Option<String>,
    /// One that was just made.
    made: Option<Made>,
}

#[derive(Deserialize)]
struct List {
    api_keys: Vec<Key>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct Key {
    id: String,
    name: String,
    capability: String,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    last_used_at: Option<Timestamp>,
    revoked_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Made {
    name: String,
    key: String,
}

/// `GET /dashboard/{team}/keys`
pub(crate) async fn list(visit: Visit, Query(from): Query<From>) -> Result<Response, Refusal> {
    respond(visit, from.next_token.as_deref(), None).await
}

/// `POST /dashboard/{team}/keys`: the only page that shows the key.
pub(crate) async fn create(visit: Visit, order: Order) -> Result<Response, Refusal> {
    let mut body = json!({
        "name": order.fields.text("name").unwrap_or_default(),
        "capability": order.fields.text("capability").unwrap_or_default(),
    });
    if let Some(days) = order.fields.number("days")? {
        let hours = i64::try_from(days.saturating_mul(24)).unwrap_or(i64::MAX);
        let until = Timestamp::now().checked_add(jiff::SignedDuration::from_hours(hours.min(MAX_HOURS)));
        body["expires_at"] = json!(until.unwrap_or(Timestamp::MAX));
    }
    let made: Made = order.send(Method::POST, "/v1/api_keys", Some(body)).await?;
    respond(visit, None, Some(made)).await
}

/// A hundred years: longer lives no key.
const MAX_HOURS: i64 = 100 * 366 * 24;

async fn respond(visit: Visit, next_token: Option<&str>, made: Option<Made>) -> Result<Response, Refusal> {
    let wanted = [("limit", Some("50")), ("next_token", next_token)];
    let List { api_keys: keys, next_token } = visit.get(&with_query("/v1/api_keys", &wanted)).await?;
    let next = next_token.map(|token| with_query(&visit.path, &[("next_token", Some(&token))]));
    Ok(page(&Page { visit, keys, next, made }))
}

/// `POST /dashboard/{team}/keys/{id}/revoke`
pub(crate) async fn revoke(Path((_, id)): Path<(String, String)>, order: Order) -> Result<Redirect, Refusal> {
    order.send::<IgnoredAny>(Method::DELETE, &format!("/v1/api_keys/{}", segment(&id)), None).await?;
    Ok(order.then("keys"))
}
