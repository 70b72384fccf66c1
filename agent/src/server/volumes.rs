//! `/volumes`: made, listed, deleted; and what is in those that no sandbox has, which a helper is asked for.
//!
//! A request for what is in a volume is passed on as it is, to the helper's data plane, and so is its response: both bodies in
//! pieces, never collected, for as long as something moves. What is on a volume may have taken the helper over that mounted it, so
//! of a response no more is believed than what this module names: its status, four headers, and of a refusal a short text.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, HttpBody};
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HOST, RANGE};
use http::{HeaderMap, HeaderName, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use sandpiper_ingress::vsock;
use sandpiper_machine::sanitize;
use sandpiper_protocol::agent::ErrorBody;
use sandpiper_protocol::guest::{DATA_PLANE_PORT, VOLUME_FOLDER};
use sandpiper_protocol::ids::VolumeId;
use sandpiper_protocol::volume::{Volume, VolumeList};
use tokio::sync::mpsc;

use super::App;
use super::error::ApiError;
use crate::helpers::Lease;
use crate::volumes::VolumeError;

/// How long nothing may come from, or be taken by, either end.
const SILENCE: Duration = Duration::from_secs(120);
/// Pieces of a response that wait to be taken.
const PIECES: usize = 4;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// What of a request the helper gets, and of its response the API.
const TO_HELPER: [HeaderName; 3] = [CONTENT_TYPE, CONTENT_LENGTH, RANGE];
const FROM_HELPER: [HeaderName; 4] = [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_RANGE, ACCEPT_RANGES];
/// How a helper says that something is done, and how that it is not, with the code of each.
const SUCCESSES: [StatusCode; 5] =
    [StatusCode::OK, StatusCode::CREATED, StatusCode::ACCEPTED, StatusCode::NO_CONTENT, StatusCode::PARTIAL_CONTENT];
const REFUSALS: [(StatusCode, &str); 7] = [
    (StatusCode::BAD_REQUEST, "invalid_request"),
    (StatusCode::NOT_FOUND, "not_found"),
    (StatusCode::CONFLICT, "conflict"),
    (StatusCode::PAYLOAD_TOO_LARGE, "volume_full"),
    (StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable"),
    (StatusCode::UNPROCESSABLE_ENTITY, "volume_damaged"),
    (StatusCode::INSUFFICIENT_STORAGE, "volume_full"),
];
/// For the body of a refusal, and its length: it may name a path twice.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REFUSAL: usize = 64 * 1024;

/// `PUT /volumes/{id}`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    Path(id): Path<VolumeId>,
) -> Result<(StatusCode, Json<Volume>), ApiError> {
    let (volume, is_new) = app.sandboxes.create_volume(id).await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(volume)))
}

/// `GET /volumes`
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<VolumeList>, ApiError> {
    let list = app.sandboxes.volumes().await;
    Ok(Json(list.map_err(|error| ApiError::internal(error.to_string()))?))
}

/// `GET /volumes/{id}`
pub(super) async fn show(State(app): State<Arc<App>>, Path(id): Path<VolumeId>) -> Result<Json<Volume>, ApiError> {
    Ok(Json(app.sandboxes.volume(id).await.map_err(|error| ApiError::from(&error))?))
}

/// `DELETE /volumes/{id}`
pub(super) async fn delete(State(app): State<Arc<App>>, Path(id): Path<VolumeId>) -> Result<StatusCode, ApiError> {
    app.sandboxes.delete_volume(&id).await.map_err(|error| ApiError::from(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// `/volumes/{id}/files`, `/volumes/{id}/directories`, `/volumes/{id}/path`
pub(super) async fn detached(
    State(app): State<Arc<App>>,
    Path(id): Path<VolumeId>,
    request: Request,
) -> Result<Response, ApiError> {
    let volumes = &app.sandboxes.context().volumes;
    if volumes.store.find(&id).is_none() {
        return Err(ApiError::from(&VolumeError::Missing(id)));
    }
    let lease = app.sandboxes.context().helpers.lease(&id).await.map_err(|error| ApiError::from(&*error))?;
    forward(lease, &id, request).await
}

/// Passes a request on to a helper, and its response back.
async fn forward(lease: Lease, id: &VolumeId, request: Request) -> Result<Response, ApiError> {
    let broken = |error: &dyn std::fmt::Display| {
        ApiError::guest_failed(format!("The machine that works with the volume broke off: {error}; try again"))
    };
    let stream = vsock::connect(lease.vsock(), DATA_PLANE_PORT, CONNECT_TIMEOUT).await;
    let stream = stream.map_err(|error| {
        lease.give_up();
        broken(&error)
    })?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| broken(&error))?;
    // Ends when both ends are dropped.
    tokio::spawn(connection);

    let (parts, body) = request.into_parts();
    let moved = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&moved);
    let body = if body.is_end_stream() {
        Body::empty()
    } else {
        let pieces = paced(body.into_data_stream());
        Body::from_stream(pieces.inspect(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        }))
    };
    let mut passed = http::Request::builder().method(parts.method).uri(target(id, &parts.uri)).header(HOST, "sandbox");
    if let Some(headers) = passed.headers_mut() {
        headers.extend(only(&parts.headers, &TO_HELPER));
    }
    let passed = passed.body(body).map_err(|error| ApiError::invalid(error.to_string()))?;
    let mut sending = std::pin::pin!(sender.send_request(passed));
    let response = loop {
        let before = moved.load(Ordering::Relaxed);
        match tokio::time::timeout(SILENCE, &mut sending).await {
            Ok(response) => break response.map_err(|error| broken(&error))?,
            Err(_) if moved.load(Ordering::Relaxed) > before => {}
            Err(_) => {
                lease.give_up();
                return Err(broken(&format!("nothing moved for {} seconds", SILENCE.as_secs())));
            }
        }
    };
    let (parts, body) = response.into_parts();
    if !SUCCESSES.contains(&parts.status) {
        return Err(refusal(parts.status, body).await);
    }
    let headers = only(&parts.headers, &FROM_HELPER);
    let body = pump(paced(body.into_data_stream()), lease);
    let mut response = (parts.status, Body::from_stream(body)).into_response();
    response.headers_mut().extend(headers);
    Ok(response)
}

