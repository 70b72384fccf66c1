//! Mobile money operators for pay-ins: wallets, or the rails of transfers that payers make themselves.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use sandpiper_discovery::settings::{MOBILE_MONEY, MOBILE_MONEY_TRANSFER};
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::PublicAccess;
use super::selection::Selection;
use crate::error::RpcError;
use crate::parameters::Parameters;
use crate::responses::{A_MINUTE, CachedResponse};
use crate::state::App;

/// Operators, by name.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MobileOperators)]
pub struct OperatorsBody {
    pub operators: Vec<OperatorBody>,
}

/// An operator.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MobileOperator)]
pub struct OperatorBody {
    /// Opaque and public; to be used exactly as it is.
    #[schema(example = "example_wallet")]
    pub operator: String,
    #[schema(example = "Example Wallet")]
    pub name: String,
}

/// List mobile money operators for pay-ins
///
/// For `PAYMENT_METHOD_MOBILE_MONEY` the wallets, for `PAYMENT_METHOD_MOBILE_MONEY_TRANSFER` the inbound transfer rails.
#[utoipa::path(
    get,
    path = "/merchant/api/v1/payins/mmo",
    operation_id = "list_payin_mobile_operators",
    tag = "discovery",
    params(
        ("countryCode" = String, Query, description = "ISO 3166-1 alpha-2", example = "KE"),
        ("paymentMethod" = String, Query, description = "`PAYMENT_METHOD_MOBILE_MONEY` or `PAYMENT_METHOD_MOBILE_MONEY_TRANSFER`"),
        ("trafficVertical" = Option<String>, Query, description = "`TRAFFIC_VERTICAL_…`; without it, the account's default"),
        ("customerSegment" = Option<String>, Query, description = "`CUSTOMER_SEGMENT_…`"),
    ),
    responses((status = 200, description = "The operators", body = OperatorsBody))
)]
pub async fn mmo(
    PublicAccess(caller): PublicAccess,
    State(app): State<App>,
    parameters: Parameters,
    request: HeaderMap,
) -> Result<Response, RpcError> {
    let selection = Selection::new(&app, &caller, parameters, &[MOBILE_MONEY, MOBILE_MONEY_TRANSFER])?;
    let question = selection.question(&caller);
    let response = match app.responses.get(caller.discovery_revision, &question) {
        Some(response) => response,
        None => {
            selection.check_available(&app, &caller).await?;
            let mut operators = app.store.discovery.mobile_operators_in(&selection.country, &selection.method).await?;
            operators.retain(|operator| selection.admits(&operator.audience));
            let operators = operators
                .into_iter()
                .map(|operator| OperatorBody { operator: operator.code, name: operator.name })
                .collect();
            let response = CachedResponse::new(&OperatorsBody { operators })?;
            app.responses.keep(caller.discovery_revision, question, &response);
            response
        }
    };
    Ok(response.respond(&request, A_MINUTE))
}
