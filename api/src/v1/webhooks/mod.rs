//! `/v1/webhooks`: where a team's events go, and what became of their deliveries.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{NoParameters, Pairs};
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::{Caller, ManageAccess, ReadAccess};
use crate::errors::no_webhook;
use crate::state::App;
use crate::store::webhooks::{WebhookKey, WebhookRow};

pub mod body;
pub mod change;
pub mod create;
pub mod deliveries;

use body::WebhookBody;

/// All of them.
#[derive(Debug, Serialize, ToSchema)]
pub struct WebhookList {
    /// Oldest first.
    pub webhooks: Vec<WebhookBody>,
}

/// List webhooks
///
/// The team's, oldest first, without their secrets.
#[utoipa::path(
    get,
    path = "/v1/webhooks",
    operation_id = "list_webhooks",
    tag = "webhooks",
    params(("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default")),
    responses((status = 200, description = "All of them", body = WebhookList))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<Json<WebhookList>, ApiError> {
    caller.check_team(query.only_team()?.as_deref())?;
    let rows = app.store.webhooks.of(&caller.team.id).await?;
    Ok(Json(WebhookList { webhooks: rows.into_iter().map(|row| WebhookBody::new(row, None)).collect() }))
}

/// Show a webhook
///
/// Without its secret.
#[utoipa::path(
    get,
    path = "/v1/webhooks/{id}",
    operation_id = "show_webhook",
    tag = "webhooks",
    params(("id" = String, Path, description = "The webhook's id")),
    responses((status = 200, description = "The webhook", body = WebhookBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Json<WebhookBody>, ApiError> {
    Ok(Json(WebhookBody::new(find(&app, &caller, id).await?, None)))
}

/// Delete a webhook
///
/// What waits to be sent to it is cancelled. Needs an admin.
#[utoipa::path(
    delete,
    path = "/v1/webhooks/{id}",
    operation_id = "delete_webhook",
    tag = "webhooks",
    params(("id" = String, Path, description = "The webhook's id")),
    responses((status = 204, description = "Deleted"))
)]
pub async fn delete(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    if !app.store.webhooks.delete(key(&caller, &id), app.clock.now()).await? {
        return Err(no_webhook(&id));
    }
    Ok((StatusCode::NO_CONTENT, Extension(Acted(vec![id]))).into_response())
}

/// The caller's webhook of this id, if there is one.
fn key(caller: &Caller, id: &str) -> WebhookKey {
    WebhookKey { team: caller.team.id.clone(), id: id.into() }
}

async fn find(app: &App, caller: &Caller, id: String) -> Result<WebhookRow, ApiError> {
    app.store.webhooks.get(&key(caller, &id)).await?.ok_or_else(|| no_webhook(&id))
}
