//! `POST /v1/webhooks/{id}/test`, and `/v1/webhooks/{id}/deliveries`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use jiff::Timestamp;
use sandpiper_delivery::store::delivery::{AttemptRow, State as DeliveryState};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{NoParameters, Pairs, unknown};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{find, key};
use crate::auth::{ManageAccess, ReadAccess};
use crate::errors::{no_delivery, not_delivered};
use crate::state::App;
use crate::store::webhooks::WebhookId;
use crate::store::webhooks::deliveries::{DeliveryRow, TEST_TYPE};
use crate::v1::events::body::{EventBody, ResourceBody};
use crate::v1::page::{List, Paging};

/// A webhook that is sent, was, or will be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WebhookDelivery)]
pub struct DeliveryBody {
    /// What the receiver gets as `Idempotency-Key`, in every attempt.
    pub id: String,
    /// Id of the webhook.
    pub webhook: String,
    /// `pending`, `in_flight`, `delivered`, `failed`, `exhausted` or `cancelled`.
    pub state: &'static str,
    /// Why it is sent: `event`, `redelivery` or `test`.
    pub trigger: &'static str,
    /// Of the event; null for a test.
    pub event_sequence: Option<u64>,
    /// Of the event, or `webhook.test`.
    pub event_type: String,
    /// Id of the delivery that it repeats.
    pub redelivery_of: Option<String>,
    /// How many were begun, of a hundred.
    pub attempts: u32,
    pub created_at: Timestamp,
    /// When the next attempt is due, or the one under way was; null: it has ended.
    pub next_attempt_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Status of the last attempt's response; null: there was none.
    pub status: Option<u16>,
    /// Why the last attempt got no response: `timeout`, `tls`, `dns` and others; null: it got one.
    pub error: Option<&'static str>,
}

impl From<DeliveryRow> for DeliveryBody {
    fn from(row: DeliveryRow) -> Self {
        Self {
            id: row.id.to_string(),
            webhook: row.webhook.id.to_string(),
            state: row.state.as_str(),
            trigger: row.trigger.as_str(),
            event_sequence: row.event_sequence,
            event_type: row.event_type,
            redelivery_of: row.redelivery_of.map(|id| id.to_string()),
            attempts: row.attempts,
            created_at: row.created_at,
            next_attempt_at: row.next_at,
            ended_at: row.ended_at,
            status: row.status,
            error: row.error_class.map(|class| class.as_str()),
        }
    }
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WebhookDeliveryList)]
pub struct DeliveryList {
    /// Newest first.
    pub deliveries: Vec<DeliveryBody>,
    /// For the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// A delivery with all that is known of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WebhookDeliveryDetails)]
pub struct DeliveryDetails {
    #[serde(flatten)]
    pub delivery: DeliveryBody,
    /// What is sent, byte for byte.
    #[schema(value_type = EventBody)]
    pub body: Box<RawValue>,
    /// In their order.
    pub log: Vec<AttemptBody>,
}

/// One request of a delivery.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WebhookAttempt)]
pub struct AttemptBody {
    /// From 1.
    pub number: u32,
    pub due_at: Timestamp,
    pub started_at: Timestamp,
    /// Null while it is under way.
    pub duration_ms: Option<u64>,
    /// Status of the response; null: there was none.
    pub status: Option<u16>,
    /// Why there was no response; null: there was one.
    pub error: Option<&'static str>,
    /// For people: the beginning of a response that did not acknowledge it, or why there was none.
    pub detail: Option<String>,
    /// When the next one is due because of this one.
    pub next_attempt_at: Option<Timestamp>,
}

impl From<AttemptRow> for AttemptBody {
    fn from(row: AttemptRow) -> Self {
        Self {
            number: row.number,
            due_at: row.due_at,
            started_at: row.started_at,
            duration_ms: row.duration_ms,
            status: row.status,
            error: row.error_class.map(|class| class.as_str()),
            detail: row.detail,
            next_attempt_at: row.next_at,
        }
    }
}

/// Send a test
///
/// An event of the type `webhook.test`, with the sequence 0, whatever types the webhook selects. Needs an admin.
#[utoipa::path(
    post,
    path = "/v1/webhooks/{id}/test",
    operation_id = "test_webhook",
    tag = "webhooks",
    params(("id" = String, Path, description = "The webhook's id")),
    responses((status = 202, description = "On its way", body = DeliveryBody))
)]
pub async fn test(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let webhook = key(&caller, &id);
    let now = app.clock.now();
    let body = test_body(&webhook.id, now)?;
    let row = app.store.webhooks.test(webhook, body, now).await;
    on_its_way(&app, row.map_err(|error| not_delivered(error, &id, ""))?)
}

