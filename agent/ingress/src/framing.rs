//! A strict look at HTTP/1 requests, before they are parsed.
//!
//! Where one request ends and the next begins must be the same for everyone who reads a connection, or a client can hide
//! a second request inside the first ("request smuggling"). hyper is lenient where RFC 9112 allows it: it takes a bare
//! LF for the end of a line, and a request with two framings or two equal lengths for a good one. Nobody who means well
//! sends such a thing, so here they are refused:
//!
//! | in a request | refused |
//! |---|---|
//! | lines | that end in a bare LF, or hold a bare CR; folded ones |
//! | `Content-Length` | twice, even if equal; beside `Transfer-Encoding`; anything but digits |
//! | `Transfer-Encoding` | twice; anything but `chunked` |
//! | chunks | sizes with signs, spaces or more than 16 digits; line ends other than CRLF, in extensions and trailers too |
//!
//! [`StrictIo`] stands between the connection and hyper and follows the framing byte by byte. At the first byte that is
//! wrong it lets a NUL pass instead of it, which a head may not hold, and then the stream ends. So it is hyper that answers
//! 400, behind the responses to the requests before, and closes the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use memchr::memchr2;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Of a line only so much is looked at: more than any field has that frames a message.
const LOOK: usize = 64;

/// What hyper reads instead of a head from where it is wrong. It looks at a head that comes in pieces at its end only.
const NO_HEAD: &[u8] = b"\0\r\n\r\n";
/// The same in a body. No line may end here: a NUL in a chunk's extension does not disturb hyper, and this could be the last.
const NO_BODY: &[u8] = b"\0";

/// A stream of requests of HTTP/1 that stops at the first one whose framing is not beyond doubt.
pub(super) struct StrictIo<S> {
    inner: S,
    scanner: Scanner,
    /// What is still to be read of [`NO_HEAD`] or [`NO_BODY`].
    objection: &'static [u8],
}

impl<S> StrictIo<S> {
    pub(super) fn new(inner: S) -> StrictIo<S> {
        StrictIo { inner, scanner: Scanner::default(), objection: &[] }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StrictIo<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.scanner.is_over() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
            let Err(Doubt { at, in_head }) = self.scanner.scan(&buf.filled()[before..]) else {
                return Poll::Ready(Ok(()));
            };
            buf.set_filled(before + at);
            self.objection = if in_head { NO_HEAD } else { NO_BODY };
        }
        let (now, later) = self.objection.split_at(self.objection.len().min(buf.remaining()));
        buf.put_slice(now);
        self.objection = later;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StrictIo<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// The first byte that must not pass.
#[derive(Debug, PartialEq, Eq)]
struct Doubt {
    at: usize,
    in_head: bool,
}

/// Where in a request the next byte stands.
#[derive(Default)]
struct Scanner {
    state: State,
    line: Line,
    head: Head,
}

#[derive(Default)]
enum State {
    /// In the lines of a head, or before it.
    #[default]
    Head,
    /// Bytes left of a body of known length.
    Sized(u64),
    /// In the digits of a chunk's size.
    ChunkSize { size: u64, digits: u8 },
    /// Behind the size, up to the end of its line.
    ChunkLine(u64),
    /// Bytes left of a chunk.
    ChunkData(u64),
    /// Before the line end that follows a chunk.
    ChunkEnd,
    /// In the trailers, up to an empty line.
    Trailers,
    /// The connection may have become something else than HTTP. If it has not, the proxy ends it with the response.
    Unwatched,
    /// Something was wrong.
    Over,
}

/// The line that is being read: its beginning, and how it stands with its end.
#[derive(Default)]
struct Line {
    look: Vec<u8>,
    length: usize,
    after_cr: bool,
}

/// What the lines of a head have said.
#[derive(Default)]
struct Head {
    begun: bool,
    length: Option<u64>,
    chunked: bool,
    /// `CONNECT`, or with `Upgrade`.
    leaves_http: bool,
}

impl Scanner {
    fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    fn scan(&mut self, bytes: &[u8]) -> Result<(), Doubt> {
        let mut at = 0;
        while at < bytes.len() {
            match self.step(&bytes[at..]) {
                Some(taken) => at += taken,
                None => {
                    let in_head = matches!(std::mem::replace(&mut self.state, State::Over), State::Head);
                    return Err(Doubt { at, in_head });
                }
            }
        }
        Ok(())
    }

