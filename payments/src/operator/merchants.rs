//! Merchants: made, shown, changed.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use sandpiper_discovery::MarketKey;
use sandpiper_discovery::checks::is_name;
use sandpiper_http::audited::Acted;
use sandpiper_http::json::Json as Body;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::auth::Operator;
use crate::domain::realm::Realm;
use crate::error::RpcError;
use crate::page::Paging;
use crate::parameters::Parameters;
use crate::state::App;
use crate::store::merchants::{Merchant, MerchantChange, MerchantError};

/// A merchant.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Merchant)]
pub struct MerchantBody {
    /// `mer…`
    pub id: String,
    pub name: String,
    /// What stands in for a `trafficVertical` that a request leaves out; null: nothing does.
    #[schema(required)]
    pub default_traffic_vertical: Option<String>,
    /// The markets that are enabled, by realm.
    pub markets: BTreeMap<Realm, Vec<MarketName>>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// Names a market.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MarketName {
    #[schema(example = "KE")]
    pub country_code: String,
    #[schema(example = "KES")]
    pub currency_code: String,
}

/// Merchants, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Merchants)]
pub struct MerchantsBody {
    pub merchants: Vec<MerchantBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// A merchant to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateMerchant {
    /// 1 to 200 characters; no other merchant has it.
    pub name: String,
    pub default_traffic_vertical: Option<String>,
    /// The markets to enable; none where a realm is left out.
    #[serde(default)]
    pub markets: MarketsToEnable,
}

/// What to change.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdateMerchant {
    /// null takes the default away; left out, it stays.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    pub default_traffic_vertical: Option<Option<String>>,
    /// A realm that is given has these markets from now on and no others; one that is left out stays as it is.
    #[serde(default)]
    pub markets: MarketsToEnable,
}

/// Markets, by realm.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MarketsToEnable {
    pub live: Option<Vec<MarketName>>,
    pub sandbox: Option<Vec<MarketName>>,
}

/// Tells null from what is left out.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl From<Merchant> for MerchantBody {
    fn from(merchant: Merchant) -> Self {
        let name = |key: MarketKey| MarketName { country_code: key.country_code, currency_code: key.currency_code };
        let names = |keys: Vec<MarketKey>| keys.into_iter().map(name).collect();
        Self {
            id: merchant.id,
            name: merchant.name,
            default_traffic_vertical: merchant.default_traffic_vertical,
            markets: merchant.markets.into_iter().map(|(realm, keys)| (realm, names(keys))).collect(),
            created_at: merchant.created_at,
        }
    }
}

impl From<MerchantError> for RpcError {
    fn from(error: MerchantError) -> Self {
        match error {
            MerchantError::NameTaken => RpcError::already_exists("Another merchant has this name; choose another"),
            MerchantError::NoMarket(_) => {
                RpcError::invalid_field("markets", format!("cannot be enabled: {error}; add it first"))
            }
            MerchantError::Store(error) => error.into(),
        }
    }
}

/// Create a merchant
#[utoipa::path(
    post,
    path = "/operator/v1/merchants",
    operation_id = "create_merchant",
    tag = "merchants",
    request_body = CreateMerchant,
    responses((status = 201, description = "The merchant", body = MerchantBody))
)]
pub async fn create(
    _: Operator,
    State(app): State<App>,
    parameters: Parameters,
    Body(new): Body<CreateMerchant>,
) -> Result<Response, RpcError> {
    parameters.only(&[])?;
    if !is_name(&new.name) {
        return Err(RpcError::invalid_field("name", "must be 1 to 200 characters, without blanks around them"));
    }
    let change = change(&app, Some(new.default_traffic_vertical), new.markets)?;
    let merchant_id = app.store.merchants.create(&new.name, &change, app.clock.now()).await?;
    let mut response = (StatusCode::CREATED, Json(body(&app, &merchant_id).await?)).into_response();
    response.extensions_mut().insert(Acted(vec![format!("merchants/{merchant_id}")]));
    Ok(response)
}