/// List what was sent
///
/// Deliveries to the webhook, newest first.
#[utoipa::path(
    get,
    path = "/v1/webhooks/{id}/deliveries",
    operation_id = "list_webhook_deliveries",
    tag = "webhooks",
    params(
        ("id" = String, Path, description = "The webhook's id"),
        ("state" = Option<String>, Query, description = "Only those that are `pending`, `in_flight`, `delivered`, `failed`, `exhausted` or `cancelled`"),
        ("limit" = Option<u32>, Query, description = "Deliveries per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before, with the same filter"),
    ),
    responses((status = 200, description = "A page", body = DeliveryList))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Json<DeliveryList>, ApiError> {
    let (mut paging, mut state) = (Paging::default(), None);
    for (name, value) in pairs {
        match name.as_str() {
            "state" => state = Some(delivery_state(&value)?),
            "limit" | "next_token" if paging.take(&name, &value)? => {}
            _ => return Err(unknown(&name)),
        }
    }
    let webhook = find(&app, &caller, id).await?.key;
    let list = List::of_keys(&json!([webhook.team, webhook.id, state.map(DeliveryState::as_str)]));
    let after = paging.after(&list)?.map(|text| page_key(&text)).transpose()?;
    let after = after.as_ref().map(|(created_at, id)| (*created_at, id.as_str()));
    let mut rows = app.store.webhooks.deliveries(&webhook, state, after, paging.limit + 1).await?;
    let next_token = list.cut(&mut rows, paging.limit, |row| format!("{}.{}", row.created_at.as_millisecond(), row.id));
    Ok(Json(DeliveryList { deliveries: rows.into_iter().map(DeliveryBody::from).collect(), next_token }))
}

/// Show a delivery
///
/// With what is sent, and its attempts.
#[utoipa::path(
    get,
    path = "/v1/webhooks/{id}/deliveries/{delivery}",
    operation_id = "show_webhook_delivery",
    tag = "webhooks",
    params(
        ("id" = String, Path, description = "The webhook's id"),
        ("delivery" = String, Path, description = "The delivery's id"),
    ),
    responses((status = 200, description = "The delivery", body = DeliveryDetails))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((id, delivery)): Path<(String, String)>,
) -> Result<Json<DeliveryDetails>, ApiError> {
    let webhook = find(&app, &caller, id.clone()).await?.key;
    let found = app.store.webhooks.delivery(&webhook, &delivery).await?;
    let (row, body) = found.ok_or_else(|| no_delivery(&id, &delivery))?;
    let log = app.store.webhooks.sent.attempts(&delivery).await?.into_iter().map(AttemptBody::from).collect();
    let body = serde_json::from_slice(&body).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(Json(DeliveryDetails { delivery: row.into(), body, log }))
}

/// Repeat a delivery
///
/// One that has ended: another is made with the same body, and an id and a hundred attempts of its own. Needs an admin.
#[utoipa::path(
    post,
    path = "/v1/webhooks/{id}/deliveries/{delivery}/redeliver",
    operation_id = "redeliver_webhook",
    tag = "webhooks",
    params(
        ("id" = String, Path, description = "The webhook's id"),
        ("delivery" = String, Path, description = "The delivery's id"),
    ),
    responses((status = 202, description = "The new one, on its way", body = DeliveryBody))
)]
pub async fn redeliver(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((id, delivery)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let row = app.store.webhooks.redeliver(key(&caller, &id), delivery.clone(), app.clock.now()).await;
    on_its_way(&app, row.map_err(|error| not_delivered(error, &id, &delivery))?)
}

fn on_its_way(app: &App, row: DeliveryRow) -> Result<Response, ApiError> {
    app.webhooks.wake();
    let acted = Extension(Acted(vec![row.webhook.id.to_string()]));
    Ok((StatusCode::ACCEPTED, acted, Json(DeliveryBody::from(row))).into_response())
}

/// What a test sends. It has the form of an event, and says that it is none.
fn test_body(webhook: &WebhookId, now: Timestamp) -> Result<Vec<u8>, ApiError> {
    let body = EventBody {
        sequence: 0,
        event_type: TEST_TYPE,
        resource: ResourceBody { kind: "webhook", id: webhook.to_string() },
        data: Value::Object(serde_json::Map::new()),
        // As all times of events are.
        created_at: Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now),
    };
    serde_json::to_vec(&body).map_err(|error| ApiError::internal(error.to_string()))
}

fn delivery_state(text: &str) -> Result<DeliveryState, ApiError> {
    text.parse().map_err(|()| {
        let known = DeliveryState::ALL.map(DeliveryState::as_str).join(", ");
        ApiError::invalid_field("state", format!("must be one of {known}"))
    })
}

/// Where a page begins: after the delivery that was made at this time and has this id.
fn page_key(text: &str) -> Result<(Timestamp, String), ApiError> {
    let wrong = || ApiError::invalid_field("next_token", "is not a token of this list");
    let (created_at, id) = text.split_once('.').ok_or_else(wrong)?;
    let created_at = created_at.parse().ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).ok_or_else(wrong)?;
    Ok((created_at, id.to_owned()))
}
