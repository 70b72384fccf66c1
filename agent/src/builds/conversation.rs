//! What the agent and the program in a builder's machine say to each other (`protocol::builder`).
//!
//! The machine runs a tenant's steps, which may have taken it over: every line is bounded, and believed no further than that the
//! build went as it says.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use sandpiper_durable as durable;
use sandpiper_machine::sanitize;
use sandpiper_protocol::builder::{Event, Order, PROGRAM, UPLOADS};
use sandpiper_protocol::lines::Decoder;
use sandpiper_protocol::process::{
    ProcessConfig, ProcessInput, ProcessSelector, SelectRequest, SendInputRequest, StartRequest,
};
use sandpiper_protocol::template::{BuildError, BuildSource, ImageSettings, LogLevel};
use tokio_util::io::ReaderStream;

use super::lock;
use super::log::{Line, Log};
use super::run::{Stop, failed, host_failed};
use crate::data_plane::{self, Output, Process};
use crate::uploads::Uploads;

/// Longest line of the program.
const MAX_LINE: usize = 256 * 1024;
/// Longest piece of the order, and of an upload, that is sent at a time.
const PIECE: usize = 256 * 1024;
/// Most images, and most bytes of what an image starts.
pub(super) const MAX_IMAGES: usize = 256;
const MAX_COMMAND: usize = 16 * 1024;
/// Digits of an image's id.
const IMAGE_ID: usize = 64;
/// What a build may fail with. Anything else is a step's.
const CODES: [&str; 7] =
    ["step_failed", "source_refused", "source_unreachable", "no_shell", "disk_full", "memory_exhausted", "host_failed"];
const ROOT: Option<&str> = Some("root");

/// What the program made.
pub(super) struct Made {
    /// The image's id.
    pub(super) image: String,
    /// It is one of those that were said to be there: nothing was written.
    pub(super) is_known: bool,
    pub(super) settings: ImageSettings,
    pub(super) command: Option<String>,
    pub(super) images: BTreeMap<String, String>,
}

/// Sends what a source names into the machine.
pub(super) async fn send_uploads(uploads: &Uploads, source: &BuildSource, vsock: &Path) -> Result<(), Stop> {
    for id in source.uploads() {
        let opened = {
            let (uploads, id) = (uploads.clone(), id.clone());
            durable::blocking(move || uploads.open_data(&id)).await
        };
        let opened = opened.map_err(|error| host_failed("read an upload", &error))?;
        let (upload, file) =
            opened.ok_or_else(|| failed("source_refused", format!("The upload {id} is gone; send it again")))?;
        let body = Body::from_stream(ReaderStream::with_capacity(tokio::fs::File::from_std(file), PIECE));
        let path = format!("/files?path={UPLOADS}/{id}");
        let sent = data_plane::post(vsock, &path, ROOT, "application/octet-stream", Some(upload.bytes), body).await;
        sent.map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => {
                failed("disk_full", "What was sent does not fit on the version's disk; give it more")
            }
            _ => host_failed("send an upload to the builder", &error),
        })?;
    }
    Ok(())
}

/// Has the program do what is ordered; what it says on the way goes to the log. `None` to a question: nothing was done.
pub(super) async fn build(log: &Arc<Mutex<Log>>, order: &Order, vsock: &Path) -> Result<Option<Made>, Stop> {
    let broken = |error: io::Error| host_failed("have the builder build", &error);
    let process = ProcessConfig { cmd: PROGRAM.to_owned(), ..ProcessConfig::default() };
    let start = StartRequest { process, stdin: Some(true), ..StartRequest::default() };
    let mut process = Process::start(vsock, ROOT, &start, None).await.map_err(broken)?;
    let mut conversation = Conversation { log: Arc::clone(log), step: None, lines: Decoder::new(MAX_LINE) };
    loop {
        match process.next().await.map_err(broken)? {
            Output::Started(pid) => send_order(vsock, pid, order).await.map_err(broken)?,
            Output::Stdout(bytes) => {
                if let Some(result) = conversation.hear(&bytes).await? {
                    return result;
                }
            }
            Output::Stderr(bytes) => {
                tracing::debug!(text = sanitize(&String::from_utf8_lossy(&bytes)), "a builder's program says");
            }
            Output::Ended(None) => {
                let message = "The builder's program was killed, most likely for want of memory; give the build more";
                return Err(failed("memory_exhausted", message));
            }
            Output::Ended(Some(status)) => {
                let message = format!("The builder's program ended with status {status} and no result; build it again");
                return Err(failed("host_failed", message));
            }
        }
    }
}

