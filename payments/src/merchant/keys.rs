//! Merchants' keys.
//!
//! A public key is `pk_prod_` or `pk_test_` and 40 hexadecimal digits. A secret key is `sk_prod_` or `sk_test_` and the
//! standard, padded base64 of 32 random bytes: those bytes sign the realm's webhooks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use sandpiper_db::hex;
use sandpiper_http::keys;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::domain::realm::Realm;
use crate::store::merchant_keys::Kind;

/// Bytes of a signing key: as many as its hash function gives out.
const SIGNING_KEY: usize = 32;

/// A new key, shown once.
pub fn generate(realm: Realm, kind: Kind) -> Zeroizing<String> {
    match kind {
        Kind::Public => keys::generate(realm.public_prefix()),
        Kind::Secret => {
            let random = Zeroizing::new(rand::random::<[u8; SIGNING_KEY]>());
            let encoded = Zeroizing::new(BASE64.encode(*random));
            Zeroizing::new(format!("{}{}", realm.secret_prefix(), *encoded))
        }
    }
}

/// The hash under which a key is stored; `None` for text that is no merchant's key.
pub fn hash(key: &str) -> Option<String> {
    let is_public = Realm::ALL.iter().any(|realm| keys::hash(realm.public_prefix(), key).is_some());
    let is_secret = Realm::ALL.iter().any(|realm| {
        let decoded = key.strip_prefix(realm.secret_prefix()).map(|encoded| BASE64.decode(encoded).map(Zeroizing::new));
        decoded.is_some_and(|bytes| bytes.is_ok_and(|bytes| bytes.len() == SIGNING_KEY))
    });
    (is_public || is_secret).then(|| hex::encode(&Sha256::digest(key.as_bytes())))
}

#[cfg(test)]
mod tests {
    use sandpiper_webhook::SigningKey;

    use super::*;

    #[test]
    fn keys_have_the_promised_forms_and_differ() {
        for realm in Realm::ALL {
            for (kind, prefix, length) in
                [(Kind::Public, realm.public_prefix(), 40), (Kind::Secret, realm.secret_prefix(), 44)]
            {
                let (one, two) = (generate(realm, kind), generate(realm, kind));
                assert_eq!(one.strip_prefix(prefix).unwrap().len(), length);
                assert_ne!(*one, *two);
                assert_eq!(hash(&one).unwrap().len(), 64);
                assert_eq!(SigningKey::from_api_key(&one).is_ok(), kind == Kind::Secret);
            }
        }
    }

    #[test]
    fn other_text_is_no_key() {
        let short = format!("sk_test_{}", BASE64.encode([7; 31]));
        let upper = format!("pk_test_{}", "A".repeat(40));
        let other = format!("spk_{}", "a".repeat(40));
        for text in ["", "pk_test_", "sk_test_", "sk_test_c2VjcmV0", &short, &upper, &other] {
            assert_eq!(hash(text), None, "{text}");
        }
    }
}
