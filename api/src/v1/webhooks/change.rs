//! `PATCH /v1/webhooks/{id}`, `POST /v1/webhooks/{id}/secret`

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::{WebhookBody, check_name, check_types, check_url};
use super::{find, key};
use crate::auth::ManageAccess;
use crate::errors::no_webhook;
use crate::state::App;
use crate::store::webhooks::{WebhookChange, WebhookRow};
use crate::webhooks::secret;

/// What is to be another; what is left out stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChangeWebhook, example = json!({"enabled": false}))]
pub struct UpdateRequest {
    /// What it is for: at most 200 bytes.
    pub name: Option<String>,
    /// A public https URL.
    pub url: Option<String>,
    /// Types of events that are to go there; an empty list: all.
    pub types: Option<Vec<String>>,
    /// False: nothing is sent, and what waits to be sent is cancelled. True: events go there from now on.
    pub enabled: Option<bool>,
}

/// Change a webhook
///
/// In force from the next attempt on, also of deliveries that are being tried already. Needs an admin.
#[utoipa::path(
    patch,
    path = "/v1/webhooks/{id}",
    operation_id = "change_webhook",
    tag = "webhooks",
    params(("id" = String, Path, description = "The webhook's id")),
    request_body = UpdateRequest,
    responses((status = 200, description = "As it is now", body = WebhookBody))
)]
pub async fn update(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
    Json(UpdateRequest { name, url, types, enabled }): Json<UpdateRequest>,
) -> Result<Response, ApiError> {
    let change = WebhookChange {
        name: name.map(check_name).transpose()?,
        url: url.map(|url| check_url(&app, &url)).transpose()?,
        types: types.map(|types| check_types(&types)).transpose()?,
        enabled,
    };
    let row = app.store.webhooks.change(key(&caller, &id), change, app.clock.now()).await?;
    Ok(response(row.ok_or_else(|| no_webhook(&id))?, None))
}

/// Give a webhook another secret
///
/// The response alone has it. Attempts are signed with it from the next one on, and never with the old one again. Needs an admin.
#[utoipa::path(
    post,
    path = "/v1/webhooks/{id}/secret",
    operation_id = "rotate_webhook_secret",
    tag = "webhooks",
    params(("id" = String, Path, description = "The webhook's id")),
    responses((status = 200, description = "The webhook, with its new secret", body = WebhookBody))
)]
pub async fn rotate_secret(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let secret = secret::generate();
    let sealed = app.vault.seal(&id, secret.as_bytes()).map_err(|error| ApiError::internal(error.to_string()))?;
    if !app.store.webhooks.rotate(key(&caller, &id), sealed, app.clock.now()).await? {
        return Err(no_webhook(&id));
    }
    Ok(response(find(&app, &caller, id).await?, Some(secret.to_string())))
}

fn response(row: WebhookRow, secret: Option<String>) -> Response {
    let acted = Extension(Acted(vec![row.key.id.to_string()]));
    (acted, JsonBody(WebhookBody::new(row, secret))).into_response()
}
