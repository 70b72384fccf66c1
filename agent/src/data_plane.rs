//! What the agent itself has a guest's data plane do: run programs, and take files.
//!
//! Everything that comes back is a tenant's: messages are bounded, and what a program printed is no more than bytes.

use std::io;
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::request::Builder;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use sandpiper_ingress::vsock;
use sandpiper_machine::sanitize;
use sandpiper_protocol::connect::{self, Decoder, END_OF_STREAM, STREAM_CONTENT_TYPE};
use sandpiper_protocol::guest::DATA_PLANE_PORT;
use sandpiper_protocol::process::{DataEvent, EventMessage, ProcessEvent, SERVICE, StartRequest};
use serde::Serialize;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest message of a stream that is read. A data plane's pieces of output are far shorter.
const MAX_MESSAGE: usize = 1 << 20;
/// Most that is read of a refusal.
const MAX_REFUSAL: usize = 16 * 1024;

/// A program that runs in a guest.
pub(crate) struct Process {
    body: Incoming,
    decoder: Decoder,
}

/// What comes of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// It runs, with this process id.
    Started(u32),
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// It has ended, with this status; `None` after a signal.
    Ended(Option<i32>),
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: Option<i32>,
    /// The end of what it printed.
    pub(crate) output: Vec<u8>,
}

impl Process {
    /// Starts a program, as `user` or as whom the guest has where none is named. One that runs for longer than `limit` is killed
    /// by the guest.
    ///
    /// # Errors
    /// The data plane is not reached, or refuses.
    pub(crate) async fn start(
        vsock: &Path,
        user: Option<&str>,
        order: &StartRequest,
        limit: Option<Duration>,
    ) -> io::Result<Self> {
        let message = connect::envelope(0, &serde_json::to_vec(order)?);
        let mut request = Request::post(format!("/{SERVICE}/Start")).header(CONTENT_TYPE, STREAM_CONTENT_TYPE);
        if let Some(limit) = limit {
            request = request.header("connect-timeout-ms", limit.as_millis().to_string());
        }
        let response = send(vsock, user, request, Body::from(message)).await?;
        Ok(Self { body: response.into_body(), decoder: Decoder::new(MAX_MESSAGE) })
    }

    /// What comes next.
    ///
    /// # Errors
    /// The stream broke off, or is none; the program may run on.
    pub(crate) async fn next(&mut self) -> io::Result<Output> {
        loop {
            while let Some((flags, payload)) = self.decoder.next_envelope().map_err(io::Error::other)? {
                if flags & END_OF_STREAM != 0 {
                    let end: connect::EndOfStream = serde_json::from_slice(&payload)?;
                    let reason = end.error.map_or("it ended early".to_owned(), |error| sanitize(&error.message));
                    return Err(io::Error::other(reason));
                }
                if let Some(output) = output(serde_json::from_slice(&payload)?)? {
                    return Ok(output);
                }
            }
            let frame = self.body.frame().await.ok_or(io::ErrorKind::UnexpectedEof)?.map_err(io::Error::other)?;
            if let Some(bytes) = frame.data_ref() {
                self.decoder.push(bytes);
            }
        }
    }

    /// Waits for its end; of what it prints the last `most` bytes are kept.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub(crate) async fn finish(mut self, most: usize) -> io::Result<Finished> {
        let mut kept = Vec::new();
        loop {
            match self.next().await? {
                Output::Stdout(bytes) | Output::Stderr(bytes) => {
                    kept.extend(bytes);
                    kept.drain(..kept.len().saturating_sub(most));
                }
                Output::Started(_) => {}
                Output::Ended(status) => return Ok(Finished { status, output: kept }),
            }
        }
    }
}

fn output(message: EventMessage) -> io::Result<Option<Output>> {
    let decode = |text: String| BASE64.decode(text).map_err(io::Error::other);
    Ok(match message.event {
        ProcessEvent::Data(DataEvent::Stdout(text) | DataEvent::Pty(text)) => Some(Output::Stdout(decode(text)?)),
        ProcessEvent::Data(DataEvent::Stderr(text)) => Some(Output::Stderr(decode(text)?)),
        ProcessEvent::End(end) => Some(Output::Ended(end.exited.then_some(end.exit_code))),
        ProcessEvent::Start(start) => Some(Output::Started(start.pid)),
        ProcessEvent::Keepalive(_) => None,
    })
}

/// Calls a method of the process service that answers with one message, which is of no interest.
///
/// # Errors
/// As [`post`].
pub(crate) async fn call(vsock: &Path, method: &str, user: Option<&str>, message: &impl Serialize) -> io::Result<()> {
    let body = Body::from(serde_json::to_vec(message)?);
    let response = post(vsock, &format!("/{SERVICE}/{method}"), user, "application/json", None, body).await?;
    Limited::new(response.into_body(), MAX_REFUSAL).collect().await.map_err(io::Error::other)?;
    Ok(())
}

