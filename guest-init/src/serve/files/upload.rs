//! `POST /files`.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use futures_util::{Stream, TryStreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use hyper::{Request, StatusCode};
use sandpiper_durable::blocking;
use sandpiper_protocol::process::WrittenFile;
use tokio::time::timeout;

use super::draft::{Draft, Place};
use super::form::Form;
use super::metadata::Metadata;
use super::{FileError, late, lookup, resolve, user_name, written};
use crate::serve::App;
use crate::serve::http::{Response, json};
use crate::serve::pour::{PourError, pour};
use crate::serve::query::query;
use crate::users::User;

/// For the rest of the body of an upload that has failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

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
    let settings = app.settings();
    let user = blocking(move || lookup(&name, &settings)).await?;
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
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(draft) => draft.write_all(bytes),
            Self::Gzip(decoder) => decoder.write_all(bytes),
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
    let path = resolve(&path, &user);
    let failed = FileError::path(&path);
    // Before the body is read: a client that waits for leave to send it is to hear of a refusal first.
    let writer = blocking({
        let (path, metadata, failed) = (path.clone(), metadata.clone(), FileError::path(&path));
        move || {
            let draft = Draft::create(path, user, &metadata, Place::BesideOrOver).map_err(failed)?;
            Ok::<_, FileError>(match encoding {
                Encoding::Identity => Writer::Plain(draft),
                Encoding::Gzip => Writer::Gzip(Box::new(MultiGzDecoder::new(draft))),
            })
        }
    })
    .await?;
    let writer = pour(body, writer, Writer::write).await.map_err(|error| match error {
        PourError::Late => late(),
        PourError::Broken(reason) => FileError::Incomplete(reason),
        PourError::Write(error) => failed(error),
        PourError::Task(error) => error.into(),
    })?;
    blocking(move || writer.finish().map_err(failed)).await?;
    Ok(written(&path, metadata))
}
