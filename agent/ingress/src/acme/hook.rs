//! The operator's program that sets DNS records.
//!
//! ```text
//!   HOOK… present _acme-challenge.sandbox.example.test VALUE    publish this TXT record, beside others of the name
//!   HOOK… cleanup _acme-challenge.sandbox.example.test VALUE    remove it again
//! ```
//!
//! Success is exit status 0. A call may come twice: after a crash, what may have been set is set or removed again. What the
//! program writes goes to the agent's standard error. One that takes too long is killed, with what it started.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::config::AcmeConfig;

/// A TXT record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) value: String,
}

/// What is to be done with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Present,
    Cleanup,
}

/// Why the hook did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("{program} cannot be run: see ingress.tls.acme.hook")]
    Start { program: String, source: std::io::Error },
    #[error("{program} {action} {name} failed ({status}): what it wrote is in the agent's log")]
    Failed { program: String, action: &'static str, name: String, status: ExitStatus },
    #[error("{program} {action} {name} took longer than {} s and was killed", limit.as_secs())]
    TimedOut { program: String, action: &'static str, name: String, limit: Duration },
}

impl Action {
    fn word(self) -> &'static str {
        match self {
            Action::Present => "present",
            Action::Cleanup => "cleanup",
        }
    }
}

/// Calls the hook and waits for its end.
pub(super) async fn call(config: &AcmeConfig, action: Action, record: &Record) -> Result<(), HookError> {
    let (program, arguments) = config.hook.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
    let (program, action, name) = (program.to_owned(), action.word(), record.name.clone());
    let mut command = Command::new(&program);
    command.args(arguments).args([action, &record.name, &record.value]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(source) => return Err(HookError::Start { program, source }),
    };
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let limit = config.hook_timeout();
    match tokio::time::timeout(limit, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(HookError::Failed { program, action, name, status }),
        Ok(Err(source)) => Err(HookError::Start { program, source }),
        Err(_) => {
            // The leader was not waited for yet, so the number is still the group's.
            if let Some(group) = group {
                let _ = killpg(group, Signal::SIGKILL);
            }
            let _ = child.wait().await;
            Err(HookError::TimedOut { program, action, name, limit })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(script: &str, hook_timeout_seconds: u64) -> AcmeConfig {
        AcmeConfig {
            directory: "https://acme.example.test/directory".to_owned(),
            agree_to_terms: true,
            contact: Vec::new(),
            hook: ["/bin/sh", "-c", script, "hook"].map(str::to_owned).to_vec(),
            hook_timeout_seconds,
            propagation_seconds: 0,
            root: None,
        }
    }

    fn record() -> Record {
        Record { name: "_acme-challenge.a.example.test".to_owned(), value: "v".to_owned() }
    }

    #[tokio::test]
    async fn the_hook_gets_what_to_do_with_which_record() {
        let script = r#"test "$*" = "cleanup _acme-challenge.a.example.test v""#;
        call(&config(script, 60), Action::Cleanup, &record()).await.expect("as documented");
    }

    #[tokio::test]
    async fn a_hook_that_fails_is_reported() {
        let error = call(&config("exit 3", 60), Action::Present, &record()).await.expect_err("exit status 3");
        assert!(
            error.to_string().contains("present _acme-challenge.a.example.test failed (exit status: 3)"),
            "{error}"
        );
        let missing = AcmeConfig { hook: vec!["/nonexistent/hook".to_owned()], ..config("", 60) };
        let error = call(&missing, Action::Present, &record()).await.expect_err("no such program");
        assert!(matches!(error, HookError::Start { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_hook_that_hangs_is_killed() {
        let error = call(&config("sleep 600; true", 1), Action::Present, &record()).await.expect_err("too slow");
        assert!(matches!(error, HookError::TimedOut { .. }), "{error}");
    }
}
