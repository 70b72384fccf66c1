//! The catalog: which markets a merchant has, and how one can pay there.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use sandpiper_discovery::Market;
use sandpiper_discovery::settings::discovery_token;
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::PublicAccess;
use crate::error::RpcError;
use crate::parameters::Parameters;
use crate::responses::{A_MINUTE, CachedResponse};
use crate::state::App;

/// The markets that are enabled for the merchant.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Catalog)]
pub struct CatalogBody {
    /// By country and currency.
    pub markets: Vec<MarketBody>,
}

/// A market.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CatalogMarket)]
pub struct MarketBody {
    /// ISO 3166-1 alpha-2.
    #[schema(example = "KE")]
    pub country_code: String,
    #[schema(example = "KES")]
    pub currency_code: String,
    /// How one can pay in: `bank_account` stands for `PAYMENT_METHOD_BANK_ACCOUNT`, and so on.
    #[schema(example = json!(["bank_account", "mobile_money"]))]
    pub methods_in: Vec<String>,
    /// How one can be paid out.
    #[schema(example = json!(["bank_account"]))]
    pub methods_out: Vec<String>,
}

impl From<Market> for MarketBody {
    fn from(market: Market) -> Self {
        let tokens = |methods: Vec<String>| methods.iter().map(|method| discovery_token(method)).collect();
        Self {
            country_code: market.key.country_code,
            currency_code: market.key.currency_code,
            methods_in: tokens(market.methods_in),
            methods_out: tokens(market.methods_out),
        }
    }
}

/// Show the catalog
///
/// The markets that are enabled for the merchant in the key's realm, with discovery tokens for their payment methods.
#[utoipa::path(
    get,
    path = "/merchant/api/v1/catalog",
    operation_id = "show_catalog",
    tag = "discovery",
    responses((status = 200, description = "The catalog", body = CatalogBody))
)]
pub async fn catalog(
    PublicAccess(caller): PublicAccess,
    State(app): State<App>,
    parameters: Parameters,
    request: HeaderMap,
) -> Result<Response, RpcError> {
    parameters.only(&[])?;
    let question = format!("{}/{}/catalog", caller.merchant_id, caller.realm);
    let response = match app.responses.get(caller.discovery_revision, &question) {
        Some(response) => response,
        None => {
            let markets = app.store.discovery.markets_of(&caller.merchant_id, caller.realm).await?;
            let body = CatalogBody { markets: markets.into_iter().map(MarketBody::from).collect() };
            let response = CachedResponse::new(&body)?;
            app.responses.keep(caller.discovery_revision, question, &response);
            response
        }
    };
    Ok(response.respond(&request, A_MINUTE))
}
