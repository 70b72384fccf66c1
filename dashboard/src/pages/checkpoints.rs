//! The checkpoints of a team, each below what it was taken of.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::no_action;
use crate::response::{Refusal, page};
use crate::view::{self, segment};
use crate::visit::{Order, Visit, with_query};

#[derive(Template)]
#[template(path = "checkpoints.html")]
struct Page {
    visit: Visit,
    /// By sandbox.
    sandboxes: BTreeMap<String, Vec<Checkpoint>>,
    next: Option<String>,
}

/// Where a page of a list begins.
#[derive(Deserialize)]
pub(super) struct From {
    pub(super) next_token: Option<String>,
}

#[derive(Deserialize)]
struct List {
    checkpoints: Vec<Checkpoint>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct Checkpoint {
    id: String,
    name: String,
    sandbox: String,
    template: String,
    memory: bool,
    state: String,
    size: u64,
    error: Option<Failure>,
    created_at: Timestamp,
}

#[derive(Deserialize)]
struct Failure {
    message: String,
}

#[derive(Deserialize)]
struct Created {
    id: String,
}

/// `GET /dashboard/{team}/checkpoints`
pub(crate) async fn list(visit: Visit, Query(from): Query<From>) -> Result<Response, Refusal> {
    let wanted = [("limit", Some("50")), ("next_token", from.next_token.as_deref())];
    let List { checkpoints, next_token } = visit.get(&with_query("/v1/checkpoints", &wanted)).await?;
    let next = next_token.map(|token| with_query(&visit.path, &[("next_token", Some(&token))]));
    let mut sandboxes = BTreeMap::<_, Vec<_>>::new();
    for checkpoint in checkpoints {
        sandboxes.entry(checkpoint.sandbox.clone()).or_default().push(checkpoint);
    }
    Ok(page(&Page { visit, sandboxes, next }))
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
