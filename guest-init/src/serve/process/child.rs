//! One process: how it is started, watched, fed and remembered.
//!
//! ```text
//!   launch ─▶ pump stdout ─┐                       ┌─▶ subscribers (Start, Connect)
//!        │    pump stderr ─┼─▶ Output (bounded) ───┤              (stdout and stderr also to [`capture`])
//!        │    pump pty    ─┘                       └─▶ kept for a while after the end
//!        ├──▶ feed stdin or pty ◀── SendInput, CloseStdin
//!        └──▶ watch: exit status or deadline, then the pumps' ends, then the end event
//! ```

use std::ffi::CString;
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use sandpiper_protocol::connect::Code;
use sandpiper_protocol::guest::OutputStream;
use sandpiper_protocol::process::{EndEvent, ProcessConfig, PtySize, StartRequest};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::input::{Feeder, Kind, feeder};
use super::output::{Output, Source, Subscriber};
use super::pump::pump;
use super::spawn::{self, SpawnError};
use super::{environment, pty};
use crate::capture::{self, Capture, Tap};
use crate::cgroups::{Cgroups, USER_GROUP};
use crate::fd::FdStream;
use crate::reap::{self, Exit, Spawning};
use crate::serve::Settings;
use crate::serve::connect::Error;
use crate::users::User;

/// A process that was started here, running or ended.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) config: ProcessConfig,
    pub(super) tag: Option<String>,
    pub(super) output: Arc<Output>,
    pub(super) input: Feeder,
    /// Gone when both its reader and its writer are.
    terminal: Weak<FdStream>,
    ended: AtomicBool,
}

impl Process {
    /// Sends a signal to the whole process group. False if the process has ended.
    pub(super) fn signal(&self, signal: Signal) -> bool {
        i32::try_from(self.pid).is_ok_and(|pid| reap::signal_group(pid, signal))
    }

    /// Whether its status is known. Its output may still be on its way.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Bytes that its output takes, and what it was started with.
    pub(super) fn size(&self) -> usize {
        let ProcessConfig { cmd, args, envs, cwd } = &self.config;
        let envs = envs.iter().flat_map(|(name, value)| [name, value]);
        let texts = args.iter().chain(envs).chain(cwd).chain(&self.tag);
        self.output.size() + texts.map(|text| text.len() + size_of::<String>()).sum::<usize>() + cmd.len()
    }

    pub(super) fn resize(&self, size: PtySize) -> Result<(), Error> {
        let Some(terminal) = self.terminal.upgrade() else {
            return Err(Error::new(Code::FailedPrecondition, "The process has no terminal to resize"));
        };
        pty::resize(terminal.get_ref().as_fd(), size)
            .map_err(|error| Error::new(Code::Internal, format!("The terminal cannot be resized: {error}")))
    }
}

/// A process that runs.
pub(super) struct Launched {
    pub(super) watched: Watched,
    /// Whoever started it, listening since before its first byte is read.
    pub(super) starter: Subscriber,
}

/// Starts what `request` says as the user called `user`, in the group for it of `groups`.
pub(super) async fn launch(
    request: StartRequest,
    user: String,
    settings: Settings,
    groups: Option<Cgroups>,
) -> Result<Launched, Error> {
    let started = tokio::task::spawn_blocking(move || start(request, &user, &settings, groups.as_ref()))
        .await
        .map_err(|error| Error::new(Code::Internal, error.to_string()))??;
    let Started { pid, exit, request, ends } = started;
    // From here on the process runs; a failure to register a descriptor leaves it without that stream, not unwatched.
    let open = |fd: OwnedFd| FdStream::new(fd).ok().map(Arc::new);
    let (streams, target, terminal) = match ends {
        Ends::Pipes { stdin, stdout, stderr } => {
            let streams = [(Source::Stdout, open(stdout)), (Source::Stderr, open(stderr))];
            let target = stdin.and_then(open).map(|stdin| (Kind::Pipe, stdin));
            (streams.into_iter().filter_map(|(source, stream)| Some((source, stream?))).collect(), target, None)
        }
        Ends::Terminal { master } => {
            let master = open(master);
            let streams = master.iter().map(|master| (Source::Pty, Arc::clone(master))).collect();
            (streams, master.clone().map(|master| (Kind::Terminal, master)), master)
        }
    };
    let process = Arc::new(Process {
        pid: u32::try_from(pid).unwrap_or_default(),
        config: request.process,
        tag: request.tag,
        output: Arc::default(),
        input: feeder(target),
        terminal: terminal.as_ref().map(Arc::downgrade).unwrap_or_default(),
        ended: AtomicBool::new(false),
    });
    let starter = process.output.subscribe();
    Ok(Launched { watched: Watched { process, exit, streams }, starter })
}

