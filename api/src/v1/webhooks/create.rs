//! `POST /v1/webhooks`

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::NoParameters;
use serde::Deserialize;
use utoipa::ToSchema;

use super::body::{WebhookBody, check_name, check_types, check_url};
use crate::auth::ManageAccess;
use crate::errors::no_new_webhook;
use crate::state::App;
use crate::store::webhooks::{NewWebhook, WebhookId, WebhookKey};
use crate::webhooks::secret;

/// The webhook to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateWebhook, example = json!({"url": "https://hooks.example.com/sandpiper", "types": ["sandbox.crashed"]}))]
pub struct CreateRequest {
    /// Slug or id of the team: the personal one by default.
    pub team: Option<String>,
    /// What it is for: at most 200 bytes.
    #[serde(default)]
    pub name: String,
    /// A public https URL.
    pub url: String,
    /// Types of events that are to go there, `sandbox.crashed` say; all, where none is named.
    #[serde(default)]
    pub types: Vec<String>,
}

/// Create a webhook
///
/// Events of the team go there from now on. The response alone has the secret that signs them. Needs an admin.
#[utoipa::path(
    post,
    path = "/v1/webhooks",
    operation_id = "create_webhook",
    tag = "webhooks",
    request_body = CreateRequest,
    responses((status = 201, description = "Created", body = WebhookBody))
)]
pub async fn create(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Json(CreateRequest { team, name, url, types }): Json<CreateRequest>,
) -> Result<Response, ApiError> {
    caller.check_team(team.as_deref())?;
    let (name, url, types) = (check_name(name)?, check_url(&app, &url)?, check_types(&types)?);
    let (id, secret) = (WebhookId::generate(), secret::generate());
    let sealed = app.vault.seal(&id, secret.as_bytes()).map_err(|error| ApiError::internal(error.to_string()))?;
    let key = WebhookKey { team: caller.team.id.clone(), id: id.clone() };
    let limits = app.settings.plans.of(caller.team.plan);
    let new = NewWebhook { key, name, url, types, sealed };
    let row = app.store.webhooks.create(new, limits.quota, app.clock.now()).await;
    let row = row.map_err(|error| no_new_webhook(error, limits))?;
    let location = [(header::LOCATION, format!("/v1/webhooks/{id}"))];
    let body = WebhookBody::new(row, Some(secret.to_string()));
    Ok((StatusCode::CREATED, location, Extension(Acted(vec![id.to_string()])), JsonBody(body)).into_response())
}
