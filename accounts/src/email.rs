//! E-mail addresses, as far as they name a user: nothing is sent to them.

use std::fmt;
use std::str::FromStr;

/// As long as a path of SMTP (RFC 5321, 4.5.3.1.3, without the brackets).
const MAX_LENGTH: usize = 254;

/// An address, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Email(String);

impl Email {
    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Email {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (local, domain) = text.rsplit_once('@').ok_or("must be an e-mail address: name@domain")?;
        let is_plain = |part: &str| {
            let is_odd = |c: char| c.is_whitespace() || c.is_control() || c == '@';
            !part.is_empty() && !part.contains(is_odd)
        };
        if text.len() > MAX_LENGTH || !is_plain(local) || !is_plain(domain) {
            return Err("must be an e-mail address: name@domain, of at most 254 bytes and without spaces");
        }
        Ok(Self(text.to_lowercase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_address_are_one() {
        assert_eq!("Ada@Example.COM".parse::<Email>().unwrap().as_str(), "ada@example.com");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let long = format!("{}@example.com", "a".repeat(300));
        for text in ["", "ada", "@example.com", "ada@", "a b@example.com", "a@b@example.com", "a\n@example.com", &long]
        {
            assert!(text.parse::<Email>().is_err(), "{text}");
        }
    }
}
