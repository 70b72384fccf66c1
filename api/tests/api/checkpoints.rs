//! Checkpoints: taken, listed, deleted, and kept in step with the agent.

use std::time::Duration;

use jiff::SignedDuration;
use sandpiper_api::orchestration::sync::Synchronizer;
use sandpiper_protocol::agent::SandboxState;
use sandpiper_protocol::id;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::agent::{RETAINED, VERSIONS};
use crate::support::{Answer, Host, eventually, request};

fn ids(list: &Value) -> Vec<String> {
    list["checkpoints"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

fn path(checkpoint: &Value) -> String {
    format!("/v1/checkpoints/{}", checkpoint["id"].as_str().unwrap())
}

#[tokio::test]
async fn a_checkpoint_says_what_it_is_of() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;

    let body = json!({"name": "after setup", "memory": true});
    let answer = host.post(&format!("/v1/sandboxes/{sandbox}/checkpoints"), body).await;

    let location = answer.header("location").unwrap().to_owned();
    let checkpoint = answer.expect(201);
    assert_eq!(location, path(&checkpoint));
    assert!(id::is_valid("ckp", checkpoint["id"].as_str().unwrap()));
    let expected = json!({
        "id": checkpoint["id"], "name": "after setup", "team": "acme", "sandbox": sandbox, "template": "base",
        "template_version": VERSIONS[1], "memory": true, "cpu": 1, "memory_mb": 256, "disk_gib": 20, "state": "ready",
        "size": 500, "created_at": checkpoint["created_at"], "expires_at": null,
    });
    assert_eq!(checkpoint, expected);
    assert_eq!(host.get(&location).await.expect(200), expected);
    assert_eq!(host.get(&format!("/v1/sandboxes/{sandbox}")).await.expect(200)["state"], "ready");
    assert_eq!(host.usage().await["retained_bytes"], RETAINED + 500);
}

#[tokio::test]
async fn without_a_body_it_is_of_the_disk_alone_and_named_by_its_id() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}/checkpoints", host.sandbox().await);
    let checkpoint = host.call("POST", &path, &host.write, None).await.expect(201);
    assert_eq!((&checkpoint["memory"], &checkpoint["name"]), (&json!(false), &checkpoint["id"]));
}

#[tokio::test]
async fn a_name_stands_for_one_checkpoint_of_the_team() {
    let host = Host::new().await;
    let (sandbox, other) = (host.sandbox().await, host.sandbox().await);
    let first = host.checkpoint(&sandbox, json!({"name": "n"})).await;
    let again = format!("/v1/sandboxes/{other}/checkpoints");
    host.post(&again, json!({"name": "n"})).await.refused(409, "conflict");
    assert_eq!(host.agent.records().checkpoints.len(), 1);

    host.call("DELETE", &path(&first), &host.write, None).await.expect(204);

    host.post(&again, json!({"name": "n"})).await.expect(201);
    let theirs = host.call("POST", "/v1/sandboxes", &host.foreign, Some(json!({"template": "base"}))).await.expect(201);
    let theirs = format!("/v1/sandboxes/{}/checkpoints", theirs["id"].as_str().unwrap());
    host.call("POST", &theirs, &host.foreign, Some(json!({"name": "n"}))).await.expect(201);
}

#[tokio::test]
async fn names_that_make_no_sense_are_refused() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}/checkpoints", host.sandbox().await);
    for name in [json!(""), json!("  "), json!("n".repeat(129)), json!("a\nb"), json!(id::generate("ckp")), json!(7)] {
        host.post(&path, json!({"name": name})).await.blames("name");
    }
    host.post(&path, json!({"memry": true})).await.refused(400, "invalid_request");
    assert!(host.agent.records().checkpoint_orders.is_empty());
}

#[tokio::test]
async fn while_it_is_taken_both_say_so_and_it_can_be_neither_used_nor_deleted() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    host.agent.hold();
    let order = request("POST", &format!("/v1/sandboxes/{sandbox}/checkpoints"), &host.write, Some(json!({})));
    let taking = tokio::spawn(host.router().oneshot(order));
    eventually("the order arrives", async || host.agent.records().checkpoint_orders.len() == 1).await;
    host.sync().await;

    let list = host.get("/v1/checkpoints").await.expect(200);
    assert_eq!(list["checkpoints"][0]["state"], "creating");
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"][0]["state"], "checkpointing");
    let path = path(&list["checkpoints"][0]);
    host.call("DELETE", &path, &host.write, None).await.refused(409, "invalid_state");
    host.create(json!({"snapshot_id": ids(&list)[0]})).await.refused(409, "invalid_state");

    host.agent.admit(1);
    Answer::read(taking.await.unwrap().unwrap()).await.expect(201);
    assert_eq!(host.get(&path).await.expect(200)["state"], "ready");
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"][0]["state"], "ready");
}

