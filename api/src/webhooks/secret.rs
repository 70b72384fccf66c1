//! Secrets of webhooks: `whsec_` and the standard, padded base64 of the 32 random bytes that sign.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use sandpiper_webhook::WEBHOOK_SECRET_PREFIX;
use zeroize::Zeroizing;

/// Bytes of a signing key: as many as its hash function gives out.
const SIGNING_KEY: usize = 32;

/// A new secret, shown once.
pub fn generate() -> Zeroizing<String> {
    let random = Zeroizing::new(rand::random::<[u8; SIGNING_KEY]>());
    let encoded = Zeroizing::new(BASE64.encode(*random));
    Zeroizing::new(format!("{WEBHOOK_SECRET_PREFIX}{}", *encoded))
}

#[cfg(test)]
mod tests {
    use sandpiper_webhook::SigningKey;

    use super::*;

    #[test]
    fn secrets_sign_and_differ() {
        let (one, other) = (generate(), generate());
        assert!(SigningKey::from_secret(&one).is_ok() && one != other);
    }
}
