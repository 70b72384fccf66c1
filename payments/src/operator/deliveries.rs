//! Webhook deliveries: looked at, repeated, cancelled, tried.

use std::str::FromStr;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use jiff::Timestamp;
use sandpiper_http::audited::Acted;
use sandpiper_http::json::Json as Body;
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::Operator;
use crate::domain::realm::Realm;
use crate::error::RpcError;
use crate::merchant::webhook_config::{TestDelivery, TestRequest, send_test};
use crate::page::Paging;
use crate::parameters::Parameters;
use crate::state::App;
use crate::store::deliveries::{AttemptRow, DeliveryRow};
use crate::store::delivery_list::Filter;
use crate::store::webhook_endpoints::EndpointKey;

/// What selects deliveries, in every request about many.
const FILTERS: [&str; 9] =
    ["merchantId", "realm", "paymentId", "state", "trigger", "status", "errorClass", "since", "until"];

/// A delivery.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// What the receiver gets as `Idempotency-Key`.
    #[schema(example = "dlv_ch2xq4bmzvd0t8rw5yk7n3sj1e")]
    pub id: String,
    pub merchant_id: String,
    pub realm: Realm,
    /// `pending`, `in_flight`, `delivered`, `failed`, `exhausted` or `cancelled`.
    #[schema(value_type = String)]
    pub state: &'static str,
    /// `update` of a payment, `replay` or `test`.
    #[schema(value_type = String)]
    pub trigger: &'static str,
    /// Absent for a test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payment_id: Option<String>,
    /// The payment's `updatedAt` in the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub payment_updated_at: Option<Timestamp>,
    /// The delivery that a replay repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<String>,
    /// How many were begun, of a hundred.
    pub attempts: u32,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When the next attempt is due, or the one under way was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// HTTP status of the last attempt, if there was a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why the last attempt got no response: `dns`, `timeout`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub error_class: Option<&'static str>,
}

impl From<DeliveryRow> for Delivery {
    fn from(row: DeliveryRow) -> Self {
        Self {
            id: row.id.to_string(),
            merchant_id: row.endpoint.merchant_id,
            realm: row.endpoint.realm,
            state: row.state.as_str(),
            trigger: row.trigger.as_str(),
            payment_id: row.payment_id,
            payment_updated_at: row.payment_at,
            replay_of: row.replay_of.map(|id| id.to_string()),
            attempts: row.attempts,
            created_at: row.created_at,
            next_at: row.next_at,
            ended_at: row.ended_at,
            status: row.status,
            error_class: row.error_class.map(|class| class.as_str()),
        }
    }
}

/// One request to the receiver.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    #[schema(value_type = String, format = DateTime)]
    pub due_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// Absent while it is under way, like all that follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// `t` of the signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signed_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub error_class: Option<&'static str>,
    /// The beginning of the response's body if it did not acknowledge, or why there was no response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// When the next was due because of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_at: Option<Timestamp>,
}

impl From<AttemptRow> for Attempt {
    fn from(row: AttemptRow) -> Self {
        Self {
            number: row.number,
            due_at: row.due_at,
            started_at: row.started_at,
            duration_ms: row.duration_ms,
            signed_at: row.signed_at,
            status: row.status,
            error_class: row.error_class.map(|class| class.as_str()),
            detail: row.detail,
            next_at: row.next_at,
        }
    }
}

/// One page, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryList {
    pub deliveries: Vec<Delivery>,
    /// Absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// A delivery with all that is known of it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryDetails {
    pub delivery: Delivery,
    /// Where the next attempt would go; absent if the realm has no URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// What is sent.
    pub body: String,
    /// In their order.
    pub attempts: Vec<Attempt>,
}

/// A delivery and its repetition.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    pub replay_of: String,
    pub delivery_id: String,
}

/// What was repeated of one page.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplayList {
    pub replays: Vec<Replay>,
    /// Deliveries of the page that were not: they are not over, or their realm has no URL.
    pub skipped: usize,
    /// Send it with the same filters to go on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// List webhook deliveries
///
/// Newest first, page by page; all of what is given must match.
#[utoipa::path(
    get,
    path = "/operator/v1/deliveries",
    operation_id = "list_deliveries",
    tag = "webhooks",
    params(
        ("merchantId" = Option<String>, Query), ("realm" = Option<Realm>, Query),
        ("paymentId" = Option<String>, Query), ("state" = Option<String>, Query),
        ("trigger" = Option<String>, Query), ("status" = Option<u16>, Query, description = "Of the last attempt"),
        ("errorClass" = Option<String>, Query, description = "Of the last attempt"),
        ("since" = Option<String>, Query, description = "Made at this time or later"),
        ("until" = Option<String>, Query, description = "Made before this time"),
        ("pageSize" = Option<u32>, Query), ("pageToken" = Option<String>, Query)
    ),
    responses((status = 200, description = "One page", body = DeliveryList))
)]
pub async fn list(_: Operator, State(app): State<App>, parameters: Parameters) -> Result<Json<DeliveryList>, RpcError> {
    let (rows, next_page_token) = page(&app, parameters, |_| Ok(())).await?;
    Ok(Json(DeliveryList { deliveries: rows.into_iter().map(Delivery::from).collect(), next_page_token }))
}

