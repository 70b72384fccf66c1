//! The data plane on a Unix socket, in this process, and a client for it.

use std::collections::VecDeque;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sandpiper_init::serve::{App, Settings, serve};
use sandpiper_protocol::connect::{Decoder, END_OF_STREAM, envelope};
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};

/// For anything that a test waits for.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits for `future`, not for ever.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.expect("it happens before long")
}

/// Waits until `condition` holds.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    soon(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub(crate) struct Server {
    app: Arc<App>,
    socket: PathBuf,
    folder: tempfile::TempDir,
}

impl Server {
    /// A data plane whose processes have `FROM_HOST=yes` in their environment.
    pub(crate) fn start() -> Self {
        let envs = [("FROM_HOST".to_owned(), "yes".to_owned())].into();
        Self::start_with(Settings { envs, default_user: "root".to_owned(), ..Settings::default() })
    }

    pub(crate) fn start_with(settings: Settings) -> Self {
        sandpiper_init::reap::start().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("data-plane");
        let listener = UnixListener::bind(&socket).unwrap();
        let volume = Some(folder.path().join("volume"));
        let app = Arc::new(App::new(Settings { volume, ..settings }));
        tokio::spawn(serve(listener, Arc::clone(&app)));
        Self { app, socket, folder }
    }

    /// What it serves.
    pub(crate) fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    /// A folder that is gone after the test.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    /// Sends one request on a connection of its own.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let mut sender = self.connect().await;
        soon(sender.send_request(request)).await.unwrap()
    }

    pub(crate) async fn get(&self, uri: &str) -> (StatusCode, Bytes) {
        whole(self.send(Request::get(uri).body(Full::default()).unwrap()).await).await
    }

    pub(crate) async fn post(&self, uri: &str, content_type: &str, body: impl Into<Bytes>) -> (StatusCode, Bytes) {
        let request = Request::post(uri).header("content-type", content_type).body(Full::new(body.into())).unwrap();
        whole(self.send(request).await).await
    }

    /// Calls a unary method of `process.Process`.
    pub(crate) async fn call(&self, method: &str, message: Value) -> (StatusCode, Value) {
        let (status, body) =
            self.post(&format!("/process.Process/{method}"), "application/json", message.to_string()).await;
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Calls a unary method of `filesystem.Filesystem` as a user.
    pub(crate) async fn filesystem(&self, user: &str, method: &str, message: Value) -> (StatusCode, Value) {
        let request = Request::post(format!("/filesystem.Filesystem/{method}"))
            .header("content-type", "application/json")
            .header("authorization", format!("Basic {}", STANDARD.encode(format!("{user}:"))))
            .body(Full::new(message.to_string().into()));
        let (status, body) = whole(self.send(request.unwrap()).await).await;
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Calls a method of `process.Process` that answers with a stream.
    pub(crate) async fn stream(&self, method: &str, message: Value, headers: &[(&str, &str)]) -> Events {
        self.stream_of("process.Process", method, message, headers).await
    }

    /// Calls a method that answers with a stream.
    pub(crate) async fn stream_of(
        &self,
        service: &str,
        method: &str,
        message: Value,
        headers: &[(&str, &str)],
    ) -> Events {
        let mut request = Request::post(format!("/{service}/{method}"))
            .header("content-type", "application/connect+json")
            .header("connect-protocol-version", "1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = envelope(0, message.to_string().as_bytes());
        let response = self.send(request.body(Full::new(body.into())).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK);
        Events { body: response.into_body(), decoder: Decoder::new(1 << 20), queue: VecDeque::new() }
    }

    /// Starts `sh -c script`.
    pub(crate) async fn shell(&self, script: &str) -> Events {
        self.stream("Start", json!({"process": {"cmd": "sh", "args": ["-c", script]}}), &[]).await
    }

    pub(crate) async fn send_input(&self, pid: u64, bytes: &[u8]) -> (StatusCode, Value) {
        let input = json!({"process": {"pid": pid}, "input": {"stdin": STANDARD.encode(bytes)}});
        self.call("SendInput", input).await
    }
}

/// A folder that everyone may enter.
pub(crate) fn open_folder(server: &Server) -> &str {
    fs::set_permissions(server.folder(), Permissions::from_mode(0o755)).unwrap();
    server.folder().to_str().unwrap()
}

/// A folder that `nobody` owns.
pub(crate) fn folder_of_nobody(server: &Server) -> String {
    let folder = format!("{}/nobody", open_folder(server));
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).unwrap();
    folder
}

pub(crate) async fn whole(response: Response<Incoming>) -> (StatusCode, Bytes) {
    let status = response.status();
    (status, soon(response.into_body().collect()).await.unwrap().to_bytes())
}

/// The events of one stream.
pub(crate) struct Events {
    body: Incoming,
    decoder: Decoder,
    queue: VecDeque<Value>,
}

/// Everything that a stream said from where it was to its end.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pty: Vec<u8>,
    pub(crate) keepalives: usize,
    /// The `end` event.
    pub(crate) end: Value,
    /// The error in the last envelope.
    pub(crate) error: Value,
}

impl Outcome {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Events {
    /// The next event of a process, or the content of the last envelope.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let mut message = self.next_message().await?;
        Some(if message["last"].is_null() { message["event"].take() } else { message })
    }

    /// The next message, or the content of the last envelope.
    pub(crate) async fn next_message(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            let frame = soon(self.body.frame()).await?.unwrap();
            self.decoder.push(&frame.into_data().unwrap());
            while let Some((flags, payload)) = self.decoder.next_envelope().unwrap() {
                let value: Value = serde_json::from_slice(&payload).unwrap();
                let is_last = flags & END_OF_STREAM != 0;
                self.queue.push_back(if is_last { json!({"last": value}) } else { value });
            }
        }
    }

    /// The process id that the first event tells.
    pub(crate) async fn pid(&mut self) -> u64 {
        let first = self.next().await.unwrap();
        first["start"]["pid"].as_u64().unwrap_or_else(|| panic!("the first event is {first}"))
    }

    /// Reads until `pattern` was seen on standard output or the terminal.
    pub(crate) async fn read_until(&mut self, pattern: &str) -> String {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(pattern) {
            let event = self.next().await.unwrap();
            assert!(event["data"].is_object(), "{pattern:?} comes before {event}");
            for stream in ["stdout", "pty"] {
                seen.extend(decode(&event["data"][stream]));
            }
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    pub(crate) async fn outcome(mut self) -> Outcome {
        let mut outcome = Outcome::default();
        while let Some(mut event) = self.next().await {
            outcome.stdout.extend(decode(&event["data"]["stdout"]));
            outcome.stderr.extend(decode(&event["data"]["stderr"]));
            outcome.pty.extend(decode(&event["data"]["pty"]));
            outcome.keepalives += usize::from(event["keepalive"].is_object());
            if event["end"].is_object() {
                outcome.end = event["end"].take();
            }
            if event["last"].is_object() {
                outcome.error = event["last"]["error"].take();
            }
        }
        outcome
    }
}

fn decode(value: &Value) -> Vec<u8> {
    value.as_str().map(|text| STANDARD.decode(text).unwrap()).unwrap_or_default()
}
