//! What the SDKs ask for and this host cannot do: secrets, and images that their oldest command line pushes.

use axum::http::StatusCode;
use sandpiper_http::error::ApiError;

use crate::auth::ReadAccess;

/// 501 on secrets, to whom has a key.
pub async fn secrets(ReadAccess(_): ReadAccess) -> ApiError {
    refuse("Secrets are not available yet on this host; pass them as envVars")
}

/// 501 on templates whose image is pushed, to whom has a key.
pub async fn pushed_image(ReadAccess(_): ReadAccess) -> ApiError {
    refuse("Images are not pushed to this host; build with an SDK of version 2, or from an image of a registry")
}

fn refuse(message: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
}