/// What [`watch`] needs.
pub(super) struct Watched {
    pub(super) process: Arc<Process>,
    exit: oneshot::Receiver<Exit>,
    streams: Vec<(Source, Arc<FdStream>)>,
}

/// Looks after a process until its end is known and told, and kills its group at `deadline`. `capture` hears its streams.
pub(super) async fn watch(watched: Watched, deadline: Option<Instant>, capture: &Capture) {
    let Watched { process, mut exit, streams } = watched;
    let (tell_exited, exited) = watch::channel(None);
    let whose = capture::Source::new(process.pid, &process.config.cmd, process.tag.as_deref());
    let pumps: Vec<_> = streams
        .into_iter()
        .map(|(source, stream)| {
            let tap = captured_as(source).map(|stream| Tap::new(capture, stream, Arc::clone(&whose)));
            pump(source, stream, tap, Arc::clone(&process.output), exited.clone())
        })
        .collect();
    let status = tokio::select! {
        status = &mut exit => status,
        () = until(deadline) => {
            process.signal(Signal::SIGKILL);
            exit.await
        }
    };
    process.ended.store(true, Ordering::Release);
    process.input.stop();
    // Fails only if all pumps are gone, which then need not know.
    let _ = tell_exited.send(Some(Instant::now()));
    for pumped in pumps {
        // A pump that is gone has nothing more to give.
        let _ = pumped.await;
    }
    process.output.finish(end_event(status.ok()));
}

