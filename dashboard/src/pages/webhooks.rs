//! Webhooks: where a team's events go, what was sent there, and what can be done about it.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::checkpoints::From;
use super::no_action;
use crate::response::{Refusal, page};
use crate::view::{self, segment};
use crate::visit::{Order, Visit, with_query};

#[derive(Template)]
#[template(path = "webhooks.html")]
struct ListPage {
    visit: Visit,
    webhooks: Vec<Webhook>,
    /// One that was just made.
    made: Option<Webhook>,
}

#[derive(Template)]
#[template(path = "webhook.html")]
struct Page {
    visit: Visit,
    webhook: Webhook,
    deliveries: Vec<Delivery>,
    next: Option<String>,
    /// One that it was just given.
    secret: Option<String>,
}

#[derive(Deserialize)]
struct List {
    webhooks: Vec<Webhook>,
}

#[derive(Deserialize)]
struct Webhook {
    id: String,
    name: String,
    url: String,
    types: Vec<String>,
    enabled: bool,
    created_at: Timestamp,
    /// Of one that was just made, or given another, the first time that it is responded.
    secret: Option<String>,
}

impl Webhook {
    /// What it is called: by its name, or else its URL.
    fn title(&self) -> &str {
        if self.name.is_empty() { &self.url } else { &self.name }
    }

    /// The types of events that go there.
    fn selected(&self) -> String {
        if self.types.is_empty() { "all".to_owned() } else { self.types.join(", ") }
    }

    fn state(&self) -> &'static str {
        if self.enabled { "enabled" } else { "disabled" }
    }
}

#[derive(Deserialize)]
struct Deliveries {
    deliveries: Vec<Delivery>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct Delivery {
    id: String,
    state: String,
    trigger: String,
    event_sequence: Option<u64>,
    event_type: String,
    attempts: u32,
    status: Option<u16>,
    error: Option<String>,
    created_at: Timestamp,
    ended_at: Option<Timestamp>,
}

/// `GET /dashboard/{team}/webhooks`
pub(crate) async fn list(visit: Visit) -> Result<Response, Refusal> {
    respond(visit, None).await
}

/// `POST /dashboard/{team}/webhooks`: the only page that shows the secret.
pub(crate) async fn create(visit: Visit, order: Order) -> Result<Response, Refusal> {
    let body = json!({
        "name": order.fields.text("name").unwrap_or_default(),
        "url": order.fields.text("url").unwrap_or_default(),
        "types": order.fields.lines("types"),
    });
    let made: Webhook = order.send(Method::POST, "/v1/webhooks", Some(body)).await?;
    respond(visit, Some(made)).await
}

async fn respond(visit: Visit, made: Option<Webhook>) -> Result<Response, Refusal> {
    let List { webhooks } = visit.get("/v1/webhooks").await?;
    Ok(page(&ListPage { visit, webhooks, made }))
}

/// `GET /dashboard/{team}/webhooks/{id}`
pub(crate) async fn show(
    Path((_, id)): Path<(String, String)>,
    visit: Visit,
    Query(from): Query<From>,
) -> Result<Response, Refusal> {
    let webhook: Webhook = visit.get(&format!("/v1/webhooks/{}", segment(&id))).await?;
    respond_with(visit, webhook, from.next_token.as_deref(), None).await
}

async fn respond_with(
    visit: Visit,
    webhook: Webhook,
    next_token: Option<&str>,
    secret: Option<String>,
) -> Result<Response, Refusal> {
    let list = format!("/v1/webhooks/{}/deliveries", segment(&webhook.id));
    let wanted = [("limit", Some("25")), ("next_token", next_token)];
    let Deliveries { deliveries, next_token } = visit.get(&with_query(&list, &wanted)).await?;
    let own = visit.at(&format!("webhooks/{}", segment(&webhook.id)));
    let next = next_token.map(|token| with_query(&own, &[("next_token", Some(&token))]));
    Ok(page(&Page { visit, webhook, deliveries, next, secret }))
}

/// `POST /dashboard/{team}/webhooks/{id}/do`
pub(crate) async fn act(
    Path((_, id)): Path<(String, String)>,
    visit: Visit,
    order: Order,
) -> Result<Response, Refusal> {
    let (path, own) = (format!("/v1/webhooks/{}", segment(&id)), format!("webhooks/{}", segment(&id)));
    let action = order.fields.text("action").unwrap_or_default();
    let (method, path, body) = match action {
        "enable" | "disable" => (Method::PATCH, path, Some(json!({"enabled": action == "enable"}))),
        "change" => {
            let change = json!({
                "name": order.fields.text("name").unwrap_or_default(),
                "url": order.fields.text("url").unwrap_or_default(),
                "types": order.fields.lines("types"),
            });
            (Method::PATCH, path, Some(change))
        }
        "test" => (Method::POST, format!("{path}/test"), None),
        "redeliver" => {
            let delivery = order.fields.text("delivery").unwrap_or_default();
            (Method::POST, format!("{path}/deliveries/{}/redeliver", segment(delivery)), None)
        }
        "rotate" => {
            let mut rotated: Webhook = order.send(Method::POST, &format!("{path}/secret"), None).await?;
            let secret = rotated.secret.take();
            return respond_with(visit, rotated, None, secret).await;
        }
        "delete" => {
            order.send::<IgnoredAny>(Method::DELETE, &path, None).await?;
            return Ok(order.then("webhooks").into_response());
        }
        other => return Err(no_action(other).into()),
    };
    order.send::<IgnoredAny>(method, &path, body).await?;
    Ok(order.then(&own).into_response())
}
