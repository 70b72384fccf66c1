//! Files of a volume: `GET/PUT/DELETE /v1/volumes/{id}/files?path=`
//!
//! As bytes, of any length, they pass through piece by piece. In JSON they are small: of at most [`MAX_CONTENT`] bytes.

use axum::Json as JsonBody;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use sandpiper_http::error::ApiError;
use sandpiper_http::json;
use sandpiper_http::query::Pairs;
use sandpiper_protocol::ids::VolumeId;
use sandpiper_protocol::volume::{EntryKind, VolumeEntry};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::body::{EntryBody, PathQuery, checked_mode, checked_path};
use super::detached;
use crate::agent_client::volumes::Attributes;
use crate::auth::{ReadAccess, WriteAccess};
use crate::mutation::BodyRule;
use crate::state::App;

/// The route.
pub const PATH: &str = "/v1/volumes/{id}/files";
/// Longest file in JSON, in bytes.
const MAX_CONTENT: usize = 64 << 20;
/// Longest document with one: in base64, with a path.
const MAX_DOCUMENT: usize = MAX_CONTENT / 3 * 4 + (64 << 10);
/// Mode of a file that is written, unless the request names another.
const DEFAULT_MODE: &str = "0644";
/// Headers of a file that are the agent's to say.
const OF_FILE: [HeaderName; 4] =
    [header::CONTENT_LENGTH, header::CONTENT_RANGE, header::ACCEPT_RANGES, header::LAST_MODIFIED];

/// A file to write.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WriteVolumeFile, example = json!({"path": "/models/names.txt", "content_b64": "aGVsbG8K", "mode": "0644"}))]
pub struct WriteRequest {
    /// From the volume's root; absolute.
    pub path: String,
    /// At most 64 MiB, in standard base64.
    pub content_b64: String,
    /// Octal text; `0644` by default.
    pub mode: Option<String>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// A file with its content.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = VolumeFile)]
pub struct FileBody {
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Octal text of four digits.
    pub mode: String,
    /// Standard base64.
    pub content_b64: String,
}

/// How the body of a request to `/v1` is read.
pub fn body_rule(parts: &Parts) -> BodyRule {
    let of_file = parts.method == Method::PUT
        && parts.extensions.get::<axum::extract::MatchedPath>().is_some_and(|path| path.as_str() == PATH);
    match (of_file, is_octet_stream(&parts.headers)) {
        (false, _) => BodyRule::Document,
        (true, false) => BodyRule::Large(MAX_DOCUMENT),
        (true, true) => BodyRule::Stream,
    }
}

/// Whether a body is bytes, not a document.
pub fn is_octet_stream(headers: &HeaderMap) -> bool {
    has_type(headers, &header::CONTENT_TYPE, "application/octet-stream")
}

fn has_type(headers: &HeaderMap, name: &HeaderName, expected: &str) -> bool {
    let named = headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = named.split([';', ',']).next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case(expected)
}

/// Read a file
///
/// As bytes, with `Range` where only a part is wanted; with `Accept: application/json` in JSON, if it has at most 64 MiB.
/// Refused with 409 `volume_attached` while a sandbox has the volume.
#[utoipa::path(
    get,
    path = "/v1/volumes/{id}/files",
    operation_id = "read_volume_file",
    tag = "volumes",
    params(
        ("id" = String, Path, description = "The volume"),
        ("path" = String, Query, description = "From the volume's root; absolute", example = "/models/names.txt"),
        ("Range" = Option<String>, Header, description = "Of the bytes"),
    ),
    responses(
        (status = 200, description = "The file", content(
            (Vec<u8> = "application/octet-stream"), (FileBody = "application/json")
        )),
        (status = 206, description = "A part of it", body = Vec<u8>, content_type = "application/octet-stream"),
    )
)]
pub async fn read(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let path = PathQuery::only_path(query)?;
    let volume = detached(&app, &caller, &id).await?;
    if has_type(&headers, &header::ACCEPT, "application/json") {
        document(&app, &volume, path).await
    } else {
        bytes(&app, &volume, &path, &headers).await
    }
}

