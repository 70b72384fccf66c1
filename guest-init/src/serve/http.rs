//! What every handler needs of HTTP: responses, the user of a request.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Serialize;

/// A body that may break off: the connection is then closed before its announced end.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;
pub(super) type Response = hyper::Response<Body>;

/// A response without a body.
pub(super) fn status(status: StatusCode) -> Response {
    let mut response = hyper::Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

/// A response of bytes at hand.
pub(super) fn bytes(status: StatusCode, content_type: &'static str, bytes: impl Into<Bytes>) -> Response {
    let body = Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = hyper::Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => bytes(status, "application/json", text),
        // Only maps with keys that are no text can fail, and there are none here.
        Err(_) => self::status(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: u16,
    message: &'a str,
}

/// An error outside the Connect protocol.
pub(super) fn error(status: StatusCode, message: &str) -> Response {
    json(status, &ErrorBody { code: status.as_u16(), message })
}

/// The user name of Basic authorization; the SDKs send an empty password.
pub(super) fn basic_user(headers: &HeaderMap) -> Option<String> {
    let (scheme, encoded) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (name, _) = decoded.split_once(':').unwrap_or((&decoded, ""));
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

/// A header that holds a whole number.
pub(super) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_the_part_before_the_colon() {
        let headers = |value: &'static str| HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
        assert_eq!(basic_user(&headers("Basic cm9vdDo=")).as_deref(), Some("root"));
        assert_eq!(basic_user(&headers("Bearer cm9vdDo=")), None);
        assert_eq!(basic_user(&headers("Basic ?")), None);
        assert_eq!(basic_user(&HeaderMap::new()), None);
    }
}
