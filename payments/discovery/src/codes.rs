//! The forms of codes and ids that come from outside.

/// Longest code of a bank or operator, longest id of a payment.
const MAX_CODE: usize = 64;

/// ISO 3166-1 alpha-2 in form.
pub fn is_country(text: &str) -> bool {
    text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// ISO 4217 in form.
pub fn is_currency(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// A bank's or an operator's code, a payment's id: letters, digits and `-._:`, so that each can stand in a path.
pub fn is_code(text: &str) -> bool {
    (1..=MAX_CODE).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte))
        // Steps of a path, which clients resolve before they send it.
        && text != "."
        && text != ".."
}

/// What is said of a country that is none.
pub const COUNTRY: &str = "must be two capital letters, an ISO 3166-1 alpha-2 code such as KE";
/// What is said of a currency that is none.
pub const CURRENCY: &str = "must be three capital letters, an ISO 4217 code such as KES";
/// What is said of a code that is none.
pub const CODE: &str = "must be 1 to 64 letters, digits and characters of - . _ :";
