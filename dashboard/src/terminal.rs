//! A terminal in a sandbox: a shell of its data plane on one side, a WebSocket of a page on the other.
//!
//! What is typed and what is shown are binary messages. Text messages are JSON: from the page `{"cols": 80, "rows": 24}` when its
//! size changes; from here `{"pid": 42}` at first, and `{"ended": "exit status 0"}` or `{"error": "…"}` at last.
//!
//! A page that is gone leaves the shell running. One that names its `pid` gets what the guest has kept of the output, then
//! the rest.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use sandpiper_client::{Command, DataPlane, ProcessStream, decode};
use sandpiper_protocol::process::{DataEvent, ProcessEvent};
use serde::Deserialize;
use serde_json::{Value, json};

/// For a page to take what is shown: after it, nobody is there.
const SEND: Duration = Duration::from_secs(60);
/// A page is asked whether it is there.
const PING: Duration = Duration::from_secs(30);
/// The best shell that a template has.
const SHELL: &str = "command -v bash >/dev/null && exec bash -il; exec sh -il";

/// Which shell, and how large it is shown.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Wanted {
    /// One that runs; a new one where it is missing.
    pid: Option<u32>,
    #[serde(default = "columns")]
    cols: u16,
    #[serde(default = "rows")]
    rows: u16,
}

fn columns() -> u16 {
    80
}

fn rows() -> u16 {
    24
}

#[derive(Deserialize)]
struct Size {
    cols: u16,
    rows: u16,
}

/// Joins a page's WebSocket with a shell, until either ends.
pub async fn run(socket: WebSocket, data_plane: DataPlane, wanted: Wanted) {
    let (mut sink, stream) = socket.split();
    let shell = match wanted.pid {
        Some(pid) => data_plane.attach(pid).await,
        None => data_plane.start(&shell(wanted.cols, wanted.rows)).await,
    };
    let last = match shell {
        Ok(shell) => {
            let pid = shell.pid();
            tokio::select! {
                last = show(shell, &mut sink) => last,
                last = pass(stream, &data_plane, pid) => last,
            }
        }
        Err(error) => Some(json!({"error": error.to_string()})),
    };
    if let Some(last) = last {
        // Nobody may be there to read it.
        let _ = send(&mut sink, Message::text(last.to_string())).await;
    }
    let _ = tokio::time::timeout(SEND, sink.close()).await;
}

fn shell(cols: u16, rows: u16) -> Command {
    Command {
        program: "/bin/sh".to_owned(),
        arguments: vec!["-c".to_owned(), SHELL.to_owned()],
        envs: [("TERM".to_owned(), "xterm-256color".to_owned())].into(),
        pty: Some((cols, rows)),
        ..Command::default()
    }
}

/// Shows what comes from the shell; how it ended, or `None` where the page is gone.
async fn show(mut shell: ProcessStream, sink: &mut SplitSink<WebSocket, Message>) -> Option<Value> {
    send(sink, Message::text(json!({"pid": shell.pid()}).to_string())).await?;
    loop {
        let event = match tokio::time::timeout(PING, shell.next()).await {
            Ok(Ok(Some(event))) => event,
            Ok(Ok(None)) => return Some(json!({"ended": "ended"})),
            Ok(Err(error)) => return Some(json!({"error": error.to_string()})),
            Err(_) => {
                send(sink, Message::Ping(Bytes::new())).await?;
                continue;
            }
        };
        match event {
            ProcessEvent::Data(DataEvent::Pty(data) | DataEvent::Stdout(data) | DataEvent::Stderr(data)) => {
                match decode(&data) {
                    Ok(bytes) => send(sink, Message::binary(bytes)).await?,
                    Err(error) => return Some(json!({"error": error.to_string()})),
                }
            }
            ProcessEvent::End(end) => return Some(json!({"ended": end.status})),
            ProcessEvent::Start(_) => {}
            ProcessEvent::Keepalive(_) => send(sink, Message::Ping(Bytes::new())).await?,
        }
    }
}

/// `None`: the page is gone.
async fn send(sink: &mut SplitSink<WebSocket, Message>, message: Message) -> Option<()> {
    tokio::time::timeout(SEND, sink.send(message)).await.ok()?.ok()
}

/// Passes on what is typed; why that ended, or `None` where the page is gone.
async fn pass(mut stream: SplitStream<WebSocket>, data_plane: &DataPlane, pid: u32) -> Option<Value> {
    loop {
        let passed = match stream.next().await?.ok()? {
            Message::Binary(bytes) => data_plane.send_pty(pid, &bytes).await,
            Message::Text(text) => match serde_json::from_str::<Size>(&text) {
                Ok(Size { cols, rows }) => data_plane.resize(pid, cols, rows).await,
                Err(error) => return Some(json!({"error": format!("This page sent what is no size: {error}")})),
            },
            Message::Close(_) => return None,
            Message::Ping(_) | Message::Pong(_) => Ok(()),
        };
        if let Err(error) = passed {
            return Some(json!({"error": error.to_string()}));
        }
    }
}
