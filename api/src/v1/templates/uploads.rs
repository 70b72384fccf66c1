//! Files for builds: `GET /v1/templates/uploads`, `PUT /v1/templates/uploads`, `DELETE /v1/templates/uploads/{id}`
//!
//! They pass through to the agent piece by piece, of any length that the plan allows. Nothing here looks into them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use futures_util::{StreamExt, future};
use jiff::Timestamp;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{NoParameters, Pairs};
use sandpiper_protocol::ids::UploadId;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::auth::{Caller, ReadAccess, WriteAccess};
use crate::errors;
use crate::state::App;
use crate::store::uploads::{BeginUploadError, NewUpload, UploadRow};
use crate::v1::page::{List, Paging};

/// The route.
pub const PATH: &str = "/v1/templates/uploads";

/// A file that was sent for builds.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Upload)]
pub struct UploadBody {
    /// What a source names as `context`, `archive` or `upload`.
    #[schema(example = "upl06f3kq8z2m1c9w0v5t7b4a")]
    pub id: String,
    /// What was announced, until all of it is there.
    pub bytes: u64,
    /// SHA-256, lower-case hexadecimal; null until all of it is there.
    pub sha256: Option<String>,
    pub created_at: Timestamp,
    /// When it goes, unless a build uses it before.
    pub expires_at: Timestamp,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct UploadList {
    /// Newest first.
    pub uploads: Vec<UploadBody>,
    /// For the next page, of the same list; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

impl From<UploadRow> for UploadBody {
    fn from(row: UploadRow) -> Self {
        let UploadRow { id, bytes, sha256, created_at, expires_at } = row;
        Self { id: id.to_string(), bytes, sha256, created_at, expires_at }
    }
}

/// Whether the body of this request is a file for builds.
pub fn is_upload(parts: &Parts) -> bool {
    parts.method == Method::PUT && parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str() == PATH)
}

/// Send a file for builds
///
/// The context of a Dockerfile, what a step copies, or an archive of an image: bytes of any length that the plan allows.
/// Responds when it is on stable storage. It is kept for a day after it was sent or used last.
#[utoipa::path(
    put,
    path = "/v1/templates/uploads",
    operation_id = "upload_build_file",
    tag = "templates",
    request_body(content((Vec<u8> = "application/octet-stream"))),
    responses((status = 201, description = "There", body = UploadBody))
)]
pub async fn put(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    request: Request,
) -> Result<Response, ApiError> {
    let row = receive(&app, &caller, None, request).await?;
    let acted = Extension(Acted(vec![row.id.to_string()]));
    Ok((StatusCode::CREATED, acted, JsonBody(UploadBody::from(row))).into_response())
}

/// Sends a file on to the agent; `hash` is the name that an SDK gave to its content.
///
/// # Errors
///
/// 413 beyond what the plan takes of files for builds, 422 beyond what it lets the team store, 400 on a body that breaks off, and the
/// agent's.
pub async fn receive(app: &App, caller: &Caller, hash: Option<&str>, request: Request) -> Result<UploadRow, ApiError> {
    let limits = app.offer.of(caller.team.plan);
    let most = limits.build.upload_bytes;
    let length: Option<u64> =
        request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let counted = length.is_none().then(|| app.unannounced_uploads.enter(&caller.team.id));
    if let Some(None) = counted {
        return Err(errors::too_many(
            "Your team sends all the files without a Content-Length that it may at a time; wait for one, or say how long it is",
        ));
    }
    let id = UploadId::generate();
    // Before the row is there, so that the synchronisation never sees it without.
    let _in_flight = app.in_flight.enter(&id).ok_or_else(|| ApiError::internal("upload id made twice"))?;
    // First, so that whatever the agent gets of it is found and removed.
    let new = NewUpload { id: &id, hash, length };
    let room = app.store.uploads.begin(&caller.team.id, new, most, &limits.quota, app.clock.now()).await;
    let room = room.map_err(|error| match error {
        BeginUploadError::TooLarge => too_large(most),
        BeginUploadError::StorageFull(usage) => errors::no_room_for_upload(&limits, usage, length),
        BeginUploadError::Store(error) => error.into(),
    })?;
    let (content, is_over) = bounded(request.into_body(), room.bytes);
    let sent = app.agent.put_upload(&id, length, content).await;
    app.metrics.agent_call("upload", sent.is_ok());
    match sent {
        Ok(upload) => match app.store.uploads.finish(&upload, app.clock.now()).await? {
            Some(row) => Ok(row),
            None => {
                // What cannot be removed now, the agent removes when nobody has used it for long.
                let _ = app.agent.delete_upload(&id).await;
                Err(ApiError::conflict(format!("The file {id} was deleted while it was being sent; send it again")))
            }
        },
        Err(error) => {
            // What is at the agent in spite of it goes with its row, in a later round of synchronisation.
            if let Err(unsure) = app.agent.delete_upload(&id).await
                && !unsure.is_not_found()
            {
                return Err(error.into());
            }
            app.store.uploads.forget(&id).await?;
            match is_over.load(Ordering::Relaxed) {
                true if room.is_of_storage => {
                    let usage = app.store.sandboxes.usage(&caller.team.id, app.clock.now()).await?;
                    Err(errors::no_room_for_upload(&limits, usage, length))
                }
                true => Err(too_large(most)),
                false => Err(error.into()),
            }
        }
    }
}

