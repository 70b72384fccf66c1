//! A host of one test: folders of its own, a template, a guest, and agents that come and go on them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use sandpiper_protocol::id;
use sandpiper_skip::skipped;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::net::UnixStream;

use crate::guest;
use sandpiper_crash_points::{ARMED, CrashPoint};

/// How long anything may take on a busy machine whose guests are emulated.
const TIMEOUT: Duration = Duration::from_secs(120);
/// User ids of the monitors of one agent.
const UIDS: u32 = 0x1_0000;

/// Folders that are empty, or not there, when nothing is left of any sandbox.
const EMPTY: [&str; 10] = [
    "state/sandboxes",
    "state/checkpoints",
    "state/warm",
    "state/monitors",
    "state/helpers",
    "run/helpers",
    "run/sandboxes",
    "run/monitors",
    "run/warm",
    "run/agent.sock",
];

/// What the agents of a test work on.
pub(crate) struct Host {
    folder: TempDir,
    /// The agents' own cgroup, in every hierarchy.
    cgroup: String,
}

impl Host {
    /// `None`, said aloud, where monitors cannot be jailed or run no guest.
    pub(crate) fn new() -> Option<Self> {
        Self::below(&std::env::temp_dir())
    }

    /// A host whose disk is memory, for a test that would wait for syncs most of its time; likewise.
    pub(crate) fn in_memory() -> Option<Self> {
        Self::below(Path::new("/dev/shm"))
    }

