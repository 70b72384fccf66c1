//! Which sandbox has a volume: taken and released with its state, whatever changes that.

use sandpiper_api::plan::Quota;
use sandpiper_protocol::agent::SandboxState;
use serde_json::{Value, json};

use crate::support::{Host, request};

/// What ends a sandbox's being live: by a request of either face, or by what the agent says of it.
const ENDS: [&str; 10] = [
    "is deleted",
    "is paused",
    "is stopped",
    "is killed by an SDK",
    "is paused by an SDK",
    "gets no more time by an SDK",
    "pauses at its time-out",
    "loses its machine",
    "fails",
    "is gone at its time-out",
];

/// What has a stopped one go on.
const RESUMES: [&str; 4] = ["is resumed", "is connected to", "is connected to by an SDK", "is woken"];

async fn happen(host: &Host, what: &str, id: &str) {
    let (own, sdk) = (format!("/v1/sandboxes/{id}"), format!("/sandboxes/{id}"));
    let post = async |path: &str| drop(host.post(&format!("{own}/{path}"), json!({})).await.expect(200));
    match what {
        "is deleted" => drop(host.act("DELETE", &own).await.expect(204)),
        "is paused" => post("pause").await,
        "is stopped" => post("stop").await,
        "is resumed" => post("resume").await,
        "is connected to" => post("connect").await,
        "is killed by an SDK" => drop(host.sdk("DELETE", &sdk, None).await.expect(204)),
        "is paused by an SDK" => drop(host.sdk("POST", &format!("{sdk}/pause"), None).await.expect(204)),
        "gets no more time by an SDK" => {
            host.sdk("POST", &format!("{sdk}/timeout"), Some(json!({"timeout": 0}))).await.expect(204);
        }
        "is connected to by an SDK" => {
            host.sdk("POST", &format!("{sdk}/connect"), Some(json!({"timeout": 60}))).await.expect(201);
        }
        "pauses at its time-out" => host.agent.turn(id, SandboxState::Stopped),
        "loses its machine" => host.agent.lose(id),
        "fails" => host.agent.fail(id),
        "is gone at its time-out" => drop(host.agent.records().sandboxes.remove(id)),
        "is woken" => host.agent.turn(id, SandboxState::Ready),
        other => panic!("{other}"),
    }
    host.sync().await;
}

#[tokio::test]
async fn whatever_ends_a_sandbox_releases_its_volumes() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    for end in ENDS {
        let sandbox = host.sandbox_with("models").await;
        host.create_with("models").await.refused(409, "volume_attached");

        happen(&host, end, &sandbox).await;

        assert_eq!(host.attached_to(&volume).await, Value::Null, "{end}");
        let next = host.sandbox_with("models").await;
        host.act("DELETE", &format!("/v1/sandboxes/{next}")).await.expect(204);
    }
}

#[tokio::test]
async fn whatever_has_a_sandbox_go_on_takes_its_volumes() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    for resume in RESUMES {
        let sandbox = host.sandbox_with("models").await;
        happen(&host, "is paused", &sandbox).await;

        happen(&host, resume, &sandbox).await;

        assert_eq!(host.attached_to(&volume).await, sandbox.as_str(), "{resume}");
        host.create_with("models").await.refused(409, "volume_attached");
        host.act("DELETE", &format!("/v1/sandboxes/{sandbox}")).await.expect(204);
    }
}

