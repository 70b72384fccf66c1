//! Merchants' keys: made, listed, rotated, ended.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use sandpiper_http::audited::Acted;
use sandpiper_http::json::Json as Body;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Operator;
use super::merchants::no_merchant;
use crate::domain::ids::{MerchantId, MerchantKeyId};
use crate::domain::realm::Realm;
use crate::error::RpcError;
use crate::merchant::new_key::NewKey;
use crate::page::Paging;
use crate::parameters::Parameters;
use crate::state::App;
use crate::store::merchant_keys::{CreateKeyError, Kind, MerchantKeyRecord};

/// A key, without itself.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MerchantKey)]
pub struct KeyBody {
    /// `mky…`
    pub id: String,
    pub realm: Realm,
    pub kind: Kind,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was ended, by rotation or otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
}

/// A new key.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = NewMerchantKey)]
pub struct NewKeyBody {
    /// `mky…`
    pub id: String,
    pub realm: Realm,
    pub kind: Kind,
    /// `pk_prod_…`, `pk_test_…`, `sk_prod_…` or `sk_test_…`. It is shown this once.
    pub key: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// A merchant's keys, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MerchantKeys)]
pub struct KeysBody {
    pub keys: Vec<KeyBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// A key to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    pub realm: Realm,
    pub kind: Kind,
}

impl From<MerchantKeyRecord> for KeyBody {
    fn from(record: MerchantKeyRecord) -> Self {
        let MerchantKeyRecord { id, realm, kind, created_at, revoked_at } = record;
        Self { id: id.to_string(), realm, kind, created_at, revoked_at }
    }
}

/// Create a key
///
/// A realm may have many public keys and one active secret key: to replace that, rotate it.
#[utoipa::path(
    post,
    path = "/operator/v1/merchants/{merchant}/keys",
    operation_id = "create_merchant_key",
    tag = "merchants",
    params(("merchant" = String, Path, description = "The merchant")),
    request_body = CreateKey,
    responses((status = 201, description = "The key, shown this once", body = NewKeyBody))
)]
pub async fn create(
    _: Operator,
    State(app): State<App>,
    Path(merchant_id): Path<MerchantId>,
    parameters: Parameters,
    Body(CreateKey { realm, kind }): Body<CreateKey>,
) -> Result<Response, RpcError> {
    parameters.only(&[])?;
    let fresh = NewKey::new(&app, realm, kind)?;
    let created = app.store.merchant_keys.create(&fresh.row(&merchant_id), fresh.created_at).await;
    created.map_err(|error| refused(error, &merchant_id, realm))?;
    Ok(shown(fresh, &merchant_id))
}

/// List a merchant's keys
///
/// Also those that were ended.
#[utoipa::path(
    get,
    path = "/operator/v1/merchants/{merchant}/keys",
    operation_id = "list_merchant_keys",
    tag = "merchants",
    params(
        ("merchant" = String, Path, description = "The merchant"),
        ("pageSize" = Option<u32>, Query, description = "1 to 1000; 100 if left out"),
        ("pageToken" = Option<String>, Query, description = "`nextPageToken` of the page before"),
    ),
    responses((status = 200, description = "A page of keys", body = KeysBody))
)]
pub async fn list(
    _: Operator,
    State(app): State<App>,
    Path(merchant_id): Path<MerchantId>,
    parameters: Parameters,
) -> Result<Json<KeysBody>, RpcError> {
    let parameters = parameters.only(&["pageSize", "pageToken"])?;
    let paging = Paging::<String>::new(&parameters, &["keys", &merchant_id])?;
    if app.store.merchants.get(&merchant_id).await?.is_none() {
        return Err(no_merchant(&merchant_id));
    }
    let after = paging.after.as_deref().unwrap_or("");
    let mut keys = app.store.merchant_keys.list(&merchant_id, after, paging.limit()).await?;
    let next_page_token = paging.cut(&mut keys, |key| key.id.to_string());
    Ok(Json(KeysBody { keys: keys.into_iter().map(KeyBody::from).collect(), next_page_token }))
}

/// Rotate a key
///
/// Makes a key of the same realm and kind and ends the old one in the same moment. From then on webhooks of the realm are
/// signed with the new secret key, also those that are tried again; the other realm is not touched.
#[utoipa::path(
    post,
    path = "/operator/v1/merchants/{merchant}/keys/{key}/rotate",
    operation_id = "rotate_merchant_key",
    tag = "merchants",
    params(("merchant" = String, Path, description = "The merchant"), ("key" = String, Path, description = "The key's id")),
    responses((status = 201, description = "The new key, shown this once", body = NewKeyBody))
)]
pub async fn rotate(
    _: Operator,
    State(app): State<App>,
    Path((merchant_id, key_id)): Path<(MerchantId, MerchantKeyId)>,
    parameters: Parameters,
) -> Result<Response, RpcError> {
    parameters.only(&[])?;
    let old = app.store.merchant_keys.get(&merchant_id, &key_id).await?;
    let old = old.filter(|old| old.revoked_at.is_none()).ok_or_else(|| no_key(&merchant_id, &key_id))?;
    let fresh = NewKey::new(&app, old.realm, old.kind)?;
    let rotated = app.store.merchant_keys.rotate(&key_id, &fresh.row(&merchant_id), fresh.created_at).await;
    match rotated.map_err(|error| refused(error, &merchant_id, old.realm))? {
        true => Ok(shown(fresh, &merchant_id)),
        false => Err(no_key(&merchant_id, &key_id)),
    }
}

/// End a key
///
/// Without an active secret key, webhooks of the realm wait until there is one.
#[utoipa::path(
    delete,
    path = "/operator/v1/merchants/{merchant}/keys/{key}",
    operation_id = "revoke_merchant_key",
    tag = "merchants",
    params(("merchant" = String, Path, description = "The merchant"), ("key" = String, Path, description = "The key's id")),
    responses((status = 204, description = "Ended"))
)]
pub async fn revoke(
    _: Operator,
    State(app): State<App>,
    Path((merchant_id, key_id)): Path<(MerchantId, MerchantKeyId)>,
    parameters: Parameters,
) -> Result<StatusCode, RpcError> {
    parameters.only(&[])?;
    match app.store.merchant_keys.revoke(&merchant_id, &key_id, app.clock.now()).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(no_key(&merchant_id, &key_id)),
    }
}

fn shown(new: NewKey, merchant_id: &MerchantId) -> Response {
    let acted = Acted(vec![format!("merchants/{merchant_id}/keys/{}", new.id)]);
    let NewKey { id, realm, kind, key, created_at, .. } = new;
    let body = NewKeyBody { id: id.to_string(), realm, kind, key: key.to_string(), created_at };
    let mut response = (StatusCode::CREATED, Json(body)).into_response();
    response.extensions_mut().insert(acted);
    response
}

fn refused(error: CreateKeyError, merchant_id: &MerchantId, realm: Realm) -> RpcError {
    match error {
        CreateKeyError::NoMerchant => no_merchant(merchant_id),
        CreateKeyError::SecretExists => {
            RpcError::already_exists(format!("The realm {realm} has an active secret key; rotate that one"))
        }
        CreateKeyError::Store(error) => error.into(),
    }
}

fn no_key(merchant_id: &MerchantId, key_id: &MerchantKeyId) -> RpcError {
    RpcError::not_found(format!("The merchant {merchant_id} has no active key {key_id}"))
}
