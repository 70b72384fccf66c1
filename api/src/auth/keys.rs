//! API keys: `spk_` and 40 hexadecimal digits, 160 bits of chance.
//!
//! With that much chance a fast hash is enough to keep the key itself out of the database, and finding the hash by an index
//! tells a guesser nothing.

use sandpiper_db::hex;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

const PREFIX: &str = "spk_";
const CHANCE: usize = 20;

/// A new key, shown once.
pub fn generate() -> Zeroizing<String> {
    generate_as(PREFIX)
}

/// The hash under which a key is stored; `None` for text that is no key.
pub fn hash(key: &str) -> Option<String> {
    hash_as(PREFIX, key)
}

/// A new key of another kind: operators' and merchants' have the same form under prefixes of their own.
pub(crate) fn generate_as(prefix: &str) -> Zeroizing<String> {
    let chance = Zeroizing::new(rand::random::<[u8; CHANCE]>());
    Zeroizing::new(format!("{prefix}{}", hex::encode(&*chance)))
}

/// The hash of a key of another kind.
pub(crate) fn hash_as(prefix: &str, key: &str) -> Option<String> {
    let digits = key.strip_prefix(prefix)?;
    let is_key = digits.len() == 2 * CHANCE && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_key.then(|| hex::encode(&Sha256::digest(key.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_promised_form_and_differ() {
        let (one, two) = (generate(), generate());
        assert_eq!(one.len(), 44);
        assert_ne!(*one, *two);
        assert_eq!(hash(&one).unwrap().len(), 64);
    }

    #[test]
    fn other_text_is_no_key() {
        for text in ["", "spk_", &format!("spk_{}", "A".repeat(40)), &format!("sk_{}", "a".repeat(40))] {
            assert_eq!(hash(text), None, "{text}");
        }
    }
}
