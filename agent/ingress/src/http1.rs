//! HTTP/1.1 to a server in a guest, or to the API: one request at a time on one connection.
//!
//! Most of what passes through the proxy is a short request without a body and a short answer, and what a general client
//! does to hand both from task to task was a third of all work. Here, whoever waits for a response reads it. A body is
//! sent beside that, and gets a task of its own only where the response has begun before its end.
//!
//! A connection leads to one server and is never shared between two, so a guest that frames its responses wrongly cheats
//! its own visitors only; towards them every response is framed anew.

mod response;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::response::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;
use tokio_util::io::poll_read_buf;
use tokio_util::task::AbortOnDropHandle;

use self::response::{Framing, invalid, stays_open, take_head};
use super::headers::MAX_HEAD;
use super::idle::IdleIo;
use super::upload::{Upload, UploadError};

/// Capacity that the head of a request is given at first.
const HEAD: usize = 1024;
/// Capacity for what is read at once: at first, and for a body that keeps filling it.
const READ_SIZE: usize = 8 * 1024;
const MAX_READ_SIZE: usize = 64 * 1024;

/// A connection into a guest, or one to the API.
pub(super) type Stream = Either<UnixStream, TcpStream>;

type Io = IdleIo<Stream>;

/// A connection, and where it stands in an exchange.
pub(super) struct Http1 {
    reader: ReadHalf<Io>,
    /// `None` while a request's body is on its way, and for ever if it did not arrive.
    writer: Option<WriteHalf<Io>>,
    upload: Option<AbortOnDropHandle<Result<WriteHalf<Io>, SendError>>>,
    /// Read, but not yet looked at.
    received: BytesMut,
    /// Bytes of it in which the head did not end.
    looked_at: usize,
    read_size: usize,
    /// What is to come of the response's body.
    body: Framing,
    /// The guest takes another request after this one.
    keep_alive: bool,
}

/// Why a request did not get a response, or its response no end.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// The guest had closed before it was given anything of the request.
    #[error("The guest had closed the connection")]
    Unsent,
    /// It closed before it said anything: what it did with the request is not known.
    #[error("The guest closed the connection")]
    Closed,
    #[error("The connection to the guest broke")]
    Guest(#[from] io::Error),
    #[error(transparent)]
    Client(UploadError),
}

impl Http1 {
    pub(super) fn new(stream: Io) -> Http1 {
        let (reader, writer) = tokio::io::split(stream);
        Http1 {
            reader,
            writer: Some(writer),
            upload: None,
            received: BytesMut::new(),
            looked_at: 0,
            read_size: READ_SIZE,
            body: Framing::Complete,
            keep_alive: true,
        }
    }

    /// Sends a request whose fields say how its body is framed, and waits for the head of the response. An error comes with
    /// the request, as long as its body was not touched.
    pub(super) async fn send(
        &mut self,
        request: Request<Upload>,
    ) -> Result<Response<()>, (SendError, Option<Request<Upload>>)> {
        let Some(mut writer) = self.writer.take() else { return Err((SendError::Unsent, Some(request))) };
        (self.keep_alive, self.read_size) = (true, READ_SIZE);
        if let Err(error) = send_head(&mut writer, &head_of(&request)).await {
            return Err((error, Some(request)));
        }
        let (parts, body) = request.into_parts();
        match body {
            Upload::Empty => {
                self.writer = Some(writer);
                let answer = poll_fn(|cx| self.poll_head(cx, &parts.method)).await;
                answer.map_err(|error| (error, Some(Request::from_parts(parts, Upload::Empty))))
            }
            body => self.send_body(writer, body, &parts.method).await.map_err(|error| (error, None)),
        }
    }

    /// Sends the body of a request whose head has been sent, while it waits for the head of the response.
    async fn send_body(
        &mut self,
        writer: WriteHalf<Io>,
        body: Upload,
        method: &Method,
    ) -> Result<Response<()>, SendError> {
        let mut upload = Some(Box::pin(upload(writer, body)));
        let answer = poll_fn(|cx| {
            if let Some(Poll::Ready(result)) = upload.as_mut().map(|upload| upload.as_mut().poll(cx)) {
                upload = None;
                self.uploaded(result)?;
            }
            self.poll_head(cx, method)
        })
        .await?;
        self.upload = upload.map(|upload| AbortOnDropHandle::new(tokio::spawn(upload)));
        Ok(answer)
    }

