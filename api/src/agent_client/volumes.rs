//! Volumes at the agent, and what is in those that no sandbox has. Files pass through as streams, both ways: a piece at a
//! time, however long they are, with a bound on silence alone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use sandpiper_protocol::ids::VolumeId;
use sandpiper_protocol::volume::{ChangePath, Volume, VolumeDirectory, VolumeEntry, VolumeList};
use tokio::sync::mpsc;
use url::form_urlencoded;

use super::{AgentClient, AgentError, DELETE, WORK, refusal};

/// How long nothing may come or go: longer than the agent takes to have a machine open a volume, and to have a file on stable
/// storage.
const SILENCE: Duration = WORK;
/// Pieces of a file between the agent and a client.
const PIECES: usize = 4;

/// Of a file or directory that is made; what is left out is the agent's default.
#[derive(Debug, Clone, Default)]
pub struct Attributes {
    /// Octal text.
    pub mode: Option<String>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

/// Which entries of a directory.
#[derive(Debug, Clone, Default)]
pub struct Entries {
    /// Levels down; 1 is the directory itself.
    pub depth: u32,
    /// At most.
    pub limit: u32,
    /// From the one that follows this, as the page before named it.
    pub after: Option<String>,
}

impl AgentClient {
    /// Makes a volume, unless it is there.
    pub async fn create_volume(&self, id: &VolumeId) -> Result<Volume, AgentError> {
        self.call::<(), _>(Method::PUT, &format!("/volumes/{id}"), None, WORK).await
    }

    /// All volumes of the host.
    pub async fn volumes(&self) -> Result<VolumeList, AgentError> {
        self.ask("/volumes").await
    }

    /// Removes a volume; returns when its bytes are free.
    pub async fn delete_volume(&self, id: &VolumeId) -> Result<(), AgentError> {
        self.exchange::<()>(Method::DELETE, &format!("/volumes/{id}"), None, DELETE).await.map(drop)
    }

    /// What there is at a path.
    pub async fn volume_entry(&self, volume: &VolumeId, path: &str) -> Result<VolumeEntry, AgentError> {
        self.call::<(), _>(Method::GET, &target(volume, "path", path, &[]), None, WORK).await
    }

    /// Changes or moves what there is at a path.
    pub async fn change_volume_entry(
        &self,
        volume: &VolumeId,
        path: &str,
        change: &ChangePath,
    ) -> Result<VolumeEntry, AgentError> {
        self.call(Method::PATCH, &target(volume, "path", path, &[]), Some(change), WORK).await
    }

    /// Removes what there is at a path, with all that is in it; false where much is left, with which the same request goes on.
    pub async fn remove_volume_entry(&self, volume: &VolumeId, path: &str) -> Result<bool, AgentError> {
        let removed = self.exchange::<()>(Method::DELETE, &target(volume, "path", path, &[]), None, WORK).await;
        removed.map(|(status, _)| status != StatusCode::ACCEPTED)
    }

    /// Removes a file.
    pub async fn remove_volume_file(&self, volume: &VolumeId, path: &str) -> Result<(), AgentError> {
        self.exchange::<()>(Method::DELETE, &target(volume, "files", path, &[]), None, WORK).await.map(drop)
    }

    /// Some entries of a directory.
    pub async fn volume_directory(
        &self,
        volume: &VolumeId,
        path: &str,
        entries: &Entries,
    ) -> Result<VolumeDirectory, AgentError> {
        let query = [
            ("depth", Some(entries.depth.to_string())),
            ("limit", Some(entries.limit.to_string())),
            ("after", entries.after.clone()),
        ];
        self.call::<(), _>(Method::GET, &target(volume, "directories", path, &query), None, WORK).await
    }

    /// Makes a directory, and those above it; and whether it was not there.
    pub async fn make_volume_directory(
        &self,
        volume: &VolumeId,
        path: &str,
        attributes: &Attributes,
    ) -> Result<(VolumeEntry, bool), AgentError> {
        let target = target(volume, "directories", path, &attributes.query());
        let (status, response) = self.exchange::<()>(Method::POST, &target, None, WORK).await?;
        Ok((super::parse("/volumes", &response)?, status == StatusCode::CREATED))
    }

    /// A file, as the agent sends it: with its length, or that of the `range` that was asked for.
    pub async fn read_volume_file(
        &self,
        volume: &VolumeId,
        path: &str,
        range: Option<&HeaderValue>,
    ) -> Result<Response<Body>, AgentError> {
        let mut request = Request::get(target(volume, "files", path, &[])).header(header::HOST, "agent");
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        let request = request.body(Full::new(Bytes::new())).map_err(malformed)?;
        let mut sender = self.connection().await?;
        let response = tokio::time::timeout(SILENCE, sender.send_request(request));
        let response = response.await.map_err(|_| AgentError::TimedOut(SILENCE))??;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        Ok(response.map(paced))
    }