    fn below(folder: &Path) -> Option<Self> {
        let kvm = File::options().read(true).write(true).open("/dev/kvm");
        if let Err(reason) = kvm
            .map_err(|error| format!("/dev/kvm cannot be opened: {error}"))
            .and_then(|_| if Uid::effective().is_root() { Ok(()) } else { Err("this needs root".to_owned()) })
        {
            skipped("the agent with real monitors", reason);
            return None;
        }
        let monitor = Path::new(env!("CARGO_BIN_EXE_sandpiper-agent")).with_file_name("sandpiper-vmm");
        assert!(monitor.exists(), "there is no {}: run `cargo build -p sandpiper-vmm` first", monitor.display());

        let folder = tempfile::tempdir_in(folder).unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        fs::write(at("vmlinux"), guest::elf()).unwrap();
        let image = File::create(at("image")).unwrap();
        image.set_len(1 << 20).unwrap();
        // The magic number of ext4, which nothing here mounts.
        image.write_all_at(&[0x53, 0xef], 1024 + 0x38).unwrap();
        // Tests that run at the same time have processes, and so ranges of user ids, of their own.
        let uid_base = 0x2000_0000 + std::process::id() % 4096 * UIDS;
        let config = format!(
            "state_dir = {:?}\nruntime_dir = {:?}\nkernel = {:?}\n\
             [jail]\nuid_base = {uid_base}\n[monitor_pool]\nper_shape = 0\n[warm]\nenabled = false\n[volumes]\nsize_gib = 1\n\
             [network]\nenabled = false\n[ingress]\nlisten = \"127.0.0.1:0\"\n",
            at("state"),
            at("run"),
            at("vmlinux"),
        );
        fs::write(at("agent.toml"), config).unwrap();
        // As the agent names it: after its state folder.
        let hash = Sha256::digest(at("state").as_bytes());
        let hash: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Some(Self { folder, cgroup: format!("sandpiper-{hash}") })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts an agent, which takes over what the one before it left.
    pub(crate) async fn start(&self) -> Agent<'_> {
        let log = File::options().create(true).append(true).open(self.path("agent.log")).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_sandpiper-agent"))
            .arg("--config")
            .arg(self.path("agent.toml"))
            .env("RUST_LOG", "info")
            .env(ARMED, self.path("crash-point"))
            .stderr(log)
            .spawn()
            .unwrap();
        let mut agent = Agent { host: self, process };
        let deadline = Instant::now() + TIMEOUT;
        while agent.ask("GET", "/healthz", &Value::Null).await.is_err() {
            let ended = agent.process.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "the agent is not ready: {ended:?}\n{}", self.log());
            pause().await;
        }
        agent
    }

    /// Has the agent die when it next passes `point`.
    pub(crate) fn arm(&self, point: CrashPoint) {
        fs::write(self.path("crash-point"), format!("{point:?}")).unwrap();
    }

    /// Whether no agent has passed the point yet that was armed last.
    pub(crate) fn is_armed(&self) -> bool {
        self.path("crash-point").exists()
    }

    /// What agents wrote to their logs.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("agent.log")).unwrap()
    }

    /// The file of the sandbox `id` that was made last of those with this role: `disk`, `memory`, `state`.
    pub(crate) fn newest(&self, id: &str, role: &str) -> PathBuf {
        let files = &self.record(id)["files"];
        let name =
            if role == "state" { &files[role] } else { &files[role].as_array().unwrap().last().unwrap()["name"] };
        self.path("state/sandboxes").join(id).join(name.as_str().unwrap())
    }

    /// Whether the monitor of this sandbox has this file open.
    pub(crate) fn has_open(&self, sandbox: &str, file: &str) -> bool {
        let (pid, file) = (&self.record(sandbox)["process"]["identity"]["pid"], self.path(file));
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        descriptors.into_iter().any(|descriptor| std::fs::read_link(descriptor.path()).is_ok_and(|open| open == file))
    }

    pub(crate) fn record(&self, id: &str) -> Value {
        let path = self.path("state/sandboxes").join(id).join("record.json");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// How many descriptors the monitor of the sandbox `id` has.
    pub(crate) fn descriptors_of(&self, id: &str) -> usize {
        let pid = self.record(id)["process"]["identity"]["pid"].as_i64().unwrap();
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
    }

    /// How often the guest of the sandbox `id` was told who it is, as its disk says, from its first boot on.
    pub(crate) fn told(&self, id: &str) -> u64 {
        (1..).find(|count| !self.was_told(id, *count)).unwrap() - 1
    }

    fn was_told(&self, id: &str, count: u64) -> bool {
        let folder = self.path("state/sandboxes").join(id);
        let (offset, text) = guest::told_block(count);
        self.record(id)["files"]["disk"].as_array().unwrap().iter().any(|layer| {
            let mut found = vec![0; text.len()];
            let file = File::open(folder.join(layer["name"].as_str().unwrap())).unwrap();
            file.read_exact_at(&mut found, offset).is_ok() && found == text.as_bytes()
        })
    }

    /// Nothing of any sandbox is left: no file, no process, no cgroup.
    pub(crate) fn assert_clean(&self) {
        let left = |folder: &str| match fs::read_dir(self.path(folder)) {
            Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
            Err(_) => Vec::new(),
        };
        let files: Vec<PathBuf> = EMPTY.iter().flat_map(|folder| left(folder)).collect();
        assert!(files.is_empty() && !self.path("run/agent.sock").exists(), "{files:?}\n{}", self.log());
        assert!(self.monitors().is_empty(), "{:?}\n{}", self.monitors(), self.log());
        let groups: Vec<PathBuf> = self.cgroups().iter().flat_map(|group| folders(group)).collect();
        assert!(groups.is_empty(), "{groups:?}\n{}", self.log());
    }

    /// Processes that belong to agents of this host.
    fn monitors(&self) -> Vec<Pid> {
        let marker = format!("SANDPIPER_SANDBOX={}/", self.folder.path().display());
        let is_ours = |process: &PathBuf| {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(marker.as_bytes()))
        };
        let ours = folders(Path::new("/proc")).into_iter().filter(is_ours);
        ours.filter_map(|process| process.file_name()?.to_str()?.parse().ok().map(Pid::from_raw)).collect()
    }

    /// The agents' cgroup in each hierarchy that is mounted.
    fn cgroups(&self) -> Vec<PathBuf> {
        let root = Path::new("/sys/fs/cgroup");
        let groups = folders(root).into_iter().chain([root.to_owned()]).map(|mount| mount.join(&self.cgroup));
        groups.filter(|group| group.exists()).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Of a test that failed.
        for monitor in self.monitors() {
            let _ = kill(monitor, Signal::SIGKILL);
        }
        // A group can be removed once its last process has ended.
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.cgroups().iter().any(|group| remove_group(group).is_err()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn remove_group(group: &Path) -> std::io::Result<()> {
    folders(group).iter().try_for_each(fs::remove_dir)?;
    fs::remove_dir(group)
}

/// How many files and folders are below `folder`.
fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).map_or(0, Iterator::count);
    entries + folders(folder).iter().map(|folder| files(folder)).sum::<usize>()
}

/// The folders in `folder`; none where it is gone.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir()).collect()
}

/// A running agent.
pub(crate) struct Agent<'a> {
    pub(crate) host: &'a Host,
    process: Child,
}

/// What the agent answered: status and body.
pub(crate) type Response = (u16, Value);

