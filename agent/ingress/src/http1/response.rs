//! The response of a server in a guest: its head, and how its body is framed.

use std::io;
use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Response, StatusCode, Version, response};
use hyper::body::Frame;

use crate::headers::list;

/// Fields of a response's head, and of its trailers.
const MAX_FIELDS: usize = 100;
/// Capacity for so many is made in any case: hyper gives the map to the next request, to which the proxy adds some.
const USUAL_FIELDS: usize = 14;
/// The line before a chunk, with its extensions, and the trailers.
const MAX_CHUNK_FRAME: usize = 16 * 1024;

/// Takes the head of a response, once it is complete.
pub(super) fn take_head(received: &mut BytesMut) -> io::Result<Option<response::Parts>> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut head = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut head, received, &mut fields);
    let httparse::Status::Complete(length) = parsed.map_err(malformed)? else { return Ok(None) };
    let (mut parts, ()) = Response::new(()).into_parts();
    parts.status = StatusCode::from_u16(head.code.unwrap_or_default()).map_err(|_| invalid("no status"))?;
    parts.version = if head.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    parts.headers = header_map(head.headers)?;
    received.advance(length);
    Ok(Some(parts))
}

fn header_map(fields: &[httparse::Header<'_>]) -> io::Result<HeaderMap> {
    let mut map = HeaderMap::with_capacity(fields.len().max(USUAL_FIELDS));
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(io::Error::other)?;
        map.append(name, HeaderValue::from_bytes(field.value).map_err(io::Error::other)?);
    }
    Ok(map)
}

fn malformed(error: httparse::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Whether the connection goes on after the response (RFC 9112 section 9.3).
pub(super) fn stays_open(head: &response::Parts) -> bool {
    let says = |word| list(&head.headers, &CONNECTION).any(|option| option.eq_ignore_ascii_case(word));
    match head.version {
        Version::HTTP_10 => says("keep-alive"),
        _ => !says("close"),
    }
}

/// What is to come of a body, and how its end is told (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes, at least one.
    Sized(u64),
    Chunked(Chunked),
    UntilClose,
    Complete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunked {
    /// Before the line with a chunk's size.
    Size,
    /// So many bytes of a chunk, at least one.
    Data(u64),
    /// Before the line end that follows a chunk.
    DataEnd,
    /// Before the fields that follow the last chunk, and the empty line.
    Trailers,
}

impl Framing {
    pub(super) fn of(response: &response::Parts, method: &Method) -> io::Result<Framing> {
        let bare = matches!(
            response.status,
            StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
        if bare || *method == Method::HEAD {
            return Ok(Framing::Complete);
        }
        if response.headers.contains_key(TRANSFER_ENCODING) {
            if response.version == Version::HTTP_10 {
                return Err(invalid("HTTP/1.0 has no Transfer-Encoding"));
            }
            let last = list(&response.headers, &TRANSFER_ENCODING).last();
            let chunked = last.is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
            return Ok(if chunked { Framing::Chunked(Chunked::Size) } else { Framing::UntilClose });
        }
        let mut lengths = response.headers.get_all(CONTENT_LENGTH).iter();
        let Some(length) = lengths.next() else { return Ok(Framing::UntilClose) };
        if lengths.any(|other| other != length) {
            return Err(invalid("two lengths"));
        }
        let digits = length.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.and_then(|digits| digits.parse().ok()) {
            None => Err(invalid("the length is no number")),
            Some(0) => Ok(Framing::Complete),
            Some(length) => Ok(Framing::Sized(length)),
        }
    }

    /// Takes a piece of the body. `None` at its end, and where more must be received.
    pub(super) fn take(&mut self, received: &mut BytesMut) -> io::Result<Option<Frame<Bytes>>> {
        loop {
            *self = match self {
                Framing::Complete => return Ok(None),
                Framing::UntilClose => {
                    let mut whatever = u64::MAX;
                    return Ok(take_piece(received, &mut whatever));
                }
                Framing::Sized(left) => {
                    let piece = take_piece(received, left);
                    if *left == 0 {
                        *self = Framing::Complete;
                    }
                    return Ok(piece);
                }
                Framing::Chunked(Chunked::Data(left)) => {
                    let piece = take_piece(received, left);
                    if *left == 0 {
                        *self = Framing::Chunked(Chunked::DataEnd);
                    }
                    return Ok(piece);
                }
                Framing::Chunked(Chunked::DataEnd) => match received.get(..2) {
                    None => return Ok(None),
                    Some(b"\r\n") => {
                        received.advance(2);
                        Framing::Chunked(Chunked::Size)
                    }
                    Some(_) => return Err(invalid("a chunk does not end where it says")),
                },
                Framing::Chunked(Chunked::Size) => match httparse::parse_chunk_size(received) {
                    Ok(httparse::Status::Complete((length, size))) => {
                        received.advance(length);
                        Framing::Chunked(if size == 0 { Chunked::Trailers } else { Chunked::Data(size) })
                    }
                    Ok(httparse::Status::Partial) if received.len() < MAX_CHUNK_FRAME => return Ok(None),
                    _ => return Err(invalid("a chunk has no valid size")),
                },
                Framing::Chunked(Chunked::Trailers) => {
                    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
                    match httparse::parse_headers(received, &mut fields).map_err(malformed)? {
                        httparse::Status::Complete((length, fields)) => {
                            let trailers = header_map(fields)?;
                            received.advance(length);
                            *self = Framing::Complete;
                            return Ok((!trailers.is_empty()).then(|| Frame::trailers(trailers)));
                        }
                        httparse::Status::Partial if received.len() < MAX_CHUNK_FRAME => return Ok(None),
                        httparse::Status::Partial => return Err(invalid("the trailers are too long")),
                    }
                }
            }
        }
    }
}

/// Takes what has come of `left` more bytes.
fn take_piece(received: &mut BytesMut, left: &mut u64) -> Option<Frame<Bytes>> {
    let length = usize::try_from(*left).map_or(received.len(), |left| left.min(received.len()));
    *left -= length as u64;
    (length > 0).then(|| Frame::data(received.split_to(length).freeze()))
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_of_a_guest_make_it_panic() {
        use proptest::prelude::*;
        let part = prop_oneof![
            Just("HTTP/1.1 200 OK\r\n".to_owned()),
            Just("Transfer-Encoding: chunked\r\n".to_owned()),
            Just("Content-Length: 5\r\n".to_owned()),
            Just("\r\n".to_owned()),
            Just("ffffffffffffffff\r\n".to_owned()),
            "[0-9a-f]{1,3}\r\n",
            ".{0,9}",
        ];
        proptest!(|(parts in prop::collection::vec(part, 0..12), cut in 1usize..9)| {
            let (mut received, mut body) = (BytesMut::new(), None);
            for piece in parts.concat().as_bytes().chunks(cut) {
                received.extend_from_slice(piece);
                if body.is_none() {
                    let Ok(head) = take_head(&mut received) else { return Ok(()) };
                    let Some(Ok(framing)) = head.map(|head| Framing::of(&head, &Method::GET)) else { continue };
                    body = Some(framing);
                }
                while let Some(Ok(Some(frame))) = body.as_mut().map(|body| body.take(&mut received)) {
                    prop_assert!(frame.data_ref().is_none_or(|data| !data.is_empty()));
                }
            }
        });
    }
}
