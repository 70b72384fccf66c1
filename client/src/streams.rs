//! Calls of the control plane whose request or response is a stream.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use reqwest::{Body, RequestBuilder, Response};
use serde::de::DeserializeOwned;

use super::{Client, ClientError, TIMEOUT, refusal};

/// How long an upload may make no progress: longer than a host takes to open a volume, and to have a file on stable storage.
const STALL_TIMEOUT: Duration = TIMEOUT;

impl Client {
    /// Sends a request; a response that refuses it is an error.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = tokio::time::timeout(TIMEOUT, response.bytes()).await;
        let body = body.map_err(|_| ClientError::Broken("the error did not come to its end".to_owned()))?;
        Err(refusal(status, &body.map_err(|source| self.unreachable(source))?))
    }

    /// Sends a stream of bytes, `length` of them if that is known, as long as they are taken.
    pub(crate) async fn send_stream(
        &self,
        mut request: RequestBuilder,
        length: Option<u64>,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<Response, ClientError> {
        let sent = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&sent);
        let content = content.inspect(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        request = request.header("content-type", "application/octet-stream");
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        let mut sending = pin!(self.send(request.body(Body::wrap_stream(content))));
        loop {
            let before = sent.load(Ordering::Relaxed);
            match tokio::time::timeout(STALL_TIMEOUT, &mut sending).await {
                Ok(response) => return response,
                Err(_) if sent.load(Ordering::Relaxed) > before => {}
                Err(_) => {
                    let seconds = STALL_TIMEOUT.as_secs();
                    return Err(ClientError::Broken(format!("nothing of the file was taken for {seconds} s")));
                }
            }
        }
    }

    /// What a response says.
    pub(crate) async fn json<T: DeserializeOwned>(&self, response: Response) -> Result<T, ClientError> {
        let path = response.url().path().trim_start_matches("/v1").to_owned();
        let body = tokio::time::timeout(TIMEOUT, response.bytes()).await;
        let body = body.map_err(|_| ClientError::Broken("the response did not come to its end".to_owned()))?;
        let body = body.map_err(|source| self.unreachable(source))?;
        serde_json::from_slice(&body).map_err(|error| self.malformed(&path, &error.to_string()))
    }

    fn unreachable(&self, source: reqwest::Error) -> ClientError {
        ClientError::Unreachable { url: self.base_url.clone(), source }
    }
}
