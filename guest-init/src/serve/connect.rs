//! The Connect protocol over HTTP/1.1: unary calls and streams, both in JSON.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, StatusCode};
use sandpiper_durable::Interrupted;
use sandpiper_protocol::connect::{
    Code, Decoder, END_OF_STREAM, EndOfStream, ErrorBody, STREAM_CONTENT_TYPE, envelope,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::http::{Response, bytes, json, number, status};
use crate::users::LookupError;

/// Longest message taken: what a client puts into one `SendInput`, in base64.
pub(super) const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// For the whole body of a call that is not a stream of the client's.
const BODY_TIMEOUT: Duration = Duration::from_secs(120);

/// How often an idle stream says that it is alive, unless the client asks otherwise.
const KEEPALIVE: Duration = Duration::from_secs(90);

/// An error of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Error {
    code: Code,
    message: String,
}

impl From<Interrupted> for Error {
    fn from(interrupted: Interrupted) -> Self {
        Self::new(Code::Internal, interrupted.to_string())
    }
}

impl Error {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(super) fn body(&self) -> ErrorBody {
        ErrorBody { code: self.code, message: self.message.clone() }
    }
}

impl From<LookupError> for Error {
    fn from(error: LookupError) -> Self {
        let code = match error {
            LookupError::Unknown(_) => Code::Unauthenticated,
            LookupError::Database(_) => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}

/// How the messages of a call are wrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Unary,
    Stream,
}

impl Wire {
    /// The form that a request announces; `None` if it is neither, gRPC for instance.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let content_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if media_type.eq_ignore_ascii_case(STREAM_CONTENT_TYPE) {
            Some(Self::Stream)
        } else if media_type.eq_ignore_ascii_case("application/json") {
            Some(Self::Unary)
        } else {
            None
        }
    }

    /// The whole response to a call that failed.
    pub(super) fn error(self, error: &Error) -> Response {
        match self {
            Self::Unary => {
                let status =
                    StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                json(status, &error.body())
            }
            Self::Stream => bytes(StatusCode::OK, STREAM_CONTENT_TYPE, end(Some(error))),
        }
    }
}

/// Service and method of `/<package>.<Service>/<Method>`.
pub(super) fn method_of(path: &str) -> Option<(&str, &str)> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    (service.contains('.') && plain(service) && plain(method)).then_some((service, method))
}

/// The response to a method that does not exist here.
pub(super) fn unimplemented<B>(request: &Request<B>) -> Response {
    let message = format!("{} is not part of this version", request.uri().path());
    match Wire::of(request.headers()) {
        Some(wire) => wire.error(&Error::new(Code::Unimplemented, message)),
        None => unsupported_media_type(),
    }
}

/// The response to a call in another encoding, which names those that are known.
fn unsupported_media_type() -> Response {
    let mut response = status(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let known = HeaderValue::from_static("application/json, application/connect+json");
    response.headers_mut().insert("accept-post", known);
    response
}

/// `Connect-Timeout-Ms`: what the caller gives the call; nothing, or 0, is for ever.
pub(super) fn deadline(headers: &HeaderMap) -> Option<Duration> {
    number(headers, "connect-timeout-ms").filter(|millis| *millis > 0).map(Duration::from_millis)
}

/// `Keepalive-Ping-Interval`, in seconds.
pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    number(headers, "keepalive-ping-interval")
        .filter(|seconds| *seconds > 0)
        .map_or(KEEPALIVE, |seconds| Duration::from_secs(seconds.min(86_400)))
}

/// Lets a call in whose messages are wrapped as `expected`, and returns the time that its caller gives it. Otherwise the
/// response that refuses it.
pub(super) fn admit(headers: &HeaderMap, expected: Wire) -> Result<Option<Duration>, Box<Response>> {
    if Wire::of(headers) != Some(expected) {
        return Err(Box::new(unsupported_media_type()));
    }
    let encoding = headers.get(CONTENT_ENCODING).map(|encoding| encoding.as_bytes().trim_ascii());
    if encoding.is_some_and(|encoding| !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity")) {
        let message = "Compressed requests are not supported: send the message as it is";
        return Err(Box::new(expected.error(&Error::new(Code::Unimplemented, message))));
    }
    Ok(deadline(headers))
}

/// The response of a call, within `time`. What it has begun by then goes on: a folder's removal, for instance.
pub(super) async fn respond(
    wire: Wire,
    time: Option<Duration>,
    call: impl Future<Output = Result<Response, Error>>,
) -> Response {
    let response = match time {
        Some(time) => timeout(time, call).await.unwrap_or_else(|_| Err(deadline_exceeded())),
        None => call.await,
    };
    response.unwrap_or_else(|error| wire.error(&error))
}

/// The end of a call whose caller gave it no more time.
pub(super) fn deadline_exceeded() -> Error {
    Error::new(Code::DeadlineExceeded, "The time that the request gave is over")
}

/// The one message of a unary call.
pub(super) async fn unary_message<T: DeserializeOwned>(body: Incoming) -> Result<T, Error> {
    parse(&whole(body).await?)
}