    /// Takes at least one of `bytes`, which are not empty; `None` when the first of them is wrong.
    fn step(&mut self, bytes: &[u8]) -> Option<usize> {
        match &mut self.state {
            State::Unwatched | State::Over => return Some(bytes.len()),
            State::Sized(left) => {
                let taken = take(left, bytes);
                if *left == 0 {
                    self.state = State::Head;
                }
                return Some(taken);
            }
            State::ChunkData(left) => {
                let taken = take(left, bytes);
                if *left == 0 {
                    self.state = State::ChunkEnd;
                }
                return Some(taken);
            }
            State::ChunkSize { size, digits } => {
                if let Some(digit) = char::from(bytes[0]).to_digit(16) {
                    // 16 digits fill the number.
                    if *digits == 16 {
                        return None;
                    }
                    (*size, *digits) = (*size << 4 | u64::from(digit), *digits + 1);
                    return Some(1);
                }
                if *digits == 0 || !matches!(bytes[0], b'\r' | b';') {
                    return None;
                }
                self.state = State::ChunkLine(*size);
            }
            State::ChunkEnd if !self.line.after_cr && bytes[0] != b'\r' => return None,
            State::Head | State::ChunkLine(_) | State::ChunkEnd | State::Trailers => {}
        }
        let (taken, ended) = self.line.take(bytes)?;
        if ended {
            self.end_of_line()?;
            self.line.clear();
        }
        Some(taken)
    }

    /// A line of the head, of a chunk's frame or of the trailers is complete.
    fn end_of_line(&mut self) -> Option<()> {
        self.state = match self.state {
            State::Head if self.line.length > 0 || !self.head.begun => return self.head.line(&self.line),
            State::Head => std::mem::take(&mut self.head).body()?,
            State::ChunkLine(0) => State::Trailers,
            State::ChunkLine(size) => State::ChunkData(size),
            State::ChunkEnd => State::ChunkSize { size: 0, digits: 0 },
            State::Trailers if self.line.length == 0 => State::Head,
            _ => return Some(()),
        };
        Some(())
    }
}

/// Takes what belongs to a body of `left` more bytes.
fn take(left: &mut u64, bytes: &[u8]) -> usize {
    let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left -= taken as u64;
    taken
}

impl Line {
    /// Takes at least one of `bytes`, which are not empty. Returns how many, and whether the last one ends the line; `None`
    /// when the first may not stand there.
    fn take(&mut self, bytes: &[u8]) -> Option<(usize, bool)> {
        if self.after_cr {
            return (bytes[0] == b'\n').then_some((1, true));
        }
        let length = memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
        let (text, rest) = bytes.split_at(length);
        self.look.extend_from_slice(&text[..length.min(LOOK - self.look.len())]);
        self.length = self.length.saturating_add(length);
        match rest.first() {
            Some(b'\r') => {
                self.after_cr = true;
                Some((length + 1, false))
            }
            Some(_) if length == 0 => None,
            _ => Some((length, false)),
        }
    }

    fn clear(&mut self) {
        self.look.clear();
        (self.length, self.after_cr) = (0, false);
    }
}

impl Head {
    /// Notes what `line` says about the framing.
    fn line(&mut self, line: &Line) -> Option<()> {
        if line.length == 0 {
            // Empty lines before a request are to be ignored (RFC 9112 section 2.2).
            return Some(());
        }
        if !self.begun {
            self.begun = true;
            self.leaves_http = line.look.starts_with(b"CONNECT ");
            return Some(());
        }
        if line.look.starts_with(b" ") || line.look.starts_with(b"\t") {
            return None;
        }
        let Some(colon) = line.look.iter().position(|&byte| byte == b':') else {
            // A name that long frames nothing; that there is a colon at all is for hyper to see.
            return Some(());
        };
        let (name, value) = (&line.look[..colon], line.look[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = digits(value).filter(|_| line.length <= LOOK)?;
            return self.length.replace(length).is_none().then_some(());
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let alone = !std::mem::replace(&mut self.chunked, true);
            return (alone && line.length <= LOOK && value.eq_ignore_ascii_case(b"chunked")).then_some(());
        }
        self.leaves_http |= name.eq_ignore_ascii_case(b"upgrade");
        Some(())
    }

    /// What follows the head; `None` if that is not beyond doubt.
    fn body(self) -> Option<State> {
        match self {
            Head { chunked: true, length: Some(_), .. } => None,
            Head { leaves_http: true, .. } => Some(State::Unwatched),
            Head { chunked: true, .. } => Some(State::ChunkSize { size: 0, digits: 0 }),
            Head { length: Some(length @ 1..), .. } => Some(State::Sized(length)),
            Head { .. } => Some(State::Head),
        }
    }
}

/// A number without sign, space or list.
fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt as _, Empty};
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The text up to where it is in doubt, or `None` where it is not.
    fn passed(text: &str) -> Option<&str> {
        Scanner::default().scan(text.as_bytes()).err().map(|doubt| &text[..doubt.at])
    }

