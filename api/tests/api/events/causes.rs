//! What is told, and when.

use jiff::SignedDuration;
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::template::BuildState;
use serde_json::{Value, json};

use super::types;
use crate::support::Host;

const DAY: SignedDuration = SignedDuration::from_hours(24);

#[tokio::test]
async fn a_sandbox_is_told_of_from_its_creation_to_its_end() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.sync().await;
    host.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);
    // What is done already is done by nobody again.
    host.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);
    host.sync().await;
    host.post(&format!("/v1/sandboxes/{id}/resume"), json!({})).await.expect(200);
    host.post(&format!("/v1/sandboxes/{id}/connect"), json!({})).await.expect(200);
    host.sync().await;
    host.call("DELETE", &format!("/v1/sandboxes/{id}"), &host.write, None).await.expect(204);
    host.call("DELETE", &format!("/v1/sandboxes/{id}"), &host.write, None).await.refused(404, "not_found");
    host.sync().await;

    let events = host.events().await;

    let expected = ["sandbox.created", "sandbox.ready", "sandbox.paused", "sandbox.resumed", "sandbox.deleted"];
    assert_eq!(types(&events), expected);
    assert!(events.iter().all(|event| event["resource"] == json!({"kind": "sandbox", "id": id})), "{events:?}");
    let created = &events[0]["data"];
    assert_eq!(
        (&created["template"], &created["cpu"], &created["memory_mb"]),
        (&json!("base"), &json!(1), &json!(256))
    );
    assert_eq!((&created["snapshot_id"], created.get("reason")), (&Value::Null, None));
    assert_eq!(events[4]["data"]["reason"], "requested");
}

#[tokio::test]
async fn what_a_sandbox_does_by_itself_is_told_when_it_is_seen() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    // Once for each round, however often it is looked at meanwhile.
    for state in [SandboxState::Stopped, SandboxState::Ready] {
        host.agent.turn(&id, state);
        host.get(&format!("/v1/sandboxes/{id}")).await.expect(200);
        host.sync().await;
        host.sync().await;
    }
    // Between two looks.
    host.agent.turn(&id, SandboxState::Stopped);
    host.agent.turn(&id, SandboxState::Ready);
    host.sync().await;
    host.agent.lose(&id);
    host.sync().await;

    let events = host.events().await;

    let expected = [
        "sandbox.created",
        "sandbox.ready",
        "sandbox.paused",
        "sandbox.resumed",
        "sandbox.paused",
        "sandbox.resumed",
        "sandbox.crashed",
    ];
    assert_eq!(types(&events), expected);
    assert_eq!(events[6]["data"]["error"]["code"], "guest_panicked");
}

#[tokio::test]
async fn what_the_host_does_without_a_request_is_in_the_audit_and_what_is_asked_for_is_there_once() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);
    host.post(&format!("/v1/sandboxes/{id}/resume"), json!({})).await.expect(200);
    host.sync().await;
    for state in [SandboxState::Stopped, SandboxState::Ready] {
        host.agent.turn(&id, state);
        host.sync().await;
        host.get(&format!("/v1/sandboxes/{id}")).await.expect(200);
    }
    host.agent.records().sandboxes.remove(&id);
    host.sync().await;

    let entries = host.app.store.audit.newest(Some(&id), 20).await.unwrap();

    let of_host: Vec<_> = entries.iter().rev().filter(|entry| entry.key_id == "host").collect();
    let actions: Vec<_> = of_host.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["sandbox.paused", "sandbox.resumed", "sandbox.deleted"]);
    assert!(of_host.iter().all(|entry| entry.team_id == entries[0].team_id && entry.status == 200));
    assert_eq!(
        entries.len() - of_host.len(),
        3,
        "the create, the pause and the resume that were asked for: {entries:?}"
    );
}

