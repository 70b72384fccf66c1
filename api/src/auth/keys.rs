//! API keys: `spk_` and 40 hexadecimal digits. `e2b_` and the same digits is the same key: some of the E2B SDKs take no other.

use sandpiper_http::keys;
use zeroize::Zeroizing;

const PREFIX: &str = "spk_";
/// The other spelling.
const E2B_PREFIX: &str = "e2b_";

/// A new key, shown once.
pub fn generate() -> Zeroizing<String> {
    keys::generate(PREFIX)
}

/// The hash under which a key is stored; `None` for text that is no key.
pub fn hash(key: &str) -> Option<String> {
    match key.strip_prefix(E2B_PREFIX) {
        Some(digits) => keys::hash(PREFIX, &Zeroizing::new(format!("{PREFIX}{digits}"))),
        None => keys::hash(PREFIX, key),
    }
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
    fn both_spellings_are_the_same_key() {
        let key = generate();
        assert_eq!(hash(&key.replace("spk_", "e2b_")), hash(&key));
        assert_eq!(hash("e2b_"), None);
        assert_eq!(hash(&key.replace("spk_", "e2b_spk_")), None);
    }

    #[test]
    fn other_text_is_no_key() {
        for text in ["", "spk_", &format!("spk_{}", "A".repeat(40)), &format!("sk_{}", "a".repeat(40))] {
            assert_eq!(hash(text), None, "{text}");
        }
    }
}
