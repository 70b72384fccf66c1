//! Templates, their versions, and how a version was built.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;

use super::checkpoints::From;
use crate::response::{Refusal, page};
use crate::view::{self, segment};
use crate::visit::{Visit, with_query};

#[derive(Template)]
#[template(path = "templates.html")]
struct ListPage {
    visit: Visit,
    templates: Vec<Entry>,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "template.html")]
struct OnePage {
    visit: Visit,
    template: Entry,
    versions: Vec<Version>,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "template_version.html")]
struct VersionPage {
    visit: Visit,
    slug: String,
    version: Version,
    log: Vec<LogEntry>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct List {
    templates: Vec<Entry>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    slug: String,
    team: Option<String>,
    visibility: String,
    description: String,
    latest_version: Option<Latest>,
    updated_at: Timestamp,
}

#[derive(Deserialize)]
struct Latest {
    number: u32,
}

#[derive(Deserialize)]
struct Versions {
    versions: Vec<Version>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct Version {
    id: String,
    number: u32,
    state: String,
    source: String,
    tags: Vec<String>,
    size: u64,
    error: Option<Failure>,
    created_at: Timestamp,
    finished_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Failure {
    code: String,
    message: String,
}

#[derive(Deserialize)]
struct Log {
    entries: Vec<LogEntry>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct LogEntry {
    time: Timestamp,
    level: String,
    text: String,
}

/// `GET /dashboard/{team}/templates`
pub(crate) async fn list(visit: Visit, Query(from): Query<From>) -> Result<Response, Refusal> {
    let wanted = [("limit", Some("50")), ("next_token", from.next_token.as_deref())];
    let List { templates, next_token } = visit.get(&with_query("/v1/templates", &wanted)).await?;
    let next = next_token.map(|token| with_query(&visit.path, &[("next_token", Some(&token))]));
    Ok(page(&ListPage { visit, templates, next }))
}

/// `GET /dashboard/{team}/templates/{slug}`
pub(crate) async fn show(
    visit: Visit,
    Path((_, slug)): Path<(String, String)>,
    Query(from): Query<From>,
) -> Result<Response, Refusal> {
    let path = format!("/v1/templates/{}", segment(&slug));
    let wanted = [("limit", Some("50")), ("next_token", from.next_token.as_deref())];
    let versions_path = with_query(&format!("{path}/versions"), &wanted);
    let (template, versions) = tokio::try_join!(visit.get::<Entry>(&path), visit.get::<Versions>(&versions_path))?;
    let Versions { versions, next_token } = versions;
    let next = next_token.map(|token| with_query(&visit.path, &[("next_token", Some(&token))]));
    Ok(page(&OnePage { visit, template, versions, next }))
}

/// `GET /dashboard/{team}/templates/{slug}/versions/{version}`
pub(crate) async fn version(
    visit: Visit,
    Path((_, slug, version)): Path<(String, String, String)>,
    Query(from): Query<From>,
) -> Result<Response, Refusal> {
    let path = format!("/v1/templates/{}/versions/{}", segment(&slug), segment(&version));
    let wanted = [("limit", Some("100")), ("next_token", from.next_token.as_deref())];
    let log_path = with_query(&format!("{path}/logs"), &wanted);
    let (version, log) = tokio::join!(visit.get::<Version>(&path), visit.get::<Log>(&log_path));
    // A version that was not built here has no log.
    let (log, next_token) = log.map_or((Vec::new(), None), |log| (log.entries, log.next_token));
    let next = next_token.map(|token| with_query(&visit.path, &[("next_token", Some(&token))]));
    Ok(page(&VersionPage { visit, slug, version: version?, log, next }))
}
