//! Warm starts, pause, resume, checkpoints and forks, and what is left when the agent ends in the middle.

mod ahead;
mod bare;
mod merge;
mod parking;
mod pool;
mod scrub;
mod wake;

use sandpiper_images::layers::digest;
use sandpiper_ingress::Directory;
use sandpiper_protocol::agent::{LogQuery, SandboxState};
use sandpiper_protocol::ids::SandboxId;

use super::*;

/// A sandbox as its record has it.
pub(super) struct Sandbox<'a> {
    pub(super) agent: &'a Agent,
    pub(super) id: SandboxId,
}

impl Agent {
    pub(super) async fn with_machines() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let vmm = monitor::program(folder.path());
        Self::start_in(folder, vmm, 1).await
    }

    /// The agent that follows this one, which ends as it does when it is asked to. Those that are killed are in `tests/agent`.
    pub(super) async fn follow(self) -> Self {
        self.follow_after(|| {}).await
    }

    /// Likewise, once `meanwhile` has been done to what this one left.
    pub(super) async fn follow_after(self, meanwhile: impl FnOnce()) -> Self {
        let folder = self.folder;
        self.sandboxes.close(false, Duration::from_secs(10)).await;
        fs::remove_file(&self.socket).unwrap();
        meanwhile();
        let vmm = folder.path().join("monitor");
        Self::start_in(folder, vmm, 1).await
    }

    pub(super) fn behave(&self, words: &str) {
        fs::write(self.folder.path().join("behaviour"), words).unwrap();
    }

    pub(super) async fn create(&self, request: Value) -> (Sandbox<'_>, Value) {
        let (status, body) = self.ask("POST", "/sandboxes", request.to_string()).await;
        assert_eq!(status, 201, "{body}");
        let created: Value = serde_json::from_str(&body).unwrap();
        (self.sandbox(request["id"].as_str().unwrap()), created["sandbox"].clone())
    }

    pub(super) fn sandbox(&self, id: &str) -> Sandbox<'_> {
        Sandbox { agent: self, id: id.into() }
    }

    async fn warm(&self) {
        let context = self.sandboxes.context();
        eventually(|| context.warm.count() == 1).await;
    }
}

impl Sandbox<'_> {
    pub(super) async fn ask(&self, operation: &str, body: Value) -> Value {
        let (status, answer) = self.try_ask(operation, body).await;
        assert!(status < 300, "{operation}: {answer}");
        answer
    }

    pub(super) async fn try_ask(&self, operation: &str, body: Value) -> (u16, Value) {
        let path = format!("/sandboxes/{}/{operation}", self.id);
        let (status, answer) = self.agent.ask("POST", &path, body.to_string()).await;
        (status, serde_json::from_str(&answer).unwrap())
    }

    pub(super) async fn show(&self) -> Value {
        let (status, answer) = self.agent.ask("GET", &format!("/sandboxes/{}", self.id), "").await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    pub(super) async fn state(&self) -> String {
        self.show().await["state"].as_str().unwrap().to_owned()
    }

    pub(super) async fn is_eventually(&self, state: SandboxState) {
        eventually(|| self.agent.sandboxes.find(&self.id).unwrap().state == state).await;
    }

    pub(super) async fn delete(&self) {
        assert_eq!(self.agent.ask("DELETE", &format!("/sandboxes/{}", self.id), "").await.0, 204);
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.agent.folder.path().join("state/sandboxes").join(self.id.as_str())
    }

    /// The folder that its monitor was started with.
    pub(super) fn monitor_folder(&self) -> PathBuf {
        let monitor = self.record()["process"]["id"].as_str().unwrap().to_owned();
        self.agent.folder.path().join("state/monitors").join(monitor)
    }

    /// Without the checksum: what a test makes of it is written back.
    pub(super) fn record(&self) -> Value {
        let text = fs::read(self.folder().join("record.json")).unwrap();
        let mut record: Value = serde_json::from_slice(&text).unwrap();
        record.as_object_mut().unwrap().remove("checksum");
        record
    }

    pub(super) fn layers(&self, what: &str) -> Vec<String> {
        let layers = self.record()["files"][what].as_array().unwrap().clone();
        layers.iter().map(|layer| layer["name"].as_str().unwrap().to_owned()).collect()
    }

    /// What the guest wrote when it was told this generation.
    pub(super) fn block(&self, generation: u64) -> Option<String> {
        monitor::block_of(&self.folder(), &self.layers("disk"), generation)
    }

    /// Waits until every layer of a stopped sandbox has a digest.
    async fn gets_digests(&self) {
        let has_digest = |layer: &String| {
            // Those that were merged go.
            digest::look(&self.folder().join(layer)).is_ok_and(|(_, note)| note.is_some())
        };
        eventually(|| [self.layers("disk"), self.layers("memory")].iter().flatten().all(has_digest)).await;
    }

    pub(super) fn says(&self, what: &str) -> bool {
        let log = self.agent.sandboxes.context().logs.find(&self.id).unwrap();
        let query = LogQuery { search: Some(what.to_owned()), ..LogQuery::default() };
        !log.page(&query).unwrap().entries.is_empty()
    }

    pub(super) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        // They come by themselves.
        names.retain(|name| !name.starts_with("samples-") && !name.starts_with("log-"));
        names.sort();
        names
    }
}

