//! `GET /files`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{Stream, StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap,
    HeaderName, HeaderValue, LAST_MODIFIED, RANGE, VARY,
};
use hyper::{Request, StatusCode};
use rustix::fs::{CWD, OFlags};
use sandpiper_durable::blocking;

use super::buffers::Buffers;
use super::condition::{Validators, Verdict};
use super::encoding::{Accepted, accepted};
use super::range::{RequestedRange, requested_range};
use super::{FileError, PIECE, lookup, resolve, user_name};
use crate::serve::credentials::as_user;
use crate::serve::http::{Response, status};
use crate::serve::open::open;
use crate::serve::query::query;
use crate::serve::{App, Settings};

/// Pieces that are read before they can be sent, so that disk and connection work at the same time.
const READ_AHEAD: usize = 2;

/// Bytes below which compressing gains nothing.
const MIN_COMPRESSED: usize = 512;

/// Sends a file, or one range of it.
pub(in crate::serve) async fn download(request: Request<Incoming>, app: &Arc<App>) -> Response {
    match try_download(&request, app).await {
        Ok(response) => response,
        Err(error) => error.response(),
    }
}

/// A file, open, and its beginning.
pub(in crate::serve) struct Opened {
    file: File,
    size: u64,
    /// The bytes up to here are in `head`; if the file ends there, all of them.
    head: Vec<u8>,
    /// None of a file that the kernel makes up as it is read.
    validators: Option<Validators>,
}

async fn try_download(request: &Request<Incoming>, app: &Arc<App>) -> Result<Response, FileError> {
    let path = query(request, "path")?.ok_or_else(|| FileError::Request("The query names no path".into()))?;
    let user = user_name(request, app)?;
    let headers = request.headers();
    let accepted = accepted(headers);
    if !accepted.identity && !accepted.gzip {
        return Err(FileError::NotAcceptable);
    }
    let settings = app.settings();
    let opened = blocking(move || begin(&path, &user, &settings)).await?;
    let validators = opened.validators.clone();
    let verdict = validators.as_ref().map_or(Verdict::Send, |validators| validators.judge(headers));
    let mut response = match verdict {
        Verdict::Failed => return Err(FileError::Condition),
        Verdict::NotModified => status(StatusCode::NOT_MODIFIED),
        Verdict::Send => send(opened, headers, accepted).await?,
    };
    let is_encoded = response.headers().contains_key(CONTENT_ENCODING);
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if let Some(Validators { tag, modified }) = validators {
        // Compressed, it is the same file in other bytes: what a weak tag says.
        insert(headers, ETAG, if is_encoded { format!("W/{tag}") } else { tag });
        insert(headers, LAST_MODIFIED, httpdate::fmt_http_date(modified));
    }
    Ok(response)
}

/// The whole file, or the range that is asked for.
async fn send(opened: Opened, headers: &HeaderMap, accepted: Accepted) -> Result<Response, FileError> {
    let wants_range = accepted.identity && opened.is_for_range(headers);
    let opened = match accepted.gzip && !wants_range {
        true => match blocking(move || Ok::<_, FileError>(compress(opened, accepted.identity))).await? {
            Ok((beginning, rest)) => return Ok(compressed(beginning, rest)),
            Err(opened) => opened,
        },
        false => opened,
    };
    Ok(plain(opened, headers))
}