    /// Notes how a request's body has ended. A guest that takes no more of it may still answer.
    fn uploaded(&mut self, result: Result<WriteHalf<Io>, SendError>) -> Result<(), SendError> {
        match result {
            Ok(writer) => self.writer = Some(writer),
            Err(SendError::Guest(error)) if is_closed(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn poll_head(&mut self, cx: &mut Context<'_>, method: &Method) -> Poll<Result<Response<()>, SendError>> {
        loop {
            if let Some(head) = self.take_head()? {
                // "100 Continue" and its like, for which nobody waits.
                if head.status.is_informational() && head.status != StatusCode::SWITCHING_PROTOCOLS {
                    continue;
                }
                self.body = Framing::of(&head, method)?;
                self.keep_alive = stays_open(&head) && self.body != Framing::UntilClose;
                return Poll::Ready(Ok(Response::from_parts(head, ())));
            }
            if self.received.len() >= MAX_HEAD {
                return Poll::Ready(Err(invalid("the head of the response is too long").into()));
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) if self.received.is_empty() => return Poll::Ready(Err(SendError::Closed)),
                Ok(0) => return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())),
                Ok(_) => {}
                Err(error) if self.received.is_empty() && is_closed(&error) => {
                    return Poll::Ready(Err(SendError::Closed));
                }
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Takes the head of a response, once it is complete. Of one that comes byte by byte only ends of lines are looked at.
    fn take_head(&mut self) -> io::Result<Option<Parts>> {
        let looked_at = std::mem::replace(&mut self.looked_at, self.received.len());
        if looked_at > 0 && !self.received[looked_at..].contains(&b'\n') {
            return Ok(None);
        }
        let head = take_head(&mut self.received)?;
        if head.is_some() {
            self.looked_at = 0;
        }
        Ok(head)
    }

    /// The next piece of the response's body; `None` when it is complete.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, SendError>>> {
        if let Some(upload) = &mut self.upload
            && let Poll::Ready(result) = Pin::new(upload).poll(cx)
        {
            self.upload = None;
            self.uploaded(result.map_err(io::Error::other)?)?;
        }
        loop {
            if let Some(frame) = self.body.take(&mut self.received)? {
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.body == Framing::Complete {
                return Poll::Ready(None);
            }
            if ready!(self.poll_fill(cx))? == 0 {
                if self.body != Framing::UntilClose {
                    return Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())));
                }
                self.body = Framing::Complete;
            }
        }
    }

