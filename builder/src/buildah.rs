//! Running buildah.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::fs::statvfs;
use sandpiper_protocol::builder::CACHE;

use crate::failure::{Failure, Signs, explain, is_full};
use crate::group::{Group, MAX_TASKS};
use crate::registries::Files;
use crate::storage;

/// Bytes of a line that are read of what a program prints; the rest of it is dropped. Much less is shown, but a secret that begins
/// in there is to be found whole.
const MAX_LINE: u64 = 128 << 10;

/// Bytes of a line where all of the output is wanted, such as the description of an image.
const MAX_OUTPUT_LINE: u64 = 16 << 20;

/// Bytes of a disk with which a failure may be for another reason than that it is full.
const LEAST_ROOM: u64 = 4 << 20;

/// Lines that wait to be told.
const BACKLOG: usize = 64;

/// Bytes of what buildah itself may say of a failure.
const MAX_WORDS: usize = 256 << 10;

/// The one name that its containers' networks need: the machine is what keeps them in.
const NETWORK: &str = "--network=host";

/// buildah in this machine: its storage in the cache, its settings in memory.
pub(crate) struct Buildah {
    files: Files,
    group: Option<Group>,
    storage: PathBuf,
    containers: PathBuf,
}

/// A line of a program, and where it came from.
#[derive(Debug)]
pub(crate) enum Line {
    Output(String),
    Error(String),
}

impl Line {
    fn text(&self) -> &str {
        let (Self::Output(text) | Self::Error(text)) = self;
        text
    }
}

impl Buildah {
    /// # Errors
    ///
    /// Fails if its settings cannot be written.
    pub(crate) fn new(files: Files) -> Result<Self, Failure> {
        let group = Group::make();
        if let Err(error) = &group {
            eprintln!("sandpiper-builder: the build has no limits of its own within the machine: {error}");
        }
        let storage = files.put_other("storage.conf", &storage_configuration())?;
        let containers = files.put_other("containers.conf", CONTAINERS)?;
        Ok(Self { files, group: group.ok(), storage, containers })
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Runs it and returns what it wrote to its standard output, without spaces around.
    ///
    /// # Errors
    ///
    /// Fails if it does.
    pub(crate) fn output<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Result<String, Failure> {
        let mut output = String::new();
        self.run_reading(arguments, &[], MAX_OUTPUT_LINE, |line| {
            if let Some(Line::Output(line)) = line {
                output.push_str(&line);
                output.push('\n');
            }
            Ok(None)
        })?;
        Ok(output.trim().to_owned())
    }

    /// Runs it, giving each line to `tell`, and `None` when there has been none for a moment. What that returns is the step
    /// that goes on, for the failure.
    ///
    /// # Errors
    ///
    /// Fails if it does, and if `tell` does.
    pub(crate) fn run<I: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = I>,
        tell: impl FnMut(Option<Line>) -> Result<Option<u32>, Failure>,
    ) -> Result<(), Failure> {
        self.run_with(arguments, &[], tell)
    }

    /// The same with variables in its environment, which it does not pass on.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub(crate) fn run_with<I: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = I>,
        variables: &[(String, String)],
        tell: impl FnMut(Option<Line>) -> Result<Option<u32>, Failure>,
    ) -> Result<(), Failure> {
        self.run_reading(arguments, variables, MAX_LINE, tell)
    }

    fn run_reading<I: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = I>,
        variables: &[(String, String)],
        longest: u64,
        mut tell: impl FnMut(Option<Line>) -> Result<Option<u32>, Failure>,
    ) -> Result<(), Failure> {
        let count = |of: fn(&Group) -> u64| self.group.as_ref().map_or(0, of);
        let (killed_before, refused_before) = (count(Group::killed), count(Group::refused));
        let failed = |error: io::Error| Failure::host("buildah cannot be run", &error);
        let mut command = self.command(arguments);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn().map_err(failed)?;
        let (lines, received) = sync_channel(BACKLOG);
        let readers = [
            child.stdout.take().map(|stream| read(stream, longest, lines.clone(), Line::Output)),
            child.stderr.take().map(|stream| read(stream, longest, lines, Line::Error)),
        ];
        let told = listen(&received, &mut tell);
        if told.is_err() {
            // Nobody wants the rest.
            let _ = child.kill();
        }
        drop(received);
        let status = child.wait().map_err(failed)?;
        for reader in readers.into_iter().flatten() {
            // A reader that panicked has told what it could.
            let _ = reader.join();
        }
        if let Some(group) = &self.group {
            group.end();
        }
        let Told { step, words, is_full } = told?;
        if status.success() {
            return Ok(());
        }
        let out_of_memory = count(Group::killed) > killed_before;
        let out_of_tasks = (count(Group::refused) > refused_before).then_some(MAX_TASKS);
        let said = if words.is_empty() { unexplained(status) } else { words };
        let is_full = is_full || has_no_room(Path::new(CACHE));
        Err(explain(&Signs { said: &said, step, is_full, out_of_memory, out_of_tasks }))
    }

    fn command<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = match &self.group {
            None => Command::new("buildah"),
            Some(group) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", r#"echo 0 >"$0" && exec buildah "$@""#]).arg(group.entrance());
                shell
            }
        };
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .env("TMPDIR", temporary())
            .env("CONTAINERS_CONF", &self.containers)
            .env("CONTAINERS_STORAGE_CONF", &self.storage)
            .env("CONTAINERS_REGISTRIES_CONF", self.files.configuration())
            .env("REGISTRY_AUTH_FILE", self.files.auth())
            .env("SSL_CERT_FILE", self.files.authorities())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// What `build` needs besides the source.
    pub(crate) fn build_options(&self) -> Vec<String> {
        vec![
            "build".into(),
            "--layers".into(),
            // The only one that has ONBUILD, SHELL and HEALTHCHECK.
            "--format=docker".into(),
            "--isolation=oci".into(),
            // The containers are in the group of the build already.
            "--runtime-flag=cgroup-manager=disabled".into(),
            NETWORK.into(),
            self.policy_option(),
        ]
    }

    /// For the commands that take images from elsewhere.
    pub(crate) fn policy_option(&self) -> String {
        format!("--signature-policy={}", self.files.policy().display())
    }
}

