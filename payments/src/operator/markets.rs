//! Markets: which there are, and how one can pay in each.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use sandpiper_discovery::checks::{Cell, Faults, Offered, Place, RawMarket, RawSeed};
use sandpiper_discovery::{Market, MarketKey};
use sandpiper_http::json::Json as Body;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Operator;
use crate::error::RpcError;
use crate::page::Paging;
use crate::parameters::Parameters;
use crate::state::App;

/// A market, as it is written in a file to import.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Market)]
pub struct MarketBody {
    #[schema(example = "KE")]
    pub country_code: String,
    #[schema(example = "KES")]
    pub currency_code: String,
    /// `PAYMENT_METHOD_…`
    pub methods_in: Vec<String>,
    pub methods_out: Vec<String>,
}

/// Markets, by country and currency.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Markets)]
pub struct MarketsBody {
    pub markets: Vec<MarketBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// How one can pay in a market.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutMarket {
    /// `PAYMENT_METHOD_…`
    pub methods_in: Vec<String>,
    pub methods_out: Vec<String>,
}

impl From<Market> for MarketBody {
    fn from(market: Market) -> Self {
        Self {
            country_code: market.key.country_code,
            currency_code: market.key.currency_code,
            methods_in: market.methods_in,
            methods_out: market.methods_out,
        }
    }
}

/// List markets
#[utoipa::path(
    get,
    path = "/operator/v1/markets",
    operation_id = "list_markets",
    tag = "discovery data",
    params(
        ("pageSize" = Option<u32>, Query, description = "1 to 1000; 100 if left out"),
        ("pageToken" = Option<String>, Query, description = "`nextPageToken` of the page before"),
    ),
    responses((status = 200, description = "A page of markets", body = MarketsBody))
)]
pub async fn list(_: Operator, State(app): State<App>, parameters: Parameters) -> Result<Json<MarketsBody>, RpcError> {
    let parameters = parameters.only(&["pageSize", "pageToken"])?;
    let paging = Paging::<(String, String)>::new(&parameters, &["markets"])?;
    let key = |market: &Market| (market.key.country_code.clone(), market.key.currency_code.clone());
    let mut markets = app.store.discovery.markets().await?;
    markets.retain(|market| paging.after.as_ref().is_none_or(|after| key(market) > *after));
    let next_page_token = paging.cut(&mut markets, key);
    Ok(Json(MarketsBody { markets: markets.into_iter().map(MarketBody::from).collect(), next_page_token }))
}

/// Put a market
///
/// Adds a market, or changes how one can pay there.
#[utoipa::path(
    put,
    path = "/operator/v1/markets/{countryCode}/{currencyCode}",
    operation_id = "put_market",
    tag = "discovery data",
    params(
        ("countryCode" = String, Path, description = "ISO 3166-1 alpha-2"),
        ("currencyCode" = String, Path, description = "ISO 4217"),
    ),
    request_body = PutMarket,
    responses((status = 200, description = "The market", body = MarketBody))
)]
pub async fn put(
    _: Operator,
    State(app): State<App>,
    Path((country, currency)): Path<(String, String)>,
    parameters: Parameters,
    Body(market): Body<PutMarket>,
) -> Result<Json<MarketBody>, RpcError> {
    parameters.only(&[])?;
    let raw = RawMarket {
        country_code: Cell::new(country, Place::field("countryCode")),
        currency_code: Cell::new(currency, Place::field("currencyCode")),
        methods_in: Cell::new(market.methods_in, Place::field("methodsIn")),
        methods_out: Cell::new(market.methods_out, Place::field("methodsOut")),
    };
    let raw = RawSeed { markets: vec![raw], ..RawSeed::default() };
    let mut seed = raw.check(&app.settings.payments, Faults::default(), Offered::default())?;
    app.store.discovery.store(&seed).await?;
    let stored = seed.markets.pop().ok_or_else(|| RpcError::internal("one market was checked, none came out"))?;
    Ok(Json(stored.into()))
}

/// Remove a market
///
/// It is taken from all merchants too. Its banks and operators stay, for another market of the country.
#[utoipa::path(
    delete,
    path = "/operator/v1/markets/{countryCode}/{currencyCode}",
    operation_id = "remove_market",
    tag = "discovery data",
    params(
        ("countryCode" = String, Path, description = "ISO 3166-1 alpha-2"),
        ("currencyCode" = String, Path, description = "ISO 4217"),
    ),
    responses((status = 204, description = "Removed"))
)]
pub async fn remove(
    _: Operator,
    State(app): State<App>,
    Path((country_code, currency_code)): Path<(String, String)>,
    parameters: Parameters,
) -> Result<StatusCode, RpcError> {
    parameters.only(&[])?;
    let key = MarketKey { country_code, currency_code };
    match app.store.discovery.remove_market(&key).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(RpcError::not_found(format!("There is no market {} {}", key.country_code, key.currency_code))),
    }
}