/// List merchants
#[utoipa::path(
    get,
    path = "/operator/v1/merchants",
    operation_id = "list_merchants",
    tag = "merchants",
    params(
        ("pageSize" = Option<u32>, Query, description = "1 to 1000; 100 if left out"),
        ("pageToken" = Option<String>, Query, description = "`nextPageToken` of the page before"),
    ),
    responses((status = 200, description = "A page of merchants", body = MerchantsBody))
)]
pub async fn list(
    _: Operator,
    State(app): State<App>,
    parameters: Parameters,
) -> Result<Json<MerchantsBody>, RpcError> {
    let parameters = parameters.only(&["pageSize", "pageToken"])?;
    let paging = Paging::<String>::new(&parameters, &["merchants"])?;
    let mut merchants = app.store.merchants.list(paging.after.as_deref().unwrap_or(""), paging.limit()).await?;
    let next_page_token = paging.cut(&mut merchants, |merchant| merchant.id.clone());
    Ok(Json(MerchantsBody { merchants: merchants.into_iter().map(MerchantBody::from).collect(), next_page_token }))
}

/// Show a merchant
#[utoipa::path(
    get,
    path = "/operator/v1/merchants/{merchant}",
    operation_id = "show_merchant",
    tag = "merchants",
    params(("merchant" = String, Path, description = "Its id")),
    responses((status = 200, description = "The merchant", body = MerchantBody))
)]
pub async fn show(
    _: Operator,
    State(app): State<App>,
    Path(merchant_id): Path<String>,
    parameters: Parameters,
) -> Result<Json<MerchantBody>, RpcError> {
    parameters.only(&[])?;
    Ok(Json(body(&app, &merchant_id).await?))
}

/// Change a merchant
///
/// Its default traffic vertical, and the markets that are enabled, realm by realm. It is in force at once.
#[utoipa::path(
    patch,
    path = "/operator/v1/merchants/{merchant}",
    operation_id = "update_merchant",
    tag = "merchants",
    params(("merchant" = String, Path, description = "Its id")),
    request_body = UpdateMerchant,
    responses((status = 200, description = "The merchant", body = MerchantBody))
)]
pub async fn update(
    _: Operator,
    State(app): State<App>,
    Path(merchant_id): Path<String>,
    parameters: Parameters,
    Body(update): Body<UpdateMerchant>,
) -> Result<Json<MerchantBody>, RpcError> {
    parameters.only(&[])?;
    let change = change(&app, update.default_traffic_vertical, update.markets)?;
    if !app.store.merchants.change(&merchant_id, &change).await? {
        return Err(no_merchant(&merchant_id));
    }
    Ok(Json(body(&app, &merchant_id).await?))
}

/// 404 on a merchant.
pub fn no_merchant(merchant_id: &str) -> RpcError {
    RpcError::not_found(format!("There is no merchant {merchant_id}"))
}

async fn body(app: &App, merchant_id: &str) -> Result<MerchantBody, RpcError> {
    let merchant = app.store.merchants.get(merchant_id).await?;
    merchant.map(MerchantBody::from).ok_or_else(|| no_merchant(merchant_id))
}

fn change(app: &App, vertical: Option<Option<String>>, markets: MarketsToEnable) -> Result<MerchantChange, RpcError> {
    if let Some(Some(word)) = &vertical {
        let check = app.settings.payments.check_vertical(word);
        check.map_err(|problem| RpcError::invalid_field("defaultTrafficVertical", problem))?;
    }
    let key = |name: MarketName| MarketKey { country_code: name.country_code, currency_code: name.currency_code };
    let keys = |names: Vec<MarketName>| {
        let mut keys: Vec<_> = names.into_iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    };
    let given = [(Realm::Live, markets.live), (Realm::Sandbox, markets.sandbox)];
    let markets = given.into_iter().filter_map(|(realm, names)| Some((realm, keys(names?)))).collect();
    Ok(MerchantChange { default_traffic_vertical: vertical, markets })
}
