//! One sandbox: its processes, and what every call of its data plane goes through.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use sandpiper_protocol::connect::{self, Decoder, END_OF_STREAM, EndOfStream, STREAM_CONTENT_TYPE};
use sandpiper_protocol::process::{
    DataEvent, EndEvent, EventMessage, ListResponse, ProcessConfig, ProcessEvent, ProcessInfo, ProcessInput,
    ProcessSelector, Pty, PtySize, SelectRequest, SendInputRequest, SendSignalRequest, Signal, StartRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ClientError, Session, refusal};

/// Longest message of a process stream that is taken, in bytes.
const MESSAGE_LIMIT: usize = 4 << 20;

/// Bytes of input in one call.
const INPUT_CHUNK: usize = 256 << 10;

/// Longest response that is held in memory, in bytes: the longest list of a folder that a guest's server sends, written with
/// escapes, has less.
const RESPONSE_LIMIT: usize = 64 << 20;
const ERROR_LIMIT: usize = 64 << 10;

/// For the next piece of a response to arrive.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);

/// The data plane of one sandbox.
#[derive(Clone)]
pub struct DataPlane {
    http: reqwest::Client,
    base_url: String,
    access_token: String,
}

/// What to run: `program` with `arguments`, found by the guest's `PATH`.
#[derive(Debug, Clone, Default)]
pub struct Command {
    pub program: String,
    pub arguments: Vec<String>,
    pub envs: BTreeMap<String, String>,
    pub cwd: Option<String>,
    /// Linux user; the sandbox's default (`user`) where none is named.
    pub user: Option<String>,
    pub stdin: Stdin,
    /// A terminal of (columns, rows) instead of pipes.
    pub pty: Option<(u16, u16)>,
    /// The guest kills the process after this long.
    pub timeout: Option<Duration>,
}

/// Where a process reads from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stdin {
    /// `/dev/null`.
    #[default]
    Closed,
    /// What [`DataPlane::send_input`] sends.
    Open,
}

/// What a process left.
#[derive(Debug, Clone, Default)]
pub struct Output {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub end: EndEvent,
}

impl DataPlane {
    pub(crate) fn new(http: reqwest::Client, session: &Session) -> Self {
        Self { http, base_url: session.data_plane_url.clone(), access_token: session.access_token.clone() }
    }

    /// Starts a process; the stream's first event is its start.
    pub async fn start(&self, command: &Command) -> Result<ProcessStream, ClientError> {
        let request = StartRequest {
            process: ProcessConfig {
                cmd: command.program.clone(),
                args: command.arguments.clone(),
                envs: command.envs.clone(),
                cwd: command.cwd.clone(),
            },
            pty: command.pty.map(|(cols, rows)| Pty { size: Some(pty_size(cols, rows)) }),
            tag: None,
            stdin: Some(command.stdin == Stdin::Open),
        };
        self.stream("Start", &request, command.user.as_deref(), command.timeout).await
    }

    /// Attaches to a running process, or one that ended a little while ago: its output as far as it is kept, then the
    /// rest.
    pub async fn attach(&self, pid: u32) -> Result<ProcessStream, ClientError> {
        let request = SelectRequest { process: ProcessSelector::Pid(pid), pty: None };
        self.stream("Connect", &request, None, None).await
    }

    /// Runs a process to its end.
    pub async fn run(&self, command: &Command) -> Result<Output, ClientError> {
        self.start(command).await?.output().await
    }

    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, ClientError> {
        let response: ListResponse = self.unary("List", &serde_json::json!({})).await?;
        Ok(response.processes)
    }

    /// Writes to the process's standard input; returns when the process's pipe has taken all of it.
    pub async fn send_input(&self, pid: u32, bytes: &[u8]) -> Result<(), ClientError> {
        self.send(pid, bytes, ProcessInput::Stdin).await
    }

    /// Types into the process's terminal.
    pub async fn send_pty(&self, pid: u32, bytes: &[u8]) -> Result<(), ClientError> {
        self.send(pid, bytes, ProcessInput::Pty).await
    }

    pub async fn close_stdin(&self, pid: u32) -> Result<(), ClientError> {
        let request = SelectRequest { process: ProcessSelector::Pid(pid), pty: None };
        self.unary::<serde_json::Value>("CloseStdin", &request).await.map(drop)
    }