/// The order is one line on the program's standard input, which ends with it.
async fn send_order(vsock: &Path, pid: u32, order: &Order) -> io::Result<()> {
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    let process = || ProcessSelector::Pid(pid);
    for piece in line.chunks(PIECE) {
        let input = SendInputRequest { process: process(), input: ProcessInput::Stdin(BASE64.encode(piece)) };
        data_plane::call(vsock, "SendInput", ROOT, &input).await?;
    }
    data_plane::call(vsock, "CloseStdin", ROOT, &SelectRequest { process: process(), pty: None }).await
}

struct Conversation {
    log: Arc<Mutex<Log>>,
    /// The step that is under way.
    step: Option<u32>,
    lines: Decoder,
}

impl Conversation {
    /// Takes a piece of what the program prints; the result once it says that.
    async fn hear(&mut self, bytes: &[u8]) -> Result<Option<Result<Option<Made>, Stop>>, Stop> {
        self.lines.push(bytes);
        let (mut lines, mut result) = (Vec::new(), None);
        let odd = |error: &dyn std::error::Error| host_failed("understand the builder", error);
        while let Some(line) = self.lines.next_line().map_err(|error| odd(&error))? {
            match serde_json::from_slice(&line).map_err(|error| odd(&error))? {
                Event::Step { number, of, text, cached } => {
                    self.step = Some(number);
                    let cached = if cached { " (cached)" } else { "" };
                    lines.push(self.line(LogLevel::Info, format!("[{number}/{of}] {text}{cached}")));
                }
                Event::Log { level, text } => lines.push(self.line(level, text)),
                Event::Finished { image, is_known, settings, command, digests } => {
                    result = Some(checked(Made { image, is_known, settings, command, images: digests }).map(Some));
                    break;
                }
                Event::NotBuilt => {
                    result = Some(Ok(None));
                    break;
                }
                Event::Failed(error) => {
                    result = Some(Err(Stop::Failed(believed(error, self.step))));
                    break;
                }
            }
        }
        let log = Arc::clone(&self.log);
        let written = durable::blocking(move || lock(&log).push(lines)).await;
        match (written.map_err(|error| host_failed("write the build's log", &error))?, &result) {
            (false, None) => {
                Err(failed("log_full", "The build printed more than its log may hold; have it print less"))
            }
            _ => Ok(result),
        }
    }

    fn line(&self, level: LogLevel, text: String) -> Line {
        Line { level, step: self.step, text }
    }
}

/// What was made, if it is what an image can be.
fn checked(mut made: Made) -> Result<Made, Stop> {
    let settings = &made.settings;
    if settings.workdir.as_ref().is_some_and(|path| !path.starts_with('/') || path.contains('\0')) {
        return Err(failed("source_refused", "The image's working directory is no absolute path"));
    }
    let is_name = |name: &String| !name.is_empty() && !name.contains(['=', '\0']);
    if settings.env.iter().any(|(name, value)| !is_name(name) || value.contains('\0')) {
        return Err(failed("source_refused", "The image has a variable whose name is empty or holds `=` or a NUL"));
    }
    if made.image.len() != IMAGE_ID || !made.image.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(failed("host_failed", "The builder does not say which image it has built; build it again"));
    }
    let images = made.images.into_iter().take(MAX_IMAGES);
    made.images = images.map(|(name, digest)| (sanitize(&name), sanitize(&digest))).collect();
    made.command = made.command.filter(|command| command.len() <= MAX_COMMAND);
    Ok(made)
}