    /// Writes a file from `content`, of `length` bytes if that is known; returns when it is on stable storage. It takes its
    /// place when it is whole.
    pub async fn write_volume_file(
        &self,
        volume: &VolumeId,
        path: &str,
        attributes: &Attributes,
        length: Option<u64>,
        content: Body,
    ) -> Result<VolumeEntry, AgentError> {
        let response = self.put_stream(&target(volume, "files", path, &attributes.query()), length, content).await?;
        super::parse("/volumes", &response)
    }

    /// Sends a file that passes through as a stream; the body of the success.
    pub(super) async fn put_stream(
        &self,
        target: &str,
        length: Option<u64>,
        content: Body,
    ) -> Result<Bytes, AgentError> {
        let moved = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&moved);
        let content = content.into_data_stream().inspect(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let mut request =
            Request::put(target).header(header::HOST, "agent").header(header::CONTENT_TYPE, "application/octet-stream");
        if let Some(length) = length {
            request = request.header(header::CONTENT_LENGTH, length);
        }
        let request = request.body(Body::from_stream(content)).map_err(malformed)?;
        let mut sender = self.connection().await?;
        let mut sending = std::pin::pin!(sender.send_request(request));
        let response = loop {
            let before = moved.load(Ordering::Relaxed);
            match tokio::time::timeout(SILENCE, &mut sending).await {
                Ok(response) => break response?,
                Err(_) if moved.load(Ordering::Relaxed) > before => {}
                Err(_) => return Err(AgentError::TimedOut(SILENCE)),
            }
        };
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let body = tokio::time::timeout(SILENCE, super::collect(response.into_body()));
        let body = body.await.map_err(|_| AgentError::TimedOut(SILENCE))??;
        Ok(body)
    }
}

impl Attributes {
    fn query(&self) -> [(&'static str, Option<String>); 3] {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        [("mode", self.mode.clone()), ("uid", number(self.uid)), ("gid", number(self.gid))]
    }
}

/// `/volumes/{id}/{what}?path=…`, percent-encoded.
fn target(volume: &VolumeId, what: &str, path: &str, query: &[(&str, Option<String>)]) -> String {
    // A plus sign stands for a space in forms alone.
    let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20");
    let mut target = format!("/volumes/{volume}/{what}?path={}", encode(path));
    for (name, value) in query {
        if let Some(value) = value {
            target.push_str(&format!("&{name}={}", encode(value)));
        }
    }
    target
}

fn malformed(error: impl std::fmt::Display) -> AgentError {
    AgentError::Malformed(error.to_string())
}

/// The body, as long as neither side stands still for [`SILENCE`]. It ends with an error otherwise, so that it is not taken for
/// whole.
fn paced(mut body: Incoming) -> Body {
    // `None` is the end.
    let (pieces, received) = mpsc::channel::<Option<Bytes>>(PIECES);
    tokio::spawn(async move {
        loop {
            let piece = match tokio::time::timeout(SILENCE, body.frame()).await {
                Ok(Some(Ok(frame))) => Some(frame.into_data().unwrap_or_default()),
                Ok(None) => None,
                Ok(Some(Err(error))) => return tracing::warn!(%error, "a file of a volume broke off"),
                Err(_) => return tracing::warn!("a file of a volume broke off: the agent sent nothing"),
            };
            let is_last = piece.is_none();
            // The client is gone, or takes nothing: so much for the machine that reads the file.
            let Ok(Ok(())) = tokio::time::timeout(SILENCE, pieces.send(piece)).await else { return };
            if is_last {
                return;
            }
        }
    });
    Body::from_stream(stream::unfold(Some(received), async |received| {
        let mut received = received?;
        match received.recv().await {
            Some(Some(piece)) => Some((Ok(piece), Some(received))),
            Some(None) => None,
            None => Some((Err(io::Error::from(io::ErrorKind::TimedOut)), None)),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded_whole() {
        let query = Attributes { mode: Some("0644".to_owned()), uid: None, gid: Some(7) }.query();
        let target = target(&VolumeId::from("vol1"), "files", "/a b+c&d=é/%", &query);
        assert_eq!(target, "/volumes/vol1/files?path=%2Fa%20b%2Bc%26d%3D%C3%A9%2F%25&mode=0644&gid=7");
    }
}