    /// Signals the process and all of its group.
    pub async fn signal(&self, pid: u32, signal: Signal) -> Result<(), ClientError> {
        let request = SendSignalRequest { process: ProcessSelector::Pid(pid), signal };
        self.unary::<serde_json::Value>("SendSignal", &request).await.map(drop)
    }

    pub async fn resize(&self, pid: u32, cols: u16, rows: u16) -> Result<(), ClientError> {
        let pty = Some(Pty { size: Some(pty_size(cols, rows)) });
        let request = SelectRequest { process: ProcessSelector::Pid(pid), pty };
        self.unary::<serde_json::Value>("Update", &request).await.map(drop)
    }

    /// Whether the data plane responds.
    pub async fn is_healthy(&self) -> bool {
        self.check(self.request(reqwest::Method::GET, "/health").send().await).await.is_ok()
    }

    async fn send(&self, pid: u32, bytes: &[u8], wrap: fn(String) -> ProcessInput) -> Result<(), ClientError> {
        for chunk in bytes.chunks(INPUT_CHUNK) {
            let input = wrap(BASE64.encode(chunk));
            let request = SendInputRequest { process: ProcessSelector::Pid(pid), input };
            self.unary::<serde_json::Value>("SendInput", &request).await?;
        }
        Ok(())
    }

    async fn unary<T: DeserializeOwned>(&self, method: &str, request: &impl Serialize) -> Result<T, ClientError> {
        self.unary_of(sandpiper_protocol::process::SERVICE, method, request, None).await
    }

    /// Calls a method that has one request and one response, as `user`.
    pub(super) async fn unary_of<T: DeserializeOwned>(
        &self,
        service: &str,
        method: &str,
        request: &impl Serialize,
        user: Option<&str>,
    ) -> Result<T, ClientError> {
        let request = self
            .request(reqwest::Method::POST, &format!("/{service}/{method}"))
            .header("connect-protocol-version", "1")
            .json(request);
        let response = self.check(as_user(request, user).send().await).await?;
        self.json(response).await
    }

    async fn stream(
        &self,
        method: &str,
        request: &impl Serialize,
        user: Option<&str>,
        timeout: Option<Duration>,
    ) -> Result<ProcessStream, ClientError> {
        let message = serde_json::to_vec(request).map_err(|error| self.malformed(&error.to_string()))?;
        let path = format!("/{}/{method}", sandpiper_protocol::process::SERVICE);
        let mut http = self
            .request(reqwest::Method::POST, &path)
            .header("connect-protocol-version", "1")
            .header("content-type", STREAM_CONTENT_TYPE)
            .body(connect::envelope(0, &message));
        http = as_user(http, user);
        if let Some(timeout) = timeout {
            http = http.header("connect-timeout-ms", timeout.as_millis().to_string());
        }
        let response = self.check(http.send().await).await?;
        let mut stream = ProcessStream {
            pid: 0,
            body: response.bytes_stream().boxed(),
            decoder: Decoder::new(MESSAGE_LIMIT),
            ready: VecDeque::new(),
        };
        match stream.next().await? {
            Some(ProcessEvent::Start(start)) => stream.pid = start.pid,
            other => return Err(ClientError::Broken(format!("expected the start of a process, got {other:?}"))),
        }
        Ok(stream)
    }

