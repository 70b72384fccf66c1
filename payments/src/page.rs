//! Pages of a list: `pageSize`, `pageToken`, and the response's `nextPageToken`.
//!
//! A page is found by the key after which it begins, not by an offset: what is added or removed between two pages neither
//! repeats nor hides an entry.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sandpiper_db::hex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::RpcError;
use crate::parameters::Parameters;

const DEFAULT_SIZE: u32 = 100;
const MAX_SIZE: u32 = 1000;

/// What a request says about its page.
#[derive(Debug)]
pub struct Paging<K> {
    /// The key of the last entry of the page before.
    pub after: Option<K>,
    size: u32,
    list: String,
}

/// Where a page begins, and of which list.
#[derive(Debug, Serialize, Deserialize)]
struct Token<K> {
    after: K,
    list: String,
}

impl<K: Serialize + DeserializeOwned> Paging<K> {
    /// The page of the list that `filters` name: a token of another list is refused.
    pub fn new(parameters: &Parameters, filters: &[&str]) -> Result<Self, RpcError> {
        // 64 bits are enough, for nothing is protected by it, only mistakes are caught.
        let list = hex::encode(&Sha256::digest(filters.join("\n").as_bytes())[..8]);
        let size = match parameters.optional("pageSize").map(str::parse::<u64>) {
            None => DEFAULT_SIZE,
            Some(Ok(size)) if size >= 1 => u32::try_from(size).unwrap_or(MAX_SIZE).min(MAX_SIZE),
            Some(_) => return Err(RpcError::invalid_parameter("pageSize", "must be a whole number of at least 1")),
        };
        let after = match parameters.optional("pageToken") {
            None | Some("") => None,
            Some(text) => {
                let token = BASE64.decode(text).ok().and_then(|json| serde_json::from_slice::<Token<K>>(&json).ok());
                let token = token.filter(|token| token.list == list).ok_or_else(|| {
                    RpcError::invalid_parameter("pageToken", "is not of this list: send the same filters as before")
                })?;
                Some(token.after)
            }
        };
        Ok(Self { after, size, list })
    }

    /// How many entries to read: one more than the page has, which tells whether there is another.
    pub fn limit(&self) -> u32 {
        self.size + 1
    }

    /// Cuts what was read to the page; the token of the next, if there is one.
    pub fn cut<T>(&self, entries: &mut Vec<T>, key: impl FnOnce(&T) -> K) -> Option<String> {
        let size = usize::try_from(self.size).unwrap_or(usize::MAX);
        if entries.len() <= size {
            return None;
        }
        entries.truncate(size);
        let token = Token { after: key(entries.last()?), list: self.list.clone() };
        // Texts and numbers always have a JSON form.
        Some(BASE64.encode(serde_json::to_vec(&token).unwrap_or_default()))
    }
}
