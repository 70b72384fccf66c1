//! Invitations to become a user of a merchant.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use sandpiper_accounts::membership::TOKEN;
use sandpiper_accounts::{Email, Role};
use sandpiper_http::audited::Acted;
use sandpiper_http::json::Json as Body;
use sandpiper_http::keys;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Operator;
use super::merchants::no_merchant;
use crate::domain::realm::Realm;
use crate::error::RpcError;
use crate::parameters::Parameters;
use crate::state::App;
use crate::store::merchant_users::NewMerchantInvitation;

/// An invitation to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateMerchantInvitation {
    pub role: Role,
    /// Both, if left out.
    pub realm: Option<Realm>,
    /// The only address that may accept it; if left out, whoever has the token may.
    pub email: Option<String>,
}

/// An invitation.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MerchantInvitation)]
pub struct InvitationBody {
    /// `inv…`
    pub id: String,
    pub role: Role,
    /// Null: both.
    #[schema(required)]
    pub realm: Option<Realm>,
    /// Null: whoever has the token may accept it.
    #[schema(required)]
    pub email: Option<String>,
    /// `spi_…`, shown this once: the link is `/portal/join#spi_…`.
    pub token: String,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}

/// Invite a user of a merchant
///
/// Makes a token for somebody who accepts it within seven days in the Merchant Portal, at `/portal/join#<token>`. Nothing is sent: hand
/// the link on.
#[utoipa::path(
    post,
    path = "/operator/v1/merchants/{merchant}/invitations",
    operation_id = "invite_merchant_user",
    tag = "merchants",
    params(("merchant" = String, Path, description = "The merchant")),
    request_body = CreateMerchantInvitation,
    responses((status = 201, description = "The invitation, with its token, shown this once", body = InvitationBody))
)]
pub async fn create(
    _: Operator,
    State(app): State<App>,
    Path(merchant_id): Path<String>,
    parameters: Parameters,
    Body(CreateMerchantInvitation { role, realm, email }): Body<CreateMerchantInvitation>,
) -> Result<Response, RpcError> {
    parameters.only(&[])?;
    let email = email.map(|email| email.parse::<Email>()).transpose();
    let email = email.map_err(|reason| RpcError::invalid_field("email", reason))?;
    let token = keys::generate(TOKEN);
    let hash = keys::hash(TOKEN, &token).ok_or_else(|| RpcError::internal("a new token has no hash"))?;
    let new = NewMerchantInvitation { realm, role, email: email.as_ref(), invited_by: None, hash: &hash };
    let made = app.store.merchant_users.invite(&merchant_id, &new, app.clock.now()).await?;
    let made = made.ok_or_else(|| no_merchant(&merchant_id))?;
    let acted = Acted(vec![format!("merchants/{merchant_id}/invitations/{}", made.id)]);
    let body = InvitationBody {
        id: made.id,
        role,
        realm,
        email: made.email,
        token: token.to_string(),
        expires_at: made.expires_at,
    };
    let mut response = (StatusCode::CREATED, Json(body)).into_response();
    response.extensions_mut().insert(acted);
    Ok(response)
}