    pub(super) fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base_url)).header("x-access-token", &self.access_token)
    }

    pub(super) async fn check(
        &self,
        sent: reqwest::Result<reqwest::Response>,
    ) -> Result<reqwest::Response, ClientError> {
        let response = sent.map_err(|source| ClientError::Unreachable { url: self.base_url.clone(), source })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = self.bounded(response, ERROR_LIMIT).await.unwrap_or_default();
        Err(connect_refusal(status, &body))
    }

    pub(super) async fn json<T: DeserializeOwned>(&self, response: reqwest::Response) -> Result<T, ClientError> {
        let bytes = self.bounded(response, RESPONSE_LIMIT).await?;
        serde_json::from_slice(&bytes).map_err(|error| self.malformed(&error.to_string()))
    }

    /// The whole body of a response, which may have `limit` bytes.
    async fn bounded(&self, response: reqwest::Response, limit: usize) -> Result<Vec<u8>, ClientError> {
        let mut body = response.bytes_stream();
        let mut whole = Vec::new();
        while let Some(piece) = next_piece(&mut body).await? {
            if whole.len() + piece.len() > limit {
                return Err(self.malformed(&format!("it has more than {limit} bytes")));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }

    pub(super) fn malformed(&self, detail: &str) -> ClientError {
        ClientError::Malformed { url: self.base_url.clone(), detail: detail.to_owned() }
    }
}

/// The events of one process. Dropping it leaves the process running.
pub struct ProcessStream {
    pid: u32,
    body: BoxStream<'static, reqwest::Result<Bytes>>,
    decoder: Decoder,
    ready: VecDeque<ProcessEvent>,
}

impl ProcessStream {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The next event; `None` after the end of the stream. A stream that ends without saying so is an error.
    pub async fn next(&mut self) -> Result<Option<ProcessEvent>, ClientError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            while let Some((flags, payload)) =
                self.decoder.next_envelope().map_err(|error| ClientError::Broken(error.to_string()))?
            {
                if flags & END_OF_STREAM != 0 {
                    let end: EndOfStream = parse(&payload)?;
                    return match end.error {
                        None => Ok(None),
                        Some(error) => Err(ClientError::Refused {
                            status: error.code.http_status(),
                            code: serde_json::to_value(error.code)
                                .ok()
                                .and_then(|code| code.as_str().map(str::to_owned))
                                .unwrap_or_default(),
                            message: error.message,
                            request_id: "-".into(),
                        }),
                    };
                }
                let message: EventMessage = parse(&payload)?;
                self.ready.push_back(message.event);
            }
            if !self.ready.is_empty() {
                continue;
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.decoder.push(&bytes),
                Some(Err(error)) => return Err(ClientError::Broken(error.to_string())),
                None => return Err(ClientError::Broken("the sandbox went away".into())),
            }
        }
    }

    /// Everything until the process's end.
    pub async fn output(mut self) -> Result<Output, ClientError> {
        let mut output = Output::default();
        while let Some(event) = self.next().await? {
            match event {
                ProcessEvent::Data(DataEvent::Stdout(data) | DataEvent::Pty(data)) => {
                    output.stdout.extend(decode(&data)?);
                }
                ProcessEvent::Data(DataEvent::Stderr(data)) => output.stderr.extend(decode(&data)?),
                ProcessEvent::End(end) => output.end = end,
                ProcessEvent::Start(_) | ProcessEvent::Keepalive(_) => {}
            }
        }
        Ok(output)
    }
}

/// The next bytes of a body; `None` at its end.
pub(super) async fn next_piece(
    body: &mut (impl Stream<Item = reqwest::Result<Bytes>> + Unpin),
) -> Result<Option<Bytes>, ClientError> {
    match tokio::time::timeout(PIECE_TIMEOUT, body.next()).await {
        Ok(piece) => piece.transpose().map_err(|error| ClientError::Broken(describe(&error))),
        Err(_) => Err(ClientError::Broken(format!("nothing came for {} s", PIECE_TIMEOUT.as_secs()))),
    }
}

/// An error of the HTTP client, with its causes but without the URL.
fn describe(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        text = if text.is_empty() { "the response is not whole".to_owned() } else { format!("{text}: {error}") };
        cause = error.source();
    }
    text
}

/// Names the Linux user that a call acts as; the sandbox's default user where none is named.
pub(super) fn as_user(request: reqwest::RequestBuilder, user: Option<&str>) -> reqwest::RequestBuilder {
    match user {
        Some(user) => request.header("authorization", format!("Basic {}", BASE64.encode(format!("{user}:")))),
        None => request,
    }
}

/// The bytes of a piece of output.
pub fn decode(data: &str) -> Result<Vec<u8>, ClientError> {
    BASE64.decode(data).map_err(|error| ClientError::Broken(error.to_string()))
}

fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(payload).map_err(|error| ClientError::Broken(error.to_string()))
}

fn pty_size(cols: u16, rows: u16) -> PtySize {
    PtySize { cols: cols.into(), rows: rows.into() }
}

/// An error of the guest's server (`{"code", "message"}`, the code a name or a number), or else of the proxy.
fn connect_refusal(status: reqwest::StatusCode, body: &[u8]) -> ClientError {
    #[derive(serde::Deserialize)]
    struct Body {
        code: serde_json::Value,
        message: String,
    }
    match serde_json::from_slice::<Body>(body) {
        Ok(body) => ClientError::Refused {
            status: status.as_u16(),
            code: body.code.as_str().map_or_else(|| body.code.to_string(), str::to_owned),
            message: body.message,
            request_id: "-".into(),
        },
        Err(_) => refusal(status, body),
    }
}
