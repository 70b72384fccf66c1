//! The messages of the data plane's `process.Process` service, in proto3 JSON: lower camel case, bytes as base64,
//! defaults left out, a oneof as the one key that is set.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Path before the method's name: `/process.Process/Start`.
pub const SERVICE: &str = "process.Process";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessConfig {
    pub cmd: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct PtySize {
    pub cols: u32,
    pub rows: u32,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pty {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<PtySize>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StartRequest {
    pub process: ProcessConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether standard input stays open for `SendInput`; absent means true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

/// A process by its pid or by the tag it was started with.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum ProcessSelector {
    Pid(u32),
    Tag(String),
}

/// Requests that only name a process: `Connect`, `CloseStdin`, and `Update` with a new size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SelectRequest {
    pub process: ProcessSelector,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SendInputRequest {
    pub process: ProcessSelector,
    pub input: ProcessInput,
}

/// Base64 of the bytes for a pipe or for a terminal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessInput {
    Stdin(String),
    Pty(String),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SendSignalRequest {
    pub process: ProcessSelector,
    pub signal: Signal,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub enum Signal {
    #[serde(rename = "SIGNAL_SIGTERM")]
    Term,
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListResponse {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessInfo>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInfo {
    pub config: ProcessConfig,
    pub pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// One message of the streams that `Start` and `Connect` respond with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventMessage {
    pub event: ProcessEvent,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessEvent {
    Start(StartEvent),
    Data(DataEvent),
    End(EndEvent),
    Keepalive(Empty),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct StartEvent {
    pub pid: u32,
}

/// Base64 of a piece of output.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DataEvent {
    Stdout(String),
    Stderr(String),
    Pty(String),
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndEvent {
    /// Exit status, or -1 after a signal.
    #[serde(skip_serializing_if = "is_zero")]
    pub exit_code: i32,
    /// Whether the process exited by itself (false: ended by a signal).
    pub exited: bool,
    /// `exit status 3` or `signal: killed`.
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Empty {}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &i32) -> bool {
    *value == 0
}

/// One entry of the response of `POST /files`, and the response of `POST /files/compose`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct WrittenFile {
    /// Absolute path in the guest.
    pub path: String,
    pub name: String,
    /// Always `file`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What the request's fields `X-Metadata-<key>` said, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_wire_form_that_the_sdks_send() {
        let start: StartRequest =
            serde_json::from_str(r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi"]},"stdin":false}"#)
                .unwrap();
        assert_eq!(start.process.args, ["-l", "-c", "echo hi"]);
        assert_eq!(start.stdin, Some(false));

        let kill: SendSignalRequest =
            serde_json::from_str(r#"{"process":{"pid":42},"signal":"SIGNAL_SIGKILL"}"#).unwrap();
        assert_eq!((kill.process, kill.signal), (ProcessSelector::Pid(42), Signal::Kill));
    }

    #[test]
    fn events_have_the_wire_form_that_the_sdks_accept() {
        let end = EndEvent { exit_code: 0, exited: true, status: "exit status 0".into(), error: None };
        let wire = serde_json::to_string(&EventMessage { event: ProcessEvent::End(end) }).unwrap();
        assert_eq!(wire, r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#);
        let data = EventMessage { event: ProcessEvent::Data(DataEvent::Stdout("aGkK".into())) };
        assert_eq!(serde_json::to_string(&data).unwrap(), r#"{"event":{"data":{"stdout":"aGkK"}}}"#);
        let alive = EventMessage { event: ProcessEvent::Keepalive(Empty {}) };
        assert_eq!(serde_json::to_string(&alive).unwrap(), r#"{"event":{"keepalive":{}}}"#);
    }
}
