//! The sandboxes of a team.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;

use crate::response::{Refusal, page};
use crate::view;
use crate::visit::{Visit, with_query};

/// What can be asked for, in the order of a sandbox's life.
const STATES: [&str; 7] = ["creating", "ready", "checkpointing", "stopping", "stopped", "restoring", "failed"];

#[derive(Template)]
#[template(path = "sandboxes.html")]
struct Page {
    visit: Visit,
    filter: Filter,
    sandboxes: Vec<Sandbox>,
    /// The path of the next page.
    next: Option<String>,
}

impl Page {
    fn states() -> [&'static str; 7] {
        STATES
    }
}

/// What is looked for.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
pub(crate) struct Filter {
    state: String,
    /// `name=value`.
    metadata: String,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct List {
    sandboxes: Vec<Sandbox>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct Sandbox {
    id: String,
    state: String,
    template: String,
    cpu: u32,
    memory_mb: u64,
    deadline: Option<Timestamp>,
    metadata: BTreeMap<String, String>,
    created_at: Timestamp,
}

/// `GET /dashboard/{team}/sandboxes`
pub(crate) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Result<Response, Refusal> {
    let (name, value) = filter.metadata.split_once('=').unwrap_or((&filter.metadata, ""));
    let name = format!("query[metadata][{}]", name.trim());
    let value = Some(value.trim()).filter(|_| !filter.metadata.trim().is_empty());
    let wanted = [
        ("limit", Some("50")),
        ("query[state][]", Some(filter.state.as_str())),
        (&name, value),
        ("next_token", filter.next_token.as_deref()),
    ];
    let List { sandboxes, next_token } = visit.get(&with_query("/v1/sandboxes", &wanted)).await?;
    let same = [("state", Some(filter.state.as_str())), ("metadata", Some(&filter.metadata))];
    let to_next = |token: &String| with_query(&visit.path, &[same[0], same[1], ("next_token", Some(token))]);
    let next = next_token.as_ref().map(to_next);
    Ok(page(&Page { visit, filter, sandboxes, next }))
}
