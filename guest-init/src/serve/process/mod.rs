//! The service `process.Process`: starting programs and talking to them.
//!
//! | method | kind | what |
//! |---|---|---|
//! | `Start` | response is a stream | starts a process, then its events |
//! | `Connect` | response is a stream | the events of a process: what is left of its output, then what comes |
//! | `List` | unary | running processes |
//! | `SendInput`, `CloseStdin` | unary | its input; responds when written |
//! | `StreamInput` | takes a stream | input, many pieces in one request |
//! | `SendSignal` | unary | to the whole process group |
//! | `Update` | unary | the size of its terminal |
//!
//! A stream's first event is `start`, its last `end`. A process outlives the connection that started it.

mod child;
mod environment;
mod events;
mod input;
mod manager;
mod output;
mod pty;
mod pump;
mod spawn;
mod start_command;

use std::sync::Arc;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use nix::sys::signal::Signal;
use sandpiper_protocol::connect::Code;
use sandpiper_protocol::process::{
    Empty, ProcessInput, ProcessSelector, SelectRequest, SendInputRequest, SendSignalRequest, StartRequest,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub(super) use manager::Manager;
pub use start_command::StartCommand;

use self::child::Process;
use super::App;
use super::connect::{self, Error, Messages, Wire, stream_message, unary_message};
use super::http::{Response, bytes, json};

/// proto3's JSON takes base64 with and without padding.
const BASE64: GeneralPurpose = lenient(alphabet::STANDARD);
const BASE64_URL: GeneralPurpose = lenient(alphabet::URL_SAFE);

const fn lenient(alphabet: alphabet::Alphabet) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(&alphabet, config)
}

/// Calls a method of the service.
pub(super) async fn call(method: &str, request: Request<Incoming>, app: &Arc<App>) -> Response {
    let wire = match method {
        "Start" | "Connect" | "StreamInput" => Wire::Stream,
        "List" | "SendInput" | "CloseStdin" | "SendSignal" | "Update" => Wire::Unary,
        _ => return connect::unimplemented(&request),
    };
    let time = match connect::admit(request.headers(), wire) {
        Ok(time) => time,
        Err(refusal) => return *refusal,
    };
    let call = async {
        match method {
            "Start" => start(request, app).await,
            "Connect" => connect_to(request, app).await,
            "StreamInput" => stream_input(request, app).await,
            "List" => list(request, app).await,
            "SendInput" => send_input(request, app).await,
            "CloseStdin" => close_stdin(request, app).await,
            "SendSignal" => send_signal(request, app).await,
            _ => update(request, app).await,
        }
    };
    connect::respond(wire, time, call).await
}

async fn start(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let deadline = connect::deadline(request.headers()).and_then(|time| Instant::now().checked_add(time));
    let keepalive = connect::keepalive(request.headers());
    let settings = app.settings();
    let user = app.caller(request.headers());
    let message: StartRequest = stream_message(request.into_body()).await?;
    let (process, starter) = app.processes.start(message, user, settings, deadline).await?;
    Ok(connect::stream(events::of(process.pid, starter, keepalive, deadline)))
}

async fn connect_to(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let deadline = connect::deadline(request.headers()).and_then(|time| Instant::now().checked_add(time));
    let keepalive = connect::keepalive(request.headers());
    let message: SelectRequest = stream_message(request.into_body()).await?;
    let process = app.processes.any(&message.process)?;
    Ok(connect::stream(events::of(process.pid, process.output.subscribe(), keepalive, deadline)))
}

async fn list(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let Empty {} = unary_message(request.into_body()).await?;
    Ok(response(&app.processes.list()))
}

async fn send_input(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let message: SendInputRequest = unary_message(request.into_body()).await?;
    let process = app.processes.running(&message.process)?;
    feed(&process, message.input).await?;
    Ok(response(&Empty {}))
}

async fn close_stdin(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let message: SelectRequest = unary_message(request.into_body()).await?;
    app.processes.running(&message.process)?.input.close().await?;
    Ok(response(&Empty {}))
}

async fn send_signal(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let message: SendSignalRequest = unary_message(request.into_body()).await?;
    let process = app.processes.running(&message.process)?;
    let signal = match message.signal {
        sandpiper_protocol::process::Signal::Term => Signal::SIGTERM,
        sandpiper_protocol::process::Signal::Kill => Signal::SIGKILL,
    };
    if process.signal(signal) {
        Ok(response(&Empty {}))
    } else {
        Err(Error::new(Code::NotFound, format!("The process {} has ended", process.pid)))
    }
}

async fn update(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let message: SelectRequest = unary_message(request.into_body()).await?;
    let process = app.processes.running(&message.process)?;
    if let Some(size) = message.pty.and_then(|pty| pty.size) {
        process.resize(size)?;
    }
    Ok(response(&Empty {}))
}

/// One message of `StreamInput`: the first names the process.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum StreamInputMessage {
    Start { process: ProcessSelector },
    Data { input: ProcessInput },
    Keepalive(Empty),
}

async fn stream_input(request: Request<Incoming>, app: &Arc<App>) -> Result<Response, Error> {
    let mut messages = Messages::new(request.into_body());
    let Some(StreamInputMessage::Start { process }) = messages.next_as().await? else {
        return Err(Error::invalid("The first message must be start and name a process"));
    };
    let process = app.processes.running(&process)?;
    while let Some(message) = messages.next_as().await? {
        match message {
            StreamInputMessage::Data { input } => feed(&process, input).await?,
            StreamInputMessage::Keepalive(Empty {}) => {}
            StreamInputMessage::Start { .. } => return Err(Error::invalid("Only the first message may be start")),
        }
    }
    let mut body = connect::frame(&Empty {});
    body.extend(connect::end(None));
    Ok(bytes(StatusCode::OK, sandpiper_protocol::connect::STREAM_CONTENT_TYPE, body))
}

async fn feed(process: &Process, input: ProcessInput) -> Result<(), Error> {
    let (kind, encoded) = match input {
        ProcessInput::Stdin(encoded) => (input::Kind::Pipe, encoded),
        ProcessInput::Pty(encoded) => (input::Kind::Terminal, encoded),
    };
    let bytes = BASE64
        .decode(&encoded)
        .or_else(|_| BASE64_URL.decode(&encoded))
        .map_err(|_| Error::invalid("The input is not base64"))?;
    drop(encoded);
    process.input.send(kind, bytes).await
}

fn response(message: &impl Serialize) -> Response {
    json(StatusCode::OK, message)
}
