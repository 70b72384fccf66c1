//! Versions that are built of checkpoints and stopped sandboxes: built, started from, cancelled, deleted.

mod machine;

use std::time::Instant;

use sandpiper_protocol::template::{Build, BuildLogPage, BuildState};

use super::snapshots::eventually;
use super::*;

/// An order for a version `id` that starts a server.
fn order(id: &str, source: Value) -> Value {
    json!({
        "id": id, "team": "team_a", "slug": "mine", "source": source, "baseline": {"cpu": 1, "memory_mb": 64},
        "disk_gib": 1, "start": {"command": "serve", "ready": "is-it-up"},
        "limits": {"seconds": 60, "log_bytes": 65_536, "cpu": 1, "memory_mb": 64},
    })
}

impl Agent {
    /// With machines, and so many seconds for start commands to come up.
    async fn with_builds(start_seconds: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let vmm = monitor::program(folder.path());
        let builds = config::Builds { start_seconds, ..config::Builds::default() };
        Self::start_with(folder, Config { vmm, builds, ..Config::default() }).await
    }

    /// A source that is a sandbox, which is stopped.
    async fn stopped(&self) -> Value {
        let (sandbox, _) = self.create(create(&self.import().await.id)).await;
        sandbox.ask("pause", Value::Null).await;
        json!({"kind": "sandbox", "sandbox": sandbox.id})
    }

