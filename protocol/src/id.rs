//! Identifiers: a typed prefix and 22 characters of base32, sortable by the time they were made.
//!
//! Lower-case letters and digits only, so that an id may stand in a host label and the E2B SDKs (`^[a-z0-9]+$`) take it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Crockford's alphabet in lower case: in ASCII order, so ids sort as their times do.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Characters after the prefix: 48 bits of milliseconds and 62 bits of randomness, five bits a character.
const LENGTH: usize = 22;

/// A new id such as `sbx06f3…`: `prefix`, then the time `now` and `random`.
pub fn new(prefix: &str, now: SystemTime, random: u64) -> String {
    let millis = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let bits = ((millis & 0xffff_ffff_ffff) << 62) | u128::from(random >> 2);
    let mut id = String::with_capacity(prefix.len() + LENGTH);
    id.push_str(prefix);
    push_base32(&mut id, bits, LENGTH);
    id
}

/// A new id of the current time.
pub fn generate(prefix: &str) -> String {
    new(prefix, SystemTime::now(), rand::random())
}

/// A secret that may stand in a host label: 26 characters, 128 bits of randomness from the operating system's generator.
pub fn route_token() -> String {
    let mut token = String::with_capacity(26);
    push_base32(&mut token, rand::random(), 26);
    token
}

/// Whether `id` has the form that [`new`] gives for `prefix`. Ids become folder names, so foreign ones are checked first.
pub fn is_valid(prefix: &str, id: &str) -> bool {
    id.strip_prefix(prefix).is_some_and(|rest| rest.len() == LENGTH && rest.bytes().all(|b| ALPHABET.contains(&b)))
}

fn push_base32(out: &mut String, bits: u128, characters: usize) {
    for position in (0..characters).rev() {
        let index = usize::from(((bits >> (5 * position)) & 31) as u8);
        out.push(char::from(ALPHABET[index]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ids_sort_by_time_and_have_the_promised_form() {
        let early = new("sbx", UNIX_EPOCH + Duration::from_millis(1_700_000_000_000), u64::MAX);
        let late = new("sbx", UNIX_EPOCH + Duration::from_millis(1_700_000_000_001), 0);
        assert!(early < late);
        assert!(is_valid("sbx", &early));
        assert_eq!(early.len(), 25);
    }

    #[test]
    fn foreign_text_is_not_an_id() {
        assert!(!is_valid("sbx", "sbx../../../../etc/passwd00"));
        assert!(!is_valid("sbx", "tpl0000000000000000000000"));
        assert!(!is_valid("sbx", "sbx"));
    }
}
