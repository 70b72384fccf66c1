//! Amounts of money: decimal text, kept as it was written.
//!
//! ```text
//! amount = integer [ "." fraction ]
//! integer = "0" / 1 to 18 digits that do not begin with 0
//! fraction = 1 to 8 digits
//! ```
//!
//! No sign, no exponent, no blanks, no separators of thousands, and never a binary fraction: a JSON number is refused.
//! `1500.00` is not rewritten to `1500`, for both ends may sign or compare the text; [`Amount::is_same_value`] compares
//! what it says.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const MAX_INTEGER: usize = 18;
const MAX_FRACTION: usize = 8;

/// An amount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String, example = "1500.00", pattern = "^(0|[1-9][0-9]{0,17})(\\.[0-9]{1,8})?$")]
pub struct Amount(String);

/// Text is no amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be a decimal number in text such as \"1500.00\": up to {MAX_INTEGER} digits without leading zeros, then \
     optionally a point and up to {MAX_FRACTION} digits"
)]
pub struct AmountError;

impl Amount {
    /// Whether it is nothing.
    pub fn is_zero(&self) -> bool {
        self.0.bytes().all(|byte| matches!(byte, b'0' | b'.'))
    }

    /// Whether both say the same number: `1500`, `1500.0` and `1500.00` do.
    pub fn is_same_value(&self, other: &Amount) -> bool {
        self.significant() == other.significant()
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Without the digits that say nothing; those before the point all count.
    fn significant(&self) -> (&str, &str) {
        let (integer, fraction) = self.0.split_once('.').unwrap_or((&self.0, ""));
        (integer, fraction.trim_end_matches('0'))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Amount {
    type Error = AmountError;

    fn try_from(text: String) -> Result<Self, AmountError> {
        let (integer, fraction) = match text.split_once('.') {
            Some((integer, fraction)) => (integer, Some(fraction)),
            None => (text.as_str(), None),
        };
        let digits = |part: &str, most: usize| {
            (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        let plain = integer == "0" || !integer.starts_with('0');
        match plain && digits(integer, MAX_INTEGER) && fraction.is_none_or(|part| digits(part, MAX_FRACTION)) {
            true => Ok(Self(text)),
            false => Err(AmountError),
        }
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        text.to_owned().try_into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_plain_decimals() {
        for text in ["0", "0.0", "0.00000001", "1", "10", "1500.00", "999999999999999999.99999999"] {
            assert_eq!(text.parse::<Amount>().map(|amount| amount.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "01",
            "00",
            "00.5",
            "-1",
            "+1",
            "1e3",
            "1,5",
            "1 ",
            " 1",
            "1_000",
            "0x1",
            "NaN",
            "inf",
            "1.2.3",
            "١",
            "1000000000000000000",
            "0.000000001",
            "1\n",
        ] {
            assert_eq!(text.parse::<Amount>(), Err(AmountError), "{text:?}");
        }
    }

    #[test]
    fn a_json_number_is_no_amount() {
        assert!(serde_json::from_str::<Amount>("1500.00").is_err());
        assert!(serde_json::from_str::<Amount>("\"1500.00\"").is_ok());
    }

    #[test]
    fn values_are_compared_and_texts_are_kept() {
        let amount = |text: &str| text.parse::<Amount>().unwrap();
        assert!(amount("1500").is_same_value(&amount("1500.00")));
        assert!(amount("0.10").is_same_value(&amount("0.1")));
        assert!(!amount("100").is_same_value(&amount("1")));
        assert!(!amount("1.01").is_same_value(&amount("1.10")));
        assert_ne!(amount("1500"), amount("1500.00"));
        assert!(amount("0.00").is_zero() && !amount("0.01").is_zero() && !amount("10").is_zero());
    }

    /// The grammar of the module's documentation, said another way.
    const GRAMMAR: &str = "(0|[1-9][0-9]{0,17})(\\.[0-9]{1,8})?";

    proptest! {
        #[test]
        fn whatever_the_grammar_makes_is_an_amount_and_says_what_it_says(text in GRAMMAR) {
            let amount: Amount = text.parse().unwrap();
            prop_assert_eq!(amount.as_str(), &text);
            // In units of 10^-8, which hold every amount exactly.
            let units = |text: &str| {
                let (integer, fraction) = text.split_once('.').unwrap_or((text, ""));
                format!("{integer}{fraction:0<8}").parse::<u128>().unwrap()
            };
            prop_assert_eq!(amount.is_zero(), units(&text) == 0);
            let padded: Amount = match text.contains('.') {
                true => text.clone(),
                false => format!("{text}.0"),
            }.parse().unwrap();
            prop_assert!(amount.is_same_value(&padded));
        }

        #[test]
        fn two_amounts_have_the_same_value_exactly_when_their_numbers_do(one in "(0|[1-9][0-9]?)(\\.[0-9]{1,2})?", other in "(0|[1-9][0-9]?)(\\.[0-9]{1,2})?") {
            let hundredths = |text: &str| {
                let (integer, fraction) = text.split_once('.').unwrap_or((text, ""));
                format!("{integer}{fraction:0<2}").parse::<u32>().unwrap()
            };
            let (a, b): (Amount, Amount) = (one.parse().unwrap(), other.parse().unwrap());
            prop_assert_eq!(a.is_same_value(&b), hundredths(&one) == hundredths(&other));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = text.parse::<Amount>();
        }
    }
}
