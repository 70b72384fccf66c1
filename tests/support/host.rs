//! The host that tests and benchmarks use.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sandpiper::client::{Client, ClientError, CreateSandbox};
use sandpiper_protocol::agent;

use crate::checkpoint::{Checkpoint, from_checkpoint};
use crate::sandbox::Sandbox;
use crate::traces::names;
use crate::up::{self, AtExit, Setup, Up, processes};
use crate::wait::{eventually, wait_for, wait_until_within};
use crate::watch::Services;

/// Where the shared host keeps its data: apart from an operator's own, on the same file system.
pub(crate) const STATE_DIR: &str = "/var/lib/sandpiper/tests";
pub(crate) const RUNTIME_DIR: &str = "/run/sandpiper-tests";
/// What the names of its slots begin with.
pub(crate) const NETWORK: &str = "spt";
/// How long the first warm snapshot of a shape may take: two boots, about, and a whole memory written down.
const WARMING: Duration = Duration::from_secs(400);

/// A host of its own, started with `sandpiper up`.
pub struct Host {
    pub client: Client,
    pub api_url: String,
    api_key: String,
    /// A key of an operator.
    pub operator_key: String,
    up: Up,
    /// Where the API's data are.
    pub(crate) database: String,
    expected: Mutex<Expected>,
}

/// What the tests know of the host's processes.
pub(crate) struct Expected {
    pub(crate) services: Services,
    /// How often a test made one of them start again.
    pub(crate) restarts: usize,
}

