//! `POST /files`.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use futures_util::{Stream, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use hyper::{Request, StatusCode};
use sandpiper_protocol::process::WrittenFile;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::draft::{Draft, Place};
use super::form::Form;
use super::metadata::Metadata;
use super::{FileError, PIECE, PIECE_TIMEOUT, blocking, late, lookup, resolve, user_name, written};
use crate::serve::App;
use crate::serve::http::{Response, json};
use crate::serve::query::query;
use crate::users::User;

/// For the rest of the body of an upload that has failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Pieces of a body that are written at once.
const MAX_HELD: usize = 64;

/// Takes one file as the body, or several as a form.
pub(in crate::serve) async fn upload(request: Request<Incoming>, app: &Arc<App>) -> Response {
    let waits = request.headers().contains_key(EXPECT);
    let (head, mut body) = request.into_parts();
    match try_upload(&Request::from_parts(head, ()), &mut body, app).await {
        Ok(written) => json(StatusCode::OK, &written),
        Err(error) => {
            // A client that is still sending when the connection closes may never read why.
            if !waits {
                let _ = timeout(DRAIN_TIMEOUT, async { while let Some(Ok(_)) = body.frame().await {} }).await;
            }
            error.response()
        }
    }
}

async fn try_upload(request: &Request<()>, body: &mut Incoming, app: &Arc<App>) -> Result<Vec<WrittenFile>, FileError> {
    let path = query(request, "path")?;
    let name = user_name(request, app)?;
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
    let encoding = Encoding::of(header(CONTENT_ENCODING))?;
    let metadata = Metadata::of(request.headers())?;
    let content_type = header(CONTENT_TYPE).unwrap_or_default();
    let boundary = multer::parse_boundary(content_type).ok();
    let is_bytes = content_type.split(';').next().is_some_and(|kind| kind.trim() == "application/octet-stream");
    let user = blocking(move || lookup(&name)).await?;
    match (boundary, path) {
        (Some(_), _) if encoding == Encoding::Gzip => {
            Err(FileError::Media("A compressed upload is one file as application/octet-stream, not a form".into()))
        }
        (Some(boundary), path) => {
            let mut form = Form::new(body, boundary, path);
            let mut written = Vec::new();
            while let Some((field, target)) = form.next().await? {
                let new = NewFile { path: target, user: user.clone(), metadata: metadata.clone(), encoding };
                written.push(receive(field.map_err(|error| error.to_string()), new).await?);
            }
            Ok(written)
        }
        (None, Some(path)) if is_bytes => {
            let body = body.into_data_stream().map_err(|error| error.to_string());
            Ok(vec![receive(body, NewFile { path, user, metadata, encoding }).await?])
        }
        (None, None) if is_bytes => Err(FileError::Request("The query names no path".into())),
        _ => Err(FileError::Request("Send a form (multipart/form-data) or application/octet-stream".into())),
    }
}

/// How the bytes of a file are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
}

impl Encoding {
    fn of(name: Option<&str>) -> Result<Self, FileError> {
        match name.map(str::trim).unwrap_or_default() {
            name if name.is_empty() || name.eq_ignore_ascii_case("identity") => Ok(Self::Identity),
            name if name.eq_ignore_ascii_case("gzip") => Ok(Self::Gzip),
            _ => Err(FileError::Media("Uploads may be compressed with gzip, and in no other way".into())),
        }
    }
}

struct NewFile {
    path: String,
    user: User,
    metadata: Metadata,
    encoding: Encoding,
}

/// What the bytes of a body go through on their way into a file. What is unpacked is written at once, in small pieces: a
/// body that unpacks to a thousand times its length takes disk, as the user could, and no memory.
enum Writer {
    Plain(Draft),
    Gzip(Box<MultiGzDecoder<Draft>>),
}

impl Writer {
    /// Writes what arrived, as it arrived: it is not copied together first.
    fn write(&mut self, pieces: &[Bytes]) -> io::Result<()> {
        match self {
            Self::Plain(draft) => draft.write_pieces(pieces),
            Self::Gzip(decoder) => pieces.iter().try_for_each(|piece| decoder.write_all(piece)),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(draft) => draft,
            Self::Gzip(decoder) => decoder.finish().map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    io::Error::new(io::ErrorKind::InvalidInput, "the gzip stream is cut off")
                }
                _ => error,
            })?,
        }
        .finish()
    }
}

/// Writes one file. A piece is written while the next one arrives.
async fn receive(body: impl Stream<Item = Result<Bytes, String>>, new: NewFile) -> Result<WrittenFile, FileError> {
    let NewFile { path, user, metadata, encoding } = new;
    let path = resolve(&path, &user.home);
    let failed = FileError::path(&path);
    // Before the body is read: a client that waits for leave to send it is to hear of a refusal first.
    let writer = blocking({
        let (path, metadata, failed) = (path.clone(), metadata.clone(), FileError::path(&path));
        move || {
            let draft = Draft::create(path, user, &metadata, Place::BesideOrOver).map_err(failed)?;
            Ok(match encoding {
                Encoding::Identity => Writer::Plain(draft),
                Encoding::Gzip => Writer::Gzip(Box::new(MultiGzDecoder::new(draft))),
            })
        }
    })
    .await?;
    let mut writing = spawn_blocking(move || Ok::<_, io::Error>(writer));
    let mut body = std::pin::pin!(body);
    let (mut held, mut length) = (Vec::new(), 0);
    while let Some(piece) = timeout(PIECE_TIMEOUT, body.next()).await.map_err(|_| late())? {
        let piece = piece.map_err(FileError::Incomplete)?;
        length += piece.len();
        held.push(piece);
        // So many, if they are tiny: each keeps the buffer alive that it was read into.
        if length >= PIECE || held.len() >= MAX_HELD {
            let pieces = std::mem::take(&mut held);
            length = 0;
            let mut writer = writing.await?.map_err(&failed)?;
            writing = spawn_blocking(move || writer.write(&pieces).map(|()| writer));
        }
    }
    let mut writer = writing.await?.map_err(&failed)?;
    blocking(move || writer.write(&held).and_then(|()| writer.finish()).map_err(failed)).await?;
    Ok(written(&path, metadata))
}
