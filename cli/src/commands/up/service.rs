//! One child process that is started again whenever it ends by itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::configuration::{Files, User};

/// Between an unexpected end and the next start.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// For a process that was asked to end, until it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// As in the unit of the package.
const FIRST: libc::c_int = -10;

/// Who gets a processor of a busy host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    Usual,
    /// Before others: one whom everybody waits for and who needs little.
    First,
}

pub(super) struct Service {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Service {
    pub(super) fn start(
        name: &'static str,
        program: PathBuf,
        arguments: Vec<OsString>,
        user: Option<User>,
        rank: Rank,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(keep_running(name, program, arguments, user, rank, stopped));
        Self { stop, task }
    }

    /// Asks the process to end and waits for it.
    pub(super) async fn stop(self) {
        // Either side may be gone first: then there is nothing to stop or to wait for.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

async fn keep_running(
    name: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
    user: Option<User>,
    rank: Rank,
    mut stop: oneshot::Receiver<()>,
) {
    loop {
        match spawn(&program, &arguments, user, rank) {
            Ok(mut child) => tokio::select! {
                ended = child.wait() => match ended {
                    Ok(status) => eprintln!("{name} ended ({status}); starting it again"),
                    Err(error) => eprintln!("{name} cannot be waited for ({error}); starting it again"),
                },
                _ = &mut stop => return end(child).await,
            },
            Err(error) => eprintln!("{} cannot be started: {error}", program.display()),
        }
        tokio::select! {
            () = tokio::time::sleep(RESTART_PAUSE) => {}
            _ = &mut stop => return,
        }
    }
}

fn spawn(program: &Path, arguments: &[OsString], user: Option<User>, rank: Rank) -> std::io::Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(std::process::Stdio::null());
    // Results of `up` go to standard output; what the services say is for people.
    command.stdout(std::process::Stdio::null());
    // A Ctrl-C in the terminal is for `up`, which then ends its services in order.
    command.process_group(0);
    if let Some(user) = user {
        // Root's own, where it may not look for anything.
        command.uid(user.uid).gid(user.gid).env_remove("HOME");
    }
    let parent = nix::unistd::getpid();
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            // `up` may have died before the line above took hold.
            if nix::unistd::getppid() != parent {
                return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
            }
            Ok(())
        });
    }
    match rank {
        Rank::Usual => command.spawn(),
        Rank::First => {
            // A process has the priority of the thread that makes it, and could not raise it itself. Without, it works as well.
            let raised = set_nice(FIRST);
            let spawned = command.spawn();
            let _ = raised.and_then(|()| set_nice(0));
            spawned
        }
    }
}

/// Of the calling thread, and of what it begins.
fn set_nice(nice: libc::c_int) -> std::io::Result<()> {
    // SAFETY: it takes integers and touches no memory of ours.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

async fn end(mut child: Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // The process may have ended just now: the wait below finds out.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// Makes a writing key for the development team through the API's own command.
pub(super) async fn create_api_key(files: &Files) -> anyhow::Result<String> {
    let team = ["--team", "default", "--plan", "pro", "--capability", "write"];
    create_key(files, &[&["key", "create"], &team[..]].concat()).await
}

/// Makes an operator key.
pub(super) async fn create_operator_key(files: &Files) -> anyhow::Result<String> {
    create_key(files, &["operator-key", "create"]).await
}

/// Invites the first owner of the development team; the invitation's token.
pub(super) async fn invite_owner(files: &Files) -> anyhow::Result<String> {
    let invite = ["team", "invite", "default", "--role", "owner", "--plan", "pro", "--config"];
    let made = api_command(files, &invite).arg(&files.api).output().await.context("Cannot run sandpiper-api")?;
    if !made.status.success() {
        bail!("Cannot invite the first user: {}", String::from_utf8_lossy(&made.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&made.stdout).trim().to_owned())
}

async fn create_key(files: &Files, command: &[&str]) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct Created {
        key: String,
    }
    let made = api_command(files, command)
        .args(["--json", "--name", "first", "--config"])
        .arg(&files.api)
        .output()
        .await
        .context("Cannot run sandpiper-api")?;
    if !made.status.success() {
        bail!("Cannot make the first keys: {}", String::from_utf8_lossy(&made.stderr).trim());
    }
    let created: Created =
        serde_json::from_slice(&made.stdout).context("sandpiper-api made a key, and its output cannot be read")?;
    Ok(created.key)
}

/// A command of the API's program, as its user.
fn api_command(files: &Files, arguments: &[&str]) -> Command {
    let mut command = Command::new(&files.api_program);
    command.args(arguments).uid(files.api_user.uid).gid(files.api_user.gid);
    command
}