/// Asks the data plane behind this socket for something that must succeed. A stream has its `length`, so that one that breaks off
/// is not taken for whole.
///
/// # Errors
/// It is not reached, or refuses; the error says with which words. It is `StorageFull` where the guest has no room.
pub(crate) async fn post(
    vsock: &Path,
    path: &str,
    user: Option<&str>,
    content_type: &str,
    length: Option<u64>,
    body: Body,
) -> io::Result<Response<Incoming>> {
    let mut request = Request::post(path).header(CONTENT_TYPE, content_type);
    if let Some(length) = length {
        request = request.header(CONTENT_LENGTH, length);
    }
    send(vsock, user, request, body).await
}

/// As [`post`].
async fn send(vsock: &Path, user: Option<&str>, request: Builder, body: Body) -> io::Result<Response<Incoming>> {
    let stream = vsock::connect(vsock, DATA_PLANE_PORT, CONNECT_TIMEOUT).await.map_err(io::Error::other)?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    // Ends when both ends are dropped.
    tokio::spawn(connection);
    let mut request = request.header(HOST, "sandbox").header("connect-protocol-version", "1");
    if let Some(user) = user {
        request = request.header(AUTHORIZATION, format!("Basic {}", BASE64.encode(format!("{user}:"))));
    }
    let request = request.body(body).map_err(io::Error::other)?;
    let response = sender.send_request(request).await.map_err(io::Error::other)?;
    if matches!(response.status(), StatusCode::OK | StatusCode::CREATED | StatusCode::NO_CONTENT) {
        return Ok(response);
    }
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_REFUSAL).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let kind =
        if status == StatusCode::INSUFFICIENT_STORAGE { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, format!("{status}: {}", sanitize(&String::from_utf8_lossy(&body)))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    /// A data plane that answers one request with this status and these envelopes.
    async fn data_plane(folder: &Path, status: &'static str, body: Vec<u8>) -> std::path::PathBuf {
        let path = folder.join("vsock");
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; "CONNECT 49983\n".len()];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_all(b"OK 1\n").await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
            assert!(head.starts_with("post /process.process/start ") && head.contains("basic cm9vddo="), "{head}");
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(&[answer.as_bytes(), &body].concat()).await.unwrap();
        });
        path
    }

    fn event(json: &str) -> Vec<u8> {
        connect::envelope(0, json.as_bytes())
    }

    #[tokio::test]
    async fn the_end_of_what_a_program_prints_and_its_status_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let events = [
            event(r#"{"event":{"start":{"pid":7}}}"#),
            event(r#"{"event":{"data":{"stdout":"b25lIA=="}}}"#),
            event(r#"{"event":{"keepalive":{}}}"#),
            event(r#"{"event":{"data":{"stderr":"dHdv"}}}"#),
            event(r#"{"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3"}}}"#),
        ];
        let vsock = data_plane(folder.path(), "200 OK", events.concat()).await;

        let process = Process::start(&vsock, Some("root"), &StartRequest::default(), None).await.unwrap();
        let finished = process.finish(5).await.unwrap();

        assert_eq!((finished.status, &finished.output[..]), (Some(3), &b"e two"[..]));
    }

    #[tokio::test]
    async fn a_stream_that_breaks_off_or_a_refusal_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let vsock = data_plane(folder.path(), "200 OK", event(r#"{"event":{"start":{"pid":7}}}"#)).await;
        let process = Process::start(&vsock, Some("root"), &StartRequest::default(), None).await.unwrap();
        assert_eq!(process.finish(5).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);

        let folder = tempfile::tempdir().unwrap();
        let end = connect::envelope(END_OF_STREAM, br#"{"error":{"code":"not_found","message":"no \u001bprogram"}}"#);
        let vsock = data_plane(folder.path(), "200 OK", end).await;
        let process = Process::start(&vsock, Some("root"), &StartRequest::default(), None).await.unwrap();
        let error = process.finish(5).await.unwrap_err().to_string();
        assert!(error.contains("program") && !error.contains('\u{1b}'), "{error:?}");

        let folder = tempfile::tempdir().unwrap();
        let vsock = data_plane(folder.path(), "503 Busy", b"later".to_vec()).await;
        let refused = Process::start(&vsock, Some("root"), &StartRequest::default(), None).await.err().unwrap();
        assert!(refused.to_string().contains("503") && refused.to_string().contains("later"), "{refused}");
    }
}
