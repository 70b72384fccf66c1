//! Pages of a list: how many entries, and where a page begins.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sandpiper_db::hex;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::id;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::auth::Caller;

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
    /// Those of a request that names none, of a list with pages of `limit` entries.
    pub fn of_limit(limit: u32) -> Self {
        Self { limit, ..Self::default() }
    }

    /// The parameters of a list of the caller's own team that takes no others.
    pub fn of_team(query: Pairs, caller: &Caller) -> Result<Self, ApiError> {
        let paging = Self::only(query, &["team", "limit", "next_token"])?;
        caller.check_team(paging.team.as_deref())?;
        Ok(paging)
    }

    /// The parameters of a list that takes no others, not even a team.
    pub fn alone(query: Pairs) -> Result<Self, ApiError> {
        Self::only(query, &["limit", "next_token"])
    }

    fn only(Pairs(pairs): Pairs, known: &[&str]) -> Result<Self, ApiError> {
        let mut paging = Self::default();
        for (name, value) in pairs {
            if !known.contains(&name.as_str()) || !paging.take(&name, &value)? {
                return Err(unknown(&name));
            }
        }
        Ok(paging)
    }

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

    /// The page of a list that is at hand as a whole, in the order of its keys, and the token of the next page.
    pub fn cut<T>(
        &self,
        list: &List,
        entries: impl IntoIterator<Item = (String, T)>,
    ) -> Result<(Vec<T>, Option<String>), ApiError> {
        let after = self.after(list)?;
        let is_before = |key: &String| after.as_ref().is_some_and(|after| key <= after);
        let mut entries = entries.into_iter().skip_while(|(key, _)| is_before(key));
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let (keys, page): (Vec<_>, Vec<_>) = entries.by_ref().take(limit).unzip();
        let next_token = entries.next().and(keys.into_iter().next_back()).map(|last| list.token(last));
        Ok((page, next_token))
    }
}

/// Names a list, so that a token of another one is not mistaken for its own.
#[derive(Debug)]
pub struct List {
    /// What ids begin with; `None` where keys are other texts.
    prefix: Option<&'static str>,
    fingerprint: String,
}

impl List {
    /// The list of ids with `prefix` that `filters`, the team among them, select.
    pub fn of_ids(prefix: &'static str, filters: &Value) -> Self {
        Self { prefix: Some(prefix), ..Self::of_keys(filters) }
    }

    /// The list with other keys that `filters` select.
    pub fn of_keys(filters: &Value) -> Self {
        // 64 bits are enough, for nothing is protected by it, only mistakes are caught.
        let fingerprint = hex::encode(&Sha256::digest(filters.to_string().as_bytes())[..8]);
        Self { prefix: None, fingerprint }
    }

    /// The token of the page that begins after this id.
    pub fn token(&self, after: String) -> String {
        // Two texts always have a JSON form.
        BASE64.encode(serde_json::to_vec(&Token { after, list: self.fingerprint.clone() }).unwrap_or_default())
    }

    /// Cuts off what was read beyond `limit`, to see whether there is more: the token of the next page, if there is.
    pub fn cut<T>(&self, read: &mut Vec<T>, limit: u32, id: impl Fn(&T) -> String) -> Option<String> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let is_more = read.len() > limit;
        read.truncate(limit);
        read.last().filter(|_| is_more).map(|last| self.token(id(last)))
    }

    fn open(&self, text: &str) -> Result<String, ApiError> {
        let token = BASE64.decode(text).ok().and_then(|json| serde_json::from_slice::<Token>(&json).ok());
        match token {
            Some(token)
                if token.list == self.fingerprint
                    && self.prefix.is_none_or(|prefix| id::is_valid(prefix, &token.after)) =>
            {
                Ok(token.after)
            }
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

/// Keys of entries that are in the order of their times, so that each is greater than the one before: also where times are the
/// same, or a clock was set back.
pub fn keys_by_time(times: impl IntoIterator<Item = i64>) -> impl Iterator<Item = String> {
    let (mut latest, mut of_the_same) = (i64::MIN, 0_u64);
    times.into_iter().map(move |time| {
        of_the_same = if time > latest { 0 } else { of_the_same + 1 };
        latest = latest.max(time);
        // As unsigned numbers, whose digits have the order of the signed ones.
        format!("{:020}.{of_the_same:010}", latest.cast_unsigned() ^ (1 << 63))
    })
}

fn limit(text: &str) -> Result<u32, ApiError> {
    match text.parse::<i64>() {
        Ok(limit) if limit >= 1 => Ok(u32::try_from(limit).unwrap_or(MAX_LIMIT).min(MAX_LIMIT)),
        _ => Err(ApiError::invalid_field("limit", "must be a whole number of at least 1")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let (one, other) = (List::of_ids("sbx", &json!(["one"])), List::of_ids("sbx", &json!(["other"])));
        let after = id::generate("sbx");
        let text = one.token(after.clone());
        assert_eq!(one.open(&text).unwrap(), after);
        assert!(other.open(&text).is_err());
        assert!(one.open("%%%").is_err());
    }

    #[test]
    fn pages_of_a_list_at_hand_have_every_entry_once() {
        let list = List::of_keys(&json!([]));
        let times = [-5, 3, 3, 3, 2, 7, i64::MAX];
        let entries = || keys_by_time(times).zip(0..);
        let (mut seen, mut next_token) = (Vec::new(), None);
        loop {
            let (page, next) = Paging { limit: 2, next_token, ..Paging::default() }.cut(&list, entries()).unwrap();
            assert!(!page.is_empty() && page.len() <= 2);
            seen.extend(page);
            next_token = next;
            if next_token.is_none() {
                break;
            }
        }
        assert_eq!(seen, (0..7).collect::<Vec<_>>());
    }
}