#[tokio::test]
async fn a_checkpoint_that_fails_leaves_the_sandbox_running_and_its_name_free() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    let path = format!("/v1/sandboxes/{sandbox}/checkpoints");
    host.agent.records().refuse = Some((502, "guest_failed"));
    host.post(&path, json!({"name": "n"})).await.refused(503, "guest_failed");
    host.agent.records().refuse = None;

    assert_eq!(host.get("/v1/checkpoints").await.expect(200)["checkpoints"], json!([]));
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"][0]["state"], "ready");
    host.post(&path, json!({"name": "n"})).await.expect(201);
}

#[tokio::test]
async fn one_that_takes_long_is_answered_while_it_is_taken_and_ends_ready_or_failed_with_the_reason() {
    let host = Host::with(|config| config.timing.work_wait = Duration::from_millis(20)).await;
    let sandbox = host.sandbox().await;
    for (refusal, state) in [(None, "ready"), (Some((502, "guest_failed")), "failed")] {
        host.agent.hold();
        host.agent.records().refuse = refusal;

        let checkpoint = host.post(&format!("/v1/sandboxes/{sandbox}/checkpoints"), json!({})).await.expect(202);

        assert_eq!(checkpoint["state"], "creating");
        host.sync().await;
        assert_eq!(host.get(&path(&checkpoint)).await.expect(200)["state"], "creating");
        host.agent.admit(1);
        eventually("it ends", async || host.get(&path(&checkpoint)).await.expect(200)["state"] == state).await;
        let code = host.get(&path(&checkpoint)).await.expect(200)["error"]["code"].clone();
        assert_eq!(code, refusal.map_or(json!(null), |(_, code)| json!(code)));
        eventually("its row is settled", async || host.app.in_flight.is_empty()).await;
        host.sync().await;
        assert_eq!(host.get(&path(&checkpoint)).await.expect(200)["state"], state);
        host.call("DELETE", &path(&checkpoint), &host.write, None).await.expect(204);
    }
}

#[tokio::test]
async fn lists_are_paged_newest_first_for_the_team_and_for_one_sandbox() {
    let host = Host::new().await;
    let (one, other) = (host.sandbox().await, host.sandbox().await);
    let mut made = Vec::new();
    for sandbox in [&one, &other, &one, &one] {
        made.push(host.checkpoint(sandbox, json!({})).await["id"].as_str().unwrap().to_owned());
    }
    let of_one = vec![made[0].clone(), made[2].clone(), made[3].clone()];
    for (path, mut expected) in
        [("/v1/checkpoints".to_owned(), made), (format!("/v1/sandboxes/{one}/checkpoints"), of_one)]
    {
        expected.sort_unstable();
        expected.reverse();
        let first = host.get(&format!("{path}?limit=2")).await.expect(200);
        let token = first["next_token"].as_str().unwrap();
        let second = host.get(&format!("{path}?limit=2&next_token={token}")).await.expect(200);
        assert!(second.get("next_token").is_none());
        assert_eq!([ids(&first), ids(&second)].concat(), expected);
        host.get(&format!("/v1/sandboxes/{other}/checkpoints?next_token={token}")).await.blames("next_token");
        host.get(&format!("/v1/sandboxes?next_token={token}")).await.blames("next_token");
        host.get(&format!("{path}?limit=0")).await.blames("limit");
        host.get(&format!("{path}?state=ready")).await.blames("state");
    }
}

#[tokio::test]
async fn it_outlives_its_sandbox_and_is_gone_after_a_delete() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    let checkpoint = host.checkpoint(&sandbox, json!({})).await;
    host.call("DELETE", &format!("/v1/sandboxes/{sandbox}"), &host.write, None).await.expect(204);
    host.sync().await;
    assert_eq!(host.get(&path(&checkpoint)).await.expect(200)["state"], "ready");
    host.get(&format!("/v1/sandboxes/{sandbox}/checkpoints")).await.refused(404, "not_found");

    host.call("DELETE", &path(&checkpoint), &host.write, None).await.expect(204);

    host.call("DELETE", &path(&checkpoint), &host.write, None).await.refused(404, "not_found");
    host.get(&path(&checkpoint)).await.refused(404, "not_found");
    assert!(host.agent.records().checkpoints.is_empty());
    assert_eq!(host.usage().await["retained_bytes"], 0);
}

#[tokio::test]
async fn sizes_are_taken_over_from_the_agent() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    let checkpoint = host.checkpoint(&sandbox, json!({})).await;
    {
        let mut records = host.agent.records();
        records.checkpoints.values_mut().for_each(|one| one.retained_bytes = 5 << 30);
        records.sandboxes.values_mut().for_each(|one| one.retained_bytes = 7 << 30);
    }

    host.sync().await;

    assert_eq!(host.get(&path(&checkpoint)).await.expect(200)["size"], 5_u64 << 30);
    assert_eq!(host.usage().await["retained_bytes"], 12_u64 << 30);
}