/// What the log calls a stream. What a terminal shows is no lines, and is not captured.
fn captured_as(source: Source) -> Option<OutputStream> {
    match source {
        Source::Stdout => Some(OutputStream::Stdout),
        Source::Stderr => Some(OutputStream::Stderr),
        Source::Pty => None,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}

struct Started {
    pid: i32,
    exit: oneshot::Receiver<Exit>,
    request: StartRequest,
    ends: Ends,
}

/// Our ends of a process's streams.
enum Ends {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal { master: OwnedFd },
}

/// The blocking part of [`launch`].
fn start(request: StartRequest, user: &str, settings: &Settings, groups: Option<&Cgroups>) -> Result<Started, Error> {
    let user = &settings.user(user)?;
    let terminal = request.pty.is_some();
    let environment = environment::of(user, &settings.envs, &request.process.envs, terminal)?;
    let folder = folder(request.process.cwd.as_deref(), user);
    let programs = environment::programs(&request.process.cmd, environment.path(), &folder)?;
    let arguments: Vec<CString> = std::iter::once(&request.process.cmd)
        .chain(&request.process.args)
        .map(|argument| c_string(argument.as_bytes()))
        .collect::<Result<_, _>>()?;
    let (ends, theirs) = streams(&request, user).map_err(|error| {
        Error::new(Code::ResourceExhausted, format!("The streams of the process cannot be made: {error}"))
    })?;
    let group = groups.map(Cgroups::user).transpose().map_err(|error| no_group(&error))?;
    let command = spawn::Command {
        programs: &programs,
        arguments: &arguments,
        environment: environment.entries(),
        folder: &c_string(folder.as_os_str().as_bytes())?,
        stdin: theirs.stdin.as_fd(),
        stdout: theirs.stdout.as_fd(),
        stderr: theirs.stderr.as_fd(),
        terminal,
        group: group.as_ref().map(AsFd::as_fd),
        user: user.needs_change().then_some(spawn::Identity { uid: user.uid, gid: user.gid, groups: &user.groups }),
    };
    let spawning = Spawning::begin();
    let pid = spawn::spawn(&command).map_err(|error| explain(error, &request.process.cmd, &folder, user))?;
    let exit = spawning.claim(pid);
    Ok(Started { pid, exit, request, ends })
}

/// The process's ends of its streams.
struct Theirs {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

fn streams(request: &StartRequest, user: &User) -> io::Result<(Ends, Theirs)> {
    if let Some(pty) = request.pty {
        let pty::Pair { master, slave } = pty::open(pty.size, user.uid)?;
        let theirs = Theirs { stdin: slave.try_clone()?, stdout: slave.try_clone()?, stderr: slave };
        return Ok((Ends::Terminal { master }, theirs));
    }
    let pipe = || nix::unistd::pipe2(OFlag::O_CLOEXEC);
    let (their_stdin, stdin) = if request.stdin.unwrap_or(true) {
        let (read, write) = pipe()?;
        (read, Some(write))
    } else {
        (std::fs::File::open("/dev/null")?.into(), None)
    };
    let (stdout, their_stdout) = pipe()?;
    let (stderr, their_stderr) = pipe()?;
    let theirs = Theirs { stdin: their_stdin, stdout: their_stdout, stderr: their_stderr };
    Ok((Ends::Pipes { stdin, stdout, stderr }, theirs))
}

/// Where the process starts: what was asked for, else the image's folder or its home, else (in an image without homes) the
/// root. Folders that are only expected may be gone.
fn folder(asked: Option<&str>, user: &User) -> PathBuf {
    match asked.filter(|path| !path.is_empty()) {
        Some(path) => crate::serve::files::resolve(path, user),
        None => {
            let expected = [&user.folder, &user.home].into_iter().find(|folder| folder.is_dir());
            expected.cloned().unwrap_or_else(|| PathBuf::from("/"))
        }
    }
}

pub(super) fn c_string(bytes: &[u8]) -> Result<CString, Error> {
    CString::new(bytes).map_err(|_| Error::invalid("Arguments, environment and paths cannot hold a zero byte"))
}

fn explain(error: SpawnError, cmd: &str, folder: &Path, user: &User) -> Error {
    match error {
        SpawnError::Folder(error) => {
            Error::invalid(format!("The working directory {} cannot be entered: {error}", folder.display()))
        }
        SpawnError::Execute(error) => Error::invalid(format!("The command {cmd:?} cannot be run: {error}")),
        SpawnError::User(error) => {
            Error::new(Code::PermissionDenied, format!("The process cannot run as {}: {error}", user.name))
        }
        SpawnError::Group(error) => no_group(&error),
        SpawnError::Clone(error) => Error::new(
            Code::ResourceExhausted,
            format!("The sandbox cannot start another process; end some and try again: {error}"),
        ),
        SpawnError::SetUp(error) => Error::new(Code::Internal, format!("The process cannot be set up: {error}")),
    }
}

/// Root of the sandbox may remove the group, or give it controllers, which keep processes out of it.
fn no_group(error: &io::Error) -> Error {
    let message = format!("The process cannot be put into the control group {USER_GROUP}: {error}");
    Error::new(Code::FailedPrecondition, format!("{message}; empty its cgroup.subtree_control and try again"))
}

fn end_event(exit: Option<Exit>) -> EndEvent {
    let (exit_code, exited, status) = match exit {
        Some(Exit::Code(code)) => (code, true, format!("exit status {code}")),
        Some(Exit::Signal(number)) => (-1, false, format!("signal: {}", signal_name(number))),
        // Only if somebody else took the status, which nobody in this program does.
        None => (-1, false, "unknown".to_owned()),
    };
    let error = (exit_code != 0).then(|| status.clone());
    EndEvent { exit_code, exited, status, error }
}

/// A signal as the SDKs' users know it from other systems.
fn signal_name(number: i32) -> String {
    let name = match number {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGPIPE => "broken pipe",
        libc::SIGALRM => "alarm clock",
        libc::SIGTERM => "terminated",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}
