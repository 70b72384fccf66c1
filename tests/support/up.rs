//! Starts the shared host, with `sandpiper up`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde::Deserialize;

use crate::host::{NETWORK, RUNTIME_DIR, STATE_DIR};
use crate::internet::RESOLVER;

const API: &str = "127.0.0.1:17070";
const DATA_PLANE: &str = "127.0.0.1:17080";
/// How long `up` may take: the base template is copied first.
const START: Duration = Duration::from_secs(600);
/// How long the host of an earlier run may take to end.
const END: Duration = Duration::from_secs(60);

/// A host that is up.
#[derive(Deserialize)]
pub(crate) struct Ready {
    pub(crate) url: String,
    pub(crate) api_key: String,
}

/// Starts a host on empty folders; it ends with this process. Gives also the file that agent and API write to.
pub(crate) fn start() -> (Ready, PathBuf) {
    empty_folders();
    let log = log_file();
    let (sender, receiver) = mpsc::channel();
    // `up` gets a signal when the thread that started it ends: this one lasts as long as the process.
    std::thread::spawn({
        let log = log.clone();
        move || {
            let mut child = up(&log).spawn().expect("sandpiper up starts");
            let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            for line in lines.map_while(Result::ok) {
                if let Ok(ready) = serde_json::from_str::<Ready>(&line) {
                    let _ = sender.send(ready);
                }
            }
            let _ = child.wait();
        }
    });
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let ready =
        receiver.recv_timeout(START).unwrap_or_else(|_| panic!("sandpiper up is not ready; it said:\n{}", said()));
    (ready, log)
}

/// Takes away what an earlier run has left, so that each begins with nothing.
fn empty_folders() {
    let give_up_at = Instant::now() + END;
    while ["sandpiper-agent", "sandpiper-vmm"].iter().any(|program| !processes(program, STATE_DIR).is_empty()) {
        assert!(Instant::now() < give_up_at, "the host of an earlier run still runs, in {STATE_DIR}");
        std::thread::sleep(Duration::from_millis(100));
    }
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

fn up(log: &Path) -> Command {
    // Every run has a key of its own: the credentials of an earlier one are not taken up.
    let credentials = tempfile::tempdir().expect("a folder for credentials").keep();
    let settings = format!("{STATE_DIR}.toml");
    fs::write(&settings, agent_settings()).expect("a file for the agent's settings");
    let log: File = OpenOptions::new().append(true).create_new(true).open(log).expect("a file for what the host says");
    let mut command = Command::new(program());
    command
        .args(["--json", "up", "--stop-sandboxes-on-exit"])
        .args(["--state-dir", STATE_DIR, "--runtime-dir", RUNTIME_DIR])
        .args(["--agent-settings", &settings])
        .args(["--listen", API, "--data-plane-listen", DATA_PLANE])
        .env("XDG_CONFIG_HOME", &credentials)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?));
    }
    command
}

/// Names are resolved by the tests' own internet; slots have names of their own, so that an operator's are left alone.
fn agent_settings() -> String {
    let profiles = format!("{STATE_DIR}-profiles.json");
    fs::write(&profiles, r#"{"profiles": {"package-registries": ["registry.example.test:443"]}}"#)
        .expect("a file for the profiles");
    format!(
        "[network]\nname = {NETWORK:?}\ntransit = \"100.66.0.0/16\"\ntransit6 = \"fd5a:5c::/48\"\n\
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
