//! The checkpoints of a team: what they were taken of, and what was started from them.

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;

use super::lineage::{Checkpoint, Node, Row, Sandbox, rows};
use super::no_action;
use crate::api::Problem;
use crate::response::{Refusal, page};
use crate::view::{self, segment};
use crate::visit::{Order, Visit, with_query};

/// Pages of a list of the API that are read, of 100 each.
const MOST_PAGES: usize = 10;
/// Sandboxes that are gone of which it is looked up what they had started from.
const MOST_GONE: usize = 20;

#[derive(Template)]
#[template(path = "checkpoints.html")]
struct Page {
    visit: Visit,
    rows: Vec<Row>,
    /// Only what this one is related to.
    sandbox: Option<String>,
    /// Whether the team has more than is shown.
    is_cut: bool,
}

/// Where a page of a list begins.
#[derive(Deserialize)]
pub(super) struct From {
    pub(super) next_token: Option<String>,
}

/// What is looked for.
#[derive(Deserialize)]
pub(crate) struct Filter {
    sandbox: Option<String>,
}

#[derive(Deserialize)]
struct Created {
    id: String,
}

/// `GET /dashboard/{team}/checkpoints`
pub(crate) async fn list(visit: Visit, Query(Filter { sandbox }): Query<Filter>) -> Result<Response, Refusal> {
    #[derive(Deserialize)]
    struct Checkpoints {
        checkpoints: Vec<Checkpoint>,
        next_token: Option<String>,
    }
    #[derive(Deserialize)]
    struct Sandboxes {
        sandboxes: Vec<Sandbox>,
        next_token: Option<String>,
    }
    let (checkpoints, has_more) =
        all(&visit, "/v1/checkpoints", |page: Checkpoints| (page.checkpoints, page.next_token)).await?;
    if checkpoints.is_empty() {
        return Ok(page(&Page { visit, rows: Vec::new(), sandbox, is_cut: false }));
    }
    let (mut sandboxes, more_sandboxes) =
        all(&visit, "/v1/sandboxes", |page: Sandboxes| (page.sandboxes, page.next_token)).await?;
    let known: BTreeSet<&String> = sandboxes.iter().map(|one| &one.id).collect();
    let gone: BTreeSet<&String> = checkpoints.iter().map(|one| &one.sandbox).filter(|id| !known.contains(id)).collect();
    let mut found = Vec::new();
    for (index, id) in gone.into_iter().enumerate() {
        let snapshot_id = if index < MOST_GONE { origin_of(&visit, id).await } else { None };
        found.push(Sandbox { id: id.clone(), state: None, snapshot_id });
    }
    sandboxes.extend(found);
    let rows = rows(checkpoints, sandboxes, sandbox.as_deref());
    Ok(page(&Page { visit, rows, sandbox, is_cut: has_more || more_sandboxes }))
}

/// The entries of a list, and whether there are more than are read.
async fn all<P: DeserializeOwned, T>(
    visit: &Visit,
    path: &str,
    open: impl Fn(P) -> (Vec<T>, Option<String>),
) -> Result<(Vec<T>, bool), Problem> {
    let (mut entries, mut next) = (Vec::new(), None::<String>);
    for _ in 0..MOST_PAGES {
        let wanted = [("limit", Some("100")), ("next_token", next.as_deref())];
        let (more, token) = open(visit.get(&with_query(path, &wanted)).await?);
        entries.extend(more);
        next = token;
        if next.is_none() {
            break;
        }
    }
    Ok((entries, next.is_some()))
}

/// The checkpoint that a sandbox had started from which is gone, as long as the team's events tell.
async fn origin_of(visit: &Visit, sandbox: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Events {
        events: Vec<Event>,
    }
    #[derive(Deserialize)]
    struct Event {
        data: Origin,
    }
    #[derive(Deserialize)]
    struct Origin {
        snapshot_id: Option<String>,
    }
    let wanted = [("resource", Some(sandbox)), ("type", Some("sandbox.created")), ("limit", Some("1"))];
    let Events { events } = visit.get(&with_query("/v1/events", &wanted)).await.ok()?;
    events.into_iter().next()?.data.snapshot_id
}

/// `POST /dashboard/{team}/checkpoints/{id}/do`
pub(crate) async fn act(Path((_, id)): Path<(String, String)>, order: Order) -> Result<Response, Refusal> {
    match order.fields.text("action").unwrap_or_default() {
        "start" => {
            let body = json!({"snapshot_id": id});
            let created: Created = order.send(Method::POST, "/v1/sandboxes", Some(body)).await?;
            Ok(order.then(&format!("sandboxes/{}", segment(&created.id))).into_response())
        }
        "delete" => {
            order.send::<IgnoredAny>(Method::DELETE, &format!("/v1/checkpoints/{}", segment(&id)), None).await?;
            Ok(Redirect::into_response(order.then("checkpoints")))
        }
        other => Err(no_action(other).into()),
    }
}
