//! Banks for pay-ins to a bank account.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use sandpiper_discovery::settings::BANK_ACCOUNT;
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::PublicAccess;
use super::selection::Selection;
use crate::error::RpcError;
use crate::parameters::Parameters;
use crate::responses::{A_MINUTE, CachedResponse};
use crate::state::App;

/// Banks, by name.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Banks)]
pub struct BanksBody {
    pub banks: Vec<BankBody>,
}

/// A bank.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Bank)]
pub struct BankBody {
    /// Opaque; to be used exactly as it is.
    #[schema(example = "044")]
    pub code: String,
    #[schema(example = "First Example Bank")]
    pub name: String,
}

/// List banks for pay-ins
///
/// The banks of a country that the selected traffic can pay in through.
#[utoipa::path(
    get,
    path = "/merchant/api/v1/payins/banks",
    operation_id = "list_payin_banks",
    tag = "discovery",
    params(
        ("countryCode" = String, Query, description = "ISO 3166-1 alpha-2", example = "NG"),
        ("paymentMethod" = String, Query, description = "`PAYMENT_METHOD_BANK_ACCOUNT`"),
        ("trafficVertical" = Option<String>, Query, description = "`TRAFFIC_VERTICAL_…`; without it, the account's default"),
        ("customerSegment" = Option<String>, Query, description = "`CUSTOMER_SEGMENT_…`"),
    ),
    responses((status = 200, description = "The banks", body = BanksBody))
)]
pub async fn banks(
    PublicAccess(caller): PublicAccess,
    State(app): State<App>,
    parameters: Parameters,
    request: HeaderMap,
) -> Result<Response, RpcError> {
    let selection = Selection::new(&app, &caller, parameters, &[BANK_ACCOUNT])?;
    let question = selection.question(&caller);
    let response = match app.responses.get(caller.discovery_revision, &question) {
        Some(response) => response,
        None => {
            selection.check_available(&app, &caller).await?;
            let mut banks = app.store.discovery.banks_in(&selection.country).await?;
            banks.retain(|bank| selection.admits(&bank.audience));
            let banks = banks.into_iter().map(|bank| BankBody { code: bank.code, name: bank.name }).collect();
            let response = CachedResponse::new(&BanksBody { banks })?;
            app.responses.keep(caller.discovery_revision, question, &response);
            response
        }
    };
    Ok(response.respond(&request, A_MINUTE))
}
