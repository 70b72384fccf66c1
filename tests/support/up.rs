//! Starts the shared host, with `sandpiper up`.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde::Deserialize;

use crate::host::{NETWORK, RUNTIME_DIR, STATE_DIR};
use crate::internet::RESOLVER;
use crate::registry::HOST as REGISTRY;

/// With what a test fills the host's disk. One that is killed leaves it to the next run.
pub const FILLER: &str = "/var/lib/sandpiper/filler";
const API: &str = "127.0.0.1:17070";
const DATA_PLANE: &str = "127.0.0.1:17080";
/// A plan that only the team of [`crate::host::Host::client_of_one`] has: one sandbox at a time, and room for one volume.
const ONE_SANDBOX: &str = "[plans.enterprise]\ncpu_values = [1]\nmemory_mb_min = 128\nmemory_mb_max = 1024\n\
    memory_mb_step = 128\nroot_disk_gib = 20\nmax_timeout = 3600\n\
    quota = { sandboxes = 1, cpu = 9, memory_mb = 9000, volumes = 2, volume_gib = 15 }\ndisk = { flushes = 10 }\n";
/// How long `up` may take: the base template is copied first.
const START: Duration = Duration::from_secs(600);
/// How long the host of an earlier run may take to end.
const END: Duration = Duration::from_secs(60);

/// What a host is to be, where that is not what `up` makes by itself.
#[derive(Debug, Default)]
pub struct Setup {
    /// Where the API's data are, a URL of PostgreSQL; in SQLite otherwise.
    pub database: Option<String>,
    /// More of the API's settings, TOML.
    pub api_settings: String,
    /// Machines that the agent parks at most. Most tests want none: they come and go unasked.
    pub parked: u32,
    pub at_exit: AtExit,
}

/// What becomes of the sandboxes when `up` ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AtExit {
    #[default]
    Destroy,
    Pause,
    /// They go on, and the next `up` finds them.
    Keep,
}

/// A host that is up.
#[derive(Deserialize)]
pub(crate) struct Ready {
    pub(crate) url: String,
    /// Only of the first start: it makes the keys.
    pub(crate) api_key: Option<String>,
    pub(crate) operator_key: Option<String>,
}

/// `sandpiper up`, as often as it is started.
pub(crate) struct Up {
    /// The file that agent and API write to.
    pub(crate) log: PathBuf,
    /// Where the keys are kept. Every host has its own, so that those of an earlier run are not taken up.
    credentials: PathBuf,
    agent_settings: PathBuf,
    api_settings: PathBuf,
}

impl Up {
    /// A host on empty folders, not yet started.
    pub(crate) fn new(setup: &Setup) -> Self {
        empty_folders();
        let settings = |of: &str, text: String| {
            let path = PathBuf::from(format!("{STATE_DIR}-{of}.toml"));
            fs::write(&path, text).expect("a file for settings");
            path
        };
        let database = setup.database.as_ref().map(|url| format!("database = {url:?}\n")).unwrap_or_default();
        Self {
            log: log_file(),
            credentials: tempfile::tempdir().expect("a folder for credentials").keep(),
            agent_settings: settings("agent", agent_settings(setup.parked)),
            api_settings: settings("api", database + &setup.api_settings + ONE_SANDBOX),
        }
    }

    /// Starts it, and waits until it is ready; it ends with this process.
    pub(crate) fn start(&self, at_exit: AtExit) -> Ready {
        let (sender, receiver) = mpsc::channel();
        let mut command = self.command(at_exit);
        // `up` gets a signal when the thread that started it ends: this one lasts as long as it.
        std::thread::spawn(move || {
            let mut child = command.spawn().expect("sandpiper up starts");
            let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            for line in lines.map_while(Result::ok) {
                if let Ok(ready) = serde_json::from_str::<Ready>(&line) {
                    let _ = sender.send(ready);
                }
            }
            let _ = child.wait();
        });
        let said = || fs::read_to_string(&self.log).unwrap_or_default();
        receiver.recv_timeout(START).unwrap_or_else(|_| panic!("sandpiper up is not ready; it said:\n{}", said()))
    }

