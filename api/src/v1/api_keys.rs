//! `GET/POST /v1/api_keys`, `DELETE /v1/api_keys/{id}`

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use jiff::Timestamp;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::{NoParameters, Pairs};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::page::{List, Paging};
use crate::auth::{ManageAccess, keys};
use crate::state::App;
use crate::store::keys::{Capability, KeyRecord, MAX_NAME, NewKey};

/// Keys of one team that have not ended.
const MOST: u32 = 200;

/// An API key.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ApiKey)]
pub struct ApiKeyBody {
    pub id: String,
    pub name: String,
    pub capability: Capability,
    /// Slug of the team that it acts for.
    pub team: String,
    /// Id of the user who made it; null: the operator.
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// To a minute; null: never.
    pub last_used_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// `spk_…`, in the response to its creation only, and not in a repetition of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl ApiKeyBody {
    fn new(record: KeyRecord, key: Option<String>) -> Self {
        let KeyRecord { id, team, name, capability, created_by, created_at, expires_at, last_used_at, revoked_at } =
            record;
        Self { id, name, capability, team, created_by, created_at, expires_at, last_used_at, revoked_at, key }
    }
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct ApiKeyList {
    /// Newest first, those that have ended among them.
    pub api_keys: Vec<ApiKeyBody>,
    /// For the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// The key to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateApiKey, example = json!({"name": "ci", "capability": "write"}))]
pub struct CreateRequest {
    /// Slug or id of the team that it is to act for: the personal one by default.
    pub team: Option<String>,
    /// What it is for: at most 200 bytes.
    #[serde(default)]
    pub name: String,
    /// `write` includes `read`.
    pub capability: Capability,
    /// When it is to end by itself: in the future.
    pub expires_at: Option<Timestamp>,
}

/// List API keys
///
/// The team's keys, newest first, without themselves. Needs an admin.
#[utoipa::path(
    get,
    path = "/v1/api_keys",
    operation_id = "list_api_keys",
    tag = "accounts",
    params(
        ("team" = Option<String>, Query, description = "Slug or id of a team: the personal one by default"),
        ("limit" = Option<u32>, Query, description = "Keys per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = ApiKeyList))
)]
pub async fn list(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<JsonBody<ApiKeyList>, ApiError> {
    let paging = Paging::of_team(query, &caller)?;
    let list = List::of_ids("key", &json!([caller.team.id]));
    let after = paging.after(&list)?;
    let mut keys = app.store.keys.of(&caller.team.id, after.as_deref(), paging.limit + 1).await?;
    let next_token = list.cut(&mut keys, paging.limit, |key| key.id.clone());
    Ok(JsonBody(ApiKeyList { api_keys: keys.into_iter().map(|key| ApiKeyBody::new(key, None)).collect(), next_token }))
}

/// Make an API key
///
/// The response alone has the key itself. Needs an admin.
#[utoipa::path(
    post,
    path = "/v1/api_keys",
    operation_id = "create_api_key",
    tag = "accounts",
    request_body = CreateRequest,
    responses((status = 201, description = "Made", body = ApiKeyBody))
)]
pub async fn create(
    ManageAccess { caller, signed_in }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Json(CreateRequest { team, name, capability, expires_at }): Json<CreateRequest>,
) -> Result<Response, ApiError> {
    caller.check_team(team.as_deref())?;
    let now = app.clock.now();
    if name.len() > MAX_NAME || name.contains(char::is_control) {
        let reason = format!("must have at most {MAX_NAME} bytes, and no control characters");
        return Err(ApiError::invalid_field("name", reason));
    }
    if expires_at.is_some_and(|end| end <= now) {
        return Err(ApiError::invalid_field("expires_at", "must be in the future"));
    }
    if app.store.keys.count(&caller.team.id, now).await? >= MOST {
        let message = format!("The team has {MOST} API keys; revoke one that nobody uses");
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "too_many_keys", message));
    }
    let key = keys::generate();
    let hash = keys::hash(&key).ok_or_else(|| ApiError::internal("a new key has no hash"))?;
    let new = NewKey { name: &name, hash: &hash, capability, created_by: Some(&signed_in.id), expires_at };
    let id = app.store.keys.add(&caller.team, &new, now).await?;
    let body = ApiKeyBody {
        id: id.clone(),
        name,
        capability,
        team: caller.team.slug,
        created_by: Some(signed_in.id.to_string()),
        created_at: now,
        expires_at,
        last_used_at: None,
        revoked_at: None,
        key: Some(key.to_string()),
    };
    let location = [(header::LOCATION, format!("/v1/api_keys/{id}"))];
    Ok((StatusCode::CREATED, location, Extension(Acted(vec![id])), JsonBody(body)).into_response())
}

/// Revoke an API key
///
/// From then on it is no key, and what it has given access to ends. Needs an admin.
#[utoipa::path(
    delete,
    path = "/v1/api_keys/{id}",
    operation_id = "revoke_api_key",
    tag = "accounts",
    params(("id" = String, Path, description = "The key's id")),
    responses((status = 204, description = "Revoked"))
)]
pub async fn revoke(
    ManageAccess { caller, .. }: ManageAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    if !app.store.keys.revoke(&id, Some(&caller.team.id), app.clock.now()).await? {
        return Err(ApiError::not_found(format!("There is no active API key {id:?} of the team")));
    }
    Ok((StatusCode::NO_CONTENT, Extension(Acted(vec![id]))).into_response())
}
