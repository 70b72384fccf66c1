//! One process in a sandbox, joined to this terminal: what `run` and `exec` share.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use nix::sys::termios::{self, SetArg, Termios};
use sandpiper::client::{ClientError, Command, DataPlane, Stdin, decode};
use sandpiper_protocol::process::{DataEvent, EndEvent, ProcessEvent, Signal};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::output::Output;

/// How a command runs, the same for `run` and `exec`.
#[derive(clap::Args)]
pub(crate) struct ProcessArguments {
    /// Set a variable of the command's environment
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE", value_parser = parse_env)]
    envs: Vec<(String, String)>,

    /// Folder to run in; the user's home otherwise
    #[arg(long, short = 'w')]
    cwd: Option<String>,

    /// Linux user to run as: user (with passwordless sudo) or root
    #[arg(long, short = 'u')]
    user: Option<String>,

    /// Give the command a terminal
    #[arg(long, short = 't')]
    tty: bool,

    /// Pass this terminal's or pipe's input to the command (always with --tty)
    #[arg(long, short = 'i')]
    interactive: bool,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl ProcessArguments {
    /// A shell on this terminal.
    pub(crate) fn shell(cwd: String) -> Self {
        Self {
            envs: Vec::new(),
            cwd: Some(cwd),
            user: None,
            tty: true,
            interactive: true,
            command: vec!["bash".to_owned(), "-l".to_owned()],
        }
    }
}

pub(crate) fn parse_env(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// Runs the command to its end and gives its exit status; `128 + 9` and the like after a signal.
pub(crate) async fn run(
    data_plane: &DataPlane,
    arguments: ProcessArguments,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let mut words = arguments.command.into_iter();
    let program = words.next().context("No command given")?;
    if arguments.tty && !std::io::stdin().is_terminal() {
        bail!("--tty needs a terminal; leave it out when input or output is a pipe");
    }
    let interactive = arguments.interactive || arguments.tty;
    let mut envs: BTreeMap<String, String> = arguments.envs.into_iter().collect();
    if arguments.tty {
        let term = std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".into());
        envs.entry("TERM".into()).or_insert(term);
    }
    let command = Command {
        program,
        arguments: words.collect(),
        envs,
        cwd: arguments.cwd,
        user: arguments.user,
        stdin: if interactive { Stdin::Open } else { Stdin::Closed },
        pty: arguments.tty.then(terminal_size),
        timeout: None,
    };
    let mut stream = data_plane.start(&command).await?;
    let pid = stream.pid();
    let _raw = arguments.tty.then(RawTerminal::enter).transpose()?;
    if interactive {
        tokio::spawn(pass_input(data_plane.clone(), pid, arguments.tty));
    }
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut resizes = signal(SignalKind::window_change())?;
    let end = loop {
        tokio::select! {
            event = stream.next() => match event? {
                Some(ProcessEvent::Data(data)) => print(&data, output)?,
                Some(ProcessEvent::End(end)) => break end,
                Some(ProcessEvent::Start(_) | ProcessEvent::Keepalive(_)) => {}
                None => bail!("The stream from the sandbox ended without the command's exit status"),
            },
            _ = interrupts.recv() => data_plane.signal(pid, Signal::Term).await?,
            _ = resizes.recv(), if arguments.tty => {
                let (columns, rows) = terminal_size();
                data_plane.resize(pid, columns, rows).await?;
            }
        }
    };
    if output.is_json() {
        output.value(&json!({"event": "exit", "exit_code": end.exit_code, "status": end.status}));
    }
    Ok(ExitCode::from(exit_status(&end)))
}

/// As a shell gives it: the process's own status, or 128 and the signal's number.
fn exit_status(end: &EndEvent) -> u8 {
    if end.exited {
        return u8::try_from(end.exit_code & 0xff).unwrap_or(1);
    }
    if end.status.contains("killed") {
        return 128 + 9;
    }
    if end.status.contains("terminated") {
        return 128 + 15;
    }
    128
}

fn print(data: &DataEvent, output: Output) -> anyhow::Result<()> {
    let (name, text) = match data {
        DataEvent::Stdout(text) | DataEvent::Pty(text) => ("stdout", text),
        DataEvent::Stderr(text) => ("stderr", text),
    };
    let bytes = decode(text)?;
    if output.is_json() {
        output.value(&json!({"event": name, "text": String::from_utf8_lossy(&bytes)}));
        return Ok(());
    }
    if name == "stderr" {
        std::io::stderr().write_all(&bytes)?;
    } else {
        let mut out = std::io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()?;
    }
    Ok(())
}

/// Sends standard input until its end, then closes the process's.
async fn pass_input(data_plane: DataPlane, pid: u32, tty: bool) {
    let (sender, mut pieces) = mpsc::channel::<Vec<u8>>(4);
    tokio::spawn(async move {
        let mut input = tokio::io::stdin();
        loop {
            let mut piece = vec![0; 64 << 10];
            match input.read(&mut piece).await {
                Ok(length) if length > 0 => {
                    piece.truncate(length);
                    if sender.send(piece).await.is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    });
    while let Some(piece) = pieces.recv().await {
        let sent = if tty { data_plane.send_pty(pid, &piece).await } else { data_plane.send_input(pid, &piece).await };
        // The process ended or closed its input: its own end is reported elsewhere.
        if sent.is_err() {
            return;
        }
    }
    if !tty && let Err(error @ ClientError::Unreachable { .. }) = data_plane.close_stdin(pid).await {
        eprintln!("warning: {error}");
    }
}

nix::ioctl_read_bad!(read_terminal_size, nix::libc::TIOCGWINSZ, nix::libc::winsize);

/// (columns, rows) of this terminal, 80 by 24 where it does not say.
fn terminal_size() -> (u16, u16) {
    let mut size = nix::libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize, which `size` is, and outlives the call.
    let answered = unsafe { read_terminal_size(nix::libc::STDIN_FILENO, &raw mut size) };
    if answered.is_ok() && size.ws_col > 0 && size.ws_row > 0 { (size.ws_col, size.ws_row) } else { (80, 24) }
}

/// The terminal passes every key through while this lives.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> anyhow::Result<Self> {
        let before = termios::tcgetattr(std::io::stdin())?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing is left to do for a terminal that is gone.
        let _ = termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.0);
    }
}