/// Show a webhook delivery
///
/// With its body and every attempt.
#[utoipa::path(
    get,
    path = "/operator/v1/deliveries/{id}",
    operation_id = "show_delivery",
    tag = "webhooks",
    params(("id" = String, Path, description = "The delivery")),
    responses((status = 200, description = "The delivery", body = DeliveryDetails))
)]
pub async fn show(
    _: Operator,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<DeliveryDetails>, RpcError> {
    let store = &app.store;
    let row = find(&app, &id).await?;
    let body = store.deliveries.body(&id).await?.unwrap_or_default();
    let attempts = store.deliveries.attempts(&id).await?;
    let url = store.webhook_endpoints.get(&row.endpoint).await?.and_then(|saved| saved.url);
    Ok(Json(DeliveryDetails {
        delivery: row.into(),
        url,
        body: String::from_utf8_lossy(&body).into_owned(),
        attempts: attempts.into_iter().map(Attempt::from).collect(),
    }))
}

/// Replay a webhook delivery
///
/// One that is over, whatever its end. The repetition has the same body, an id of its own, and a hundred attempts.
#[utoipa::path(
    post,
    path = "/operator/v1/deliveries/{id}/replay",
    operation_id = "replay_delivery",
    tag = "webhooks",
    params(("id" = String, Path, description = "The delivery")),
    responses((status = 201, description = "The repetition", body = Delivery))
)]
pub async fn replay(_: Operator, State(app): State<App>, Path(id): Path<String>) -> Result<Response, RpcError> {
    let replay = app.store.deliveries.replay(id.clone(), app.clock.now()).await?;
    app.webhooks.wake();
    let row = find(&app, replay.as_str()).await?;
    let acted = Extension(Acted(vec![format!("deliveries/{id}"), format!("deliveries/{replay}")]));
    Ok((StatusCode::CREATED, acted, Json(Delivery::from(row))).into_response())
}

/// Deliver a payment's present state
///
/// Makes the delivery that the payment's last update did not make because the realm had no URL at that time. Where it made
/// one, that one can be replayed.
#[utoipa::path(
    post,
    path = "/operator/v1/payments/{id}/deliver",
    operation_id = "deliver_payment",
    tag = "webhooks",
    params(("id" = String, Path, description = "The payment")),
    responses((status = 201, description = "The delivery", body = Delivery))
)]
pub async fn deliver(_: Operator, State(app): State<App>, Path(payment): Path<String>) -> Result<Response, RpcError> {
    let id = app.store.deliveries.deliver(payment.clone(), app.clock.now()).await?;
    app.webhooks.wake();
    let row = find(&app, id.as_str()).await?;
    let acted = Extension(Acted(vec![format!("payments/{payment}"), format!("deliveries/{id}")]));
    Ok((StatusCode::CREATED, acted, Json(Delivery::from(row))).into_response())
}

/// Replay webhook deliveries
///
/// Those of one page of the list with the same parameters. At least one filter has to be given; with `pageToken` the request
/// goes on where the last one ended. Deliveries made in the meantime, the repetitions among them, are not met again.
#[utoipa::path(
    post,
    path = "/operator/v1/deliveries/replay",
    operation_id = "replay_deliveries",
    tag = "webhooks",
    params(
        ("merchantId" = Option<String>, Query), ("realm" = Option<Realm>, Query),
        ("paymentId" = Option<String>, Query), ("state" = Option<String>, Query),
        ("trigger" = Option<String>, Query), ("status" = Option<u16>, Query), ("errorClass" = Option<String>, Query),
        ("since" = Option<String>, Query), ("until" = Option<String>, Query),
        ("pageSize" = Option<u32>, Query), ("pageToken" = Option<String>, Query)
    ),
    responses((status = 200, description = "What was repeated", body = ReplayList))
)]
pub async fn replay_many(_: Operator, State(app): State<App>, parameters: Parameters) -> Result<Response, RpcError> {
    let some_filter = |filter: &Filter| match *filter == Filter::default() {
        true => Err(RpcError::missing_parameter("state").with("filters", FILTERS.join(" "))),
        false => Ok(()),
    };
    let (rows, next_page_token) = page(&app, parameters, some_filter).await?;
    let shown = rows.len();
    let replayed = app.store.deliveries.replay_all(rows, app.clock.now()).await?;
    app.webhooks.wake();
    let acted = Extension(Acted(replayed.iter().map(|(_, replay)| format!("deliveries/{replay}")).collect()));
    let skipped = shown - replayed.len();
    let replays = replayed
        .iter()
        .map(|(original, replay)| Replay { replay_of: original.to_string(), delivery_id: replay.to_string() })
        .collect();
    Ok((acted, Json(ReplayList { replays, skipped, next_page_token })).into_response())
}

