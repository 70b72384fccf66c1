//! Volumes, and the files in them.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::checkpoints::From;
use crate::response::{Refusal, page};
use crate::view::{self, segment};
use crate::visit::{Order, Visit, with_query};

#[derive(Template)]
#[template(path = "volumes.html")]
struct ListPage {
    visit: Visit,
    volumes: Vec<Volume>,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "volume.html")]
struct OnePage {
    visit: Visit,
    volume: Volume,
    /// The folder that is shown.
    folder: String,
    /// The folder above it.
    above: Option<String>,
    entries: Vec<Entry>,
    /// Why its files cannot be shown now.
    problem: Option<String>,
    next: Option<String>,
}

impl OnePage {
    fn of_folder(&self, folder: &str) -> String {
        with_query(&self.visit.path, &[("path", Some(folder))])
    }

    fn of_file(&self, file: &str) -> String {
        with_query(&format!("{}/file", self.visit.path), &[("path", Some(file))])
    }
}

#[derive(Deserialize)]
struct List {
    volumes: Vec<Volume>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct Volume {
    id: String,
    name: String,
    size_gib: u64,
    state: String,
    retained_bytes: u64,
    created_at: Timestamp,
    attached_to: Option<String>,
}

#[derive(Deserialize)]
struct Directory {
    entries: Vec<Entry>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    path: String,
    kind: String,
    size: u64,
    mode: String,
    modified_at: Timestamp,
}

impl Entry {
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// What of a volume is looked at.
#[derive(Deserialize)]
pub(crate) struct At {
    path: Option<String>,
    next_token: Option<String>,
}

/// `GET /dashboard/{team}/volumes`
pub(crate) async fn list(visit: Visit, Query(from): Query<From>) -> Result<Response, Refusal> {
    let wanted = [("limit", Some("50")), ("next_token", from.next_token.as_deref())];
    let List { volumes, next_token } = visit.get(&with_query("/v1/volumes", &wanted)).await?;
    let next = next_token.map(|token| with_query(&visit.path, &[("next_token", Some(&token))]));
    Ok(page(&ListPage { visit, volumes, next }))
}

/// `POST /dashboard/{team}/volumes`
pub(crate) async fn create(order: Order) -> Result<Redirect, Refusal> {
    let body = json!({"name": order.fields.text("name").unwrap_or_default()});
    order.send::<IgnoredAny>(Method::POST, "/v1/volumes", Some(body)).await?;
    Ok(order.then("volumes"))
}

/// `POST /dashboard/{team}/volumes/{id}/delete`
pub(crate) async fn delete(Path((_, id)): Path<(String, String)>, order: Order) -> Result<Redirect, Refusal> {
    order.send::<IgnoredAny>(Method::DELETE, &format!("/v1/volumes/{}", segment(&id)), None).await?;
    Ok(order.then("volumes"))
}

/// `GET /dashboard/{team}/volumes/{id}`: one of its folders.
pub(crate) async fn show(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(at): Query<At>,
) -> Result<Response, Refusal> {
    let path = format!("/v1/volumes/{}", segment(&id));
    let folder = at.path.filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
    let wanted = [("path", Some(folder.as_str())), ("limit", Some("100")), ("next_token", at.next_token.as_deref())];
    let volume: Volume = visit.get(&path).await?;
    // Reading in a volume that a sandbox has, or whose helper is busy, is refused; the volume itself is still shown.
    let (entries, next_token, problem) = match visit.get(&with_query(&format!("{path}/directories"), &wanted)).await {
        Ok(Directory { entries, next_token }) => (entries, next_token, None),
        Err(problem) => (Vec::new(), None, Some(problem.message)),
    };
    let next =
        next_token.map(|token| with_query(&visit.path, &[("path", Some(&folder)), ("next_token", Some(&token))]));
    let above = folder.trim_end_matches('/').rsplit_once('/').map(|(above, _)| match above {
        "" => "/".to_owned(),
        above => above.to_owned(),
    });
    Ok(page(&OnePage { visit, volume, folder, above, entries, problem, next }))
}

/// `GET /dashboard/{team}/volumes/{id}/file`: a file, to be kept and never shown: a page in it would be one of this host.
pub(crate) async fn file(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(at): Query<At>,
) -> Result<Response, Refusal> {
    let path = at.path.unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    let wanted = [("path", Some(path.as_str()))];
    let path = with_query(&format!("/v1/volumes/{}/files", segment(&id)), &wanted);
    let body = visit.stream(&path, None).await?;
    let disposition = format!("attachment; filename*=UTF-8''{}", segment(name));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        // Letters, digits and `%`.
        (header::CONTENT_DISPOSITION, disposition.parse().unwrap_or(HeaderValue::from_static("attachment"))),
    ];
    Ok((headers, body).into_response())
}