#[tokio::test]
async fn force_is_passed_on_as_it_was_said() {
    let host = Host::new().await;
    host.volume("models").await;
    let sandbox = host.sandbox_with("models").await;
    for (what, body) in [("checkpoints", json!({"memory": true})), ("fork", json!({})), ("pause", json!({}))] {
        for force in [false, true] {
            let mut body = body.clone();
            body["force"] = json!(force);
            host.agent.records().forced.clear();
            let answer = host.post(&format!("/v1/sandboxes/{sandbox}/{what}"), body).await;
            assert!(answer.status.is_success(), "{what}: {}", answer.text);
            assert_eq!(host.agent.records().forced, [force], "{what}");
            host.post(&format!("/v1/sandboxes/{sandbox}/resume"), json!({})).await.expect(200);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_sandboxes_at_once_one_gets_the_volume() {
    let quota =
        Quota { sandboxes: 1000, cpu: 1000, memory_mb: 1 << 20, volumes: 5, volume_gib: 100, ..Quota::default() };
    let host = Host::with(|config| config.plans.pro.quota = quota).await;
    let volume = host.volume("models").await;

    let body = json!({"template": "base", "volume_mounts": {"/data": "models"}});
    let answers =
        host.at_once((0..200).map(|_| request("POST", "/v1/sandboxes", &host.write, Some(body.clone())))).await;

    let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status.as_u16() == 201);
    assert_eq!(won.len(), 1);
    for answer in lost {
        answer.refused(409, "volume_attached");
    }
    assert_eq!(host.attached_to(&volume).await, won[0].json()["id"]);
    assert_eq!(host.agent.records().orders.len(), 1);
}

#[tokio::test]
async fn a_sandbox_has_its_volumes_while_it_is_live() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    let sandbox = host.sandbox_with("models").await;
    assert_eq!(host.attached_to(&volume).await, sandbox.as_str());
    let shown = host.get(&format!("/v1/sandboxes/{sandbox}")).await.expect(200);
    assert_eq!(shown["volume_mounts"], json!({"/data": "models"}));
    assert_eq!(host.agent.records().orders[0].volume_mounts[0].volume.as_str(), volume);
    host.create_with("models").await.refused(409, "volume_attached");
    host.act("DELETE", &format!("/v1/volumes/{volume}")).await.refused(409, "volume_attached");

    host.post(&format!("/v1/sandboxes/{sandbox}/pause"), json!({"force": true})).await.expect(200);
    assert_eq!(host.attached_to(&volume).await, Value::Null);
    assert_eq!(host.agent.records().forced, [true]);
    let other = host.sandbox_with("models").await;
    host.post(&format!("/v1/sandboxes/{sandbox}/resume"), json!({})).await.refused(409, "volume_attached");
    assert_eq!(host.get(&format!("/v1/sandboxes/{sandbox}")).await.expect(200)["state"], "stopped");

    host.act("DELETE", &format!("/v1/sandboxes/{other}")).await.expect(204);
    host.post(&format!("/v1/sandboxes/{sandbox}/resume"), json!({})).await.expect(200);
    assert_eq!(host.attached_to(&volume).await, sandbox.as_str());
}

#[tokio::test]
async fn what_the_agent_says_of_a_sandbox_takes_and_releases_its_volumes() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    let sandbox = host.sandbox_with("models").await;

    host.agent.lose(&sandbox);
    host.sync().await;
    assert_eq!(host.attached_to(&volume).await, Value::Null);
    host.agent.turn(&sandbox, SandboxState::Ready);
    host.sync().await;
    assert_eq!(host.attached_to(&volume).await, sandbox.as_str());

    // One paused at its time-out and the other woke, before this process saw either.
    host.agent.turn(&sandbox, SandboxState::Stopped);
    host.sync().await;
    let other = host.sandbox_with("models").await;
    host.agent.turn(&other, SandboxState::Stopped);
    host.agent.turn(&sandbox, SandboxState::Ready);
    host.sync().await;
    host.sync().await;
    assert_eq!(host.attached_to(&volume).await, sandbox.as_str());
}

#[tokio::test]
async fn a_start_that_fails_releases_its_volumes() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    for (status, code) in [(409, "volume_attached"), (422, "volume_damaged"), (422, "mount_refused")] {
        host.agent.records().refuse = Some((status, code));
        host.create_with("models").await.refused(status, code);
    }
    host.agent.records().refuse = None;
    assert_eq!(host.attached_to(&volume).await, Value::Null);
    host.sandbox_with("models").await;
}

#[tokio::test]
async fn what_is_busy_is_said_to_be() {
    let host = Host::new().await;
    host.volume("models").await;
    let sandbox = host.sandbox_with("models").await;
    host.agent.records().refuse = Some((409, "volume_busy"));
    for (what, body) in [("pause", json!({})), ("checkpoints", json!({"memory": true})), ("fork", json!({}))] {
        host.post(&format!("/v1/sandboxes/{sandbox}/{what}"), body).await.refused(409, "volume_busy");
    }
}

#[tokio::test]
async fn mounts_that_cannot_be_are_refused() {
    let host = Host::new().await;
    host.volume("models").await;
    host.create_with("others").await.refused(422, "unknown_volume");
    let foreign = json!({"template": "base", "volume_mounts": {"/data": "models"}});
    host.call("POST", "/v1/sandboxes", &host.foreign, Some(foreign)).await.refused(422, "unknown_volume");
    let many = json!({"/1": "a", "/2": "b", "/3": "c", "/4": "d", "/5": "e"});
    let twice = json!({"/1": "models", "/2": "models"});
    for mounts in [json!({"data": "models"}), json!({"/a/../b": "models"}), json!({"/proc": "models"}), many, twice] {
        host.create(json!({"template": "base", "volume_mounts": mounts})).await.blames("volume_mounts");
    }
}

#[tokio::test]
async fn copies_of_a_sandbox_have_no_volumes() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    let sandbox = host.sandbox_with("models").await;
    let forked = host.post(&format!("/v1/sandboxes/{sandbox}/fork"), json!({})).await.expect(201);
    assert_eq!(forked["sandboxes"][0]["volume_mounts"], json!({}));
    let checkpoint = host.checkpoint(&sandbox, json!({})).await;
    let restored = host.create(json!({"snapshot_id": checkpoint["id"]})).await.expect(201);
    assert_eq!(restored["volume_mounts"], json!({}));
    assert_eq!(host.attached_to(&volume).await, sandbox.as_str());

    host.act("DELETE", &format!("/v1/sandboxes/{sandbox}")).await.expect(204);
    let mounts = json!({"snapshot_id": checkpoint["id"], "volume_mounts": {"/data": "models"}});
    host.create(mounts).await.expect(201);
}

#[tokio::test]
async fn a_sandbox_whose_volume_was_deleted_does_not_go_on() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    let sandbox = host.sandbox_with("models").await;
    host.post(&format!("/v1/sandboxes/{sandbox}/pause"), json!({})).await.expect(200);
    host.act("DELETE", &format!("/v1/volumes/{volume}")).await.expect(204);

    host.post(&format!("/v1/sandboxes/{sandbox}/resume"), json!({})).await.refused(409, "invalid_state");

    host.act("DELETE", &format!("/v1/sandboxes/{sandbox}")).await.expect(204);
}