    async fn build(&self, order: &Value) -> Build {
        let (status, body) = self.ask("POST", "/builds", order.to_string()).await;
        assert_eq!(status, 202, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn built(&self, order: &Value) -> Build {
        loop {
            let build = self.shown(order).await;
            if build.state.has_ended() {
                return build;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn shown(&self, order: &Value) -> Build {
        let path = format!("/builds/{}", order["id"].as_str().unwrap());
        serde_json::from_str(&self.ask("GET", &path, "").await.1).unwrap()
    }

    /// Waits until the build is in this state.
    async fn is(&self, order: &Value, state: BuildState) {
        while self.shown(order).await.state != state {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn build_log(&self, order: &Value, query: &str) -> BuildLogPage {
        let (status, body) =
            self.ask("GET", &format!("/builds/{}/logs{query}", order["id"].as_str().unwrap()), "").await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Nothing of the version is left but its build.
    async fn assert_not_built(&self, order: &Value) {
        let context = self.sandboxes.context();
        assert!(context.templates.find_any(order["id"].as_str().unwrap()).is_none());
        assert!(context.warm.list().iter().all(|warm| warm.snapshot.template_version != order["id"].as_str().unwrap()));
        // What a snapshot of another version is made in goes by itself.
        let give_up_at = Instant::now() + Duration::from_secs(20);
        for folder in ["state/templates", "state/warm", "run/warm"] {
            let is_hidden = |entry: fs::DirEntry| entry.file_name().as_encoded_bytes()[0] == b'.';
            while fs::read_dir(self.folder.path().join(folder)).unwrap().flatten().any(is_hidden) {
                assert!(Instant::now() < give_up_at, "{folder}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_makes_a_versions_snapshot_anew_ahead_but_starts_nothing_of_a_disabled_team() {
    let agent = Agent::with_machines().await;
    let order = order(&id::generate("ver"), agent.stopped().await);
    agent.build(&order).await;
    let version = agent.built(&order).await.version.unwrap().id;
    // With a kernel that has just been installed.
    let agent = agent.follow().await;
    let tell = async |disabled: bool| {
        let quota = json!({"sandboxes": 9, "cpu": 9, "memory_mb": 9999});
        let allowance = json!({"team": "team_a", "quota": quota, "disabled": disabled});
        let told = [("/allowances", json!({"allowances": [allowance]})), ("/plans", json!({"root_disks_gib": []}))];
        for (path, body) in told {
            assert_eq!(agent.ask("PUT", path, body.to_string()).await.0, 204);
        }
    };
    let snapshots = || {
        let all = agent.sandboxes.context().warm.list();
        all.iter().filter(|one| one.snapshot.template_version == version).count()
    };

    tell(true).await;
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert_eq!(snapshots(), 1, "that of the agent before");

    tell(false).await;
    eventually(|| snapshots() == 2).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_of_a_stopped_sandbox_starts_warm_with_its_server_and_outlives_what_it_was_made_of() {
    let agent = Agent::with_machines().await;
    let source = agent.stopped().await;
    let order = order(&id::generate("ver"), source.clone());

    let begun = agent.build(&order).await;
    assert_eq!(agent.ask("POST", "/builds", order.to_string()).await.0, 200);
    let built = agent.built(&order).await;

    assert!(matches!(begun.state, BuildState::Queued | BuildState::Building | BuildState::Warming));
    let version = built.version.unwrap();
    assert_eq!((built.state, version.disk_gib, version.team.as_deref()), (BuildState::Ready, 1, Some("team_a")));
    let log = agent.build_log(&order, "").await;
    assert!(log.is_complete && log.entries.len() as u64 == built.log_end);
    assert_eq!(log.entries.last().unwrap().text, "ready");
    let page = agent.build_log(&order, "?after=1&limit=1").await;
    assert_eq!((page.entries[0].number, page.entries.len(), page.is_complete), (2, 1, built.log_end == 2));
    let path = format!("/sandboxes/{}", source["sandbox"].as_str().unwrap());
    assert_eq!(agent.ask("DELETE", &path, "").await.0, 204);

    let (sandbox, shown) = agent.create(create(&version.id)).await;

    assert_eq!((shown["start"].as_str(), shown["retained_bytes"].as_u64()), (Some("warm"), Some(0)));
    // The image, what the first sandbox wrote, what the warm machine wrote, and its own.
    assert_eq!(sandbox.layers("disk").len(), 4);
    let told = monitor::defaults_told(agent.folder.path(), &sandbox.id);
    assert_eq!(told.start.unwrap().command, "serve");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_made_of_a_version_goes_on_when_that_is_deleted() {
    let agent = Agent::with_machines().await;
    let order = order(&id::generate("ver"), agent.stopped().await);
    agent.build(&order).await;
    let version = agent.built(&order).await.version.unwrap().id;
    let (sandbox, _) = agent.create(create(&version)).await;
    sandbox.ask("pause", Value::Null).await;
    let warm = || agent.sandboxes.context().warm.list();
    eventually(|| warm().iter().any(|warm| warm.snapshot.template_version == version)).await;

    assert_eq!(agent.ask("DELETE", &format!("/templates/{version}"), "").await.0, 204);

    agent.assert_not_built(&order).await;
    assert_eq!(agent.ask("DELETE", &format!("/templates/{version}"), "").await.0, 404);
    assert_eq!(agent.error("POST", "/sandboxes", create(&version).to_string()).await.0, 400);
    let id = sandbox.id.clone();
    let agent = agent.follow().await;
    let sandbox = agent.sandbox(&id);
    agent.behave("bad-snapshot");
    let resumed = sandbox.ask("resume", json!({})).await;
    assert_eq!(resumed["sandbox"]["start"], "cold");
    agent.behave("");
    let fork = sandpiper_protocol::ids::SandboxId::generate();
    sandbox.ask("fork", json!({"ids": [fork]})).await;
    for id in [&id, &fork] {
        let told = monitor::defaults_told(agent.folder.path(), id);
        assert_eq!(told.start.unwrap().command, "serve", "{id}");
    }
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_of_a_checkpoint_has_what_the_sandbox_had_written_by_then() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    let checkpoint = sandbox.ask("checkpoints", json!({"id": id::generate("ckp"), "memory": true})).await;
    let source = json!({"kind": "checkpoint", "checkpoint": checkpoint["id"]});
    let order = order(&id::generate("ver"), source);

    agent.build(&order).await;
    let version = agent.built(&order).await.version.unwrap().id;
    assert_eq!(agent.ask("DELETE", &format!("/checkpoints/{}", checkpoint["id"].as_str().unwrap()), "").await.0, 204);

    let template = agent.sandboxes.context().templates.find(&version).unwrap();
    let layers: Vec<_> = template.disk.iter().map(|layer| layer.name.clone()).collect();
    assert_eq!(monitor::block_of(&template.folder, &layers, 1).unwrap(), format!("{} booted", sandbox.id));
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_command_that_does_not_come_up_fails_the_build_with_what_was_printed() {
    let agent = Agent::with_builds(1).await;
    let order = order(&id::generate("ver"), agent.stopped().await);
    agent.behave("not-up");

    agent.build(&order).await;
    let built = agent.built(&order).await;

    let error = built.error.unwrap();
    assert_eq!((built.state, error.code.as_str()), (BuildState::Failed, "not_ready"), "{}", error.message);
    assert!(error.message.contains("status 1"), "{}", error.message);
    let log = agent.build_log(&order, "").await;
    assert!(log.entries.iter().any(|entry| entry.text == "connection refused"), "{log:?}");
    agent.assert_not_built(&order).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_is_cancelled_or_too_slow_leaves_nothing() {
    let agent = Agent::with_builds(300).await;
    let source = agent.stopped().await;
    agent.behave("not-up");

    let cancelled = order(&id::generate("ver"), source.clone());
    agent.build(&cancelled).await;
    agent.is(&cancelled, BuildState::Warming).await;
    let path = format!("/builds/{}/cancel", cancelled["id"].as_str().unwrap());
    let (status, body) = agent.ask("POST", &path, "").await;
    assert!(status == 200 && body.contains(r#""state":"cancelled""#), "{body}");
    agent.assert_not_built(&cancelled).await;
    assert_eq!(agent.ask("POST", &path, "").await, (status, body));

    let mut slow = order(&id::generate("ver"), source);
    slow["limits"]["seconds"] = json!(1);
    agent.build(&slow).await;
    let built = agent.built(&slow).await;
    assert_eq!((built.state, built.error.unwrap().code.as_str()), (BuildState::Failed, "too_slow"));
    agent.assert_not_built(&slow).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_goes_on_with_a_build() {
    let agent = Agent::with_builds(300).await;
    let order = order(&id::generate("ver"), agent.stopped().await);
    agent.behave("not-up");
    agent.build(&order).await;
    agent.is(&order, BuildState::Warming).await;

    let folder = agent.folder.path().to_owned();
    let agent = agent.follow_after(|| fs::remove_file(folder.join("behaviour")).unwrap()).await;

    assert_eq!(agent.built(&order).await.state, BuildState::Ready);
    let (sandbox, shown) = agent.create(create(order["id"].as_str().unwrap())).await;
    assert_eq!(shown["start"], "warm");
    sandbox.delete().await;
    let agent = agent.follow().await;
    assert_eq!(agent.built(&order).await.state, BuildState::Ready);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_built_is_refused_with_the_reason() {
    let agent = Agent::with_machines().await;
    let (running, _) = agent.create(create(&agent.import().await.id)).await;
    let sandbox = json!({"kind": "sandbox", "sandbox": running.id});
    let missing = json!({"kind": "checkpoint", "checkpoint": id::generate("ckp")});
    let image = json!({"kind": "image", "reference": "registry.example/app"});

    for (source, expected) in
        [(sandbox, (409, "conflict")), (missing, (400, "invalid_request")), (image, (422, "build_unavailable"))]
    {
        let (status, code, message) =
            agent.error("POST", "/builds", order(&id::generate("ver"), source).to_string()).await;
        assert_eq!((status, code.as_str()), expected, "{message}");
    }
    let source = json!({"kind": "sandbox", "sandbox": running.id});
    running.ask("pause", Value::Null).await;
    let (status, _, message) = agent.error("POST", "/builds", order("ver../../etc", source.clone()).to_string()).await;
    assert!(status == 400 && message.starts_with("id:"), "{message}");

    let first = order(&id::generate("ver"), source);
    agent.build(&first).await;
    let mut other = first.clone();
    other["slug"] = json!("other");
    assert_eq!(agent.error("POST", "/builds", other.to_string()).await.1, "conflict");
    assert_eq!(agent.built(&first).await.state, BuildState::Ready);
    let (_, list) = agent.ask("GET", "/builds", "").await;
    assert!(list.contains(first["id"].as_str().unwrap()) && list.matches("\"state\"").count() == 1, "{list}");
    assert_eq!(agent.ask("GET", &format!("/builds/{}", id::generate("ver")), "").await.0, 404);
    agent.end().await;
}
