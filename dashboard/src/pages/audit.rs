//! What was done in a team, and by whom.

use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;

use crate::response::{Refusal, page};
use crate::view;
use crate::visit::{Visit, with_query};

#[derive(Template)]
#[template(path = "audit.html")]
struct Page {
    visit: Visit,
    filter: Filter,
    entries: Vec<Entry>,
    next: Option<String>,
}

/// What is looked for.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
pub(crate) struct Filter {
    actor: String,
    action: String,
    resource: String,
    next_token: Option<String>,
}

impl Filter {
    /// A path with this filter, for the page of a token.
    fn at(&self, path: &str, token: Option<&str>) -> String {
        let (actor, action, resource) = (self.actor.trim(), self.action.trim(), self.resource.trim());
        let pairs = [("actor", actor), ("action", action), ("resource", resource), ("next_token", token.unwrap_or(""))];
        with_query(path, &pairs.map(|(name, value)| (name, Some(value))))
    }
}

#[derive(Deserialize)]
struct List {
    entries: Vec<Entry>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    at: Timestamp,
    user: Option<String>,
    key: String,
    action: String,
    resource: Option<String>,
    status: u16,
    request_id: String,
}

/// `GET /dashboard/{team}/audit`
pub(crate) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Result<Response, Refusal> {
    let path = filter.at("/v1/audit", filter.next_token.as_deref());
    let List { entries, next_token } = visit.get(&path).await?;
    let next = next_token.map(|token| filter.at(&visit.path, Some(&token)));
    Ok(page(&Page { visit, entries, next, filter }))
}
