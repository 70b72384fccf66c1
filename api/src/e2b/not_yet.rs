//! What the SDKs ask for and this host cannot do: templates of one's own, secrets.

use axum::http::StatusCode;
use sandpiper_http::error::ApiError;

use crate::auth::ReadAccess;

/// 501, to whom has a key.
pub async fn refuse(ReadAccess(_): ReadAccess) -> ApiError {
    error("Templates of one's own and secrets are not available")
}

/// 501 on `what`.
pub fn error(what: &str) -> ApiError {
    let message = format!("{what} yet on this host; GET /v1/templates lists the templates that there are");
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
}
