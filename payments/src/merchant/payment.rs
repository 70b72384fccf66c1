//! One payment, read again.

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;

use super::auth::PublicAccess;
use crate::domain::order::PaymentOrder;
use crate::error::RpcError;
use crate::parameters::Parameters;
use crate::responses::{ASK_AGAIN, CachedResponse};
use crate::state::App;

/// Show a payment
///
/// The payment order as it is now, byte for byte as the webhook of its last update carries it.
#[utoipa::path(
    get,
    path = "/merchant/api/v1/payment/{id}",
    operation_id = "show_payment",
    tag = "payments",
    params(("id" = String, Path, description = "The payment")),
    responses((status = 200, description = "The payment order", body = PaymentOrder))
)]
pub async fn payment(
    PublicAccess(caller): PublicAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    parameters: Parameters,
    request: HeaderMap,
) -> Result<Response, RpcError> {
    parameters.only(&[])?;
    let document = app.store.payments.document(&caller.merchant_id, caller.realm, &id).await?;
    let document = document.ok_or_else(|| RpcError::not_found(format!("There is no payment {id} in this realm")))?;
    Ok(CachedResponse::of_json(document)?.respond(&request, ASK_AGAIN))
}
