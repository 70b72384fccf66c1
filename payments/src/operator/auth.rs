//! Proof of an operator key, as handlers ask for it.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
pub use sandpiper_accounts::Operator;

use crate::error::RpcError;
use crate::state::App;

impl FromRequestParts<App> for Operator {
    type Rejection = RpcError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, RpcError> {
        Operator::establish(parts, &app.operators).await
    }
}
