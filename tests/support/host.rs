use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sandpiper::client::{Client, ClientError, CreateSandbox};
use sandpiper_protocol::agent;
use serde::Deserialize;

use crate::checkpoint::{Checkpoint, from_checkpoint};
use crate::internet::RESOLVER;
use crate::sandbox::Sandbox;
use crate::wait::{eventually, wait_until_within};

/// Where the shared host keeps its data: apart from an operator's own, on the same file system.
pub(crate) const STATE_DIR: &str = "/var/lib/sandpiper/tests";
pub(crate) const RUNTIME_DIR: &str = "/run/sandpiper-tests";
/// What agent and API of the shared host say.
const LOG: &str = "/var/lib/sandpiper/tests.log";
/// What the names of its slots begin with.
pub(crate) const NETWORK: &str = "spt";
const API: &str = "127.0.0.1:17070";
const DATA_PLANE: &str = "127.0.0.1:17080";
/// How long the first warm snapshot of a shape may take: two boots, about, and a whole memory written down.
const WARMING: Duration = Duration::from_secs(400);

/// A host of its own, started with `sandpiper up`.
pub struct Host {
    pub client: Client,
    pub api_url: String,
    api_key: String,
}

impl Host {
    /// The host of this process, started on first use.
    pub fn shared() -> &'static Self {
        static HOST: OnceLock<Host> = OnceLock::new();
        HOST.get_or_init(Self::start)
    }

    fn start() -> Self {
        // One provider for every TLS connection; another test may have installed it.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (sender, receiver) = mpsc::channel();
        // `up` gets a signal when the thread that started it ends: this one lasts as long as the process.
        std::thread::spawn(move || {
            let mut child = up().spawn().expect("sandpiper up starts");
            let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            for line in lines.map_while(Result::ok) {
                if let Ok(ready) = serde_json::from_str::<Ready>(&line) {
                    let _ = sender.send(ready);
                }
            }
            let _ = child.wait();
        });
        let ready = receiver.recv_timeout(Duration::from_secs(600));
        let log = || fs::read_to_string(LOG).unwrap_or_default();
        let ready = ready.unwrap_or_else(|_| panic!("sandpiper up is not ready; it said:\n{}", log()));
        // Every test has a runtime of its own, and a kept connection would belong to the one that opened it.
        let http = Client::http_builder().pool_max_idle_per_host(0).build().expect("an HTTP client");
        let client = Client::with_http(http, &ready.url, &ready.api_key);
        Self { client, api_url: ready.url, api_key: ready.api_key }
    }

    /// A ready sandbox of the base template.
    pub async fn sandbox(&self) -> Sandbox {
        self.sandbox_with(&small()).await
    }

    pub async fn sandbox_with(&self, request: &CreateSandbox) -> Sandbox {
        self.try_sandbox(request).await.expect("the sandbox starts")
    }

    pub async fn try_sandbox(&self, request: &CreateSandbox) -> Result<Sandbox, ClientError> {
        let (sandbox, session) = self.client.create(request).await?;
        Ok(Sandbox::new(self.client.clone(), sandbox.id, session))
    }

    /// The `sandpiper` command, set up for this host.
    pub fn cli(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).env("SANDPIPER_URL", &self.api_url).env("SANDPIPER_API_KEY", &self.api_key);
        command
    }

    /// A sandbox that goes on from a checkpoint.
    pub async fn restore(&self, checkpoint: &Checkpoint) -> Sandbox {
        self.sandbox_with(&from_checkpoint(&checkpoint.id)).await
    }

    /// What the agent itself says of a sandbox.
    pub async fn agent_view(&self, id: &str) -> reqwest::Result<agent::Sandbox> {
        agent_get(&format!("/sandboxes/{id}")).await
    }

    /// What the agent itself says of a checkpoint.
    pub async fn agent_checkpoint(&self, id: &str) -> reqwest::Result<agent::Checkpoint> {
        agent_get(&format!("/checkpoints/{id}")).await
    }

    /// What the agent says of the host.
    pub async fn agent_host(&self) -> reqwest::Result<agent::HostInfo> {
        agent_get("/host").await
    }

    /// Creates sandboxes until one is started from a warm snapshot, as all that follow are; gives that one.
    pub async fn wait_until_warm(&self, request: &CreateSandbox) -> Sandbox {
        wait_until_within(WARMING, "a sandbox is started from a warm snapshot", || async {
            let sandbox = self.sandbox_with(request).await;
            let start = self.agent_view(&sandbox.id).await.map_err(|error| error.to_string())?.start;
            if start == agent::StartKind::Warm {
                return Ok(sandbox);
            }
            sandbox.delete().await;
            // Another create would only take its time from the making of the snapshot.
            while is_making_a_snapshot() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(format!("the start was {start:?}; {LOG} says what became of the warm snapshot"))
        })
        .await
    }

    /// Turns warm starts on, or off: then every new sandbox boots. Those that were made before must be made again
    /// afterwards.
    pub async fn set_warm_starts(&self, enabled: bool) {
        self.set_agent("warm.enabled", &enabled.to_string());
        self.kill_agent().await;
    }

    /// Kills the agent with SIGKILL and waits until the one that follows it answers.
    pub async fn kill_agent(&self) {
        let pid = self.agent_pid().expect("an agent runs");
        kill(pid, Signal::SIGKILL).expect("the agent is ours to kill");
        // Each time anew: what the old one was just starting looks like an agent for a moment.
        eventually("another agent answers", || async {
            self.agent_pid().is_some_and(|next| next != pid) && agent_call("/healthz").await.is_ok()
        })
        .await;
    }

    /// Changes one setting of the agent's configuration until `up` writes it anew; it holds from the agent's next
    /// start.
    pub fn set_agent(&self, key: &str, value: &str) {
        let path = Path::new(STATE_DIR).join("agent.toml");
        let text = fs::read_to_string(&path).expect("the agent's configuration");
        let others = text.lines().filter(|line| !line.starts_with(&format!("{key} = ")));
        let text: String = std::iter::once(format!("{key} = {value}"))
            .chain(others.map(str::to_owned))
            .map(|line| line + "\n")
            .collect();
        fs::write(&path, text).expect("the agent's configuration can be written");
    }

    /// The agent's process.
    pub fn agent_pid(&self) -> Option<Pid> {
        // A monitor that is being started looks like the agent until it is executed; the agent is the older one.
        processes("sandpiper-agent", STATE_DIR).into_iter().min()
    }
}