    #[test]
    fn requests_of_every_framing_follow_each_other() {
        let requests = "GET / HTTP/1.1\r\nHost: a\r\n\r\n\
                        POST / HTTP/1.1\r\ncontent-LENGTH:  5 \r\n\r\nGET\n\n\
                        POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n\
                        5;name=\"value\"\r\n\n\n\r\n\n\r\n00a\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n\
                        \r\nPOST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n\
                        GET / HTTP/1.1\r\nX: 1";
        assert_eq!(passed(requests), None);
        // However it is cut into reads.
        let mut scanner = Scanner::default();
        for byte in requests.as_bytes() {
            assert_eq!(scanner.scan(&[*byte]), Ok(()));
        }
        assert!(scanner.head.begun, "in the middle of the last head");
    }

    #[test]
    fn doubtful_heads_end_before_they_are_complete() {
        let table = [
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked, identity\r\n",
            "Transfer-Encoding:\r\n",
            "Content-Length:\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "X: a\r\n folded\r\n",
            "X: a\r\n\tfolded\r\n",
            "X: a\n",
            "X: a\rY",
        ];
        for fields in table {
            let text = format!("POST / HTTP/1.1\r\n{fields}");
            assert_eq!(passed(&text), Some(&text[..text.len() - 1]), "{fields:?}");
        }
        let padded = format!("POST / HTTP/1.1\r\nContent-Length: {:0>60}\r\n", 5);
        assert_eq!(passed(&padded), Some(&padded[..padded.len() - 1]));
    }

    #[test]
    fn doubtful_chunks_end_where_they_are_wrong() {
        let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        let table = [
            "+",
            "-",
            "\r",
            "5\n",
            "5 ",
            "5;a\n",
            "5;a\rb",
            "0x",
            "12345678123456781",
            "2\r\nabc",
            "2\r\nab\n",
            "0\r\nX: 1\n",
            "0\r\n\n",
        ];
        for chunks in table {
            let text = format!("{head}{chunks}");
            assert_eq!(passed(&text), Some(&text[..text.len() - 1]), "{chunks:?}");
        }
    }

    /// What a server answers that reads requests to their end, if they come in pieces of `size`.
    async fn answer(requests: &str, size: usize) -> String {
        let (client, server) = tokio::io::duplex(size);
        let service = service_fn(|request: Request<Incoming>| async {
            request.into_body().collect().await.map(|_| Response::new(Empty::<Bytes>::new()))
        });
        let served = http1::Builder::new().serve_connection(TokioIo::new(StrictIo::new(server)), service);
        let (mut reader, mut writer) = tokio::io::split(client);
        let mut answer = String::new();
        let talk = async {
            // The server may have closed.
            let _ = writer.write_all(requests.as_bytes()).await;
            let _ = writer.shutdown().await;
        };
        let (_closed, (), read) = tokio::join!(served, talk, reader.read_to_string(&mut answer));
        read.expect("text");
        answer
    }

    #[tokio::test]
    async fn doubtful_heads_are_answered_400_however_they_are_cut() {
        let good = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for wrong in [
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello",
            "GET / HTTP/1.1\r\nX: a\n\n",
        ] {
            for size in [1, 7, 4096] {
                let text = answer(&format!("{good}{wrong}{good}"), size).await;
                let statuses: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("HTTP/1.1 ")).collect();
                assert_eq!(statuses, ["200 OK", "400 Bad Request"], "{wrong:?} in pieces of {size}");
            }
        }
    }

    #[tokio::test]
    async fn a_wrong_chunk_does_not_become_the_last() {
        for size in [1, 7, 4096] {
            let request = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0;a\n\r\n\r\n";
            assert!(!answer(request, size).await.contains(" 200 "), "in pieces of {size}");
        }
    }

    #[test]
    fn what_follows_a_change_of_protocol_is_not_http() {
        assert_eq!(passed("GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n\n\n\r\r"), None);
        assert_eq!(passed("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n\n\n"), None);
    }
}
