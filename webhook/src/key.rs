//! The key that signs: of a realm of a merchant, or of a webhook of a team.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit};
use sha2::Sha256;
use zeroize::Zeroizing;

/// What a secret API key begins with, by realm.
const PREFIXES: [&str; 2] = ["sk_test_", "sk_prod_"];
/// What the secret of a team's webhook begins with.
pub const WEBHOOK_SECRET_PREFIX: &str = "whsec_";

/// Why a secret cannot be used. Nothing may be signed or accepted without one, least of all under an empty key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error(
        "The secret is missing or empty: give the realm's secret API key, which begins with sk_test_ or sk_prod_, or the \
         webhook's secret, which begins with whsec_"
    )]
    Empty,
    #[error(
        "The secret does not begin with sk_test_, sk_prod_ or whsec_: give the whole secret API key of the realm, or the whole \
         secret of the webhook"
    )]
    Prefix,
    #[error("The secret is not standard, padded base64 after its prefix: give it unchanged")]
    NotBase64,
}

/// A key that signs, wiped from memory when dropped and never shown.
#[derive(Clone)]
pub struct SigningKey(Zeroizing<Vec<u8>>);

impl SigningKey {
    /// The key in a realm's secret API key: the part after the prefix, base64-decoded once.
    ///
    /// # Errors
    /// A secret that is empty, has another prefix than `sk_test_` or `sk_prod_`, or is not padded base64 after it.
    pub fn from_api_key(secret: &str) -> Result<Self, SecretError> {
        Self::decode(&PREFIXES, secret)
    }

    /// The key in a realm's secret API key, or in the secret of a team's webhook, which begins with `whsec_`.
    ///
    /// # Errors
    /// A secret that is empty, has another prefix than these, or is not padded base64 after it.
    pub fn from_secret(secret: &str) -> Result<Self, SecretError> {
        Self::decode(&[PREFIXES[0], PREFIXES[1], WEBHOOK_SECRET_PREFIX], secret)
    }

    fn decode(prefixes: &[&str], secret: &str) -> Result<Self, SecretError> {
        if secret.is_empty() {
            return Err(SecretError::Empty);
        }
        let encoded = prefixes.iter().find_map(|prefix| secret.strip_prefix(prefix)).ok_or(SecretError::Prefix)?;
        let key = Zeroizing::new(BASE64.decode(encoded).map_err(|_| SecretError::NotBase64)?);
        if key.is_empty() {
            return Err(SecretError::Empty);
        }
        Ok(Self(key))
    }

    /// The authentication code under this key, over nothing so far.
    pub(crate) fn code(&self) -> Hmac<Sha256> {
        Hmac::new_from_slice(&self.0).expect("HMAC takes keys of every length")
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_decoded_once_and_never_shown() {
        let key = SigningKey::from_api_key("sk_test_c2VjcmV0").unwrap();
        assert_eq!(*key.0, b"secret");
        assert_eq!(format!("{key:?}"), "SigningKey");

        let twice_encoded = SigningKey::from_api_key("sk_prod_YzJWamNtVjA=").unwrap();
        assert_eq!(*twice_encoded.0, b"c2VjcmV0");
    }

    #[test]
    fn an_empty_secret_is_refused_with_or_without_its_prefix() {
        for secret in ["", "sk_test_", "sk_prod_"] {
            assert_eq!(SigningKey::from_api_key(secret).unwrap_err(), SecretError::Empty, "{secret:?}");
        }
    }

    #[test]
    fn the_secret_of_a_webhook_is_a_secret_and_no_api_key() {
        assert_eq!(*SigningKey::from_secret("whsec_c2VjcmV0").unwrap().0, b"secret");
        assert_eq!(*SigningKey::from_secret("sk_test_c2VjcmV0").unwrap().0, b"secret");
        assert_eq!(SigningKey::from_secret("whsec_").unwrap_err(), SecretError::Empty);
        assert_eq!(SigningKey::from_api_key("whsec_c2VjcmV0").unwrap_err(), SecretError::Prefix);
    }

    #[test]
    fn only_the_prefixes_of_secret_keys_are_taken() {
        for secret in
            ["c2VjcmV0", "pk_test_c2VjcmV0", "SK_TEST_c2VjcmV0", " sk_test_c2VjcmV0", "sk_testc2VjcmV0", "sk_"]
        {
            assert_eq!(SigningKey::from_api_key(secret).unwrap_err(), SecretError::Prefix, "{secret:?}");
        }
    }

    #[test]
    fn what_is_not_standard_padded_base64_is_refused() {
        // Other alphabet, missing padding, padding alone, too much of it, white space, left-over bits.
        for encoded in ["c2V_cmV-", "c2VjcmU", "=", "====", "c2VjcmV0====", "c2Vj cmV0", "c2VjcmV0\n", "c2VjcmX=", "a"]
        {
            let secret = format!("sk_test_{encoded}");
            assert_eq!(SigningKey::from_api_key(&secret).unwrap_err(), SecretError::NotBase64, "{secret:?}");
        }
    }
}
