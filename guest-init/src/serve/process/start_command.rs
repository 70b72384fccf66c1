//! The start command of a template: a process as any other, only that nobody has asked for it.

use std::sync::Arc;

use sandpiper_protocol::guest::{START_ENDED, START_TAG};
use sandpiper_protocol::process::{ProcessConfig, StartRequest};

use super::output::{Item, Subscriber};
use crate::serve::App;

/// Bytes of its last output that are told when it ends badly.
const TAIL: usize = 1024;

/// A start command that runs.
#[derive(Debug)]
pub struct StartCommand {
    output: Subscriber,
}

impl App {
    /// Runs `command` with `/bin/sh` as the default user in its folder. Its output is kept like that of any process, and found
    /// by the tag [`START_TAG`].
    ///
    /// # Errors
    ///
    /// Says why it cannot be started.
    pub async fn run_start_command(self: &Arc<Self>, command: &str) -> Result<StartCommand, String> {
        let settings = self.settings();
        let process = ProcessConfig {
            cmd: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), command.to_owned()],
            ..ProcessConfig::default()
        };
        let request = StartRequest { process, pty: None, tag: Some(START_TAG.to_owned()), stdin: Some(false) };
        let user = settings.default_user.clone();
        let started = self.processes.start(request, user, settings, None).await;
        let (_, output) =
            started.map_err(|error| format!("{START_ENDED}: it cannot be run: {}", error.body().message))?;
        Ok(StartCommand { output })
    }
}

impl StartCommand {
    /// Waits for its end. Returns what there is to say of it, if it did not succeed.
    pub async fn ended(mut self) -> Option<String> {
        let mut tail = Vec::new();
        loop {
            match self.output.next().await {
                Item::Data(_, bytes) => {
                    tail.extend_from_slice(&bytes);
                    tail.drain(..tail.len().saturating_sub(TAIL));
                }
                Item::End(end) if end.exit_code == 0 => return None,
                Item::End(end) => {
                    let said = String::from_utf8_lossy(&tail);
                    return Some(format!("{START_ENDED}: {}. It said last: {}", end.status, said.trim()));
                }
            }
        }
    }
}