/// Whether the agent has a warm snapshot that is not finished.
fn is_making_a_snapshot() -> bool {
    let folders = fs::read_dir(Path::new(STATE_DIR).join("warm")).into_iter().flatten().flatten();
    folders.into_iter().any(|folder| folder.file_name().to_string_lossy().starts_with('.'))
}

/// The agent's answer to a question.
pub(crate) async fn agent_get<T: serde::de::DeserializeOwned>(path: &str) -> reqwest::Result<T> {
    agent_call(path).await?.json().await
}

async fn agent_call(path: &str) -> reqwest::Result<reqwest::Response> {
    let socket = Path::new(RUNTIME_DIR).join("agent.sock");
    let http = reqwest::Client::builder().unix_socket(socket).no_proxy().timeout(Duration::from_secs(30)).build()?;
    http.get(format!("http://agent{path}")).send().await?.error_for_status()
}

/// The smallest sandbox that runs everything the tests run.
pub fn small() -> CreateSandbox {
    CreateSandbox { memory_mb: Some(256), cpu: Some(1), timeout: Some(900), ..CreateSandbox::default() }
}

#[derive(Deserialize)]
struct Ready {
    url: String,
    api_key: String,
}

/// Tests and programs are built into one folder; a test binary is one level below it.
fn program() -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let found = exe.ancestors().skip(1).take(2).map(|folder| folder.join("sandpiper")).find(|path| path.is_file());
    found.expect("sandpiper is built beside the tests: scripts/build")
}

fn up() -> Command {
    // Every run has a key of its own: the credentials of an earlier one are not taken up.
    let credentials = tempfile::tempdir().expect("a folder for credentials").keep();
    fs::create_dir_all(STATE_DIR).expect("a folder for the host's data");
    let settings = format!("{STATE_DIR}.toml");
    fs::write(&settings, agent_settings()).expect("a file for the agent's settings");
    let log = fs::File::create(LOG).expect("a file for what the host says");
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

/// Processes of this program whose command line names `what`.
fn processes(program: &str, what: &str) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let pid: i32 = path.file_name()?.to_str()?.parse().ok()?;
            let words = fs::read(path.join("cmdline")).ok()?;
            let words = String::from_utf8_lossy(&words);
            let first = words.split('\0').next()?;
            (first.ends_with(program) && words.contains(what)).then(|| Pid::from_raw(pid))
        })
        .collect()
}
