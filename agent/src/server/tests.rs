//! The agent API over its real socket, with real files and processes, up to where a guest would have to run.

mod allowances;
mod builds;
mod intervals;
mod logs;
mod lost;
mod metrics;
mod monitor;
mod policy;
mod slow;
mod snapshots;
mod volumes;

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use sandpiper_protocol::agent::{LogPage, TemplateVersion};
use sandpiper_protocol::id;
use sandpiper_protocol::volume::HELPER_TEMPLATE;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::*;
use crate::config::{self, Jail, Limits};
use crate::metrics::Metrics;
use crate::paths::Paths;

/// A whole agent but for its ingress, in folders of its own.
/// Machines would be started of which a test knows nothing.
const NONE_PARKED: config::Parking = config::Parking { max: 0, keep_seconds: 0 };

struct Agent {
    folder: tempfile::TempDir,
    socket: PathBuf,
    sandboxes: Sandboxes,
}

impl Agent {
    /// `monitor` is a shell script that takes the monitor's place in the list of processes; no guest ever runs.
    async fn start(monitor: &str) -> Self {
        Self::start_within(Limits::default(), monitor).await
    }

    async fn start_within(limits: Limits, monitor: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let vmm = folder.path().join("monitor");
        fs::write(&vmm, format!("#!/bin/sh\n{monitor}\n")).unwrap();
        fs::set_permissions(&vmm, fs::Permissions::from_mode(0o755)).unwrap();
        let monitor_pool = config::MonitorPool { per_shape: 0 };
        Self::start_with(folder, Config { limits, vmm, monitor_pool, parking: NONE_PARKED, ..Config::default() }).await
    }

    /// In a folder that an earlier agent may have used, with so many monitors that wait for each shape.
    async fn start_in(folder: tempfile::TempDir, vmm: PathBuf, per_shape: u32) -> Self {
        let monitor_pool = config::MonitorPool { per_shape };
        Self::start_with(folder, Config { vmm, monitor_pool, parking: NONE_PARKED, ..Config::default() }).await
    }

    async fn start_with(folder: tempfile::TempDir, config: Config) -> Self {
        let kernel = folder.path().join("vmlinux");
        fs::write(&kernel, b"not a kernel").unwrap();
        let config = Config {
            state_dir: folder.path().join("state"),
            runtime_dir: folder.path().join("run"),
            kernel,
            stop_timeout_seconds: 1,
            jail: Jail { enabled: false, ..Jail::default() },
            // These monitors run no guest.
            network: sandpiper_network::Config { enabled: false, ..Default::default() },
            ..config
        };
        let config = Arc::new(config);
        let paths = Paths::new(&config.state_dir, &config.runtime_dir);
        paths.create().unwrap();
        let context = crate::open_context(Arc::clone(&config), paths.clone(), Metrics::new()).unwrap();
        let (sandboxes, ordered) = Sandboxes::new(context);
        sandboxes.reconcile().await.unwrap();
        let uploads = crate::open_uploads(&config, &paths).unwrap();
        let builds = crate::open_builds(&sandboxes, &uploads).await.unwrap();
        crate::upkeep::begin(&sandboxes, ordered);
        let mut registry = Registry::default();
        sandboxes.context().metrics.register(&mut registry);
        let app = App {
            config,
            sandboxes: sandboxes.clone(),
            builds,
            uploads,
            urls: Urls::new(false, "sandbox.localhost", 7080),
            sessions: Arc::new(Sessions::open(&paths.session_key(), Duration::from_secs(60)).unwrap()),
            registry,
            traces: sandpiper_trace::Traces::default(),
        };
        let listener = listen(&paths.api_socket(), &ApiSocket::default()).unwrap();
        tokio::spawn(serve(listener, app, CancellationToken::new()));
        Self { socket: paths.api_socket(), folder, sandboxes }
    }