/// The one message of a call whose response is a stream, which does not wait for the end of the request's body.
pub(super) async fn stream_message<T: DeserializeOwned>(body: Incoming) -> Result<T, Error> {
    let mut messages = Messages::new(body);
    let message = messages.next().await?;
    tokio::spawn(read_to_end(messages.body));
    match message {
        Some(message) => parse(&message),
        None => Err(Error::invalid("The request holds no message")),
    }
}

/// Reads what is left of a body. A connection with one of which somebody has not read the end is closed after the response, and the
/// response does not say so: a proxy has sent the next request by then.
async fn read_to_end(body: Incoming) {
    let mut rest = Limited::new(body, MAX_MESSAGE);
    let read = async { while let Some(Ok(_)) = rest.frame().await {} };
    // Who sends on for longer has the connection closed.
    let _ = timeout(BODY_TIMEOUT, read).await;
}

fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    // Kinds and places only: serde quotes values, which may be secrets, only for unknown variants of enums.
    serde_json::from_slice(json).map_err(|error| Error::invalid(format!("The message cannot be read: {error}")))
}

async fn whole(body: Incoming) -> Result<Bytes, Error> {
    match timeout(BODY_TIMEOUT, Limited::new(body, MAX_MESSAGE).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Error::new(Code::ResourceExhausted, format!("The message is over the limit of {MAX_MESSAGE} bytes")))
        }
        Ok(Err(_)) => Err(Error::new(Code::Canceled, "The request broke off")),
        Err(_) => Err(Error::new(Code::DeadlineExceeded, "The request did not arrive in time")),
    }
}

/// The messages of a client's stream, one after the other.
pub(super) struct Messages<B> {
    body: B,
    decoder: Decoder,
}

impl<B: Body<Data = Bytes> + Unpin> Messages<B> {
    pub(super) fn new(body: B) -> Self {
        Self { body, decoder: Decoder::new(MAX_MESSAGE) }
    }

    /// The next message; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            match self.decoder.next_envelope().map_err(|error| Error::invalid(error.to_string()))? {
                Some((flags, _)) if flags & END_OF_STREAM != 0 => return Ok(None),
                Some((_, message)) => return Ok(Some(message)),
                None => {}
            }
            match timeout(BODY_TIMEOUT, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.decoder.push(data);
                    }
                }
                Ok(None) if self.decoder.has_partial() => return Err(Error::invalid("The last message is cut off")),
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => return Err(Error::new(Code::Canceled, "The request broke off")),
                Err(_) => return Err(Error::new(Code::DeadlineExceeded, "The request did not go on")),
            }
        }
    }

    /// The next message, read as a `T`.
    pub(super) async fn next_as<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        self.next().await?.map(|message| parse(&message)).transpose()
    }
}

/// One message of a stream.
pub(super) fn frame(message: &impl Serialize) -> Vec<u8> {
    envelope(0, &serde_json::to_vec(message).unwrap_or_default())
}

/// The end of a stream.
pub(super) fn end(error: Option<&Error>) -> Vec<u8> {
    let payload = EndOfStream { error: error.map(Error::body) };
    envelope(END_OF_STREAM, &serde_json::to_vec(&payload).unwrap_or_default())
}

/// A response of envelopes that are made as they are sent.
pub(super) fn stream(envelopes: impl Stream<Item = Vec<u8>> + Send + 'static) -> Response {
    let frames = envelopes.map(|envelope| Ok::<_, io::Error>(Frame::data(Bytes::from(envelope))));
    let mut response = hyper::Response::new(StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(STREAM_CONTENT_TYPE));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_a_package_and_a_method_are_procedures() {
        assert_eq!(method_of("/process.Process/Start"), Some(("process.Process", "Start")));
        assert_eq!(method_of("/files/x"), None);
        assert_eq!(method_of("/process.Process/Start/more"), None);
        assert_eq!(method_of("/process.Process/"), None);
        assert_eq!(method_of("/metrics"), None);
    }

    #[test]
    fn the_deadline_of_zero_is_none() {
        let headers = |value: &'static str| {
            HeaderMap::from_iter([("connect-timeout-ms".parse().unwrap(), value.parse().unwrap())])
        };
        assert_eq!(deadline(&headers("60000")), Some(Duration::from_secs(60)));
        assert_eq!(deadline(&headers("0")), None);
        assert_eq!(deadline(&headers("soon")), None);
        assert_eq!(deadline(&HeaderMap::new()), None);
    }

    #[test]
    fn the_keepalive_interval_is_the_clients_within_reason() {
        let headers = |value: &'static str| {
            HeaderMap::from_iter([("keepalive-ping-interval".parse().unwrap(), value.parse().unwrap())])
        };
        assert_eq!(keepalive(&headers("50")), Duration::from_secs(50));
        assert_eq!(keepalive(&headers("0")), KEEPALIVE);
        assert_eq!(keepalive(&headers("18446744073709551615")), Duration::from_secs(86_400));
        assert_eq!(keepalive(&HeaderMap::new()), KEEPALIVE);
    }
}