/// Where buildah keeps files that are too large for memory, and what `RUN --mount=type=cache` keeps.
pub(crate) fn temporary() -> PathBuf {
    Path::new(CACHE).join("tmp")
}

/// `storage.conf`, of containers-storage.conf(5).
fn storage_configuration() -> String {
    let root = storage::folder();
    format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = \"{}\"\nrunroot = \"/run/containers/storage\"\n",
        root.display()
    )
}

/// `containers.conf`, of containers.conf(5): programs of a build may do what they may elsewhere by default, but for making device
/// files. The disks of this machine are none of theirs.
const CONTAINERS: &str = r#"[containers]
default_capabilities = [
  "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP",
  "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
]
default_sysctls = []
[engine]
runtime = "crun"
events_logger = "none"
"#;

struct Told {
    step: Option<u32>,
    /// What it said last of why it failed.
    words: String,
    /// Whether the step's programs have said that a disk is full when the cache's was.
    is_full: bool,
}

/// Gives lines on until all streams have ended.
fn listen(
    received: &Receiver<Line>,
    tell: &mut impl FnMut(Option<Line>) -> Result<Option<u32>, Failure>,
) -> Result<Told, Failure> {
    /// For a step to say that it is not run, as a result is there. One that runs and prints nothing is told that much later.
    const MOMENT: Duration = Duration::from_secs(5);
    let mut told = Told { step: None, words: String::new(), is_full: false };
    loop {
        let line = match received.recv_timeout(MOMENT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(told),
        };
        if let Some(Line::Error(line)) = &line {
            match line.strip_prefix("Error: ") {
                Some(words) => words.clone_into(&mut told.words),
                // Several reasons of a registry are lines of their own.
                None if told.words.contains("errors:") => {
                    told.words.push(' ');
                    told.words.push_str(line.trim());
                }
                None => {}
            }
            told.words.truncate(told.words.floor_char_boundary(MAX_WORDS));
        }
        // Programs say so of other file systems as well, or of nothing.
        let says_full = line.as_ref().is_some_and(|line| is_full(line.text())) && has_no_room(Path::new(CACHE));
        let step = tell(line)?;
        told.is_full = says_full || told.is_full && step == told.step;
        told.step = step;
    }
}

/// Reads lines on a thread of their own, until the stream ends or nobody listens. What a line has beyond `longest` bytes is left out.
fn read(
    stream: impl Read + Send + 'static,
    longest: u64,
    lines: SyncSender<Line>,
    of: impl Fn(String) -> Line + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while (&mut stream).take(longest).read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            if !line.ends_with(b"\n") && stream.skip_until(b'\n').is_err() {
                return;
            }
            let text = String::from_utf8_lossy(&line);
            if lines.send(of(text.trim_end_matches('\n').to_owned())).is_err() {
                return;
            }
            line.clear();
        }
    })
}

/// Whether a disk is as good as full: what a step that failed has written is still there, and not all programs say why they
/// fail.
fn has_no_room(disk: &Path) -> bool {
    statvfs(disk).is_ok_and(|state| state.f_bavail * state.f_frsize < LEAST_ROOM)
}

fn unexplained(status: ExitStatus) -> String {
    format!("buildah ended without a reason ({status})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn of_a_line_without_end_the_first_piece_is_told() {
        let text = format!("{}rest\nnext\nlast", "x".repeat(10));
        let (lines, received) = sync_channel(8);
        read(Cursor::new(text), 10, lines, Line::Output).join().unwrap();
        let told: Vec<_> = received.iter().map(|line| line.text().to_owned()).collect();
        assert_eq!(told, ["xxxxxxxxxx", "next", "last"]);
    }
}
