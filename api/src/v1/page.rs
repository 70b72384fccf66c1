//! Pages of a list: how many entries, and where a page begins.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sandpiper_protocol::id;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::ApiError;
use crate::hex;

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 100;

/// The parameters that every list takes.
#[derive(Debug)]
pub struct Paging {
    pub team: Option<String>,
    pub limit: u32,
    next_token: Option<String>,
}

impl Default for Paging {
    fn default() -> Self {
        Self { team: None, limit: DEFAULT_LIMIT, next_token: None }
    }
}

impl Paging {
    /// Takes a parameter over; false when it is none of these.
    pub fn take(&mut self, name: &str, value: &str) -> Result<bool, ApiError> {
        match name {
            "team" => self.team = Some(value.to_owned()),
            "limit" => self.limit = limit(value)?,
            "next_token" => self.next_token = Some(value.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The id after which the page begins, if the token is one of `list`.
    pub fn after(&self, list: &List) -> Result<Option<String>, ApiError> {
        self.next_token.as_deref().map(|text| list.open(text)).transpose()
    }
}

/// Names a list, so that a token of another one is not mistaken for its own.
#[derive(Debug)]
pub struct List {
    prefix: &'static str,
    fingerprint: String,
}

impl List {
    /// The list of ids with `prefix` that `filters`, the team among them, select.
    pub fn new(prefix: &'static str, filters: &Value) -> Self {
        // 64 bits are enough, for nothing is protected by it, only mistakes are caught.
        let fingerprint = hex::encode(&Sha256::digest(filters.to_string().as_bytes())[..8]);
        Self { prefix, fingerprint }
    }

    /// The token of the page that begins after this id.
    pub fn token(&self, after: String) -> String {
        // Two texts always have a JSON form.
        BASE64.encode(serde_json::to_vec(&Token { after, list: self.fingerprint.clone() }).unwrap_or_default())
    }

    fn open(&self, text: &str) -> Result<String, ApiError> {
        let token = BASE64.decode(text).ok().and_then(|json| serde_json::from_slice::<Token>(&json).ok());
        match token {
            Some(token) if token.list == self.fingerprint && id::is_valid(self.prefix, &token.after) => Ok(token.after),
            Some(_) => {
                Err(ApiError::invalid_field("next_token", "is of another list: send the same filters as before"))
            }
            None => Err(ApiError::invalid_field("next_token", "is not a token of this list")),
        }
    }
}

/// Where a page begins, and of which list.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    after: String,
    list: String,
}

fn limit(text: &str) -> Result<u32, ApiError> {
    match text.parse::<i64>() {
        Ok(limit) if limit >= 1 => Ok(u32::try_from(limit).unwrap_or(MAX_LIMIT).min(MAX_LIMIT)),
        _ => Err(ApiError::invalid_field("limit", "must be a whole number of at least 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_are_capped_and_never_below_one() {
        assert_eq!(limit("100").unwrap(), 100);
        assert_eq!(limit("101").unwrap(), 100);
        assert_eq!(limit("9999999999").unwrap(), 100);
        for text in ["0", "-1", "ten", ""] {
            assert!(limit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_opens_only_for_its_own_list() {
        let (one, other) = (List::new("sbx", &json!(["one"])), List::new("sbx", &json!(["other"])));
        let after = id::generate("sbx");
        let text = one.token(after.clone());
        assert_eq!(one.open(&text).unwrap(), after);
        assert!(other.open(&text).is_err());
        assert!(one.open("%%%").is_err());
    }
}
