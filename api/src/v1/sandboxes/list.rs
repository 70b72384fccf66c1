//! `GET /v1/sandboxes`

use axum::Json;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sandpiper_protocol::id;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::body::SandboxBody;
use crate::app::App;
use crate::auth::ReadAccess;
use crate::error::ApiError;
use crate::hex;
use crate::http::query::{Pairs, unknown};
use crate::store::sandbox_list::Filter;
use crate::store::sandbox_row::State as SandboxState;

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 100;

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct SandboxList {
    /// Newest first.
    pub sandboxes: Vec<SandboxBody>,
    /// For the next page, with the same filters; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// List sandboxes
///
/// The team's sandboxes, newest first, page by page.
#[utoipa::path(
    get,
    path = "/v1/sandboxes",
    operation_id = "list_sandboxes",
    tag = "sandboxes",
    params(
        ("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default"),
        ("limit" = Option<u32>, Query, description = "Sandboxes per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before, with the same filters"),
        ("query[state][]" = Option<Vec<String>>, Query, description = "Any of these states; `running` stands for \
            creating, ready, restoring, checkpointing and stopping, `paused` for stopped"),
        ("query[metadata]" = Option<std::collections::BTreeMap<String, String>>, Query, style = DeepObject, explode,
            description = "All of these pairs: `query[metadata][<key>]=<value>`"),
    ),
    responses((status = 200, description = "A page", body = SandboxList))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<Json<SandboxList>, ApiError> {
    let request = Request::parse(query)?;
    caller.check_team(request.team.as_deref())?;
    let fingerprint = fingerprint(&caller.team.id, &request.filter);
    let after = request.next_token.map(|token| open_token(&token, &fingerprint)).transpose()?;

    let page = app.store.sandboxes.list(&caller.team.id, &request.filter, after.as_deref(), request.limit).await?;

    Ok(Json(SandboxList {
        sandboxes: page.sandboxes.into_iter().map(|row| SandboxBody::new(&caller.team, row)).collect(),
        next_token: page.after.map(|after| token(after, fingerprint)),
    }))
}

#[derive(Debug)]
struct Request {
    team: Option<String>,
    limit: u32,
    next_token: Option<String>,
    filter: Filter,
}

impl Request {
    fn parse(Pairs(pairs): Pairs) -> Result<Self, ApiError> {
        let mut request = Self { team: None, limit: DEFAULT_LIMIT, next_token: None, filter: Filter::default() };
        for (name, value) in pairs {
            match name.as_str() {
                "team" => request.team = Some(value),
                "limit" => request.limit = limit(&value)?,
                "next_token" => request.next_token = Some(value),
                "query[state][]" | "query[state]" => request.filter.states.extend(states(&value)?),
                _ => {
                    let key = name.strip_prefix("query[metadata][").and_then(|rest| rest.strip_suffix(']'));
                    let key = key.ok_or_else(|| unknown(&name))?.to_owned();
                    let known = request.filter.metadata.insert(key, value.clone());
                    // One sandbox cannot have two values under one key.
                    if known.is_some_and(|known| known != value) {
                        return Err(ApiError::invalid_field(name, "is given twice with different values"));
                    }
                }
            }
        }
        Ok(request)
    }
}

fn limit(text: &str) -> Result<u32, ApiError> {
    match text.parse::<i64>() {
        Ok(limit) if limit >= 1 => Ok(u32::try_from(limit).unwrap_or(MAX_LIMIT).min(MAX_LIMIT)),
        _ => Err(ApiError::invalid_field("limit", "must be a whole number of at least 1")),
    }
}

fn states(word: &str) -> Result<Vec<SandboxState>, ApiError> {
    match word {
        "running" => Ok(SandboxState::LIVE.to_vec()),
        "paused" => Ok(vec![SandboxState::Stopped]),
        _ => match word.parse() {
            Ok(state) if state != SandboxState::Destroyed => Ok(vec![state]),
            _ => {
                let names = SandboxState::VISIBLE.map(SandboxState::as_str).join(", ");
                Err(ApiError::invalid_field("query[state][]", format!("must be running, paused or one of {names}")))
            }
        },
    }
}

/// Where a page begins, and for which list: the filters and the team must be the same.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    after: String,
    list: String,
}

fn token(after: String, fingerprint: String) -> String {
    // Two texts always have a JSON form.
    BASE64.encode(serde_json::to_vec(&Token { after, list: fingerprint }).unwrap_or_default())
}

fn open_token(text: &str, fingerprint: &str) -> Result<String, ApiError> {
    let token = BASE64.decode(text).ok().and_then(|json| serde_json::from_slice::<Token>(&json).ok());
    match token {
        Some(token) if token.list == fingerprint && id::is_valid("sbx", &token.after) => Ok(token.after),
        Some(_) => Err(ApiError::invalid_field("next_token", "is of another list: send the same filters as before")),
        None => Err(ApiError::invalid_field("next_token", "is not a token of this list")),
    }
}

/// Names a list: 64 bits are enough, for nothing is protected by it, only mistakes are caught.
fn fingerprint(team_id: &str, filter: &Filter) -> String {
    let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
    let list = serde_json::json!([team_id, states, filter.metadata]);
    hex::encode(&Sha256::digest(list.to_string().as_bytes())[..8])
}

#[cfg(test)]
mod tests {
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
    fn aliases_stand_for_their_states() {
        assert_eq!(states("running").unwrap().len(), 5);
        assert_eq!(states("paused").unwrap(), [SandboxState::Stopped]);
        assert!(states("destroyed").is_err());
        assert!(states("runing").is_err());
    }

    #[test]
    fn a_token_opens_only_for_its_own_list() {
        let after = id::generate("sbx");
        let text = token(after.clone(), "one".into());
        assert_eq!(open_token(&text, "one").unwrap(), after);
        assert!(open_token(&text, "other").is_err());
        assert!(open_token("%%%", "one").is_err());
    }
}
