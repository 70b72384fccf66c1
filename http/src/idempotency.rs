//! The header `Idempotency-Key`: a repeated request gets the response of the first one, not done again.

use axum::http::{HeaderMap, HeaderName};
use sandpiper_db::hex;
use sha2::{Digest, Sha256};

use crate::error::ApiError;

/// The request header.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The response header that marks a repetition.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const MAX_KEY: usize = 255;

/// The key that a request has, if it has one.
///
/// # Errors
///
/// 400 on a key that is not visible ASCII, or too long.
pub fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.as_bytes();
    if (1..=MAX_KEY).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic) {
        return Ok(Some(String::from_utf8_lossy(key).into_owned()));
    }
    Err(ApiError::invalid_field("Idempotency-Key", "must be 1 to 255 visible ASCII characters without spaces"))
}

/// What tells a request from another under the same key: 64 hexadecimal digits. `user`: who is signed in.
pub fn fingerprint(user: Option<&str>, method: &str, path: &str, body: &[u8]) -> String {
    let mut hash = Sha256::new();
    for part in user.map(str::as_bytes).into_iter().chain([method.as_bytes(), path.as_bytes(), body]) {
        // The length first, so that no two requests run together into the same bytes.
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    hex::encode(&hash.finalize())
}