    /// Reads what has come; 0 at the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.received.reserve(self.read_size);
        let length = ready!(poll_read_buf(Pin::new(&mut self.reader), cx, &mut self.received))?;
        if length >= self.read_size {
            self.read_size = (self.read_size * 2).min(MAX_READ_SIZE);
        }
        Poll::Ready(Ok(length))
    }

    /// Whether all of the response's body was taken.
    pub(super) fn is_complete(&self) -> bool {
        self.body == Framing::Complete
    }

    /// Bytes left of the response's body, if that is known.
    pub(super) fn left(&self) -> Option<u64> {
        match self.body {
            Framing::Sized(left) => Some(left),
            Framing::Complete => Some(0),
            Framing::Chunked(_) | Framing::UntilClose => None,
        }
    }

    /// Whether the guest takes another request after this one. For fuzzing.
    #[cfg(fuzzing)]
    pub(super) fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether another request can be sent now.
    pub(super) fn is_ready(&self) -> bool {
        self.is_complete() && self.keep_alive && self.writer.is_some() && self.received.is_empty()
    }

    /// Waits for the end of a body that is still being sent, after the response to it. Whether another request can be sent.
    pub(super) async fn ready(&mut self) -> bool {
        if let Some(upload) = &mut self.upload {
            self.writer = upload.await.ok().and_then(Result::ok);
            self.upload = None;
        }
        self.is_ready()
    }

    /// Whether a connection that has waited can be used: the guest has neither closed it nor said something unasked.
    pub(super) fn is_open(&mut self) -> bool {
        // Nobody is to be woken: this only looks at what has come.
        self.is_ready() && self.poll_fill(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// The connection after a change of protocol, and what the guest has said in the new one; `None` where the request has
    /// not been sent to its end.
    pub(super) fn into_stream(self) -> Option<(Io, Bytes)> {
        Some((self.reader.unsplit(self.writer?), self.received.freeze()))
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// The request line and the fields.
fn head_of(request: &Request<Upload>) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    for part in [request.method().as_str(), " ", path, " HTTP/1.1\r\n"] {
        head.extend_from_slice(part.as_bytes());
    }
    for (name, value) in request.headers() {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    head.extend_from_slice(b"\r\n");
    head
}

async fn send_head(writer: &mut WriteHalf<Io>, head: &[u8]) -> Result<(), SendError> {
    let mut left = head;
    while !left.is_empty() {
        match writer.write_buf(&mut left).await {
            Err(error) if left.len() == head.len() && is_closed(&error) => return Err(SendError::Unsent),
            written => written?,
        };
    }
    Ok(())
}

/// Sends a body: chunked, if its length is not known. Trailers of a client are left out (RFC 9110 section 6.5 lets a proxy):
/// a server that takes them for fields of the head would believe what nobody has looked at.
async fn upload(mut writer: WriteHalf<Io>, mut body: Upload) -> Result<WriteHalf<Io>, SendError> {
    let chunked = body.size_hint().exact().is_none();
    while let Some(frame) = body.frame().await {
        match frame.map_err(SendError::Client)?.into_data() {
            Ok(data) if !chunked => writer.write_all(&data).await?,
            // An empty chunk would be the end.
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                let size = format!("{:x}\r\n", data.len());
                writer.write_all_buf(&mut size.as_bytes().chain(data).chain(&b"\r\n"[..])).await?;
            }
            Err(_trailers) => {}
        }
    }
    if chunked {
        writer.write_all(b"0\r\n\r\n").await?;
    }
    Ok(writer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::{HeaderMap, HeaderValue};
    use std::time::Duration;
    use tokio::io::AsyncReadExt as _;

    /// What a guest's response to `method` comes to: status, body, trailers; and whether the connection takes another request.
    async fn answer(
        method: Method,
        text: &'static str,
        piece: usize,
    ) -> Result<(u16, String, HeaderMap, bool), SendError> {
        let (near, mut far) = UnixStream::pair().expect("a pair of sockets");
        let mut link = Http1::new(IdleIo::new(Either::Left(near), Duration::from_secs(10)));
        let guest = tokio::spawn(async move {
            let mut head = [0; 1024];
            let length = far.read(&mut head).await.expect("a request");
            for piece in text.as_bytes().chunks(piece) {
                if far.write_all(piece).await.is_err() {
                    // What came was wrong enough.
                    break;
                }
                tokio::task::yield_now().await;
            }
            // Only what is framed by the end of the connection needs that end.
            if text.contains("until the end") || text.ends_with("cut") {
                drop(far);
                return (length, None);
            }
            (length, Some(far))
        });
        let expected = format!("{method} /path?query HTTP/1.1\r\n\r\n");
        let mut request = Request::new(Upload::Empty);
        *request.method_mut() = method;
        *request.uri_mut() = "/path?query".parse().expect("a path");
        let head = link.send(request).await.map_err(|(error, _)| error)?;
        let (mut body, mut trailers) = (Vec::new(), HeaderMap::new());
        while let Some(frame) = poll_fn(|cx| link.poll_frame(cx)).await {
            match frame?.into_data() {
                Ok(data) => body.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().expect("data or trailers"),
            }
        }
        let (length, _far) = guest.await.expect("no panic");
        assert_eq!(length, expected.len());
        Ok((head.status().as_u16(), String::from_utf8(body).expect("text"), trailers, link.is_open()))
    }

    #[tokio::test]
    async fn bodies_end_where_their_framing_says() {
        let table = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "abc", true),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", true),
            ("HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 3\r\n\r\nabc", "abc", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", false),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", "abc", true),
            ("HTTP/1.1 200 OK\r\n\r\nuntil the end", "until the end", false),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nuntil the end", "until the end", false),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", "abcd", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", true),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", "", true),
        ];
        for (text, body, keep_alive) in table {
            for piece in [1, 7, text.len()] {
                let (_, came, _, open) = answer(Method::GET, text, piece).await.expect(text);
                assert_eq!((came.as_str(), open), (body, keep_alive), "{text:?} in pieces of {piece}");
            }
        }
    }

    #[tokio::test]
    async fn a_guest_that_says_something_unasked_is_not_asked_again() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n";
        let (_, body, _, open) = answer(Method::GET, text, text.len()).await.expect("a response");
        assert_eq!((body.as_str(), open), ("abc", false));
    }

    #[tokio::test]
    async fn answers_to_head_have_no_body() {
        let text = "HTTP/1.1 204 OK\r\nContent-Length: 3\r\n\r\n";
        let (status, body, _, open) = answer(Method::HEAD, text, 5).await.expect("a response");
        assert_eq!((status, body.as_str(), open), (204, "", true));
    }

    #[tokio::test]
    async fn trailers_follow_the_last_chunk() {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n";
        let (_, body, trailers, open) = answer(Method::GET, text, 3).await.expect("a response");
        assert_eq!((body.as_str(), &trailers["x-sum"], open), ("a", &HeaderValue::from_static("1"), true));
    }

    #[tokio::test]
    async fn what_is_not_framed_beyond_doubt_is_an_error() {
        let table = [
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            "HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\na\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\na\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\ncut",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n30\r\ncut",
            "HTTP/1.1 200 cut",
            "SSH-2.0-OpenSSH\r\n",
        ];
        for text in table {
            for piece in [1, text.len()] {
                assert!(answer(Method::GET, text, piece).await.is_err(), "{text:?} in pieces of {piece}");
            }
        }
    }
}