/// A response that says that nothing was done, as far as it can be believed.
async fn refusal(status: StatusCode, body: Incoming) -> ApiError {
    let body = tokio::time::timeout(REFUSAL_TIMEOUT, Limited::new(body, MAX_REFUSAL).collect()).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default().to_bytes();
    let message = match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(error) => sanitize(&error.message),
        Err(_) => status.to_string(),
    };
    match REFUSALS.into_iter().find(|(known, _)| *known == status) {
        Some((_, code)) => ApiError::new(status, code, message),
        None => ApiError::guest_failed(format!("The machine that works with the volume failed: {message}")),
    }
}

/// As the guest knows it: `/volumes/{id}/files?path=…` is `/volume/files?path=…`.
fn target(id: &VolumeId, uri: &Uri) -> String {
    let asked = uri.path_and_query().map_or("", |target| target.as_str());
    let rest = asked.strip_prefix("/volumes/").and_then(|rest| rest.strip_prefix(id.as_str())).unwrap_or_default();
    format!("{VOLUME_FOLDER}{rest}")
}

fn only(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    names.iter().filter_map(|name| Some((name.clone(), headers.get(name)?.clone()))).collect()
}

/// The pieces of a body; an error once none has come for [`SILENCE`].
pub(super) fn paced<T, E>(
    pieces: impl stream::Stream<Item = Result<T, E>> + Send + 'static,
) -> impl stream::Stream<Item = io::Result<T>> + Send + 'static
where
    T: Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    stream::unfold(Some(Box::pin(pieces)), async |pieces| {
        let mut pieces = pieces?;
        match tokio::time::timeout(SILENCE, pieces.next()).await {
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some(pieces))),
            Ok(Some(Err(error))) => Some((Err(io::Error::other(error)), None)),
            Ok(None) => None,
            Err(_) => Some((Err(io::ErrorKind::TimedOut.into()), None)),
        }
    })
}

/// Passes a response on, with the helper staying meanwhile: until its end, or until it is not taken for [`SILENCE`].
fn pump(
    pieces: impl stream::Stream<Item = io::Result<Bytes>> + Send + 'static,
    lease: Lease,
) -> impl stream::Stream<Item = io::Result<Bytes>> + Send + 'static {
    // `None` is the end: a sender that is gone without it broke off.
    let (sender, receiver) = mpsc::channel(PIECES);
    tokio::spawn(async move {
        let mut pieces = std::pin::pin!(pieces.map(Some).chain(stream::iter([None])));
        while let Some(piece) = pieces.next().await {
            if let Some(Err(_)) = piece {
                lease.give_up();
            }
            let Ok(Ok(())) = tokio::time::timeout(SILENCE, sender.send(piece)).await else { break };
        }
        drop(lease);
    });
    stream::unfold(Some(receiver), async |receiver| {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Some(piece)) => Some((piece, Some(receiver))),
            Some(None) => None,
            None => Some((Err(io::ErrorKind::TimedOut.into()), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_is_asked_for_the_same_below_its_own_folder() {
        let id = VolumeId::generate();
        let uri = format!("/volumes/{id}/files?path=%2Fa%20b&mode=0600").parse().unwrap();
        assert_eq!(target(&id, &uri), "/volume/files?path=%2Fa%20b&mode=0600");
    }
}
