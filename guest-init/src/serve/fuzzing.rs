//! What the fuzz targets reach (`tests/fuzz`): what reads bodies of requests, without what they ask for.

use std::convert::Infallible;
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::stream::iter;
use http_body_util::StreamBody;
use hyper::body::{Body, Frame};
use sandpiper_protocol::connect::ErrorBody;

use super::connect::Messages;
use super::files::{Form, resolve};
use crate::users::User;

/// A body that arrives in these pieces.
fn body<'a>(
    pieces: impl Iterator<Item = &'a [u8]> + Send,
) -> impl Body<Data = Bytes, Error = Infallible> + Send + Unpin {
    let frames: Vec<_> = pieces.map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
    StreamBody::new(iter(frames))
}

/// The messages of a client's stream, and the error that it ends with, if any.
pub async fn messages<'a>(pieces: impl Iterator<Item = &'a [u8]> + Send) -> (Vec<Vec<u8>>, Option<ErrorBody>) {
    let mut messages = Messages::new(body(pieces));
    let mut read = Vec::new();
    loop {
        match messages.next().await {
            Ok(Some(message)) => read.push(message),
            Ok(None) => return (read, None),
            Err(error) => return (read, Some(error.body())),
        }
    }
}

/// Targets and contents of the files that a form puts into the sandbox; `None` if it is refused. `content_type` is that of
/// the request, `path` its query's.
pub async fn form<'a>(
    content_type: &str,
    path: Option<&str>,
    pieces: impl Iterator<Item = &'a [u8]> + Send,
) -> Option<Vec<(PathBuf, Vec<u8>)>> {
    let boundary = multer::parse_boundary(content_type).ok()?;
    let mut form = Form::new(body(pieces), boundary, path.map(str::to_owned));
    let mut files = Vec::new();
    while let Some((mut field, target)) = form.next().await.ok()? {
        let mut content = Vec::new();
        while let Some(piece) = field.chunk().await.ok()? {
            content.extend_from_slice(&piece);
        }
        files.push((resolve(&target, &User::example()), content));
    }
    Some(files)
}
