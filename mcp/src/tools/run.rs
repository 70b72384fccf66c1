//! `run_command` and `run_code`: one process, its output told while it runs, ended at its time limit.

use std::time::{Duration, Instant};

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::schemars::{self, JsonSchema};
use sandpiper_client::{ClientError, Command, DataPlane, ProcessStream, decode};
use sandpiper_protocol::process::{DataEvent, EndEvent, ProcessEvent, Signal};
use serde::Deserialize;

use crate::conversation::ToolError;
use crate::server::Call;
use crate::text::{Excerpt, cut, lossy};

/// Seconds that a process may run: unless it is said, and at most.
const DEFAULT_LIMIT: u64 = 120;
const MAX_LIMIT: u64 = 1800;

/// After the limit, for the guest to end the process by itself and say so.
pub(super) const GRACE: Duration = Duration::from_secs(15);

/// Longest command or program, in bytes: an argument's in Linux is a little more.
const MAX_SOURCE: usize = 100 << 10;

/// Between two notifications of progress, and bytes of output in one.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
const PROGRESS_BYTES: usize = 2 << 10;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// The command, as bash reads it.
    command: String,
    /// Folder to run in; the home folder otherwise.
    cwd: Option<String>,
    /// Seconds after which it is ended: 120 unless said, 1800 at most.
    timeout: Option<u64>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Language {
    Python,
    Bash,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCode {
    language: Language,
    /// The program.
    code: String,
    /// Folder to run in; the home folder otherwise.
    cwd: Option<String>,
    /// Seconds after which it is ended: 120 unless said, 1800 at most.
    timeout: Option<u64>,
}

fn limit(timeout: Option<u64>) -> Duration {
    Duration::from_secs(timeout.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT))
}

impl RunCommand {
    pub(super) fn time_limit(&self) -> Duration {
        limit(self.timeout)
    }

    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        let limit = self.time_limit();
        run(call, &["bash", "-lc"], self.command, self.cwd, limit).await
    }
}

impl RunCode {
    pub(super) fn time_limit(&self) -> Duration {
        limit(self.timeout)
    }

    pub(super) async fn run(self, call: &Call<'_>) -> Result<String, ToolError> {
        let limit = self.time_limit();
        let program = match self.language {
            Language::Python => "python3",
            Language::Bash => "bash",
        };
        run(call, &[program, "-c"], self.code, self.cwd, limit).await
    }
}

async fn run(
    call: &Call<'_>,
    program: &[&str; 2],
    source: String,
    cwd: Option<String>,
    limit: Duration,
) -> Result<String, ToolError> {
    if source.len() > MAX_SOURCE {
        return Err("That is too long to be run; write it to a file and run that".into());
    }
    let data_plane = call.conversation.data_plane(call.client, limit).await?;
    let command = Command {
        program: program[0].to_owned(),
        arguments: vec![program[1].to_owned(), source],
        cwd,
        timeout: Some(limit),
        ..Command::default()
    };
    let stream = data_plane.start(&command).await?;
    let mut running = Running::new(call, stream.pid(), data_plane);
    let end = running.follow(stream, limit + GRACE / 2).await;
    running.is_over = end.is_ok();
    Ok(running.result(end, limit))
}

/// A process that is ended if its call is dropped, as a cancelled one is.
struct Running<'a> {
    call: &'a Call<'a>,
    token: Option<ProgressToken>,
    pid: u32,
    data_plane: DataPlane,
    is_over: bool,
    stdout: Excerpt,
    stderr: Excerpt,
    /// Bytes of output so far.
    seen: f64,
    /// What was not told of yet.
    news: Vec<u8>,
    told: Instant,
}

impl<'a> Running<'a> {
    fn new(call: &'a Call<'a>, pid: u32, data_plane: DataPlane) -> Self {
        Self {
            call,
            token: call.context.meta.get_progress_token(),
            pid,
            data_plane,
            is_over: false,
            stdout: Excerpt::default(),
            stderr: Excerpt::default(),
            seen: 0.0,
            news: Vec::new(),
            told: Instant::now(),
        }
    }

    /// Takes in output until the end, which is waited for no longer than `limit`.
    async fn follow(&mut self, mut stream: ProcessStream, limit: Duration) -> Result<EndEvent, ToolError> {
        let until = tokio::time::Instant::now() + limit;
        loop {
            let event = match tokio::time::timeout_at(until, stream.next()).await {
                Ok(Ok(event)) => event,
                Ok(Err(ClientError::Refused { code, .. })) if code == "deadline_exceeded" => break,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => break,
            };
            match event {
                Some(ProcessEvent::Data(data)) => self.take(&data).await?,
                Some(ProcessEvent::End(end)) => return Ok(end),
                Some(ProcessEvent::Start(_) | ProcessEvent::Keepalive(_)) => {}
                None => return Err("The sandbox did not say how it ended".into()),
            }
        }
        Err("It was ended at its time limit".into())
    }

    async fn take(&mut self, data: &DataEvent) -> Result<(), ToolError> {
        let (excerpt, text) = match data {
            DataEvent::Stdout(text) | DataEvent::Pty(text) => (&mut self.stdout, text),
            DataEvent::Stderr(text) => (&mut self.stderr, text),
        };
        let bytes = decode(text)?;
        excerpt.push(&bytes);
        self.tell(&bytes).await;
        Ok(())
    }

    /// Tells of new output, to who asked for progress: the latest of it, and not too often.
    async fn tell(&mut self, bytes: &[u8]) {
        #[expect(clippy::cast_precision_loss, reason = "a number to look at")]
        let length = bytes.len() as f64;
        self.seen += length;
        let Some(token) = &self.token else { return };
        self.news.extend_from_slice(&bytes[bytes.len().saturating_sub(PROGRESS_BYTES)..]);
        let over = self.news.len().saturating_sub(PROGRESS_BYTES);
        self.news.drain(..over);
        if self.told.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        self.told = Instant::now();
        let message = lossy(&std::mem::take(&mut self.news));
        let progress = ProgressNotificationParam::new(token.clone(), self.seen).with_message(message);
        // A client that takes no notifications still gets the result.
        let _ = tokio::time::timeout(PROGRESS_INTERVAL, self.call.context.peer.notify_progress(progress)).await;
    }

    /// How it ended, then what it printed.
    fn result(mut self, end: Result<EndEvent, ToolError>, limit: Duration) -> String {
        let mut text = match end {
            Ok(end) if end.exited => format!("exit code {}", end.exit_code),
            Ok(end) => format!("ended: {}", cut(&lossy(end.status.as_bytes()), PROGRESS_BYTES)),
            Err(ToolError(error)) => format!("no exit code: {error} ({} s)", limit.as_secs()),
        };
        for (name, excerpt) in
            [("stdout", std::mem::take(&mut self.stdout)), ("stderr", std::mem::take(&mut self.stderr))]
        {
            if !excerpt.is_empty() {
                text.push_str(&format!("\n--- {name} ---\n{}", excerpt.text()));
            }
        }
        text
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (data_plane, pid) = (self.data_plane.clone(), self.pid);
        tokio::spawn(async move {
            // If the sandbox is gone, so is the process.
            let _ = tokio::time::timeout(GRACE, data_plane.signal(pid, Signal::Kill)).await;
        });
    }
}