/// A file as it is, or the range of it that is asked for.
pub(in crate::serve) fn plain(opened: Opened, headers: &HeaderMap) -> Response {
    let size = opened.size;
    let wanted = if opened.is_for_range(headers) { requested_range(headers, size) } else { RequestedRange::Whole };
    let range = match wanted {
        RequestedRange::Whole => None,
        RequestedRange::Part(range) => Some(range),
        RequestedRange::Unsatisfiable => {
            let mut response = status(StatusCode::RANGE_NOT_SATISFIABLE);
            insert(response.headers_mut(), CONTENT_RANGE, format!("bytes */{size}"));
            return response;
        }
    };
    let sent = range.clone().unwrap_or(0..size);
    let length = sent.end - sent.start;
    let mut response = response(pieces(opened, sent));
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    if let Some(range) = range {
        insert(headers, CONTENT_RANGE, format!("bytes {}-{}/{size}", range.start, range.end - 1));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

fn response(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Response {
    let pieces = pieces.map(|piece| piece.map(Frame::data));
    let mut response = hyper::Response::new(StreamBody::new(pieces).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("inline"));
    response
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: String) {
    // What is put into headers here has letters, digits and plain signs, which always are a value.
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

impl Opened {
    /// Reads the beginning of a file. Files of `/proc` and `/sys` claim a size that is not theirs, so one that ends within the
    /// beginning has the size that was read. Blocks.
    ///
    /// # Errors
    ///
    /// Fails if it is not a regular file, or cannot be read.
    pub(in crate::serve) fn read(mut file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        if meta.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut head = Vec::new();
        (&mut file).take(PIECE as u64).read_to_end(&mut head)?;
        let size = if head.len() < PIECE { head.len() as u64 } else { meta.len().max(head.len() as u64) };
        let validators = (size == meta.len()).then(|| Validators::of(&meta));
        Ok(Self { file, size, head, validators })
    }

    /// Whether a range is wanted, and of the state that the file is in.
    fn is_for_range(&self, headers: &HeaderMap) -> bool {
        let is_same = || self.validators.as_ref().is_none_or(|validators| validators.allow_range(headers));
        headers.contains_key(RANGE) && is_same()
    }
}

/// Opens a file as a user and reads its beginning.
fn begin(path: &str, user: &str, settings: &Settings) -> Result<Opened, FileError> {
    let user = lookup(user, settings)?;
    let path = resolve(path, &user);
    let failed = FileError::path(&path);
    let opened = as_user(&user, || {
        // Without O_NONBLOCK, opening a named pipe would wait for its writer.
        let file = File::from(open(CWD, &path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?);
        Opened::read(file)
    });
    opened.and_then(|opened| opened).map_err(failed)
}

/// The bytes of a range, read as they are sent, and some ahead. A file that has become shorter breaks the response off.
fn pieces(opened: Opened, range: Range<u64>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let Opened { file, head, .. } = opened;
    let first = usize::try_from(range.start).ok().filter(|start| *start < head.len()).map(|start| {
        let end = usize::try_from(range.end).map_or(head.len(), |end| end.min(head.len()));
        Bytes::from(head).slice(start..end)
    });
    let position = range.start + first.as_ref().map_or(0, |first| first.len() as u64);
    let (file, buffers) = (Arc::new(file), Arc::new(Buffers::default()));
    let rest = stream::iter((position..range.end).step_by(PIECE)).map(move |start| {
        let (file, buffers) = (Arc::clone(&file), Arc::clone(&buffers));
        // Begins now, while the piece before is sent.
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = buffers.take(length_of(start, range.end));
            file.read_exact_at(buffer.as_mut(), start)?;
            Ok(Bytes::from_owner(buffer))
        });
        async { read.await.map_err(io::Error::other)? }
    });
    stream::iter(first.map(Ok)).chain(rest.buffered(READ_AHEAD))
}

/// Of the piece at `start`, which ends at `end` at the latest.
fn length_of(start: u64, end: u64) -> usize {
    usize::try_from(end.saturating_sub(start)).unwrap_or(PIECE).min(PIECE)
}

/// The rest of a file whose beginning is compressed.
struct Rest {
    file: File,
    position: u64,
    size: u64,
    encoder: GzEncoder<Vec<u8>>,
}

/// Compresses the beginning of a file. Gives it back if that gains nothing and the client takes it as it is: pictures and
/// archives go faster so.
fn compress(opened: Opened, may_decline: bool) -> Result<(Bytes, Rest), Opened> {
    let length = opened.head.len();
    if may_decline && length < MIN_COMPRESSED {
        return Err(opened);
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Into memory, which does not fail.
    let written = encoder.write_all(&opened.head).and_then(|()| encoder.flush());
    if written.is_err() || may_decline && encoder.get_ref().len() > length / 10 * 9 {
        return Err(opened);
    }
    let beginning = std::mem::take(encoder.get_mut());
    let Opened { file, size, .. } = opened;
    Ok((beginning.into(), Rest { file, position: length as u64, size, encoder }))
}

/// A file that is compressed as it is sent.
fn compressed(beginning: Bytes, rest: Rest) -> Response {
    let rest = stream::try_unfold(Some(rest), |rest| async move {
        let Some(rest) = rest else { return Ok(None) };
        tokio::task::spawn_blocking(move || rest.next().map(Some)).await.map_err(io::Error::other)?
    });
    let mut response = response(stream::iter([Ok(beginning)]).chain(rest));
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

impl Rest {
    /// The next piece, and what is left after it.
    fn next(mut self) -> io::Result<(Bytes, Option<Self>)> {
        if self.position >= self.size {
            return Ok((self.encoder.finish()?.into(), None));
        }
        let mut piece = vec![0; length_of(self.position, self.size)];
        self.file.read_exact_at(&mut piece, self.position)?;
        self.position += piece.len() as u64;
        self.encoder.write_all(&piece)?;
        let bytes = std::mem::take(self.encoder.get_mut());
        Ok((bytes.into(), Some(self)))
    }
}