/// The team's file of this id, which is kept for a while longer from now on; `None` where it is not here, or not at the agent any
/// more.
///
/// # Errors
///
/// Those of the agent.
pub async fn kept(app: &App, caller: &Caller, id: &str) -> Result<Option<UploadRow>, ApiError> {
    let Some(row) = app.store.uploads.keep(&caller.team.id, id, app.clock.now()).await? else { return Ok(None) };
    match app.agent.show_upload(&row.id).await {
        Ok(_) => Ok(Some(row)),
        Err(error) if error.is_not_found() => {
            app.store.uploads.forget(&row.id).await?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The same bytes, which break off after `most`; and whether they did.
fn bounded(body: Body, most: u64) -> (Body, Arc<AtomicBool>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    let content = body.into_data_stream().scan(most, move |left, piece| {
        let piece = piece.map_err(io::Error::other).and_then(|piece| {
            *left = left.checked_sub(piece.len() as u64).ok_or_else(|| {
                seen.store(true, Ordering::Relaxed);
                io::Error::other("the file is over its limit")
            })?;
            Ok(piece)
        });
        future::ready(Some(piece))
    });
    (Body::from_stream(content), is_over)
}

fn too_large(most: u64) -> ApiError {
    let message = format!(
        "Files for builds are over the {most} bytes that the plan allows within a day; send less, delete some, or ask for a \
         larger plan"
    );
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

/// List files for builds
///
/// Newest first, page by page; also those of which not all is there.
#[utoipa::path(
    get,
    path = "/v1/templates/uploads",
    operation_id = "list_build_files",
    tag = "templates",
    params(
        ("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default"),
        ("limit" = Option<u32>, Query, description = "Files per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = UploadList))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<JsonBody<UploadList>, ApiError> {
    let paging = Paging::of_team(query, &caller)?;
    let list = List::of_ids(UploadId::PREFIX, &json!(["uploads", caller.team.id]));
    let after = paging.after(&list)?;
    let page = app.store.uploads.list(&caller.team.id, after.as_deref(), paging.limit).await?;
    Ok(JsonBody(UploadList {
        uploads: page.uploads.into_iter().map(UploadBody::from).collect(),
        next_token: page.after.map(|after| list.token(after)),
    }))
}

/// Delete a file for builds
///
/// Also one of which not all is there. Builds that have begun to read it go on.
#[utoipa::path(
    delete,
    path = "/v1/templates/uploads/{id}",
    operation_id = "delete_build_file",
    tag = "templates",
    params(("id" = String, Path, description = "The file")),
    responses((status = 204, description = "Gone"))
)]
pub async fn delete(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let row = app.store.uploads.get(&caller.team.id, &id).await?.ok_or_else(|| errors::no_upload(&id))?;
    match app.agent.delete_upload(&row.id).await {
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => app.store.uploads.forget(&row.id).await?,
    }
    Ok((StatusCode::NO_CONTENT, Extension(Acted(vec![id]))).into_response())
}
