//! The part of the configuration that payments have: `[payments]`.
//!
//! The words of an enumeration differ between payment platforms, so they are not in the code.

use serde::Deserialize;

/// For pay-ins through a bank.
pub const BANK_ACCOUNT: &str = "PAYMENT_METHOD_BANK_ACCOUNT";
/// For pay-ins from a wallet.
pub const MOBILE_MONEY: &str = "PAYMENT_METHOD_MOBILE_MONEY";
/// For pay-ins by a transfer that the payer makes.
pub const MOBILE_MONEY_TRANSFER: &str = "PAYMENT_METHOD_MOBILE_MONEY_TRANSFER";

const METHOD_PREFIX: &str = "PAYMENT_METHOD_";
const VERTICAL_PREFIX: &str = "TRAFFIC_VERTICAL_";
const SEGMENT_PREFIX: &str = "CUSTOMER_SEGMENT_";

/// What an operator can set about payments.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PaymentSettings {
    /// `PAYMENT_METHOD_…`: what markets may offer and payments may be made by.
    pub payment_methods: Vec<String>,
    /// `TRAFFIC_VERTICAL_…`
    pub traffic_verticals: Vec<String>,
    /// `CUSTOMER_SEGMENT_…`
    pub customer_segments: Vec<String>,
    /// Largest file to import, bytes.
    pub import_limit: usize,
    /// Most entries of a file. All of them are put in place at once, and payments wait for as long as that takes.
    pub import_entries: usize,
}

impl Default for PaymentSettings {
    fn default() -> Self {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Self {
            payment_methods: words(&[BANK_ACCOUNT, MOBILE_MONEY, MOBILE_MONEY_TRANSFER]),
            traffic_verticals: words(&[
                "TRAFFIC_VERTICAL_ECOMMERCE",
                "TRAFFIC_VERTICAL_FINANCIAL_SERVICES",
                "TRAFFIC_VERTICAL_GAMING",
            ]),
            customer_segments: words(&["CUSTOMER_SEGMENT_BUSINESS", "CUSTOMER_SEGMENT_CONSUMER"]),
            import_limit: 16 * 1024 * 1024,
            import_entries: 20_000,
        }
    }
}

impl PaymentSettings {
    /// Which setting is wrong, and why, if any is.
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        let all = |words: &[String], prefix: &str| words.iter().all(|word| is_word(word, prefix));
        if !all(&self.payment_methods, METHOD_PREFIX) {
            return Some(("payments.payment_methods", "must be words such as PAYMENT_METHOD_BANK_ACCOUNT"));
        }
        if !all(&self.traffic_verticals, VERTICAL_PREFIX) {
            return Some(("payments.traffic_verticals", "must be words such as TRAFFIC_VERTICAL_GAMING"));
        }
        if !all(&self.customer_segments, SEGMENT_PREFIX) {
            return Some(("payments.customer_segments", "must be words such as CUSTOMER_SEGMENT_CONSUMER"));
        }
        None
    }

    /// Says what is wrong with a payment method: "is …; there are …".
    pub fn check_method(&self, word: &str) -> Result<(), String> {
        among(&self.payment_methods, word, "payment method")
    }

    /// Says what is wrong with a traffic vertical.
    pub fn check_vertical(&self, word: &str) -> Result<(), String> {
        among(&self.traffic_verticals, word, "traffic vertical")
    }

    /// Says what is wrong with a customer segment.
    pub fn check_segment(&self, word: &str) -> Result<(), String> {
        among(&self.customer_segments, word, "customer segment")
    }
}

/// The token by which the catalog names a payment method: without `PAYMENT_METHOD_`, in lower case, so that
/// `PAYMENT_METHOD_BANK_ACCOUNT` is `bank_account`.
pub fn discovery_token(method: &str) -> String {
    method.strip_prefix(METHOD_PREFIX).unwrap_or(method).to_ascii_lowercase()
}

/// Upper case throughout, so that different methods have different tokens.
fn is_word(text: &str, prefix: &str) -> bool {
    text.len() <= 64
        && text.strip_prefix(prefix).is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_'))
        })
}

fn among(words: &[String], word: &str, what: &str) -> Result<(), String> {
    match words.iter().any(|known| known == word) {
        true => Ok(()),
        false => Err(format!("is no {what} here; there are: {}", words.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_follow_from_the_methods_by_one_rule() {
        assert_eq!(discovery_token(BANK_ACCOUNT), "bank_account");
        assert_eq!(discovery_token(MOBILE_MONEY), "mobile_money");
        assert_eq!(discovery_token(MOBILE_MONEY_TRANSFER), "mobile_money_transfer");
    }

    #[test]
    fn words_that_would_not_be_found_again_are_refused() {
        assert_eq!(PaymentSettings::default().problem(), None);
        for word in ["", "BANK_ACCOUNT", "PAYMENT_METHOD_", "PAYMENT_METHOD_card", "PAYMENT_METHOD_A B"] {
            let settings = PaymentSettings { payment_methods: vec![word.to_owned()], ..PaymentSettings::default() };
            assert_eq!(settings.problem().map(|(key, _)| key), Some("payments.payment_methods"), "{word:?}");
        }
    }
}
