//! A guest's response, from its bytes to what is passed on of it.

use std::future::poll_fn;
use std::io;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_util::either::Either;

use super::TIMEOUT;
use crate::http1::{Http1, SendError};
use crate::idle::IdleIo;
use crate::upload::Upload;

/// What a guest's server answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The pieces of its body, as they were passed on.
    pub body: Vec<Bytes>,
    pub trailers: Option<HeaderMap>,
    /// What came behind the response.
    pub rest: Vec<u8>,
    /// Whether the connection would be used again, had the rest been nothing and the server not closed.
    pub keep_alive: bool,
}

/// Sends a request by `method` to a server that answers with these bytes, piece by piece, and closes; `None` if what it
/// answers is refused.
pub async fn exchange<'a>(method: Method, answer: impl Iterator<Item = &'a [u8]>) -> Option<Answer> {
    let (near, mut far) = UnixStream::pair().ok()?;
    let mut link = Http1::new(IdleIo::new(Either::Left(near), TIMEOUT));
    let server = async {
        for piece in answer {
            far.write_all(piece).await?;
            // The other side has a look at what there is.
            tokio::task::yield_now().await;
        }
        far.shutdown().await
    };
    let client = async {
        let mut request = Request::new(Upload::Empty);
        *request.method_mut() = method;
        let head = link.send(request).await.map_err(|(error, _)| error)?;
        let (mut body, mut trailers) = (Vec::new(), None);
        while let Some(frame) = poll_fn(|cx| link.poll_frame(cx)).await {
            match frame?.into_data() {
                Ok(data) => body.push(data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        let keep_alive = link.keep_alive();
        let (mut stream, received) = link.into_stream().ok_or(SendError::Unsent)?;
        let mut rest = received.into();
        stream.read_to_end(&mut rest).await?;
        let (status, headers) = (head.status(), head.headers().clone());
        Ok::<_, SendError>(Answer { status, headers, body, trailers, rest, keep_alive })
    };
    // A server whose response is wrong meets a closed connection, and does not mind.
    let (_closed, answer): (io::Result<()>, _) = tokio::join!(server, client);
    answer.ok()
}