impl Host {
    /// The host of this process, started on first use.
    pub fn shared() -> &'static Self {
        HOST.get_or_init(|| Self::start(&Setup::default()))
    }

    /// The host of this process, which must not have been started.
    pub fn set_up(setup: &Setup) -> &'static Self {
        assert!(HOST.get().is_none(), "the host has been started");
        HOST.get_or_init(|| Self::start(setup))
    }

    fn start(setup: &Setup) -> Self {
        // One provider for every TLS connection; another test may have installed it.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let up = Up::new(setup);
        let ready = up.start(setup.at_exit);
        let (api_key, operator_key) = ready.api_key.zip(ready.operator_key).expect("a new host has new keys");
        // Every test has a runtime of its own, and a kept connection would belong to the one that opened it.
        let http = Client::http_builder().pool_max_idle_per_host(0).build().expect("an HTTP client");
        let client = Client::with_http(http, &ready.url, &api_key);
        let expected = Mutex::new(Expected { services: Services::find(), restarts: 0 });
        let database =
            setup.database.clone().unwrap_or_else(|| format!("sqlite://{STATE_DIR}/api/sandpiper.db?mode=ro"));
        Self { client, api_url: ready.url, api_key, operator_key, up, database, expected }
    }

    /// Starts `sandpiper up` again, which has been told to end, or was killed, once all of it has ended.
    pub async fn start_up_again(&'static self, at_exit: AtExit) {
        wait_for("`up` and its services have ended", || async {
            (self.up_pid().is_none() && Services::find() == Services { agent: None, api: None }).then_some(())
        })
        .await;
        tokio::task::spawn_blocking(move || self.up.start(at_exit)).await.expect("it starts");
        self.expected().services = Services::find();
    }

    /// Has `sandpiper up` end, as Ctrl-C does, and starts it again.
    pub async fn restart_up(&'static self, at_exit: AtExit) {
        self.interrupt_up();
        self.start_up_again(at_exit).await;
    }

    /// What Ctrl-C does.
    pub fn interrupt_up(&self) {
        kill(self.up_pid().expect("`up` runs"), Signal::SIGINT).expect("`up` is ours to end");
    }

    /// What agent and API write. It is kept when they have ended.
    pub fn log(&self) -> &Path {
        &self.up.log
    }

    pub(crate) fn expected(&self) -> MutexGuard<'_, Expected> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the API serves its operators: at the port after its own.
    pub fn metrics_url(&self) -> String {
        let (host, port) = self.api_url.rsplit_once(':').expect("a port");
        format!("{host}:{}", port.parse::<u16>().expect("a number") + 1)
    }

    /// A key of the team that the client acts for.
    pub fn api_key(&self) -> &str {
        &self.api_key
    }

    /// The API's configuration.
    pub fn api_config(&self) -> PathBuf {
        Path::new(STATE_DIR).join("api/api.toml")
    }

    /// What `sandpiper-api` prints with these arguments and the API's configuration.
    pub fn api_program(&self, arguments: &[&str]) -> String {
        let config = self.api_config();
        // As the API's user, whose database it is.
        let owner = fs::metadata(config.parent().expect("a folder")).expect("the API's folder");
        let ran = Command::new(up::program().with_file_name("sandpiper-api"))
            .args(arguments)
            .arg("--config")
            .arg(config)
            .uid(owner.uid())
            .gid(owner.gid())
            .output()
            .expect("sandpiper-api runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).expect("text")
    }

    /// A client for a team whose quota is one sandbox, and whose volumes have room for one and a half.
    pub fn client_of_one(&self) -> Client {
        let made = self.api_program(&[
            "key",
            "create",
            "--team",
            "one",
            "--plan",
            "enterprise",
            "--capability",
            "write",
            "--json",
            "--name",
            "e2e",
        ]);
        let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
        Client::with_http(self.client.http().clone(), &self.api_url, made["key"].as_str().expect("a key"))
    }

    /// A ready sandbox of the base template.
    pub async fn sandbox(&self) -> Sandbox {
        self.sandbox_with(&small()).await
    }

    pub async fn sandbox_with(&self, request: &CreateSandbox) -> Sandbox {
        self.try_sandbox(request).await.expect("the sandbox starts")
    }

    pub async fn try_sandbox(&self, request: &CreateSandbox) -> Result<Sandbox, ClientError> {
        Sandbox::create(&self.client, request).await
    }

    /// The `sandpiper` command, set up for this host.
    pub fn cli(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(up::program());
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

    /// What the agent itself says of a volume, which it looks for on its disk.
    pub async fn agent_volume(&self, id: &str) -> reqwest::Result<sandpiper_protocol::volume::Volume> {
        agent_get(&format!("/volumes/{id}")).await
    }

    /// What the agent says of the host.
    pub async fn agent_host(&self) -> reqwest::Result<agent::HostInfo> {
        agent_get("/host").await
    }

    /// How many machines wait for a sandbox; `None` while no agent says.
    pub async fn parked_machines(&self) -> Option<u32> {
        let metrics = agent_call("/metrics").await.ok()?.text().await.ok()?;
        metrics.lines().find_map(|line| line.strip_prefix("sandpiper_agent_parked_machines "))?.trim().parse().ok()
    }

    /// Creates sandboxes until one is started from a warm snapshot, as all that follow are; gives that one.
    pub async fn wait_until_warm(&self, request: &CreateSandbox) -> Sandbox {
        let is_warm = |view: &agent::Sandbox| matches!(view.start, agent::StartKind::Warm | agent::StartKind::Parked);
        self.wait_until_started(request, "warm", is_warm).await
    }

    /// Likewise, until a bare guest has become one.
    pub async fn wait_until_bare(&self, request: &CreateSandbox) -> Sandbox {
        self.wait_until_started(request, "bare", |view| view.is_bare).await
    }

    async fn wait_until_started(
        &self,
        request: &CreateSandbox,
        from: &str,
        is_so: impl Fn(&agent::Sandbox) -> bool,
    ) -> Sandbox {
        wait_until_within(WARMING, &format!("a sandbox is started from a {from} snapshot"), || async {
            let sandbox = self.sandbox_with(request).await;
            let view = self.agent_view(&sandbox.id).await.map_err(|error| error.to_string())?;
            if is_so(&view) {
                return Ok(sandbox);
            }
            sandbox.delete().await;
            // Another create would only take its time from the making of the snapshot.
            while is_making_a_snapshot() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let log = self.log().display();
            Err(format!("the start was {:?}; {log} says what became of the {from} snapshot", view.start))
        })
        .await
    }

    /// Turns warm starts on, or off: then every new sandbox boots. Those that were made before must be made again
    /// afterwards.
    pub async fn set_warm_starts(&self, enabled: bool) {
        self.set_agent("warm.enabled", enabled);
        self.set_agent("warm.bare", enabled);
        self.kill_agent().await;
    }

    /// Has what starts from a disk enter it with a bare guest, and nothing else be restored, or everything be as it was.
    pub async fn set_bare_starts_alone(&self, alone: bool) {
        self.set_agent("warm.enabled", !alone);
        self.set_agent("warm.bare", true);
        self.kill_agent().await;
    }

    /// Has the agent start guests as none was that it has a snapshot of, and waits until it has made so many by itself.
    pub async fn wait_until_made_ahead(&self, count: usize) {
        let made = || {
            BTreeSet::from_iter(names(&Path::new(STATE_DIR).join("warm")).into_iter().filter(|name| is_finished(name)))
        };
        let before = made();
        self.set_agent("warm.ahead", true);
        self.set_agent("kernel_args", "ahead=1");
        self.kill_agent().await;
        wait_until_within(WARMING, &format!("{count} snapshots are made ahead"), || async {
            let new = made().difference(&before).count();
            if new >= count { Ok(()) } else { Err(format!("{new} are; {} says more", self.log().display())) }
        })
        .await;
    }

    /// Has all be as it was before [`Self::wait_until_made_ahead`].
    pub async fn make_nothing_ahead(&self) {
        self.set_agent("warm.ahead", false);
        self.set_agent("kernel_args", "");
        self.kill_agent().await;
    }

    /// Has the agent park at most so many machines.
    pub async fn set_parking(&self, most: u32) {
        self.set_agent("parking.max", most);
        self.kill_agent().await;
    }

    /// Waits until so many machines are parked.
    pub async fn wait_until_parked(&self, count: u32) {
        let wanted = format!("{count} machines are parked");
        eventually(&wanted, || async { self.parked_machines().await == Some(count) }).await;
    }

    /// Kills the agent with SIGKILL and waits until the one that follows it answers.
    pub async fn kill_agent(&self) {
        let pid = self.agent_pid().expect("an agent runs");
        assert_eq!(Some(pid), self.expected().services.agent, "the agent ended by itself before it was killed");
        kill(pid, Signal::SIGKILL).expect("the agent is ours to kill");
        // Each time anew: what the old one was just starting looks like an agent for a moment.
        let next = wait_for("another agent answers", || async {
            let next = self.agent_pid().filter(|next| *next != pid)?;
            agent_call("/healthz").await.is_ok().then_some(next)
        })
        .await;
        let mut expected = self.expected();
        expected.services.agent = Some(next);
        expected.restarts += 1;
    }

    /// Changes one setting of the agent's configuration until `up` writes it anew; it holds from the agent's next
    /// start.
    pub fn set_agent(&self, key: &str, value: impl Into<toml::Value>) {
        let path = Path::new(STATE_DIR).join("agent.toml");
        let text = fs::read_to_string(&path).expect("the agent's configuration");
        let mut settings: toml::Table = text.parse().expect("it is TOML");
        let (tables, key) = key.rsplit_once('.').map_or((None, key), |(tables, key)| (Some(tables), key));
        let table = tables.into_iter().flat_map(|tables| tables.split('.')).fold(&mut settings, |table, name| {
            let inner = table.entry(name).or_insert_with(|| toml::Table::new().into());
            inner.as_table_mut().expect("a table of settings")
        });
        table.insert(key.to_owned(), value.into());
        fs::write(&path, settings.to_string()).expect("the agent's configuration can be written");
    }

    /// The agent's process.
    pub fn agent_pid(&self) -> Option<Pid> {
        Services::find().agent
    }

    /// The API's process.
    pub fn api_pid(&self) -> Option<Pid> {
        Services::find().api
    }

    /// The process of `sandpiper up`.
    pub fn up_pid(&self) -> Option<Pid> {
        processes("/sandpiper", STATE_DIR).first().copied()
    }
}

static HOST: OnceLock<Host> = OnceLock::new();

/// Whether the agent has a warm snapshot that is not finished.
fn is_making_a_snapshot() -> bool {
    !names(&Path::new(STATE_DIR).join("warm")).iter().all(|name| is_finished(name))
}

/// Whether this folder has a snapshot that can be started from.
fn is_finished(name: &str) -> bool {
    !name.starts_with('.')
}

/// The agent's answer to a question.
pub(crate) async fn agent_get<T: serde::de::DeserializeOwned>(path: &str) -> reqwest::Result<T> {
    agent_call(path).await?.json().await
}

async fn agent_call(path: &str) -> reqwest::Result<reqwest::Response> {
    let socket = Path::new(RUNTIME_DIR).join("agent.sock");
    // Without certificates, which nothing here needs and which take long to read.
    let http = reqwest::Client::builder().unix_socket(socket).no_proxy().tls_certs_only([]);
    let http = http.timeout(Duration::from_secs(30)).build()?;
    http.get(format!("http://agent{path}")).send().await?.error_for_status()
}

/// The smallest sandbox that runs everything the tests run.
pub fn small() -> CreateSandbox {
    CreateSandbox { memory_mb: Some(256), cpu: Some(1), timeout: Some(900), ..CreateSandbox::default() }
}
