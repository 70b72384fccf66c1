//! One sandbox: show, update, delete; and the audit of all that.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::Host;

fn until_deadline(sandbox: &Value) -> SignedDuration {
    sandbox["deadline"].as_str().unwrap().parse::<Timestamp>().unwrap().duration_since(Timestamp::now())
}

#[tokio::test]
async fn show_asks_the_agent() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    let sandbox = host.get(&path).await.expect(200);
    assert!(sandbox.get("session").is_none() && sandbox.get("envs").is_none());

    host.agent.records().sandboxes.clear();

    host.get(&path).await.refused(404, "not_found");
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"], json!([]));
}

#[tokio::test]
async fn an_update_changes_deadline_and_metadata() {
    let host = Host::new().await;
    let body = host.create(json!({"template": "base", "metadata": {"a": "1"}})).await.expect(201);
    let path = format!("/v1/sandboxes/{}", body["id"].as_str().unwrap());

    let changed = json!({"timeout": 3000, "metadata": {"b": 2}, "lifecycle": {"on_timeout": "pause"}});
    let updated = host.call("PATCH", &path, &host.write, Some(changed)).await.expect(200);

    assert_eq!(updated["metadata"], json!({"b": "2"}));
    assert_eq!(updated["timeout"], 3000);
    assert_eq!(updated["lifecycle"], json!({"on_timeout": "pause", "auto_resume": false, "pause_memory": true}));
    assert!(until_deadline(&updated) > SignedDuration::from_secs(2000));
    assert_eq!(host.get(&path).await.expect(200), updated);
    // Unlike connect, an update may shorten.
    let shortened = host.call("PATCH", &path, &host.write, Some(json!({"timeout": 10}))).await.expect(200);
    assert!(until_deadline(&shortened) <= SignedDuration::from_secs(10));
    assert_eq!(shortened["metadata"], json!({"b": "2"}));
}

#[tokio::test]
async fn what_an_update_of_the_lifecycle_leaves_out_stays() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    for (change, on_timeout, auto_resume, pause_memory) in [
        (json!({"on_timeout": "pause"}), "pause", false, true),
        (json!({"auto_resume": true}), "pause", true, true),
        (json!({"pause_memory": false}), "pause", true, false),
        (json!({}), "pause", true, false),
        // With `kill` it would mean nothing.
        (json!({"on_timeout": "kill"}), "kill", false, true),
    ] {
        let updated = host.call("PATCH", &path, &host.write, Some(json!({"lifecycle": change}))).await.expect(200);
        let result = json!({"on_timeout": on_timeout, "auto_resume": auto_resume, "pause_memory": pause_memory});
        assert_eq!(updated["lifecycle"], result);
    }
    for (field, value) in [("auto_resume", true), ("pause_memory", false)] {
        let of_what_is_killed = json!({"lifecycle": {field: value}});
        let answer = host.call("PATCH", &path, &host.write, Some(of_what_is_killed)).await;
        answer.blames(&format!("lifecycle.{field}"));
    }
}

#[tokio::test]
async fn an_update_closes_public_previews_and_opens_them_again() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    for allowed in [false, true] {
        let change = json!({"allow_public_traffic": allowed});
        let updated = host.call("PATCH", &path, &host.write, Some(change)).await.expect(200);
        assert_eq!(updated["network"]["allow_public_traffic"], allowed);
        assert_eq!(host.get(&path).await.expect(200), updated);
        // What else is changed leaves it as it is.
        let updated = host.call("PATCH", &path, &host.write, Some(json!({"timeout": 60}))).await.expect(200);
        assert_eq!(updated["network"]["allow_public_traffic"], allowed);
    }
}

#[tokio::test]
async fn an_update_has_output_captured_and_not_any_more() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    for capture in [true, false] {
        let change = json!({"capture_output": capture});
        let updated = host.call("PATCH", &path, &host.write, Some(change)).await.expect(200);
        assert_eq!(updated["capture_output"], capture);
        // What else is changed leaves it as it is.
        host.call("PATCH", &path, &host.write, Some(json!({"timeout": 60, "metadata": {}}))).await.expect(200);
        assert_eq!(host.get(&path).await.expect(200)["capture_output"], capture);
    }
    let change = json!({"capture_output": true});
    host.call("PATCH", &path, &host.read, Some(change)).await.refused(403, "insufficient_scope");
}