/// The bytes of a file, or those that `headers` ask for.
///
/// # Errors
///
/// Those of the agent.
pub async fn bytes(app: &App, volume: &VolumeId, path: &str, headers: &HeaderMap) -> Result<Response, ApiError> {
    let file = app.agent.read_volume_file(volume, path, headers.get(header::RANGE)).await?;
    let (status, mut of_file) = (file.status(), HeaderMap::new());
    for name in OF_FILE {
        if let Some(value) = file.headers().get(&name) {
            of_file.insert(name, value.clone());
        }
    }
    let kind = [(header::CONTENT_TYPE, "application/octet-stream"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((status, of_file, kind, file.into_body()).into_response())
}

/// A file in JSON, which is written while it is read.
async fn document(app: &App, volume: &VolumeId, path: String) -> Result<Response, ApiError> {
    let entry = app.agent.volume_entry(volume, &path).await?;
    if entry.kind == EntryKind::Directory {
        return Err(ApiError::conflict(format!("{path:?} is a directory; list it with …/directories")));
    }
    let file = app.agent.read_volume_file(volume, &path, None).await?;
    let length = file.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let Some(size) = length.filter(|size: &u64| usize::try_from(*size).is_ok_and(|size| size <= MAX_CONTENT)) else {
        let message =
            format!("The file is over the {MAX_CONTENT} bytes of one in JSON; read it as bytes, without `Accept`");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
    };
    let mut head = json!({"path": path, "size": size, "mode": entry.mode}).to_string();
    // The document's last brace follows the content.
    head.pop();
    head.push_str(r#","content_b64":""#);
    let content = in_base64(file.into_body().into_data_stream());
    let whole =
        stream::iter([Ok(Bytes::from(head))]).chain(content).chain(stream::iter([Ok(Bytes::from_static(b"\"}"))]));
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(whole)).into_response())
}

/// The same bytes in base64.
fn in_base64(
    bytes: impl Stream<Item = Result<Bytes, axum::Error>> + Send + Unpin,
) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send {
    // What does not make up three bytes yet waits for more.
    stream::unfold((bytes, BytesMut::new(), false), async |(mut bytes, mut rest, is_over)| {
        if is_over {
            return None;
        }
        match bytes.next().await {
            Some(Ok(piece)) => {
                rest.extend_from_slice(&piece);
                let whole = rest.split_to(rest.len() / 3 * 3);
                Some((Ok(Bytes::from(BASE64.encode(&whole))), (bytes, rest, false)))
            }
            Some(Err(error)) => Some((Err(error), (bytes, rest, true))),
            None => Some((Ok(Bytes::from(BASE64.encode(&rest))), (bytes, rest, true))),
        }
    })
}

/// Write a file
///
/// In place of what is there; directories above it are made. Responds when it is on stable storage, and takes its place
/// when it is whole. As `application/octet-stream` it may have any length, with `path` and `mode` in the query; in JSON at most
/// 64 MiB, with both in the document. Refused with 409 `volume_attached` while a sandbox has the volume.
#[utoipa::path(
    put,
    path = "/v1/volumes/{id}/files",
    operation_id = "write_volume_file",
    tag = "volumes",
    params(
        ("id" = String, Path, description = "The volume"),
        ("path" = Option<String>, Query, description = "Of bytes: from the volume's root; absolute"),
        ("mode" = Option<String>, Query, description = "Of bytes: octal text, `0644` by default"),
        ("uid" = Option<u32>, Query, description = "Of bytes: the owner"),
        ("gid" = Option<u32>, Query, description = "Of bytes: the group"),
    ),
    request_body(content((WriteRequest = "application/json"), (Vec<u8> = "application/octet-stream"))),
    responses((status = 200, description = "Written", body = EntryBody))
)]
pub async fn write(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
    request: Request,
) -> Result<JsonBody<EntryBody>, ApiError> {
    let query = PathQuery::of(query, &["path", "mode", "uid", "gid"])?;
    if is_octet_stream(request.headers()) {
        let (path, attributes) = (query.path()?, query.attributes);
        let volume = detached(&app, &caller, &id).await?;
        let entry = stream_to(&app, &volume, &path, with_default_mode(attributes), request).await?;
        return Ok(JsonBody(entry.into()));
    }
    if !query.is_empty() {
        return Err(ApiError::invalid_field("path", "and what is beside it stand in the document, not in the query"));
    }
    // Read already, and within its limit.
    let document = to_bytes(request.into_body(), MAX_DOCUMENT).await;
    let document = document.map_err(|_| ApiError::invalid("The request body broke off"))?;
    // Megabytes of text are not to hold other requests up.
    let read = tokio::task::spawn_blocking(move || parse(&document)).await;
    let (path, attributes, content) = read.map_err(|error| ApiError::internal(error.to_string()))??;
    let volume = detached(&app, &caller, &id).await?;
    let length = content.len() as u64;
    let entry = app.agent.write_volume_file(&volume, &path, &attributes, Some(length), content.into()).await?;
    Ok(JsonBody(entry.into()))
}

/// Writes a file from the body of `request`.
///
/// # Errors
///
/// 400 on a body that breaks off, and the agent's.
pub async fn stream_to(
    app: &App,
    volume: &VolumeId,
    path: &str,
    attributes: Attributes,
    request: Request,
) -> Result<VolumeEntry, ApiError> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    Ok(app.agent.write_volume_file(volume, path, &attributes, length, request.into_body()).await?)
}

/// The document of a file to write.
fn parse(document: &[u8]) -> Result<(String, Attributes, Bytes), ApiError> {
    if document.is_empty() {
        return Err(ApiError::invalid("The request needs a JSON object as its body, or application/octet-stream"));
    }
    let WriteRequest { path, content_b64, mode, uid, gid } = json::parse(document)?;
    let path = checked_path("path", path)?;
    let mode = mode.as_deref().map(checked_mode).transpose()?;
    let content = BASE64.decode(content_b64);
    let content = content.map_err(|error| ApiError::invalid_field("content_b64", format!("is not base64: {error}")))?;
    if content.len() > MAX_CONTENT {
        return Err(ApiError::too_large(MAX_CONTENT));
    }
    Ok((path, with_default_mode(Attributes { mode, uid, gid }), content.into()))
}

fn with_default_mode(attributes: Attributes) -> Attributes {
    Attributes { mode: attributes.mode.or_else(|| Some(DEFAULT_MODE.to_owned())), ..attributes }
}

/// Delete a file
///
/// Directories are deleted with `DELETE …/path`.
#[utoipa::path(
    delete,
    path = "/v1/volumes/{id}/files",
    operation_id = "delete_volume_file",
    tag = "volumes",
    params(
        ("id" = String, Path, description = "The volume"),
        ("path" = String, Query, description = "From the volume's root; absolute"),
    ),
    responses((status = 204, description = "Gone"))
)]
pub async fn delete(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    query: Pairs,
) -> Result<StatusCode, ApiError> {
    let path = PathQuery::only_path(query)?;
    let volume = detached(&app, &caller, &id).await?;
    app.agent.remove_volume_file(&volume, &path).await?;
    Ok(StatusCode::NO_CONTENT)
}
