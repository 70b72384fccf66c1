//! Hexadecimal text.

/// Two lower-case digits a byte.
pub fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
        .map(char::from)
        .collect()
}

/// The bytes that `text` spells in either case, `None` for anything else.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_way_through_text() {
        assert_eq!(encode(&[0, 0xaf, 0xff]), "00afff");
        assert_eq!(decode("00AfFf"), Some(vec![0, 0xaf, 0xff]));
        assert_eq!(decode("0"), None);
        assert_eq!(decode("zz"), None);
    }
}