#[tokio::test]
async fn an_update_that_makes_no_sense_is_refused() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    for (body, field) in [
        (json!({"timeout": 0}), "timeout"),
        (json!({"timeout": 86_401}), "timeout"),
        (json!({"lifecycle": {"on_timeout": "sleep"}}), "lifecycle.on_timeout"),
        (json!({"lifecycle": {"on_timeout": "kill", "auto_resume": true}}), "lifecycle.auto_resume"),
        (json!({"metadata": 1}), "metadata"),
        (json!({"capture_output": 1}), "capture_output"),
    ] {
        host.call("PATCH", &path, &host.write, Some(body)).await.blames(field);
    }
    host.call("PATCH", &path, &host.write, Some(json!({"cpu": 2}))).await.refused(400, "invalid_request");
    host.call("PATCH", &path, &host.write, None).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn a_delete_ends_the_sandbox_and_again_is_404() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let path = format!("/v1/sandboxes/{id}");

    let answer = host.call("DELETE", &path, &host.write, None).await;

    assert!(answer.text.is_empty());
    answer.expect(204);
    assert!(host.agent.records().sandboxes.is_empty());
    host.get(&path).await.refused(404, "not_found");
    host.call("DELETE", &path, &host.write, None).await.refused(404, "not_found");
    host.call("PATCH", &path, &host.write, Some(json!({"metadata": {}}))).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_failed_sandbox_can_be_deleted_although_the_agent_forgot_it() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.fail(&id);
    host.sync().await;
    host.agent.records().sandboxes.clear();
    host.sync().await;
    let path = format!("/v1/sandboxes/{id}");
    assert_eq!(host.get(&path).await.expect(200)["state"], "failed");
    host.call("PATCH", &path, &host.write, Some(json!({"timeout": 60}))).await.refused(409, "invalid_state");

    host.call("DELETE", &path, &host.write, None).await.expect(204);

    host.get(&path).await.refused(404, "not_found");
}

#[tokio::test]
async fn without_the_agent_reads_are_answered_and_changes_are_not() {
    let mut host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    host.agent.stop();

    assert_eq!(host.get(&path).await.expect(200)["state"], "ready");
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"].as_array().unwrap().len(), 1);
    host.get("/v1/sandbox_limits").await.expect(200);

    for (method, path, body) in [
        ("DELETE", path.clone(), None),
        ("PATCH", path.clone(), Some(json!({"timeout": 60}))),
        ("POST", format!("{path}/connect"), None),
        ("POST", format!("{path}/pause"), None),
        ("POST", format!("{path}/fork"), None),
        ("POST", format!("{path}/checkpoints"), None),
        ("PUT", format!("{path}/ports/80"), None),
    ] {
        let answer = host.call(method, &path, &host.write, body).await;
        assert_eq!(answer.header("retry-after"), Some("5"), "{method} {path}");
        answer.refused(503, "host_unavailable");
    }
    host.agent.resume();
    host.sync().await;
    assert_eq!(
        host.get("/v1/sandboxes?query[state][]=ready").await.expect(200)["sandboxes"].as_array().unwrap().len(),
        1
    );
    assert_eq!(host.get("/v1/checkpoints").await.expect(200)["checkpoints"], json!([]));
    host.call("DELETE", &path, &host.write, None).await.expect(204);
}

#[tokio::test]
async fn sandboxes_survive_a_kill_of_this_process() {
    let host = Host::new().await;
    let before = host.create(json!({"template": "base", "metadata": {"a": "1"}})).await.expect(201);

    let host = host.restart().await;

    let path = format!("/v1/sandboxes/{}", before["id"].as_str().unwrap());
    let after = host.get(&path).await.expect(200);
    assert_eq!(after["metadata"], json!({"a": "1"}));
    assert_eq!(after["deadline"], before["deadline"]);
}

#[tokio::test]
async fn the_audit_says_who_changed_what() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let path = format!("/v1/sandboxes/{id}");
    host.call("DELETE", &path, &host.read, None).await.refused(403, "insufficient_scope");
    host.call("DELETE", &path, &host.write, None).await.expect(204);

    let entries = host.app.store.audit.newest(Some(&id), 10).await.unwrap();

    let found: Vec<_> = entries.iter().map(|entry| (entry.action.as_str(), entry.status)).collect();
    assert_eq!(
        found,
        [("DELETE /v1/sandboxes/{id}", 204), ("DELETE /v1/sandboxes/{id}", 403), ("POST /v1/sandboxes", 201)]
    );
    assert_eq!(entries[0].key_id, entries[2].key_id);
    assert_ne!(entries[0].key_id, entries[1].key_id);
}
