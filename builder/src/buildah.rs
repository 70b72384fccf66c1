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
use crate::group::Group;
use crate::registries::Files;

/// Longest line that is taken as one; what a program writes without an end of line comes in pieces of it.
const MAX_LINE: u64 = 16 * 1024;

/// Bytes of a disk with which a failure may be for another reason than that it is full.
const LEAST_ROOM: u64 = 4 << 20;

/// Lines that wait to be told.
const BACKLOG: usize = 256;

/// What buildah itself may say of a failure.
const MAX_WORDS: usize = 2048;

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
        self.run(arguments, |line| {
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
        mut tell: impl FnMut(Option<Line>) -> Result<Option<u32>, Failure>,
    ) -> Result<(), Failure> {
        let killed_before = self.group.as_ref().map_or(0, Group::killed);
        let failed = |error: io::Error| Failure::host("buildah cannot be run", &error);
        let mut child = self.command(arguments).spawn().map_err(failed)?;
        let (lines, received) = sync_channel(BACKLOG);
        let readers = [
            child.stdout.take().map(|stream| read(stream, lines.clone(), Line::Output)),
            child.stderr.take().map(|stream| read(stream, lines, Line::Error)),
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
        let out_of_memory = self.group.as_ref().is_some_and(|group| group.killed() > killed_before);
        let said = if words.is_empty() { unexplained(status) } else { words };
        Err(explain(&Signs { said: &said, step, is_full: is_full || has_no_room(Path::new(CACHE)), out_of_memory }))
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

/// Where buildah keeps images.
pub(crate) fn storage() -> PathBuf {
    Path::new(CACHE).join("storage")
}

/// `storage.conf`, of containers-storage.conf(5).
fn storage_configuration() -> String {
    let root = storage();
    format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = \"{}\"\nrunroot = \"/run/containers/storage\"\n",
        root.display()
    )
}

/// `containers.conf`, of containers.conf(5): programs of a build may do what they may elsewhere by default.
const CONTAINERS: &str = r#"[containers]
default_capabilities = [
  "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP",
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
    /// Whether the step's programs have said that the disk is full.
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
        if let Some(Line::Error(line)) = &line
            && let Some(words) = line.strip_prefix("Error: ")
        {
            words.clone_into(&mut told.words);
            told.words.truncate(told.words.floor_char_boundary(MAX_WORDS));
        }
        let says_full = line.as_ref().is_some_and(|line| is_full(line.text()));
        let step = tell(line)?;
        told.is_full = says_full || told.is_full && step == told.step;
        told.step = step;
    }
}

/// Reads lines on a thread of their own, until the stream ends or nobody listens.
fn read(
    stream: impl Read + Send + 'static,
    lines: SyncSender<Line>,
    of: impl Fn(String) -> Line + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while (&mut stream).take(MAX_LINE).read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
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
