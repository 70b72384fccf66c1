//! Keys of the form that all of the API's have: a prefix, which names the kind, and 40 hexadecimal digits, 160 random bits.
//!
//! That many random bits make a fast hash enough to keep the key itself out of the database, and finding the hash by an
//! index tells a guesser nothing.

use axum::http::{HeaderMap, header};
use sandpiper_db::hex;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::error::ApiError;

const RANDOM_BYTES: usize = 20;

/// A new key, shown once.
pub fn generate(prefix: &str) -> Zeroizing<String> {
    let random = Zeroizing::new(rand::random::<[u8; RANDOM_BYTES]>());
    Zeroizing::new(format!("{prefix}{}", hex::encode(&*random)))
}

/// The hash under which a key is stored; `None` for text that is no key with this prefix.
pub fn hash(prefix: &str, key: &str) -> Option<String> {
    let digits = key.strip_prefix(prefix)?;
    let is_key =
        digits.len() == 2 * RANDOM_BYTES && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_key.then(|| hex::encode(&Sha256::digest(key.as_bytes())))
}

/// The key that a request presents: `Authorization: Bearer <key>`, or `X-API-Key: <key>`.
///
/// # Errors
///
/// 401 where there is none, or the header does not hold one.
pub fn presented_key(headers: &HeaderMap) -> Result<&str, ApiError> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, key) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(not_a_key)?;
        return if scheme.eq_ignore_ascii_case("bearer") { Ok(key.trim()) } else { Err(not_a_key()) };
    }
    match headers.get("x-api-key") {
        Some(value) => value.to_str().map_err(|_| not_a_key()),
        None => Err(ApiError::unauthorized("No API key: send the header `Authorization: Bearer <key>`")),
    }
}

/// 401 on what is no API key.
pub fn not_a_key() -> ApiError {
    ApiError::unauthorized("The API key is not valid: it is misspelt, or was revoked")
}