#[tokio::test]
async fn one_that_the_agent_lost_is_shown_as_failed_until_it_is_deleted_or_turns_up() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    let checkpoint = host.checkpoint(&sandbox, json!({"name": "n"})).await;
    let id = checkpoint["id"].as_str().unwrap();
    let lost = host.agent.records().checkpoints.remove(id).unwrap();
    host.sync().await;
    assert_eq!(host.get(&path(&checkpoint)).await.expect(200)["state"], "failed");
    host.create(json!({"snapshot_id": id})).await.refused(409, "invalid_state");

    host.agent.records().checkpoints.insert(id.to_owned(), lost);
    host.sync().await;
    assert_eq!(host.get(&path(&checkpoint)).await.expect(200)["state"], "ready");

    host.agent.records().checkpoints.clear();
    host.sync().await;
    host.call("DELETE", &path(&checkpoint), &host.write, None).await.expect(204);
    host.checkpoint(&sandbox, json!({"name": "n"})).await;
}

#[tokio::test]
async fn one_that_this_process_died_in_becomes_what_the_agent_has() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    host.agent.hold();
    for n in 0..2 {
        let order = request("POST", &format!("/v1/sandboxes/{sandbox}/checkpoints"), &host.write, Some(json!({})));
        let lost = tokio::spawn(host.router().oneshot(order));
        eventually("the order arrives", async || host.agent.records().checkpoint_orders.len() == n + 1).await;
        lost.abort();
    }
    let taken = host.agent.records().checkpoint_orders[0].clone();
    let host = host.restart().await;
    host.agent.insert_checkpoint(&taken, &sandbox);

    host.sync().await;

    let list = host.get("/v1/checkpoints").await.expect(200);
    assert_eq!(ids(&list), [taken]);
    assert_eq!((&list["checkpoints"][0]["state"], &list["checkpoints"][0]["size"]), (&json!("ready"), &json!(500)));
}

#[tokio::test]
async fn one_whose_request_was_answered_outlives_this_process_or_says_that_it_failed() {
    let host = Host::with(|config| config.timing.work_wait = Duration::from_millis(20)).await;
    let sandbox = host.sandbox().await;
    host.agent.hold();
    let checkpoint = host.post(&format!("/v1/sandboxes/{sandbox}/checkpoints"), json!({})).await.expect(202);
    let host = host.restart().await;
    let state = async || host.get(&path(&checkpoint)).await.expect(200)["state"].clone();

    host.agent.turn(&sandbox, SandboxState::Checkpointing);
    host.sync().await;
    assert_eq!(state().await, "creating");

    host.agent.turn(&sandbox, SandboxState::Ready);
    host.sync().await;
    assert_eq!(state().await, "failed");
    assert_eq!(host.get(&path(&checkpoint)).await.expect(200)["error"]["code"], "interrupted");

    host.agent.insert_checkpoint(checkpoint["id"].as_str().unwrap(), &sandbox);
    host.sync().await;
    assert_eq!(state().await, "ready");
}

#[tokio::test]
async fn one_without_a_row_is_removed_after_the_grace_period() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    let kept = host.checkpoint(&sandbox, json!({})).await;
    let orphan = id::generate("ckp");
    host.agent.insert_checkpoint(&orphan, &sandbox);
    let mut synchronizer = Synchronizer::new(host.app.clone());
    for _ in 0..3 {
        synchronizer.round().await.unwrap();
    }
    assert!(host.app.in_flight.is_empty());
    assert_eq!(host.agent.records().checkpoints.len(), 2);

    host.pass(SignedDuration::from_secs(601));
    synchronizer.round().await.unwrap();

    eventually("the orphan is gone", async || host.agent.records().checkpoints.len() == 1).await;
    assert_eq!(host.get(&path(&kept)).await.expect(200)["state"], "ready");
}

#[tokio::test]
async fn one_that_was_not_acknowledged_is_removed_at_once() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    let kept = host.checkpoint(&sandbox, json!({})).await;
    let given_up = host.checkpoint(&sandbox, json!({})).await;
    host.call("DELETE", &path(&given_up), &host.write, None).await.expect(204);
    // The agent had taken it before its connection broke.
    host.agent.insert_checkpoint(given_up["id"].as_str().unwrap(), &sandbox);

    Synchronizer::new(host.app.clone()).round().await.unwrap();

    eventually("it is gone", async || host.agent.records().checkpoints.len() == 1).await;
    assert_eq!(host.get(&path(&kept)).await.expect(200)["state"], "ready");
}