/// A failure in words that can be shown.
fn believed(error: BuildError, step: Option<u32>) -> BuildError {
    let code = CODES.iter().find(|code| **code == error.code).copied().unwrap_or("step_failed");
    BuildError { code: code.to_owned(), message: sanitize(&error.message), step: error.step.or(step) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs::File;

    fn conversation(folder: &Path, limit: u64) -> Conversation {
        let path = folder.join("log");
        File::create(&path).unwrap();
        let log = Arc::new(Mutex::new(Log::open(&path, limit).unwrap()));
        Conversation { log, step: None, lines: Decoder::new(MAX_LINE) }
    }

    fn say(events: &[serde_json::Value]) -> Vec<u8> {
        events.iter().flat_map(|event| format!("{event}\n").into_bytes()).collect()
    }

    #[tokio::test]
    async fn what_the_program_says_is_in_the_log_with_its_step_and_the_last_event_is_the_result() {
        let folder = tempfile::tempdir().unwrap();
        let mut conversation = conversation(folder.path(), 1 << 20);
        let said = say(&[
            json!({"event": "step", "number": 2, "of": 3, "text": "RUN make", "cached": true}),
            json!({"event": "log", "level": "warn", "text": "hot\u{1b}[2J"}),
            json!({"event": "finished", "image": "0f".repeat(32), "settings": {"workdir": "/app"}, "digests": {"registry.example/a": "sha256:1"}}),
        ]);
        let (first, rest) = said.split_at(30);

        assert!(conversation.hear(first).await.unwrap().is_none());
        let made = conversation.hear(rest).await.unwrap().unwrap().ok().flatten().unwrap();

        assert_eq!((made.settings.workdir.as_deref(), made.images.len()), (Some("/app"), 1));
        let entries = lock(&conversation.log).page(0, 10).unwrap();
        let texts: Vec<_> = entries.iter().map(|entry| (entry.step, entry.text.as_str())).collect();
        assert_eq!(texts, [(Some(2), "[2/3] RUN make (cached)"), (Some(2), "hot\u{fffd}[2J")]);
    }

    #[tokio::test]
    async fn a_failure_is_told_in_known_words_and_nonsense_is_the_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let mut conversation = conversation(folder.path(), 1 << 20);
        let error = json!({"event": "failed", "code": "pay_me", "message": "a\u{7}b", "step": 4});
        let Err(Stop::Failed(error)) = conversation.hear(&say(&[error])).await.unwrap().unwrap() else { panic!() };
        assert_eq!((error.code.as_str(), error.message.as_str(), error.step), ("step_failed", "a\u{fffd}b", Some(4)));

        let Err(Stop::Failed(error)) = conversation.hear(b"{\"event\":\"sing\"}\n").await else { panic!() };
        assert_eq!(error.code, "host_failed");
        let odd = json!({"event": "finished", "image": "0f".repeat(32), "settings": {"workdir": "app"}, "digests": {}});
        let Err(Stop::Failed(error)) = conversation.hear(&say(&[odd])).await.unwrap().unwrap() else { panic!() };
        assert_eq!(error.code, "source_refused");
    }

    #[tokio::test]
    async fn a_log_that_is_full_ends_the_build_unless_it_has_just_ended() {
        let folder = tempfile::tempdir().unwrap();
        let mut conversation = conversation(folder.path(), 300);
        let line = json!({"event": "log", "level": "info", "text": "x".repeat(200)});
        let Err(Stop::Failed(error)) = conversation.hear(&say(&[line.clone(), line.clone()])).await else { panic!() };
        assert_eq!(error.code, "log_full");
        let finished = json!({"event": "finished", "image": "0f".repeat(32), "settings": {}, "digests": {}});
        assert!(conversation.hear(&say(&[line, finished])).await.unwrap().unwrap().is_ok());
    }
}
