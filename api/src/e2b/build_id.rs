//! Ids of builds as the SDKs read them: UUIDs. Such a one holds the 110 bits of a version's id, and nothing else.

use sandpiper_protocol::ids::VersionId;

/// Crockford's alphabet in lower case, as in [`sandpiper_protocol::id`].
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Characters after the prefix, five bits each.
const LENGTH: usize = 22;

/// The UUID of a version.
pub fn to_uuid(id: &VersionId) -> String {
    let digits = id.strip_prefix(VersionId::PREFIX).unwrap_or(id);
    let bits = digits.bytes().fold(0_u128, |bits, byte| {
        let value = ALPHABET.iter().position(|known| *known == byte).unwrap_or(0);
        (bits << 5) | value as u128
    });
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The version of a UUID, or of its own id; `None` for what is neither.
pub fn parse(text: &str) -> Option<VersionId> {
    let id = VersionId::from(text);
    if id.is_valid() {
        return Some(id);
    }
    let hex: String = text.chars().filter(|character| *character != '-').collect();
    let bits = u128::from_str_radix(&hex, 16).ok().filter(|bits| hex.len() == 32 && bits >> (5 * LENGTH) == 0)?;
    let digits = (0..LENGTH).rev().map(|place| char::from(ALPHABET[usize::from(((bits >> (5 * place)) & 31) as u8)]));
    Some(VersionId::from(VersionId::PREFIX.chars().chain(digits).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_by_its_uuid() {
        for id in [VersionId::generate(), "verzzzzzzzzzzzzzzzzzzzzzz".into(), "ver0000000000000000000000".into()] {
            let uuid = to_uuid(&id);
            let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{uuid}");
            assert_eq!(parse(&uuid), Some(id.clone()));
            assert_eq!(parse(&id), Some(id));
        }
        for text in ["", "x", "ffffffff-ffff-ffff-ffff-ffffffffffff", "0", "ver1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
