//! Volumes: who has which, wherever an operation ends; and what helpers do with those that no sandbox has.

use futures_util::future::join_all;
use sandpiper_ingress::{Directory, WakeError};
use sandpiper_protocol::ids::VolumeId;
use sandpiper_protocol::volume::{Volume, VolumeList};

use super::snapshots::{Sandbox, eventually};
use super::*;

/// A host with a helper template.
struct Host {
    agent: Agent,
    template: String,
}

impl Host {
    async fn new() -> Self {
        let agent = Agent::with_machines().await;
        let template = agent.import().await.id;
        agent.import_helper().await;
        Self { agent, template }
    }

    async fn volume(&self) -> VolumeId {
        let id = VolumeId::generate();
        let (status, body) = self.agent.ask("PUT", &format!("/volumes/{id}"), "").await;
        assert_eq!(status, 201, "{body}");
        id
    }

    fn request(&self, volume: &VolumeId) -> Value {
        let mut request = create(&self.template);
        request["volume_mounts"] = json!([{"volume": volume, "path": "/data"}]);
        request
    }

    async fn with(&self, volume: &VolumeId) -> Sandbox<'_> {
        self.agent.create(self.request(volume)).await.0
    }

    async fn show(&self, volume: &VolumeId) -> Volume {
        let (status, body) = self.agent.ask("GET", &format!("/volumes/{volume}"), "").await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Who has it, as the record says too.
    async fn holder(&self, volume: &VolumeId) -> Option<String> {
        let shown = self.show(volume).await.attached_to;
        let recorded = self.agent.sandboxes.context().volumes.store.find(volume).unwrap().attached_to.clone();
        assert_eq!(shown, recorded);
        shown.map(|id| id.to_string())
    }

    fn data(&self, volume: &VolumeId) -> PathBuf {
        self.agent.folder.path().join("state/volumes").join(volume.as_str()).join("data.layer")
    }

    async fn put(&self, volume: &VolumeId, content: &str) -> (u16, String) {
        self.agent.ask("PUT", &format!("/volumes/{volume}/files?path=%2Ff"), content).await
    }

    async fn get(&self, volume: &VolumeId) -> (u16, String) {
        self.agent.ask("GET", &format!("/volumes/{volume}/files?path=%2Ff"), "").await
    }

    /// What its record said of the sandbox that mounted its volumes again last.
    fn state_at_mount(&self) -> String {
        let record = fs::read(self.agent.folder.path().join(monitor::RECORD_AT_MOUNT)).unwrap();
        serde_json::from_slice::<Value>(&record).unwrap()["state"].as_str().unwrap().to_owned()
    }

    /// When the helper of a volume was started.
    fn helper_started(&self, volume: &VolumeId) -> std::time::SystemTime {
        let socket = self.agent.folder.path().join("run/helpers").join(volume.as_str()).join("vsock.sock");
        fs::metadata(socket).unwrap().modified().unwrap()
    }

    fn helpers(&self) -> usize {
        self.agent.sandboxes.context().helpers.count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_made_once_and_its_bytes_are_free_when_it_is_deleted() {
    let host = Host::new().await;
    let id = host.volume().await;
    let again = host.agent.ask("PUT", &format!("/volumes/{id}"), "").await;
    assert_eq!((again.0, serde_json::from_str::<Volume>(&again.1).unwrap()), (200, host.show(&id).await));
    let (_, list) = host.agent.ask("GET", "/volumes", "").await;
    let list: VolumeList = serde_json::from_str(&list).unwrap();
    assert_eq!((list.volumes.len(), list.volumes[0].size_bytes, list.volumes[0].retained_bytes), (1, 10 << 30, 0));
    let (status, code, _) = host.agent.error("PUT", "/volumes/vol", "").await;
    assert_eq!((status, code.as_str()), (400, "invalid_request"));

    let sandbox = host.with(&id).await;
    let (status, code, _) = host.agent.error("DELETE", &format!("/volumes/{id}"), "").await;
    assert_eq!((status, code.as_str()), (409, "volume_attached"));
    sandbox.delete().await;
    assert!(host.show(&id).await.retained_bytes > 0);
    assert_eq!(host.agent.ask("DELETE", &format!("/volumes/{id}"), "").await.0, 204);

    assert!(!host.data(&id).parent().unwrap().exists());
    assert_eq!(host.agent.ask("DELETE", &format!("/volumes/{id}"), "").await.0, 404);
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_counts_with_the_disks_that_are_promised() {
    let agent = Agent::start_within(Limits { disk_overcommit: 0, ..Limits::default() }, "exit 1").await;
    let (status, code, message) = agent.error("PUT", &format!("/volumes/{}", VolumeId::generate()), "").await;
    assert_eq!((status, code.as_str()), (503, "capacity_unavailable"));
    assert!(message.contains("would have 10 GiB, and may have 0"), "{message}");
    assert_eq!(agent.ask("GET", "/volumes", "").await.1, r#"{"volumes":[]}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_creates_that_race_for_a_volume_exactly_one_wins() {
    let host = Host::new().await;
    let id = host.volume().await;
    for _ in 0..200 {
        let requests = [host.request(&id), host.request(&id)];
        let answers =
            join_all(requests.iter().map(|request| host.agent.ask("POST", "/sandboxes", request.to_string()))).await;

        let (won, lost) = if answers[0].0 == 201 { (0, 1) } else { (1, 0) };
        assert_eq!((answers[won].0, answers[lost].0), (201, 409), "{answers:?}");
        assert!(answers[lost].1.contains("volume_attached") && answers[lost].1.contains(id.as_str()), "{answers:?}");
        let winner = requests[won]["id"].as_str().unwrap();
        assert!(!answers[lost].1.contains(winner), "the other sandbox may be another team's");
        assert_eq!(host.holder(&id).await.as_deref(), Some(winner));
        host.agent.sandbox(winner).delete().await;
        assert_eq!(host.holder(&id).await, None);
    }
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_lets_another_have_the_volume_and_a_resume_takes_it_again() {
    let host = Host::new().await;
    let id = host.volume().await;
    let mut request = host.request(&id);
    request["lifecycle"] = json!({"on_timeout": "pause", "auto_resume": true});
    let (first, created) = host.agent.create(request).await;
    assert_eq!(created["volume_mounts"], json!([{"volume": id, "path": "/data"}]));
    assert!(monitor::mounted_block(&host.data(&id), 1).unwrap().starts_with(first.id.as_str()));

    first.ask("pause", json!({})).await;
    assert_eq!(host.holder(&id).await, None);
    let second = host.with(&id).await;
    let (status, error) = first.try_ask("resume", json!({})).await;
    assert_eq!((status, error["code"].as_str()), (409, Some("volume_attached")));
    assert_eq!(Directory::wake(&host.agent.sandboxes, &first.id).await, Err(WakeError::VolumeTaken));
    assert_eq!(first.state().await, "stopped");
    second.delete().await;
    first.ask("resume", json!({})).await;

    assert_eq!(host.holder(&id).await.as_deref(), Some(first.id.as_str()));
    let block = monitor::mounted_block(&host.data(&id), first.record()["generation"].as_u64().unwrap());
    assert!(block.unwrap().starts_with(first.id.as_str()));
    first.delete().await;
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_a_volume_keeps_it_unless_it_is_forced_and_then_its_slot_is_not_used() {
    let host = Host::new().await;
    let id = host.volume().await;
    let sandbox = host.with(&id).await;
    host.agent.behave("hold-volume");
    let order = json!({"id": id::generate("ckp"), "memory": true});

    for (operation, body) in
        [("pause", json!({})), ("checkpoints", order), ("fork", json!({"ids": [id::generate("sbx")]}))]
    {
        let (status, error) = sandbox.try_ask(operation, body).await;
        assert_eq!((status, error["code"].as_str()), (409, Some("volume_busy")), "{operation}: {error}");
        assert!(error["message"].as_str().unwrap().contains("holds /data"), "{error}");
        assert_eq!(sandbox.state().await, "ready");
    }
    sandbox.ask("checkpoints", json!({"id": id::generate("ckp"), "memory": false})).await;
    sandbox.ask("pause", json!({"force": true})).await;
    host.agent.behave("");
    assert_eq!((host.holder(&id).await, &sandbox.record()["held_slots"]), (None, &json!([0])));
    sandbox.ask("resume", json!({})).await;
    assert_eq!(sandbox.record()["slots"], json!([1]));
    sandbox.ask("pause", json!({"disk_only": true})).await;
    sandbox.ask("resume", json!({})).await;

    let record = sandbox.record();
    assert_eq!((&record["slots"], &record["held_slots"]), (&json!([0]), &Value::Null), "nothing holds it after a boot");
    sandbox.delete().await;
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_of_a_memory_whose_programs_hold_a_slot_does_not_use_it() {
    let host = Host::new().await;
    let (id, other) = (host.volume().await, host.volume().await);
    let sandbox = host.with(&id).await;
    host.agent.behave("hold-volume");
    let take = async |memory: bool| {
        let order = json!({"id": id::generate("ckp"), "memory": memory, "force": true});
        sandbox.ask("checkpoints", order).await["id"].clone()
    };
    let (with_memory, disk_alone) = (take(true).await, take(false).await);
    host.agent.behave("");
    assert_eq!(sandbox.record()["slots"], json!([1]));

    for (checkpoint, slot) in [(with_memory, 1), (disk_alone, 0)] {
        let mut request = host.request(&other);
        request["checkpoint"] = checkpoint;
        let (made, _) = host.agent.create(request).await;
        assert_eq!(made.record()["slots"], json!([slot]));
        made.delete().await;
    }
    let fork = sandbox.ask("fork", json!({"ids": [id::generate("sbx")]})).await;
    let fork = host.agent.sandbox(fork["sandboxes"][0]["sandbox"]["id"].as_str().unwrap());
    assert_eq!(fork.record()["held_slots"], json!([0]));
    fork.delete().await;
    sandbox.delete().await;
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_programs_hold_every_slot_goes_on_from_its_disk() {
    let host = Host::new().await;
    let id = host.volume().await;
    let sandbox = host.with(&id).await;
    host.agent.behave("hold-volume");
    for slot in 0..4 {
        assert_eq!(sandbox.record()["slots"], json!([slot]));
        sandbox.ask("pause", json!({"force": true})).await;
        let resumed = sandbox.ask("resume", json!({})).await;
        let start = if slot < 3 { "restored" } else { "cold" };
        assert_eq!(resumed["sandbox"]["start"], start);
    }
    host.agent.behave("");

    assert_eq!((&sandbox.record()["slots"], &sandbox.record()["held_slots"]), (&json!([0]), &Value::Null));
    assert!(sandbox.says("its processes are lost"));
    sandbox.delete().await;
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_older_monitor_wrote_down_without_slots_is_booted_for_its_volumes() {
    let host = Host::new().await;
    let id = host.volume().await;
    let sandbox = host.agent.create(create(&host.template)).await.0;
    let checkpoint = sandbox.ask("checkpoints", json!({"id": id::generate("ckp"), "memory": true})).await;
    host.agent.behave("no-slots");

    let mut request = host.request(&id);
    request["checkpoint"] = checkpoint["id"].clone();
    let (made, shown) = host.agent.create(request).await;

    assert_eq!(shown["start"], "cold");
    assert_eq!(host.holder(&id).await.as_deref(), Some(made.id.as_str()));
    host.agent.behave("");
    made.delete().await;
    sandbox.delete().await;
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_with_memory_has_no_volume_and_the_sandbox_has_its_own_again() {
    let host = Host::new().await;
    let id = host.volume().await;
    let sandbox = host.with(&id).await;

    let checkpoint = sandbox.ask("checkpoints", json!({"id": id::generate("ckp"), "memory": true})).await;
    assert_eq!(monitor::mounted_block(&host.data(&id), 1).unwrap()[..5], *"again");
    assert_eq!(
        host.state_at_mount(),
        "checkpointing",
        "an agent that follows takes those of one that is ready for mounted"
    );
    let fork = sandbox.ask("fork", json!({"ids": [id::generate("sbx")]})).await;
    let fork = &fork["sandboxes"][0]["sandbox"];
    assert_eq!((&fork["state"], &fork["volume_mounts"]), (&json!("ready"), &Value::Null));
    let mut request = create(&host.template);
    request["checkpoint"] = checkpoint["id"].clone();
    let (restored, shown) = host.agent.create(request).await;
    assert_eq!(shown["volume_mounts"], Value::Null);

    assert_eq!(host.holder(&id).await.as_deref(), Some(sandbox.id.as_str()));
    restored.delete().await;
    sandbox.delete().await;
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_fails_leaves_the_volume_mounted() {
    let host = Host::new().await;
    let id = host.volume().await;
    let sandbox = host.with(&id).await;
    host.agent.behave("no-snapshot");

    let (status, _) = sandbox.try_ask("pause", json!({})).await;

    assert_eq!(status, 500);
    assert_eq!(monitor::mounted_block(&host.data(&id), 1).unwrap()[..5], *"again");
    assert_eq!(host.state_at_mount(), "stopping", "an agent that follows takes those of one that is ready for mounted");
    assert_eq!(host.holder(&id).await.as_deref(), Some(sandbox.id.as_str()));
    host.agent.behave("");
    sandbox.ask("pause", json!({})).await;
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_sandbox_had_written_is_there_for_the_next_one() {
    let host = Host::new().await;
    let id = host.volume().await;
    let sandbox = host.with(&id).await;

    monitor::kill(&sandbox.monitor_folder());
    sandbox.is_eventually(sandpiper_protocol::agent::SandboxState::Stopped).await;
    eventually(|| host.agent.sandboxes.context().volumes.claims.holder(&id).is_none()).await;

    assert_eq!(host.holder(&id).await, None);
    let next = host.with(&id).await;
    assert!(monitor::mounted_block(&host.data(&id), 1).unwrap().starts_with(next.id.as_str()));
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_no_guest_can_mount_fails_the_start_with_a_sentence() {
    let host = Host::new().await;
    let id = host.volume().await;
    let sandbox = host.with(&id).await;
    sandbox.ask("pause", json!({})).await;
    host.agent.behave("bad-volume");

    let (status, error) = sandbox.try_ask("resume", json!({})).await;
    assert_eq!((status, error["code"].as_str()), (422, Some("volume_damaged")), "{error}");
    assert_eq!((sandbox.state().await.as_str(), host.holder(&id).await), ("stopped", None));
    let request = host.request(&id);
    let (status, code, message) = host.agent.error("POST", "/sandboxes", request.to_string()).await;
    assert_eq!((status, code.as_str()), (422, "volume_damaged"), "{message}");
    assert!(message.contains("as the test wants it"), "{message}");
    let gone = format!("/sandboxes/{}", request["id"].as_str().unwrap());
    assert_eq!(host.agent.ask("GET", &gone, "").await.0, 404);
    let (status, body) = host.get(&id).await;
    assert!(status == 422 && body.contains("volume_damaged"), "{body}");
    sandbox.delete().await;
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_no_guest_mounts_at_fails_the_start_at_once_and_the_volume_is_free() {
    let host = Host::new().await;
    let id = host.volume().await;
    host.agent.behave("bad-place");

    let request = host.request(&id);
    let (status, code, message) = host.agent.error("POST", "/sandboxes", request.to_string()).await;

    assert_eq!((status, code.as_str()), (422, "mount_refused"), "{message}");
    assert!(message.contains("cannot be mounted at /data: as the test wants it"), "{message}");
    assert_eq!(host.holder(&id).await, None);
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_leaves_a_live_sandbox_its_volume_and_frees_a_dead_ones() {
    let host = Host::new().await;
    let (living, dead) = (host.volume().await, host.volume().await);
    let (kept, lost) = (host.with(&living).await, host.with(&dead).await);
    let (kept, lost, monitor_folder) = (kept.id.clone(), lost.id.clone(), lost.monitor_folder());

    let template = host.template.clone();
    let agent = host.agent.follow_after(|| monitor::kill(&monitor_folder)).await;
    let host = Host { agent, template };

    assert_eq!(host.holder(&living).await.as_deref(), Some(kept.as_str()));
    assert_eq!(host.holder(&dead).await, None);
    let (status, _, _) = host.agent.error("POST", "/sandboxes", host.request(&living).to_string()).await;
    assert_eq!(status, 409);
    let kept = host.agent.sandbox(&kept);
    kept.ask("pause", json!({})).await;
    assert_eq!(host.holder(&living).await, None);
    host.agent.sandbox(&lost).delete().await;
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_helper_serves_a_volume_and_stays_for_the_next_request() {
    let host = Host::new().await;
    let id = host.volume().await;

    let (status, entry) = host.put(&id, "hello").await;
    assert_eq!(status, 200, "{entry}");
    let before = host.agent.monitors();
    assert_eq!(host.get(&id).await, (200, "hello".into()));
    assert_eq!((host.helpers(), host.agent.monitors()), (1, before));
    assert_eq!(host.holder(&id).await, None);

    // A sandbox that wants it has it at once.
    let sandbox = host.with(&id).await;
    assert_eq!(host.helpers(), 0);
    let (status, body) = host.get(&id).await;
    assert!(status == 409 && body.contains("volume_attached"), "{body}");
    sandbox.delete().await;
    assert_eq!(host.get(&id).await, (200, "hello".into()));
    assert_eq!(host.agent.ask("DELETE", &format!("/volumes/{id}"), "").await.0, 204);
    assert_eq!(host.get(&id).await.0, 404);
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_helper_makes_room_for_another_volumes() {
    let host = Host::new().await;
    let volumes =
        [host.volume().await, host.volume().await, host.volume().await, host.volume().await, host.volume().await];
    let most = host.agent.sandboxes.context().config.volumes.helpers as usize;
    assert!(volumes.len() > most);
    for id in &volumes {
        assert_eq!(host.put(id, id.as_str()).await.0, 200);
        assert!(host.helpers() <= most);
    }
    for id in &volumes {
        assert_eq!(host.get(id).await, (200, id.to_string()));
    }
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_helpers_template_is_nobodys_to_start_from_or_to_see() {
    let host = Host::new().await;
    let (_, list) = host.agent.ask("GET", "/templates", "").await;
    assert!(list.contains(&host.template) && !list.contains(HELPER_TEMPLATE), "{list}");
    let templates = host.agent.sandboxes.context().templates.list();
    let helper = templates.iter().find(|version| version.slug == HELPER_TEMPLATE).unwrap();
    let (status, _, message) = host.agent.error("POST", "/sandboxes", create(&helper.id).to_string()).await;
    assert!(status == 400 && message.starts_with("template_version:"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_helper_template_it_is_said_what_is_missing() {
    let agent = Agent::with_machines().await;
    let template = agent.import().await.id;
    let host = Host { agent, template };
    let id = host.volume().await;
    for (status, body) in
        [host.get(&id).await, host.agent.ask("POST", "/sandboxes", host.request(&id).to_string()).await]
    {
        assert!(status == 503 && body.contains("no template `volume-helper`"), "{body}");
    }
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_what_a_helper_answers_no_more_is_believed_than_is_known() {
    let host = Host::new().await;
    let id = host.volume().await;
    host.agent.behave("taken-over");
    let (status, body) = host.get(&id).await;
    assert!(status == 502 && body.contains("guest_failed") && body.ends_with("\u{fffd}[2Jpay\"}"), "{status} {body}");
    host.agent.behave("full-volume");
    let (status, body) = host.get(&id).await;
    assert_eq!((status, body.as_str()), (507, "{\"code\":\"volume_full\",\"message\":\"no room\u{fffd}\"}"));
    host.agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_helper_that_does_not_answer_is_ended_and_the_next_request_has_another() {
    let host = Host::new().await;
    let id = host.volume().await;
    assert_eq!(host.put(&id, "hello").await.0, 200);
    let before = host.helper_started(&id);
    host.agent.behave("deaf");
    let (status, body) = host.get(&id).await;
    assert!(status == 502 && body.contains("try again"), "{body}");
    host.agent.behave("");

    assert_eq!(host.get(&id).await, (200, "hello".into()));

    assert_ne!(host.helper_started(&id), before);
    host.agent.end().await;
}