    fn command(&self, at_exit: AtExit) -> Command {
        let log = OpenOptions::new().append(true).create(true).open(&self.log).expect("a file for what the host says");
        let mut command = Command::new(program());
        command
            .args(["--json", "up"])
            .args(["--state-dir", STATE_DIR, "--runtime-dir", RUNTIME_DIR])
            .arg("--agent-settings")
            .arg(&self.agent_settings)
            .arg("--api-settings")
            .arg(&self.api_settings)
            .args(["--listen", API, "--data-plane-listen", DATA_PLANE])
            .env("XDG_CONFIG_HOME", &self.credentials)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        match at_exit {
            AtExit::Destroy => drop(command.arg("--stop-sandboxes-on-exit")),
            AtExit::Pause => drop(command.arg("--pause-sandboxes-on-exit")),
            AtExit::Keep => {}
        }
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?));
        }
        command
    }
}

/// Takes away what an earlier run has left, so that each begins with nothing.
fn empty_folders() {
    let give_up_at = Instant::now() + END;
    while ["sandpiper-agent", "sandpiper-vmm"].iter().any(|program| !processes(program, STATE_DIR).is_empty()) {
        assert!(Instant::now() < give_up_at, "the host of an earlier run still runs, in {STATE_DIR}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = fs::remove_file(FILLER);
    for folder in [STATE_DIR, RUNTIME_DIR] {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{folder} cannot be emptied: {error}"),
            _ => {}
        }
    }
    fs::create_dir_all(STATE_DIR).expect("a folder for the host's data");
}

/// One for each run, beside the programs: it is read after the place where they ran is gone.
fn log_file() -> PathBuf {
    let programs = program();
    let folder = programs.ancestors().nth(2).expect("a folder around the programs").join("host-logs");
    fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder.join(format!("{}-{}.log", Timestamp::now().strftime("%Y%m%dT%H%M%SZ"), std::process::id()))
}

/// The `sandpiper` command. Tests and programs are built into one folder; a test binary is one level below it.
pub(crate) fn program() -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let found = exe.ancestors().skip(1).take(2).map(|folder| folder.join("sandpiper")).find(|path| path.is_file());
    found.expect("sandpiper is built beside the tests: scripts/build")
}

/// Names are resolved by the tests' own internet; slots have names of their own, so that an operator's are left alone. The
/// agent has less memory for connections than by default, and promises more of its disk, so that more guests fit into the
/// nested host. What a test has not asked for is not made.
fn agent_settings(parked: u32) -> String {
    let profiles = format!("{STATE_DIR}-profiles.json");
    fs::write(&profiles, r#"{"profiles": {"package-registries": ["registry.example.test:443"]}}"#)
        .expect("a file for the profiles");
    format!(
        "limits.memory_headroom_mb = 800\nlimits.disk_overcommit = 200\nparking.max = {parked}\ningress.requests_memory_mb = 128\n\
         warm.ahead = false\nbuilds.start_seconds = 60\nbuilds.registries.insecure = [{REGISTRY:?}]\n\
         [network]\nname = {NETWORK:?}\ntransit = \"100.66.0.0/16\"\ntransit6 = \"fd5a:5c::/48\"\n\
         resolvers = [{RESOLVER:?}]\nprofiles = {profiles:?}\n"
    )
}

/// Processes of this program whose command line or environment names `what`.
pub(crate) fn processes(program: &str, what: &str) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let pid: i32 = path.file_name()?.to_str()?.parse().ok()?;
            let words = fs::read(path.join("cmdline")).ok()?;
            let words = String::from_utf8_lossy(&words);
            let first = words.split('\0').next()?;
            let names =
                |file| fs::read(path.join(file)).is_ok_and(|text| String::from_utf8_lossy(&text).contains(what));
            (first.ends_with(program) && (words.contains(what) || names("environ"))).then(|| Pid::from_raw(pid))
        })
        .collect()
}