/// Cancel a webhook delivery
///
/// One that is not over. An attempt that is under way is not called back: the receiver may get it.
#[utoipa::path(
    post,
    path = "/operator/v1/deliveries/{id}/cancel",
    operation_id = "cancel_delivery",
    tag = "webhooks",
    params(("id" = String, Path, description = "The delivery")),
    responses((status = 200, description = "Cancelled", body = Delivery))
)]
pub async fn cancel(_: Operator, State(app): State<App>, Path(id): Path<String>) -> Result<Json<Delivery>, RpcError> {
    app.store.deliveries.cancel(id.clone(), app.clock.now()).await?;
    Ok(Json(find(&app, &id).await?.into()))
}

/// Send a test webhook for a merchant
///
/// As the merchant's own `POST /merchant/api/v1/webhookConfig/test` does.
#[utoipa::path(
    post,
    path = "/operator/v1/merchants/{merchant}/webhookConfig/test",
    operation_id = "test_merchant_webhook",
    tag = "webhooks",
    params(("merchant" = String, Path, description = "The merchant")),
    request_body = TestRequest,
    responses((status = 202, description = "On its way", body = TestDelivery))
)]
pub async fn test(
    _: Operator,
    State(app): State<App>,
    Path(merchant_id): Path<String>,
    Body(request): Body<TestRequest>,
) -> Result<Response, RpcError> {
    let delivery = send_test(&app, EndpointKey { merchant_id, realm: request.realm }).await?;
    Ok((StatusCode::ACCEPTED, Json(delivery)).into_response())
}

async fn find(app: &App, id: &str) -> Result<DeliveryRow, RpcError> {
    let row = app.store.deliveries.get(id).await?;
    row.ok_or_else(|| RpcError::not_found(format!("There is no delivery {id}")))
}

/// The page that the parameters name, if `check` accepts their filter; and the token of the next.
async fn page(
    app: &App,
    parameters: Parameters,
    check: impl FnOnce(&Filter) -> Result<(), RpcError>,
) -> Result<(Vec<DeliveryRow>, Option<String>), RpcError> {
    let parameters = parameters.only(&[&FILTERS[..], &["pageSize", "pageToken"]].concat())?;
    let filter = filter(&parameters)?;
    check(&filter)?;
    let filters = FILTERS.map(|name| parameters.optional(name).unwrap_or_default());
    let paging: Paging<(Timestamp, String)> = Paging::new(&parameters, &[&["deliveries"], &filters[..]].concat())?;
    let after = paging.after.as_ref().map(|(created_at, id)| (*created_at, id.as_str()));
    let mut rows = app.store.deliveries.list(&filter, after, paging.limit()).await?;
    let next = paging.cut(&mut rows, |last| (last.created_at, last.id.to_string()));
    Ok((rows, next))
}

fn filter(parameters: &Parameters) -> Result<Filter, RpcError> {
    Ok(Filter {
        merchant_id: parameters.optional("merchantId").map(str::to_owned),
        realm: parsed(parameters, "realm", "must be live or sandbox")?,
        payment_id: parameters.optional("paymentId").map(str::to_owned),
        state: parsed(parameters, "state", "must be pending, in_flight, delivered, failed, exhausted or cancelled")?,
        trigger: parsed(parameters, "trigger", "must be update, replay or test")?,
        status: parsed(parameters, "status", "must be an HTTP status, such as 503")?,
        error_class: parsed(parameters, "errorClass", "must be a class of errors, such as timeout")?,
        since: parsed(parameters, "since", "must be a time (RFC 3339)")?,
        until: parsed(parameters, "until", "must be a time (RFC 3339)")?,
    })
}

/// A parameter of a known form, if it is given.
fn parsed<T: FromStr>(parameters: &Parameters, name: &str, problem: &str) -> Result<Option<T>, RpcError> {
    let parse = |text: &str| text.parse().map_err(|_| RpcError::invalid_parameter(name, problem));
    parameters.optional(name).map(parse).transpose()
}
