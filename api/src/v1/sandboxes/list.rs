//! `GET /v1/sandboxes`

use axum::Json;
use axum::extract::State;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::ids::TeamId;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::body::SandboxBody;
use crate::auth::ReadAccess;
use crate::state::App;
use crate::store::sandbox_list::Filter;
use crate::store::sandbox_row::State as SandboxState;
use crate::v1::page::{List, Paging};

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
    caller.check_team(request.paging.team.as_deref())?;
    let list = request.list(&caller.team.id);
    let (after, limit) = (request.paging.after(&list)?, request.paging.limit);

    let page = app.store.sandboxes.list(&caller.team.id, &request.filter, after.as_deref(), limit).await?;

    Ok(Json(SandboxList {
        sandboxes: page.sandboxes.into_iter().map(|row| SandboxBody::new(&caller.team, row)).collect(),
        next_token: page.after.map(|after| list.token(after)),
    }))
}

#[derive(Debug, Default)]
struct Request {
    paging: Paging,
    filter: Filter,
}

impl Request {
    fn parse(Pairs(pairs): Pairs) -> Result<Self, ApiError> {
        let mut request = Self::default();
        for (name, value) in pairs {
            if request.paging.take(&name, &value)? {
                continue;
            }
            match name.as_str() {
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

    fn list(&self, team_id: &TeamId) -> List {
        let states: Vec<&str> = self.filter.states.iter().map(|state| state.as_str()).collect();
        List::of_ids("sbx", &json!([team_id, states, self.filter.metadata]))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_stand_for_their_states() {
        assert_eq!(states("running").unwrap().len(), 5);
        assert_eq!(states("paused").unwrap(), [SandboxState::Stopped]);
        assert!(states("destroyed").is_err());
        assert!(states("runing").is_err());
    }
}
