//! `GET /v2/sandboxes`, `GET /sandboxes`

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use jiff::Timestamp;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::ids::TeamId;
use serde_json::json;
use url::form_urlencoded;

use super::body::ListedSandbox;
use super::pages;
use crate::auth::ReadAccess;
use crate::state::App;
use crate::store::sandbox_list::{ByStart, Filter, Order};
use crate::store::sandbox_row::State as SandboxState;
use crate::v1::page::{List, Paging};

const TOTAL_RUNNING: HeaderName = HeaderName::from_static("x-total-running");
/// Sandboxes of a page, unless a request names fewer.
const LIMIT: u32 = 100;

/// List sandboxes, running or paused, by when they were started.
pub async fn list(ReadAccess(caller): ReadAccess, State(app): State<App>, query: Pairs) -> Result<Response, ApiError> {
    let request = Request::parse(query, &[SandboxState::Stopped])?;
    let list = request.list(&caller.team.id);
    let after = request.paging.after(&list)?.map(|key| key.parse()).transpose();
    let after = after.map_err(|()| ApiError::invalid_field("nextToken", "is not a token of this list"))?;
    let (sandboxes, team_id) = (&app.store.sandboxes, &caller.team.id);
    let page = sandboxes.list_by_start(team_id, &request.select, after.as_ref(), request.paging.limit).await?;
    let running = sandboxes.count_matching(team_id, &request.running()).await?;

    let next_token = page.after.map(|key| list.token(key.to_string()));
    let mut response = pages::response(&page.sandboxes.iter().map(ListedSandbox::from).collect::<Vec<_>>(), next_token);
    response.headers_mut().insert(TOTAL_RUNNING, HeaderValue::from(running));
    Ok(response)
}

/// List running sandboxes: all of them, as clients of the old path expect.
pub async fn list_running(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<Response, ApiError> {
    let request = Request::parse(query, &[])?;
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = app.store.sandboxes.list_by_start(&caller.team.id, &request.select, after.as_ref(), LIMIT).await?;
        listed.extend(page.sandboxes.iter().map(ListedSandbox::from));
        after = page.after;
        if after.is_none() {
            return Ok(pages::response(&listed, None));
        }
    }
}

#[derive(Debug)]
struct Request {
    paging: Paging,
    select: ByStart,
}

impl Request {
    /// Running sandboxes, and those in `others`, unless the request names states.
    fn parse(Pairs(pairs): Pairs, others: &[SandboxState]) -> Result<Self, ApiError> {
        let mut request = Self { paging: Paging::of_limit(LIMIT), select: ByStart::default() };
        for (name, value) in pairs {
            match name.as_str() {
                "metadata" => request.select.filter.metadata.extend(metadata(&value)),
                "state" => {
                    for word in value.split(',') {
                        request.select.filter.states.extend(states(word)?);
                    }
                }
                "order" => {
                    request.select.order = match value.as_str() {
                        "asc" => Order::OldestFirst,
                        "desc" => Order::NewestFirst,
                        _ => return Err(ApiError::invalid_field(name, "must be asc or desc")),
                    }
                }
                "startedAfter" => {
                    let time: Result<Timestamp, _> = value.parse();
                    let time = time.map_err(|_| ApiError::invalid_field(name, "must be a time of RFC 3339"))?;
                    request.select.started_after = Some(time);
                }
                "template" => request.select.template = Some(value),
                "limit" => drop(request.paging.take("limit", &value)?),
                "nextToken" => drop(request.paging.take("next_token", &value)?),
                _ => return Err(unknown(&name)),
            }
        }
        if request.select.filter.states.is_empty() {
            let known = SandboxState::LIVE.iter().chain(others).copied();
            request.select.filter.states = known.collect::<BTreeSet<_>>();
        }
        Ok(request)
    }

    fn list(&self, team_id: &TeamId) -> List {
        let ByStart { filter, order, started_after, template } = &self.select;
        let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        let is_oldest_first = *order == Order::OldestFirst;
        List::of_keys(&json!(["e2b", team_id, states, filter.metadata, is_oldest_first, started_after, template]))
    }

    fn running(&self) -> ByStart {
        let states = SandboxState::LIVE.into_iter().collect();
        ByStart { filter: Filter { states, ..self.select.filter.clone() }, ..self.select.clone() }
    }
}

fn states(word: &str) -> Result<Vec<SandboxState>, ApiError> {
    match word {
        "running" => Ok(SandboxState::LIVE.to_vec()),
        "paused" => Ok(vec![SandboxState::Stopped]),
        _ => Err(ApiError::invalid_field("state", "must be running, paused, or both with a comma between them")),
    }
}

/// The pairs of a metadata filter: a query string within the query, whose keys and values are encoded once more.
fn metadata(value: &str) -> BTreeMap<String, String> {
    let pairs = form_urlencoded::parse(value.as_bytes());
    pairs.map(|(key, value)| (decode(&key), decode(&value))).collect()
}

/// Undoes one percent-encoding of a text by itself.
fn decode(text: &str) -> String {
    let pair = text.replace('&', "%26").replace('=', "%3D");
    form_urlencoded::parse(pair.as_bytes()).next().map(|(text, _)| text.into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_decoded_as_often_as_the_sdks_encode_it() {
        // `a%252520b%3Dc%252526d` in the query, whose own encoding is gone here.
        let expected = BTreeMap::from([("a b".to_owned(), "c&d".to_owned())]);
        assert_eq!(metadata("a%2520b=c%2526d"), expected);
        assert_eq!(metadata("user=abc&app=x%253Dy"), [("user", "abc"), ("app", "x=y")].map(owned).into());
        assert_eq!(metadata(""), BTreeMap::new());
    }

    fn owned((key, value): (&str, &str)) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn states_are_those_that_the_sdks_know() {
        assert_eq!(states("paused").unwrap(), [SandboxState::Stopped]);
        assert_eq!(states("running").unwrap().len(), 5);
        assert!(states("ready").is_err());
    }
}