    async fn ask(&self, method: &str, path: &str, body: impl Into<String>) -> (u16, String) {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "agent")
            .header("content-type", "application/json")
            .body(Full::new(bytes::Bytes::from(body.into())))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn error(&self, method: &str, path: &str, body: impl Into<String>) -> (u16, String, String) {
        let (status, body) = self.ask(method, path, body).await;
        let error: sandpiper_protocol::agent::ErrorBody = serde_json::from_str(&body).unwrap();
        (status, error.code, error.message)
    }

    async fn import(&self) -> TemplateVersion {
        let (status, body) = self.ask("POST", "/templates", self.image().to_string()).await;
        assert_eq!(status, 201, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The agent's own template, for volumes and bare snapshots.
    async fn import_helper(&self) {
        let mut helper = self.image();
        helper["slug"] = json!(HELPER_TEMPLATE);
        let (status, body) = self.ask("POST", "/templates", helper.to_string()).await;
        assert_eq!(status, 201, "{body}");
    }

    fn image(&self) -> Value {
        let path = self.folder.path().join("image");
        let mut file = fs::File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        file.seek(SeekFrom::Start(1024 + 0x38)).unwrap();
        file.write_all(&[0x53, 0xef]).unwrap();
        json!({"slug": "base", "image": path, "baseline": {"cpu": 1, "memory_mb": 256}})
    }

    /// Ends the agent and all sandboxes; nothing of them is left.
    async fn end(&self) {
        self.sandboxes.close(true, Duration::from_secs(60)).await;
        self.assert_clean();
    }

    /// Nothing of any sandbox is left: neither file nor process.
    fn assert_clean(&self) {
        let folders = [
            "state/sandboxes",
            "run/sandboxes",
            "state/monitors",
            "run/monitors",
            "run/warm",
            "run/helpers",
            "state/helpers",
        ];
        for folder in folders {
            assert_eq!(fs::read_dir(self.folder.path().join(folder)).unwrap().count(), 0, "{folder}");
        }
        assert_eq!(self.monitors(), 0);
    }

    fn monitors(&self) -> usize {
        let marker = format!("SANDPIPER_SANDBOX={}", self.folder.path().display());
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let environments = processes.filter_map(|entry| fs::read(entry.path().join("environ")).ok());
        environments.filter(|environment| String::from_utf8_lossy(environment).contains(&marker)).count()
    }
}

fn create(template: &str) -> Value {
    json!({
        "id": id::generate("sbx"), "template_version": template, "cpu": 1, "memory_mb": 64, "disk_gib": 1,
        "timeout_seconds": 60, "lifecycle": {}, "envs": {"KEY": "hunter2"}, "exposed_ports": [],
        "allow_public_traffic": true,
    })
}

#[tokio::test]
async fn the_host_answers_about_itself() {
    let agent = Agent::start("exit 1").await;

    let (status, host) = agent.ask("GET", "/host", "").await;
    let host: Value = serde_json::from_str(&host).unwrap();
    assert_eq!((status, host["data_plane_host"].as_str()), (200, Some("sandbox.localhost")));
    assert_eq!(agent.ask("GET", "/healthz", "").await.0, 200);
    assert_eq!(agent.ask("GET", "/sandboxes", "").await, (200, r#"{"sandboxes":[]}"#.into()));
    let (_, metrics) = agent.ask("GET", "/metrics", "").await;
    assert!(metrics.contains("sandboxes{state=\"ready\"} 0"), "{metrics}");
}

#[tokio::test]
async fn the_socket_is_for_its_group_only_and_a_stale_one_is_replaced() {
    let agent = Agent::start("exit 1").await;
    assert_eq!(fs::metadata(&agent.socket).unwrap().permissions().mode() & 0o777, 0o660);

    listen(&agent.socket, &ApiSocket::default()).unwrap();
    let file = agent.folder.path().join("file");
    fs::write(&file, b"precious").unwrap();
    assert!(listen(&file, &ApiSocket::default()).is_err());
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

#[tokio::test]
async fn the_socket_is_given_to_a_group_by_its_name_and_to_none_that_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let own = nix::unistd::Group::from_gid(nix::unistd::getegid()).unwrap().unwrap();
    let access = |group: &str| ApiSocket { group: Some(group.to_owned()), ..ApiSocket::default() };

    listen(&socket, &access(&own.name)).unwrap();
    assert_eq!(fs::metadata(&socket).unwrap().gid(), own.gid.as_raw());

    let refused = listen(&socket, &access("no-such-group")).unwrap_err().to_string();
    assert!(refused.contains("\"no-such-group\"") && refused.contains("make it"), "{refused}");
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let agent = Agent::start("exit 1").await;
    let id = id::generate("sbx");

    for (method, path) in [
        ("GET", format!("/sandboxes/{id}")),
        ("DELETE", format!("/sandboxes/{id}")),
        ("GET", format!("/sandboxes/{id}/logs")),
        ("GET", format!("/sandboxes/{id}/ports/80")),
        ("POST", format!("/sandboxes/{id}/session")),
        ("GET", "/nothing".into()),
    ] {
        let (status, code, _) = agent.error(method, &path, "").await;
        assert_eq!((status, code.as_str()), (404, "not_found"), "{method} {path}");
    }
    let (status, _, _) = agent.error("PATCH", &format!("/sandboxes/{id}"), r#"{"timeout_seconds": 5}"#).await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn bad_requests_are_refused_with_the_reason() {
    let agent = Agent::start("exit 1").await;
    let template = agent.import().await;

    let (status, code, message) = agent.error("POST", "/sandboxes", "{").await;
    assert_eq!((status, code.as_str()), (400, "invalid_request"), "{message}");
    let (status, _, message) = agent.error("POST", "/sandboxes", create("vernone").to_string()).await;
    assert!(status == 400 && message.starts_with("template_version:"), "{message}");
    let mut waking = create(&template.id);
    waking["lifecycle"] = json!({"auto_resume": true});
    let (status, _, message) = agent.error("POST", "/sandboxes", waking.to_string()).await;
    assert!(status == 400 && message.starts_with("lifecycle.auto_resume:"), "{message}");
    let mut restored = create(&template.id);
    restored["checkpoint"] = json!(id::generate("ckp"));
    let (status, _, message) = agent.error("POST", "/sandboxes", restored.to_string()).await;
    assert!(status == 400 && message.starts_with("checkpoint:"), "{message}");
    let (status, _, message) = agent.error("PATCH", "/sandboxes/x", r#"{"timeout": 5}"#).await;
    assert!(status == 400 && message.contains("timeout"), "{message}");
    agent.assert_clean();
}

#[tokio::test]
async fn a_template_is_imported_once() {
    let agent = Agent::start("exit 1").await;

    let version = agent.import().await;
    let (status, body) = agent.ask("POST", "/templates", agent.image().to_string()).await;
    let again: TemplateVersion = serde_json::from_str(&body).unwrap();
    let (_, list) = agent.ask("GET", "/templates", "").await;

    assert_eq!((status, &again), (200, &version));
    assert!(list.contains(&version.id) && list.contains(&version.digest));
}

#[tokio::test]
async fn a_monitor_that_dies_at_once_fails_the_create_and_leaves_nothing() {
    let agent = Agent::start("echo no luck today >&2; exit 3").await;
    let request = create(&agent.import().await.id);

    let (status, code, message) = agent.error("POST", "/sandboxes", request.to_string()).await;

    assert_eq!((status, code.as_str()), (502, "guest_failed"));
    assert!(message.contains("status 3") && message.contains("no luck today"), "{message}");
    agent.assert_clean();
    let id = request["id"].as_str().unwrap();
    assert_eq!(agent.ask("GET", &format!("/sandboxes/{id}"), "").await.0, 404);
    let (_, logs) = agent.ask("GET", &format!("/sandboxes/{id}/logs"), "").await;
    let logs: LogPage = serde_json::from_str(&logs).unwrap();
    assert!(logs.entries.iter().any(|entry| entry.message.contains("no luck today")));
    let (_, metrics) = agent.ask("GET", "/metrics", "").await;
    assert!(metrics.contains("outcome=\"Guest\"} 1"), "{metrics}");
}

#[tokio::test]
async fn a_missing_kernel_is_the_hosts_fault() {
    let agent = Agent::start("exec sleep 1000").await;
    let request = create(&agent.import().await.id);
    fs::remove_file(agent.folder.path().join("vmlinux")).unwrap();

    let (status, code, message) = agent.error("POST", "/sandboxes", request.to_string()).await;

    assert!((status, code.as_str()) == (500, "internal") && message.contains("kernel"), "{message}");
    agent.assert_clean();
}

#[tokio::test]
async fn a_sandbox_can_be_deleted_while_it_starts() {
    let agent = Arc::new(Agent::start("exec sleep 1000").await);
    let request = create(&agent.import().await.id);
    let path = format!("/sandboxes/{}", request["id"].as_str().unwrap());
    let creating = tokio::spawn({
        let (agent, request) = (Arc::clone(&agent), request.clone());
        async move { agent.error("POST", "/sandboxes", request.to_string()).await }
    });
    let record = agent.folder.path().join("state").join(&path[1..]).join("draft.json");
    while !record.exists() {
        tokio::task::yield_now().await;
    }

    let (_, shown) = agent.ask("GET", &path, "").await;
    let (status, code, _) = agent.error("POST", "/sandboxes", request.to_string()).await;
    assert_eq!((status, code.as_str()), (409, "conflict"));
    let record = fs::read_to_string(record).unwrap();
    let (status, code, _) = agent.error("PATCH", &path, r#"{"timeout_seconds": 5}"#).await;
    assert_eq!((status, code.as_str()), (409, "invalid_state"));
    assert_eq!(agent.ask("DELETE", &path, "").await.0, 204);

    assert!(shown.contains(r#""state":"creating""#), "{shown}");
    assert!(!record.contains("hunter2"));
    assert_eq!(creating.await.unwrap().1, "invalid_state");
    agent.assert_clean();
    assert_eq!(agent.ask("DELETE", &path, "").await.0, 404);
}

#[tokio::test]
async fn a_create_goes_on_when_its_client_goes_away_and_ends_with_the_agent() {
    let agent = Arc::new(Agent::start("exec sleep 1000").await);
    let request = create(&agent.import().await.id);
    let creating = tokio::spawn({
        let agent = Arc::clone(&agent);
        async move { agent.ask("POST", "/sandboxes", request.to_string()).await }
    });
    while agent.monitors() == 0 {
        tokio::task::yield_now().await;
    }
    creating.abort();
    assert!(creating.await.is_err());

    let (_, list) = agent.ask("GET", "/sandboxes", "").await;
    assert!(list.contains(r#""state":"creating""#), "{list}");
    agent.sandboxes.close(false, Duration::from_secs(60)).await;
    agent.assert_clean();
}

#[tokio::test]
async fn a_full_host_says_so() {
    for (limits, memory_mb, expected) in [
        (Limits::default(), 65_536, "MiB of memory"),
        (Limits { disk_overcommit: 0, ..Limits::default() }, 64, "would have 1 GiB, and may have 0"),
        (Limits { disk_headroom_mb: u64::MAX, ..Limits::default() }, 64, "are kept free"),
    ] {
        let agent = Agent::start_within(limits, "exec sleep 1000").await;
        let mut request = create(&agent.import().await.id);
        request["memory_mb"] = json!(memory_mb);

        let (status, code, message) = agent.error("POST", "/sandboxes", request.to_string()).await;

        assert_eq!((status, code.as_str()), (503, "capacity_unavailable"), "{message}");
        assert!(message.contains(expected), "{message}");
        agent.assert_clean();
    }
}
