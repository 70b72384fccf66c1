//! What the agent itself asks of a guest's data plane.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use sandpiper_protocol::guest::DATA_PLANE_PORT;

use crate::vsock::{self, VsockError};

/// Longest response in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// Why a guest did not respond.
#[derive(Debug, thiserror::Error)]
pub enum QuestionError {
    #[error("The guest's data plane could not be reached")]
    Unreachable(#[from] VsockError),
    #[error("The guest's data plane did not respond in HTTP")]
    Broken(#[from] hyper::Error),
    #[error("The guest's data plane answered with {0}")]
    Status(StatusCode),
    #[error("The guest's response is too long, or broke off")]
    Body,
    #[error("The guest's data plane did not respond within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

/// The body of the guest's response to `GET <path>`; `timeout` covers all of it. `vsock` is the monitor's socket.
///
/// # Errors
///
/// Whenever it is not 200, with a body of at most 64 KiB, in time.
pub async fn ask(vsock: &Path, path: &'static str, timeout: Duration) -> Result<Bytes, QuestionError> {
    let exchange = async {
        let stream = vsock::connect(vsock, DATA_PLANE_PORT, timeout).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = http::Uri::from_static(path);
        request.headers_mut().insert(header::HOST, http::HeaderValue::from_static("localhost"));
        let answer = async {
            let response = sender.send_request(request).await?;
            if response.status() != StatusCode::OK {
                return Err(QuestionError::Status(response.status()));
            }
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            Ok(body.map_err(|_| QuestionError::Body)?.to_bytes())
        };
        // The connection is driven here, not on a task: it ends with the question.
        tokio::pin!(answer, connection);
        tokio::select! {
            result = &mut answer => result,
            ended = &mut connection => {
                ended?;
                answer.await
            }
        }
    };
    tokio::time::timeout(timeout, exchange).await.unwrap_or(Err(QuestionError::TimedOut(timeout)))
}
