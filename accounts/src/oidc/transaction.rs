//! What a browser keeps from the beginning of a sign-in to its end: sealed, so that it can neither be read nor made up.

use jiff::{SignedDuration, Timestamp};
use openidconnect::{CsrfToken, Nonce, PkceCodeVerifier};
use sandpiper_db::secrets::Vault;
use sandpiper_http::error::ApiError;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// How long somebody may take at the provider.
pub const LASTS: SignedDuration = SignedDuration::from_mins(10);
/// What it is sealed for.
const CONTEXT: &str = "oidc sign-in";
/// Longest sealed text that is looked at, in bytes: browsers keep 4096 in a cookie.
const MAX_SEALED: usize = 4096;

/// One sign-in under way.
#[derive(Debug, Serialize, Deserialize)]
pub struct Transaction {
    /// The provider, of the settings as they were.
    pub(super) issuer: String,
    /// What the provider gives back with the code.
    pub(super) state: CsrfToken,
    /// What the ID token must hold.
    pub(super) nonce: Nonce,
    /// Of the code challenge (RFC 7636).
    pub(super) verifier: PkceCodeVerifier,
    pub expires_at: Timestamp,
    /// Hash of the token of the invitation that is accepted by it.
    pub invitation: Option<String>,
}

impl Transaction {
    /// As the browser keeps it: letters, digits, `+`, `/` and `:`.
    ///
    /// # Errors
    ///
    /// 500, where nothing can be sealed.
    pub fn seal(&self, vault: &Vault) -> Result<String, ApiError> {
        let failed = |error: String| ApiError::internal(format!("a sign-in under way: {error}"));
        let text = Zeroizing::new(serde_json::to_vec(self).map_err(|error| failed(error.to_string()))?);
        vault.seal(CONTEXT, &text).map_err(|error| failed(error.to_string()))
    }

    /// What was sealed, unless it is over.
    pub fn unseal(vault: &Vault, sealed: &str, now: Timestamp) -> Option<Self> {
        if sealed.len() > MAX_SEALED {
            return None;
        }
        let text = vault.unseal(CONTEXT, sealed).ok()?;
        let transaction: Self = serde_json::from_slice(&text).ok()?;
        (transaction.expires_at > now).then_some(transaction)
    }
}
