//! `GET /files`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, RANGE,
};
use hyper::{Request, StatusCode};

use super::{FileError, PIECE, blocking, lookup, resolve, user_name};
use crate::serve::App;
use crate::serve::credentials::as_user;
use crate::serve::http::{Response, query, status};

/// Sends a file, or one range of it.
pub(in crate::serve) async fn download(request: Request<Incoming>, app: &Arc<App>) -> Response {
    match try_download(&request, app).await {
        Ok(response) => response,
        Err(error) => error.response(),
    }
}

/// A file, open, and its beginning.
struct Opened {
    file: File,
    size: u64,
    /// The bytes up to here are in `head`; if the file ends there, all of them.
    head: Vec<u8>,
}

async fn try_download(request: &Request<Incoming>, app: &Arc<App>) -> Result<Response, FileError> {
    let path = query(request, "path").ok_or_else(|| FileError::Request("The query names no path".into()))?;
    let user = user_name(request, app);
    let opened = blocking(move || open(&path, &user)).await?;
    let range = match requested_range(request.headers(), opened.size) {
        RequestedRange::Whole => None,
        RequestedRange::Part(range) => Some(range),
        RequestedRange::Unsatisfiable => {
            let mut response = status(StatusCode::RANGE_NOT_SATISFIABLE);
            insert(response.headers_mut(), CONTENT_RANGE, format!("bytes */{}", opened.size));
            return Ok(response);
        }
    };
    let size = opened.size;
    let sent = range.clone().unwrap_or(0..size);
    let length = sent.end - sent.start;
    let pieces = pieces(opened, sent).map(|piece| piece.map(Frame::data));
    let mut response = hyper::Response::new(StreamBody::new(pieces).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("inline"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    if let Some(range) = range {
        insert(headers, CONTENT_RANGE, format!("bytes {}-{}/{size}", range.start, range.end - 1));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

fn insert(headers: &mut HeaderMap, name: hyper::header::HeaderName, value: String) {
    // Digits and dashes always are a header's value.
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

/// Opens a file as a user and reads its beginning. Files of `/proc` and `/sys` claim a size that is not theirs, so one that
/// ends within the beginning has the size that was read.
fn open(path: &str, user: &str) -> Result<Opened, FileError> {
    let user = lookup(user)?;
    let path = resolve(path, &user.home);
    let failed = FileError::path(&path);
    let opened = as_user(&user, || {
        // Without O_NONBLOCK, opening a named pipe would wait for its writer.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
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
        Ok(Opened { file, size, head })
    });
    opened.and_then(|opened| opened).map_err(failed)
}

#[derive(Debug, PartialEq, Eq)]
enum RequestedRange {
    Whole,
    Part(Range<u64>),
    Unsatisfiable,
}

/// What of `size` bytes is wanted. Several ranges, or what cannot be understood, is the whole, as HTTP allows.
fn requested_range(headers: &HeaderMap, size: u64) -> RequestedRange {
    let spec = headers.get(RANGE).and_then(|value| value.to_str().ok()).and_then(|value| value.strip_prefix("bytes="));
    let Some((first, last)) = spec.and_then(|spec| spec.trim().split_once('-')) else {
        return RequestedRange::Whole;
    };
    let range = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Ok(first), Err(_)) if last.is_empty() => first..size,
        (Err(_), Ok(count)) if first.is_empty() => size.saturating_sub(count)..size,
        _ => return RequestedRange::Whole,
    };
    if range.is_empty() { RequestedRange::Unsatisfiable } else { RequestedRange::Part(range) }
}

/// The bytes of a range, read as they are sent. A file that has become shorter breaks the answer off.
fn pieces(opened: Opened, range: Range<u64>) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send {
    let Opened { file, head, .. } = opened;
    let first = usize::try_from(range.start).ok().filter(|start| *start < head.len()).map(|start| {
        let end = usize::try_from(range.end).map_or(head.len(), |end| end.min(head.len()));
        Bytes::from(head).slice(start..end)
    });
    let position = range.start + first.as_ref().map_or(0, |first| first.len() as u64);
    let rest = stream::try_unfold((file, position), move |(file, position)| async move {
        if position >= range.end {
            return Ok(None);
        }
        let wanted = usize::try_from(range.end - position).unwrap_or(PIECE).min(PIECE);
        let read = tokio::task::spawn_blocking(move || read_at(file, position, wanted)).await;
        let (file, piece) = read.map_err(io::Error::other)??;
        let next = position + piece.len() as u64;
        Ok(Some((piece, (file, next))))
    });
    stream::iter(first.map(Ok)).chain(rest)
}

fn read_at(mut file: File, position: u64, wanted: usize) -> io::Result<(File, Bytes)> {
    file.seek(SeekFrom::Start(position))?;
    let mut piece = Vec::with_capacity(wanted);
    (&mut file).take(wanted as u64).read_to_end(&mut piece)?;
    if piece.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((file, piece.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_http_defines_them() {
        let range = |value: &'static str| {
            requested_range(&HeaderMap::from_iter([(RANGE, HeaderValue::from_static(value))]), 10)
        };
        assert_eq!(range("bytes=0-3"), RequestedRange::Part(0..4));
        assert_eq!(range("bytes=8-99"), RequestedRange::Part(8..10));
        assert_eq!(range("bytes=4-"), RequestedRange::Part(4..10));
        assert_eq!(range("bytes=-3"), RequestedRange::Part(7..10));
        assert_eq!(range("bytes=10-"), RequestedRange::Unsatisfiable);
        assert_eq!(range("bytes=-0"), RequestedRange::Unsatisfiable);
        assert_eq!(range("bytes=5-2"), RequestedRange::Whole);
        assert_eq!(range("bytes=0-1,4-5"), RequestedRange::Whole);
        assert_eq!(range("lines=0-1"), RequestedRange::Whole);
        assert_eq!(requested_range(&HeaderMap::new(), 0), RequestedRange::Whole);
    }
}