impl Agent<'_> {
    /// Asks the agent; an error when it dies before it has answered.
    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<Response, Box<dyn std::error::Error>> {
        let stream = UnixStream::connect(self.host.path("run/agent.sock")).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "agent")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let response = tokio::time::timeout(TIMEOUT, sender.send_request(request)).await??;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, if body.is_empty() { Value::Null } else { serde_json::from_slice(&body)? }))
    }

    /// What the agent answers to a request that succeeds.
    pub(crate) async fn get(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = self.ask(method, path, &body).await.unwrap();
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}\n{}", self.host.log());
        answer
    }

    /// The template `slug`: all have the same image.
    pub(crate) async fn import(&self, slug: &str) -> Value {
        let image = self.host.path("image");
        let order = json!({"slug": slug, "image": image, "baseline": {"cpu": 1, "memory_mb": 64}});
        self.get("POST", "/templates", order).await
    }

    /// A request for a sandbox like all of these tests; of the template that is imported first.
    pub(crate) async fn create_request(&self) -> Value {
        let template = self.import("base").await;
        json!({
            "id": id::generate("sbx"), "template_version": template["id"], "cpu": 1, "memory_mb": 64, "disk_gib": 1,
            "timeout_seconds": 3600, "lifecycle": {}, "envs": {"KEY": "value"}, "exposed_ports": [],
            "allow_public_traffic": true,
        })
    }

    /// An order for a build of the version `id`, of team `team_a`.
    pub(crate) fn build_of(&self, id: &str, source: Value) -> Value {
        json!({
            "id": id, "team": "team_a", "slug": "mine", "source": source, "baseline": {"cpu": 1, "memory_mb": 64},
            "disk_gib": 1, "limits": {"seconds": 600, "log_bytes": 65_536, "cpu": 1, "memory_mb": 64},
        })
    }

    /// A version of what a sandbox like `request` has on its disk.
    pub(crate) async fn version(&self, request: &Value) -> String {
        let sandbox = self.get("POST", "/sandboxes", request.clone()).await;
        let path = format!("/sandboxes/{}", sandbox["sandbox"]["id"].as_str().unwrap());
        self.get("POST", &format!("{path}/pause"), Value::Null).await;
        let (version, sandbox) = (id::generate("ver"), request["id"].clone());
        let order = self.build_of(&version, json!({"kind": "sandbox", "sandbox": sandbox}));
        self.get("POST", "/builds", order).await;
        assert_eq!(self.built(&version).await["state"], "ready", "{}", self.host.log());
        self.get("DELETE", &path, Value::Null).await;
        version
    }

    /// The build of the version `id`, once it has ended.
    pub(crate) async fn built(&self, id: &str) -> Value {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let build = self.get("GET", &format!("/builds/{id}"), Value::Null).await;
            if build["finished_at"].is_string() {
                return build;
            }
            assert!(Instant::now() < deadline, "{build} does not end\n{}", self.host.log());
            pause().await;
        }
    }

    /// Ids of the versions that belong to a team.
    pub(crate) async fn versions_of_teams(&self) -> Vec<String> {
        let listed = self.get("GET", "/templates", Value::Null).await;
        let versions = listed["templates"].as_array().unwrap().iter().filter(|version| version["team"].is_string());
        versions.map(|version| version["id"].as_str().unwrap().to_owned()).collect()
    }

    /// A volume, on a host that has a helper template.
    pub(crate) async fn volume(&self) -> String {
        self.volumes(1).await.remove(0)
    }

    /// `count` of them.
    pub(crate) async fn volumes(&self, count: usize) -> Vec<String> {
        self.import("volume-helper").await;
        let mut volumes = Vec::new();
        for _ in 0..count {
            let volume = self.get("PUT", &format!("/volumes/{}", id::generate("vol")), Value::Null).await;
            volumes.push(volume["id"].as_str().unwrap().to_owned());
        }
        volumes
    }

    /// What the agent has open, its threads, its monitors, and all files but those of the journal, which is there to grow. It is
    /// not asked: its threads would stay for that.
    pub(crate) fn footprint(&self) -> [(&'static str, usize); 4] {
        let own = |folder: &str| fs::read_dir(format!("/proc/{}/{folder}", self.process.id())).unwrap().count();
        [
            ("descriptors", own("fd")),
            ("threads", own("task")),
            ("monitors", self.host.monitors().len()),
            ("files", files(self.host.folder.path()) - files(&self.host.path("state/intervals"))),
        ]
    }

    /// Waits until there is no more of anything than there was at `before`: threads that have nothing to do end after a while.
    pub(crate) async fn shrinks_to(&self, before: &[(&'static str, usize); 4]) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let now = self.footprint();
            if now.iter().zip(before).all(|((_, now), (_, before))| now <= before) {
                return;
            }
            assert!(Instant::now() < deadline, "{before:?} before, {now:?} now\n{}", self.host.log());
            pause().await;
        }
    }

    /// How many volumes somebody has.
    pub(crate) async fn attached(&self) -> usize {
        let listed = self.get("GET", "/volumes", Value::Null).await;
        listed["volumes"].as_array().unwrap().iter().filter(|volume| volume["attached_to"].is_string()).count()
    }

    /// `ready`, `stopped` and so on; `None` when there is no such sandbox.
    pub(crate) async fn state(&self, id: &str) -> Option<String> {
        let (status, sandbox) = self.ask("GET", &format!("/sandboxes/{id}"), &Value::Null).await.unwrap();
        (status == 200).then(|| sandbox["state"].as_str().unwrap().to_owned())
    }

    /// Likewise, once an agent that has just started is done with what the one before it left unfinished.
    pub(crate) async fn rests(&self, id: &str) -> Option<String> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let state = self.state(id).await;
            if !matches!(state.as_deref(), Some("stopping" | "checkpointing" | "restoring")) {
                return state;
            }
            assert!(Instant::now() < deadline, "{id} does not come to rest: {state:?}\n{}", self.host.log());
            pause().await;
        }
    }

    /// Waits until the journal of intervals says of exactly those sandboxes that they run which do; of the others an agent has seen
    /// the end, for no machine ends while there is none.
    pub(crate) async fn counts_what_runs(&self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let listed = self.get("GET", "/sandboxes", Value::Null).await;
            let sandboxes = listed["sandboxes"].as_array().unwrap().iter();
            let live = sandboxes.filter(|one| ["ready", "checkpointing"].contains(&one["state"].as_str().unwrap()));
            let mut live: Vec<_> = live.map(|one| one["id"].as_str().unwrap().to_owned()).collect();
            let mut open = BTreeMap::new();
            for record in self.get("GET", "/intervals", Value::Null).await["records"].as_array().unwrap() {
                let interval = &record["interval"];
                let id = interval["id"].as_str().unwrap().to_owned();
                assert_ne!(interval["end"]["reason"], "lost", "{interval}\n{}", self.host.log());
                match interval["end"].is_object() {
                    false => open.insert(id, interval["sandbox"].as_str().unwrap().to_owned()),
                    true => open.remove(&id),
                };
            }
            let mut open: Vec<_> = open.into_values().collect();
            live.sort();
            open.sort();
            if open == live {
                return;
            }
            assert!(Instant::now() < deadline, "{open:?} are counted, {live:?} run\n{}", self.host.log());
            pause().await;
        }
    }

    /// Waits until the guest of the sandbox `id` was told who it is more than `count` times.
    pub(crate) async fn told_more_than(&self, id: &str, count: u64) -> u64 {
        let deadline = Instant::now() + TIMEOUT;
        while self.host.told(id) <= count {
            assert!(Instant::now() < deadline, "the guest of {id} was told {count} times\n{}", self.host.log());
            pause().await;
        }
        self.host.told(id)
    }

    /// Waits for the process to end.
    async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the agent does not end\n{}", self.host.log());
            pause().await;
        }
    }

    /// Waits for the agent to have died by SIGKILL, at the point that was armed.
    pub(crate) async fn was_killed(mut self) {
        let status = self.ended().await;
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "{status}\n{}", self.host.log());
        assert!(!self.host.is_armed(), "something else killed the agent");
    }

    /// Deletes everything, has the agent end, and looks for what is left.
    pub(crate) async fn leave_nothing(mut self) {
        for (folder, name) in [("/sandboxes", "sandboxes"), ("/checkpoints", "checkpoints"), ("/volumes", "volumes")] {
            let list = self.get("GET", folder, Value::Null).await;
            for entry in list[name].as_array().unwrap() {
                self.get("DELETE", &format!("{folder}/{}", entry["id"].as_str().unwrap()), Value::Null).await;
            }
        }
        for version in self.versions_of_teams().await {
            self.get("DELETE", &format!("/templates/{version}"), Value::Null).await;
        }
        for folder in ["state/templates", "state/builds", "state/uploads", "state/caches"] {
            let entries = fs::read_dir(self.host.path(folder)).unwrap().flatten();
            let hidden: Vec<_> = entries.filter(|entry| entry.file_name().as_encoded_bytes()[0] == b'.').collect();
            assert!(hidden.is_empty(), "{hidden:?}\n{}", self.host.log());
        }
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        let status = self.ended().await;
        assert!(status.success(), "{status}\n{}", self.host.log());
        self.host.assert_clean();
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Between two looks at something that another process does.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}
