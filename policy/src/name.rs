//! Host names, in the one form in which they are compared.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Longest name in letters, without the dot at its end (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A host name: lower case, no dot at the end, at most 253 letters in labels of 1 to 63 letters, digits, `-` and `_`. What
/// programs take for an IPv4 address (`10.1`, `0x7f000001`) is none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<str>);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is `localhost` or a name below it: the asking machine's own, wherever it is asked for (RFC 6761, section
    /// 6.3).
    pub(crate) fn is_localhost(&self) -> bool {
        self.0.rsplit('.').next() == Some("localhost")
    }

    /// The names that this one is below, nearest first: `b.test` and `test` of `a.b.test`.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('.').map(|(dot, _)| &self.0[dot + 1..])
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.len() > MAX_NAME {
            return Err(NameError::TooLong);
        }
        for label in name.split('.') {
            if label.is_empty() || label.len() > MAX_LABEL {
                return Err(NameError::Label);
            }
            if let Some(other) = label.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))) {
                return Err(NameError::Character(other));
            }
        }
        if name.rsplit('.').next().is_some_and(is_number) {
            return Err(NameError::Number);
        }
        Ok(Self(name.to_ascii_lowercase().into_boxed_str()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names are found by their text; `Hash` and `Eq` are those of the text.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Whether a name that ends in this label is read as an IPv4 address by programs (`inet_aton`; the WHATWG's URL standard,
/// "ends in a number").
fn is_number(label: &str) -> bool {
    let hexadecimal = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    label.bytes().all(|byte| byte.is_ascii_digit())
        || hexadecimal.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Why a text is no host name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    #[error("a name has at most 253 letters")]
    TooLong,
    #[error("a name has 1 to 63 letters before, between and after its dots")]
    Label,
    #[error("a name has letters, digits, `-` and `_`, not {0:?}")]
    Character(char),
    #[error("a name does not end in a number; an IPv4 address is four numbers from 0 to 255 without leading zeros")]
    Number,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_normalized() {
        let name: Name = "API.Example.test.".parse().unwrap();
        assert_eq!(name.as_str(), "api.example.test");
        assert_eq!(name.parents().collect::<Vec<_>>(), ["example.test", "test"]);
    }

    #[test]
    fn what_programs_take_for_an_address_is_no_name() {
        for text in ["1", "10.1", "256.1.1.1", "01.02.03.04", "0x7f000001", "127.0x1", "0x", "example.0X7f"] {
            assert_eq!(text.parse::<Name>(), Err(NameError::Number), "{text}");
        }
        for text in ["1.test", "10.0.0.1.test", "0xg", "x1", "1x", "0-1"] {
            assert!(text.parse::<Name>().is_ok(), "{text}");
        }
    }

    #[test]
    fn lengths_are_those_of_dns() {
        let label = "a".repeat(63);
        let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        assert_eq!(longest.len(), 253);
        assert!(longest.parse::<Name>().is_ok());
        assert!(format!("{longest}.").parse::<Name>().is_ok());
        assert_eq!(format!("{longest}a").parse::<Name>(), Err(NameError::TooLong));
        assert_eq!(format!("{label}a.test").parse::<Name>(), Err(NameError::Label));
        for text in ["", ".", "..", ".test", "a..test", "test.."] {
            assert_eq!(text.parse::<Name>(), Err(NameError::Label), "{text:?}");
        }
    }

    #[test]
    fn letters_are_those_of_host_names() {
        for (text, letter) in
            [("a b.test", ' '), ("*.test", '*'), ("bücher.test", 'ü'), ("a\0.test", '\0'), ("a/b", '/')]
        {
            assert_eq!(text.parse::<Name>(), Err(NameError::Character(letter)), "{text:?}");
        }
        assert!("_dmarc.example-1.test".parse::<Name>().is_ok());
    }
}