#[tokio::test]
async fn the_end_of_a_sandbox_has_a_reason() {
    let host = Host::with(|config| config.plans.pro.stopped_days = 2).await;
    let (over, lost, kept) = (host.sandbox().await, host.sandbox().await, host.sandbox().await);
    host.agent.records().sandboxes.remove(&lost);
    host.sync().await;
    host.post(&format!("/v1/sandboxes/{kept}/pause"), json!({})).await.expect(200);
    host.sync().await;
    host.pass(SignedDuration::from_hours(1));
    host.agent.records().sandboxes.remove(&over);
    host.sync().await;
    host.pass(3 * DAY);
    host.sync().await;

    let reasons = async |id: &str| {
        let events = host.events_of(&host.read, &format!("&resource={id}&type=sandbox.deleted")).await;
        events.iter().map(|event| event["data"]["reason"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(reasons(&lost).await, ["gone"]);
    assert_eq!(reasons(&over).await, ["timed_out"]);
    assert_eq!(reasons(&kept).await, ["expired"]);
}

#[tokio::test]
async fn a_start_that_failed_is_told_with_its_reason() {
    let host = Host::new().await;
    host.sync().await;
    host.agent.records().refuse = Some((503, "capacity_unavailable"));
    host.create(json!({"template": "base"})).await.refused(503, "capacity_unavailable");
    let events = host.events().await;
    assert_eq!(types(&events), ["sandbox.created", "sandbox.failed", "sandbox.deleted"]);
    assert_eq!(events[1]["data"]["error"]["code"], "capacity_unavailable");
    assert_eq!(events[2]["data"]["reason"], "not_started");
}

#[tokio::test]
async fn every_fork_is_told_of() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let forks = host.post(&format!("/v1/sandboxes/{id}/fork"), json!({"count": 3})).await.expect(201);
    host.sync().await;
    for fork in forks["sandboxes"].as_array().unwrap() {
        let id = fork["id"].as_str().unwrap();
        assert_eq!(host.told_of(id).await, ["sandbox.created", "sandbox.ready"]);
    }
    assert_eq!(host.events().await.len(), 8);
}

#[tokio::test]
async fn a_checkpoint_is_told_of_when_it_is_there_lost_found_and_gone() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    let id = host.checkpoint(&sandbox, json!({"name": "before"})).await["id"].as_str().unwrap().to_owned();
    host.sync().await;
    let kept = host.agent.records().checkpoints.remove(&id).unwrap();
    host.sync().await;
    host.sync().await;
    host.agent.records().checkpoints.insert(id.clone(), kept);
    host.sync().await;
    host.call("DELETE", &format!("/v1/checkpoints/{id}"), &host.write, None).await.expect(204);
    host.sync().await;

    let events = host.events_of(&host.read, &format!("&resource={id}")).await;

    let expected = ["checkpoint.created", "checkpoint.lost", "checkpoint.found", "checkpoint.deleted"];
    assert_eq!(types(&events), expected);
    assert_eq!(events[0]["data"], json!({"name": "before", "sandbox": sandbox, "memory": false}));
    // To the sandbox nothing has happened.
    assert_eq!(host.told_of(&sandbox).await, ["sandbox.created", "sandbox.ready"]);
}

#[tokio::test]
async fn of_a_checkpoint_that_was_refused_nothing_is_told() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    host.agent.records().refuse = Some((503, "disk_full"));
    let refused = host.post(&format!("/v1/sandboxes/{sandbox}/checkpoints"), json!({})).await;
    assert_eq!(refused.status.as_u16(), 503);
    assert_eq!(types(&host.events().await), ["sandbox.created", "sandbox.ready"]);
}

#[tokio::test]
async fn a_build_is_told_of_when_it_begins_and_when_it_ends() {
    let host = Host::new().await;
    host.template("node").await;
    let (ready, failed) = (host.building("node").await, host.building("node").await);
    host.sync().await;
    assert_eq!(host.told_of(&ready).await, [""; 0], "it waits for its turn");
    host.agent.advance(&ready, BuildState::Building);
    host.sync().await;
    host.agent.print(&ready, "one");
    host.sync().await;
    host.agent.finish_build(&ready);
    host.sync().await;
    host.sync().await;
    // Between two looks.
    host.agent.fail_build(&failed, "step_failed");
    host.sync().await;
    let cancelled = host.building("node").await;
    let cancel = format!("/v1/templates/node/versions/{cancelled}/cancel");
    host.call("POST", &cancel, &host.write, None).await.expect(202);
    host.sync().await;

    let events = host.events_of(&host.read, &format!("&resource={ready}")).await;
    assert_eq!(types(&events), ["build.started", "build.ready"]);
    assert_eq!(events[1]["resource"], json!({"kind": "build", "id": ready}));
    let data = &events[1]["data"];
    assert_eq!((&data["template"], &data["number"], &data["source"]), (&json!("node"), &json!(1), &json!("image")));
    let events = host.events_of(&host.read, &format!("&resource={failed}")).await;
    assert_eq!(types(&events), ["build.started", "build.failed"]);
    assert_eq!(events[1]["data"]["error"]["code"], "step_failed");
    assert_eq!(host.told_of(&cancelled).await.last().unwrap(), "build.cancelled");
}

#[tokio::test]
async fn a_volume_is_told_of_when_it_is_there_and_when_it_is_gone() {
    let host = Host::new().await;
    let (id, lost) = (host.volume("models").await, host.volume("lost").await);
    host.agent.records().volumes.remove(&lost);
    host.sync().await;
    host.call("DELETE", &format!("/v1/volumes/{id}"), &host.write, None).await.expect(204);
    host.sync().await;

    let events = host.events_of(&host.read, &format!("&resource={id}")).await;

    assert_eq!(types(&events), ["volume.created", "volume.deleted"]);
    assert_eq!(events[0]["data"], json!({"name": "models", "size_gib": 10}));
    assert_eq!(host.told_of(&lost).await, ["volume.created", "volume.lost"]);
}

#[tokio::test]
async fn no_event_holds_what_is_secret() {
    let host = Host::new().await;
    let body =
        json!({"template": "base", "envs": {"TOKEN": "hunter2-of-the-guest"}, "metadata": {"m": "private-word"}});
    let id = host.create(body).await.expect(201)["id"].as_str().unwrap().to_owned();
    host.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);
    let text = json!(host.events().await).to_string();
    for word in ["hunter2-of-the-guest", "TOKEN", "private-word", "spk_", "token"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}