pub(super) async fn eventually(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("in time");
}

fn checkpoint_of(answer: &Value) -> String {
    answer["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ends_does_not_say_that_its_sandboxes_are_gone() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    let id = sandbox.id.clone();

    agent.sandboxes.close(false, Duration::from_secs(10)).await;

    assert_eq!(sandbox.try_ask("pause", json!({})).await.0, 503);
    assert_eq!(agent.ask("DELETE", &format!("/sandboxes/{id}"), "").await.0, 503);
    let agent = agent.follow().await;
    assert_eq!(agent.sandbox(&id).state().await, "ready");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_sandbox_of_a_template_starts_warm_and_leaves_nothing_either() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (first, cold) = agent.create(create(&template)).await;
    agent.warm().await;

    let (second, warm) = agent.create(create(&template)).await;

    assert_eq!((cold["start"].as_str(), warm["start"].as_str()), (Some("cold"), Some("warm")));
    assert_eq!(second.block(1).unwrap(), format!("{} booted 0", second.id));
    // The template's image, what the warm machine wrote, and the sandbox's own.
    assert_eq!(second.layers("disk").len(), 3);
    assert_eq!(warm["retained_bytes"], 0);
    first.delete().await;
    second.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_snapshot_is_tried_out_as_a_sandbox_that_its_guest_was_not_before() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (_first, _) = agent.create(create(&template)).await;
    agent.warm().await;

    let warm = &agent.sandboxes.context().warm.list()[0];
    let path = warm.folder.join(warm.snapshot.files.working_set.as_ref().unwrap());
    assert_eq!(
        fs::read_to_string(path).unwrap(),
        "booted 0 1",
        "what the guest was told while it was noted what it touches"
    );
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_snapshot_that_cannot_be_restored_is_thrown_away_and_the_guest_boots() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (_first, _) = agent.create(create(&template)).await;
    agent.warm().await;
    agent.behave("bad-snapshot");

    let (second, sandbox) = agent.create(create(&template)).await;

    assert_eq!(sandbox["start"], "cold");
    assert_eq!(second.block(1).unwrap(), format!("{} booted", second.id));
    assert_eq!(second.layers("disk").len(), 2);
    assert_eq!(agent.sandboxes.context().warm.count(), 0);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_snapshot_that_does_not_start_is_kept_until_that_happened_three_times() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (_first, _) = agent.create(create(&template)).await;
    agent.warm().await;
    let context = agent.sandboxes.context();
    let path = context.warm.list()[0].folder.clone();
    for restores in [false, false, true, false, false] {
        agent.behave(if restores { "" } else { "no-restore" });
        let (_, sandbox) = agent.create(create(&template)).await;
        assert_eq!(sandbox["start"], if restores { "warm" } else { "cold" });
        assert!(path.exists());
    }

    let (_, sandbox) = agent.create(create(&template)).await;

    assert_eq!(sandbox["start"], "cold");
    eventually(|| !path.exists()).await;
    agent.end().await;
}

#[tokio::test]
async fn an_update_closes_public_previews_until_another_one() {
    let agent = Agent::with_machines().await;
    let mut request = create(&agent.import().await.id);
    request["exposed_ports"] = json!([{"port": 8000, "protocol": "http", "public": true}]);
    let (sandbox, _) = agent.create(request).await;
    let path = format!("/sandboxes/{}", sandbox.id);
    for allowed in [false, true] {
        let change = json!({"allow_public_traffic": allowed}).to_string();
        let (status, answer) = agent.ask("PATCH", &path, change).await;
        assert_eq!(status, 200, "{answer}");

        let (_, port) = agent.ask("GET", &format!("{path}/ports/8000"), "").await;

        let port: Value = serde_json::from_str(&port).unwrap();
        assert_eq!(port["public"], allowed, "{port}");
    }
    sandbox.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sandbox_is_files_only_and_goes_on_where_it_stopped() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;

    let paused = sandbox.ask("pause", json!({})).await;
    let again = sandbox.ask("pause", json!({})).await;
    assert_eq!((&paused["state"], &again["state"]), (&json!("stopped"), &json!("stopped")));
    eventually(|| {
        sandbox.files()
            == ["disk-0.layer", "disk-1.layer", "memory-3.layer", "record.copy.json", "record.json", "state-2"]
    })
    .await;
    assert_eq!(agent.sandboxes.context().capacity.sandboxes(), 0);
    let (status, _) = agent.ask("PATCH", &format!("/sandboxes/{}", sandbox.id), r#"{"timeout_seconds": 70}"#).await;
    assert_eq!(status, 200);

    let resumed = sandbox.ask("resume", json!({"timeout_seconds": 5000})).await;

    assert_eq!((&resumed["sandbox"]["state"], &resumed["sandbox"]["start"]), (&json!("ready"), &json!("restored")));
    let deadline: jiff::Timestamp = resumed["sandbox"]["deadline"].as_str().unwrap().parse().unwrap();
    assert!(deadline.duration_since(jiff::Timestamp::now()).as_secs() > 4000);
    assert_eq!(sandbox.block(1).unwrap(), format!("{} booted", sandbox.id));
    assert_eq!(sandbox.block(2).unwrap(), format!("{} booted 1", sandbox.id));
    assert_eq!(sandbox.layers("memory"), ["memory-3.layer"]);
    assert!(!sandbox.folder().join("state-2").exists());
    // Running: nothing but the deadline changes, and that only forwards.
    let live = sandbox.ask("resume", json!({"timeout_seconds": 10})).await;
    assert_eq!(live["sandbox"]["deadline"], resumed["sandbox"]["deadline"]);
    sandbox.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_keeps_its_disk_alone_boots_and_its_tokens_stay_the_same() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    let tokens = async || agent.ask("GET", &format!("/sandboxes/{}/tokens", sandbox.id), "").await;
    let before = tokens().await;
    assert_eq!(before.0, 200);

    sandbox.ask("pause", json!({"disk_only": true})).await;
    assert_eq!(sandbox.layers("memory"), [""; 0]);
    assert_eq!(tokens().await, before, "while it is paused");
    let resumed = sandbox.ask("resume", json!({})).await;
    assert_eq!(resumed["sandbox"]["start"], "cold");

    sandbox.ask("pause", json!({})).await;
    assert!(!sandbox.layers("memory").is_empty());
    let resumed = sandbox.ask("resume", json!({"disk_only": true})).await;
    assert_eq!(resumed["sandbox"]["start"], "cold");
    assert_eq!(tokens().await, before, "for as long as it is there");
    assert_eq!(agent.ask("GET", "/sandboxes/sbx0000000000000000000000/tokens", "").await.0, 404);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_fails_leaves_the_sandbox_running() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    let before = sandbox.files();
    for (behaviour, expected, code) in [("no-freeze", 502, "guest_failed"), ("no-snapshot", 500, "internal")] {
        agent.behave(behaviour);
        let (status, answer) = sandbox.try_ask("pause", json!({})).await;
        assert_eq!((status, answer["code"].as_str()), (expected, Some(code)), "{answer}");
        assert_eq!((sandbox.state().await, sandbox.files()), ("ready".into(), before.clone()));
    }
    agent.behave("");
    sandbox.ask("pause", json!({})).await;
    sandbox.ask("resume", json!({})).await;
    agent.behave("die-in-snapshot");
    let (status, _) = sandbox.try_ask("pause", json!({})).await;
    assert!(status >= 500);
    sandbox.is_eventually(SandboxState::Stopped).await;
    assert_eq!(sandbox.show().await["error"]["code"], "monitor_failed");
    sandbox.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_for_which_the_host_has_no_room_stands_still_says_so_and_goes_on() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    let held = async |count: u8| {
        let metrics = agent.ask("GET", "/metrics", "").await.1;
        assert!(metrics.contains(&format!("sandboxes_held {count}\n")), "{metrics}");
    };
    // Its maker's machine would stand still, too.
    agent.warm().await;
    agent.behave("full-disk");
    let (status, answer) = sandbox.try_ask("pause", json!({})).await;
    assert_eq!(status, 502);
    assert!(answer["message"].as_str().unwrap().contains("The host has no room"), "{answer}");
    eventually(|| sandbox.says("it stands still until there is")).await;
    held(1).await;
    assert_eq!(sandbox.state().await, "ready");

    agent.behave("");
    eventually(|| sandbox.says("the host has room again")).await;
    held(0).await;
    sandbox.ask("pause", json!({})).await;
    sandbox.ask("resume", json!({})).await;
    sandbox.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_snapshot_cannot_be_restored_boots_from_its_disk() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    sandbox.ask("pause", json!({})).await;
    agent.behave("bad-snapshot");

    let resumed = sandbox.ask("resume", json!({})).await;

    assert_eq!(resumed["sandbox"]["start"], "cold");
    assert_eq!(sandbox.block(1).unwrap(), format!("{} booted", sandbox.id));
    assert_eq!(sandbox.block(3).unwrap(), format!("{} booted", sandbox.id));
    assert!(sandbox.layers("memory").is_empty());
    eventually(|| !sandbox.files().iter().any(|name| name.starts_with("state") || name.starts_with("memory"))).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_time_is_over_is_paused_if_that_was_asked_for() {
    let agent = Agent::with_machines().await;
    let mut request = create(&agent.import().await.id);
    request["timeout_seconds"] = json!(1);
    request["lifecycle"] = json!({"on_timeout": "pause", "auto_resume": true});
    let (sandbox, created) = agent.create(request).await;
    let token = created["data_plane_url"].as_str().unwrap().split(['/', '.']).nth(2).unwrap().to_owned();

    sandbox.is_eventually(SandboxState::Stopped).await;
    let directory = &agent.sandboxes;
    let target = Directory::find(directory, &token).await.unwrap();
    assert!(target.wakes);
    let (one, two) = tokio::join!(Directory::wake(directory, &sandbox.id), Directory::wake(directory, &sandbox.id));

    assert!(one.is_ok() && two.is_ok());
    assert_eq!(sandbox.record()["generation"], 2, "one resume for both");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_time_is_over_keeps_its_disk_alone_if_that_was_asked_for() {
    let agent = Agent::with_machines().await;
    let mut request = create(&agent.import().await.id);
    request["timeout_seconds"] = json!(1);
    request["lifecycle"] = json!({"on_timeout": "pause", "auto_resume": true, "pause_memory": false});
    let (sandbox, created) = agent.create(request).await;
    assert_eq!(created["lifecycle"]["pause_memory"], false);

    sandbox.is_eventually(SandboxState::Stopped).await;
    assert!(sandbox.layers("memory").is_empty() && sandbox.record()["files"]["state"].is_null());
    eventually(|| !sandbox.files().iter().any(|name| name.starts_with("state") || name.starts_with("memory"))).await;
    Directory::wake(&agent.sandboxes, &sandbox.id).await.unwrap();

    assert_eq!(
        (sandbox.show().await["start"].as_str(), sandbox.block(2)),
        (Some("cold"), Some(format!("{} booted", sandbox.id)))
    );
    assert_eq!(sandbox.block(1).unwrap(), format!("{} booted", sandbox.id), "the disk is what it was");
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_are_what_the_sandbox_was_and_outlive_it() {
    let agent = Agent::with_machines().await;
    let (source, _) = agent.create(create(&agent.import().await.id)).await;
    let ids = [id::generate("ckp"), id::generate("ckp"), id::generate("ckp")];

    let whole = source.ask("checkpoints", json!({"id": ids[0], "memory": true})).await;
    let disk = source.ask("checkpoints", json!({"id": ids[1], "memory": false})).await;
    assert_eq!((&whole["memory"], &whole["stopped_us"], &disk["memory"]), (&json!(true), &json!(77), &json!(false)));
    assert_eq!((source.state().await.as_str(), source.layers("disk").len()), ("ready", 4));
    let (status, code, _) = agent
        .error(
            "POST",
            &format!("/sandboxes/{}/checkpoints", source.id),
            json!({"id": ids[0], "memory": true}).to_string(),
        )
        .await;
    assert_eq!((status, code.as_str()), (409, "conflict"));
    source.ask("pause", json!({})).await;
    let stopped = source.ask("checkpoints", json!({"id": ids[2], "memory": true})).await;
    source.delete().await;

    for (checkpoint, start, memory) in
        [(&whole, "restored", "booted 1"), (&disk, "cold", "booted"), (&stopped, "restored", "booted 1")]
    {
        let mut request = create("");
        request["checkpoint"] = json!(checkpoint_of(checkpoint));
        let (sandbox, created) = agent.create(request).await;
        assert_eq!((created["start"].as_str(), sandbox.record()["generation"].as_u64()), (Some(start), Some(2)));
        assert_eq!(sandbox.block(1).unwrap(), format!("{} booted", source.id));
        assert_eq!(sandbox.block(2).unwrap(), format!("{} {memory}", sandbox.id));
        sandbox.delete().await;
    }
    let (_, list) = agent.ask("GET", "/checkpoints", "").await;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["checkpoints"].as_array().unwrap().len(), 3);
    for id in &ids {
        assert_eq!(agent.ask("DELETE", &format!("/checkpoints/{id}"), "").await.0, 204);
        assert_eq!(agent.ask("DELETE", &format!("/checkpoints/{id}"), "").await.0, 404);
    }
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_whose_memory_cannot_be_copied_ahead_is_written_at_once() {
    let agent = Agent::with_machines().await;
    let (source, _) = agent.create(create(&agent.import().await.id)).await;
    let (copied, whole) = (id::generate("ckp"), id::generate("ckp"));

    source.ask("checkpoints", json!({"id": copied, "memory": true})).await;
    agent.behave("no-copy");
    source.ask("checkpoints", json!({"id": whole, "memory": true})).await;

    let context = agent.sandboxes.context();
    let length = |id: &str| {
        let (manifest, _pin) = context.checkpoints.pin(&id.into()).unwrap();
        let layer = &manifest.snapshot.files.memory.last().unwrap().name;
        fs::metadata(context.checkpoints.folder(&id.into()).join(layer)).unwrap().len()
    };
    assert_eq!((length(&copied), length(&whole)), (8192, 4096));
    // The monitor does not know what was written since: nothing will lie above either of them.
    assert!(source.record()["files"].get("written").is_none());
    assert!(!source.files().iter().any(|name| name.starts_with("memory-")), "{:?}", source.files());
    source.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_checkpoint_lies_above_that_of_the_one_before() {
    let agent = Agent::with_machines().await;
    let (source, _) = agent.create(create(&agent.import().await.id)).await;
    let layers = |agent: &Agent, id: &str| {
        let (manifest, _pin) = agent.sandboxes.context().checkpoints.pin(&id.into()).unwrap();
        manifest.snapshot.files.memory.iter().map(|layer| layer.name.clone()).collect::<Vec<_>>()
    };
    let ids: Vec<String> = (0..4).map(|_| id::generate("ckp")).collect();
    let take = async |source: &Sandbox<'_>, id: &str| {
        source.ask("checkpoints", json!({"id": id, "memory": true})).await;
    };

    take(&source, &ids[0]).await;
    take(&source, &ids[1]).await;
    let (first, second) = (layers(&agent, &ids[0]), layers(&agent, &ids[1]));
    assert_eq!((first.len(), second.len(), &second[..1]), (1, 2, &first[..]));
    assert_eq!(source.layers("written"), second);
    // A sandbox of the second, and none of the first's any more.
    assert_eq!(agent.ask("DELETE", &format!("/checkpoints/{}", ids[0]), "").await.0, 204);
    let mut request = create("");
    request["checkpoint"] = json!(ids[1]);
    let (restored, created) = agent.create(request).await;
    assert_eq!((created["start"].as_str(), restored.layers("memory")), (Some("restored"), second.clone()));
    restored.delete().await;

    // One that fails leaves the monitor not knowing: the next one begins with everything.
    agent.behave("no-snapshot");
    let (status, _) = source.try_ask("checkpoints", json!({"id": ids[2], "memory": true})).await;
    assert_eq!((status, source.layers("written")), (500, second.clone()));
    agent.behave("");
    take(&source, &ids[2]).await;
    let third = layers(&agent, &ids[2]);
    assert_eq!((third.len(), source.layers("written")), (1, third.clone()));
    assert!(!source.files().contains(&second[1]), "nobody needs it: {:?}", source.files());

    // The next agent goes on where this one was.
    let id = source.id.clone();
    let agent = agent.follow().await;
    let source = agent.sandbox(id.as_str());
    take(&source, &ids[3]).await;
    assert_eq!(layers(&agent, &ids[3])[..1], third[..]);
    source.ask("pause", json!({})).await;
    assert!(source.record()["files"].get("written").is_none());
    assert_eq!(source.layers("memory").len(), 1, "a pause holds all that was written since the start");
    source.delete().await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_fails_leaves_the_sandbox_running_and_no_draft() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    let before = sandbox.files();
    for behaviour in ["no-freeze", "no-snapshot"] {
        agent.behave(behaviour);
        let (status, answer) = sandbox.try_ask("checkpoints", json!({"id": id::generate("ckp"), "memory": true})).await;
        assert!(status >= 500, "{answer}");
        assert_eq!((sandbox.state().await, sandbox.files()), ("ready".into(), before.clone()));
    }
    assert_eq!(fs::read_dir(agent.folder.path().join("state/checkpoints")).unwrap().count(), 0);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_go_on_from_where_a_running_or_stopped_sandbox_is() {
    let agent = Agent::with_machines().await;
    let (source, _) = agent.create(create(&agent.import().await.id)).await;
    for state in ["ready", "stopped"] {
        let ids = [id::generate("sbx"), id::generate("sbx"), id::generate("sbx")];

        let forked = source.ask("fork", json!({"ids": ids})).await;

        assert_eq!(forked["sandboxes"].as_array().unwrap().len(), 3);
        assert_eq!(source.state().await, state);
        for id in &ids {
            let fork = agent.sandbox(id);
            assert_eq!(fork.block(1).unwrap(), format!("{} booted", source.id));
            assert_eq!(fork.block(2).unwrap(), format!("{id} booted 1"));
            fork.delete().await;
        }
        source.ask("pause", json!({})).await;
    }
    assert_eq!(fs::read_dir(agent.folder.path().join("state/checkpoints")).unwrap().count(), 0);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_of_which_one_cannot_be_made_makes_none() {
    let agent = Agent::with_machines().await;
    let (source, _) = agent.create(create(&agent.import().await.id)).await;
    let (status, answer) = source.try_ask("fork", json!({"ids": [id::generate("sbx"), source.id]})).await;
    assert_eq!((status, answer["code"].as_str()), (409, Some("conflict")));
    // The second has the folder of one that is left to an operator.
    let ids = [id::generate("sbx"), id::generate("sbx")];
    fs::create_dir(agent.folder.path().join("state/sandboxes").join(&ids[1])).unwrap();

    let (status, _) = source.try_ask("fork", json!({"ids": ids})).await;

    assert_eq!(status, 409);
    assert_eq!(agent.ask("GET", &format!("/sandboxes/{}", ids[0]), "").await.0, 404);
    assert_eq!(source.state().await, "ready");
    fs::remove_dir(agent.folder.path().join("state/sandboxes").join(&ids[1])).unwrap();
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_and_running_sandboxes_and_checkpoints_outlive_the_agent() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let (running, _) = agent.create(create(&template)).await;
    let (stopped, _) = agent.create(create(&template)).await;
    stopped.ask("pause", json!({})).await;
    let checkpoint =
        checkpoint_of(&running.ask("checkpoints", json!({"id": id::generate("ckp"), "memory": true})).await);
    let (running, stopped) = (running.id, stopped.id);

    let agent = agent.follow().await;

    let (running, stopped) = (agent.sandbox(&running), agent.sandbox(&stopped));
    assert_eq!((running.state().await.as_str(), stopped.state().await.as_str()), ("ready", "stopped"));
    stopped.ask("resume", json!({})).await;
    assert_eq!(stopped.block(2).map(|block| block.starts_with(stopped.id.as_str())), Some(true));
    running.ask("pause", json!({})).await;
    running.ask("resume", json!({})).await;
    let mut request = create("");
    request["checkpoint"] = json!(checkpoint);
    agent.create(request).await;
    agent.end().await;
}
