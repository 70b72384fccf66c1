//! `POST /v1/sandboxes/{id}/fork`

use std::collections::BTreeSet;

use sandpiper_api::plan::Quota;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{Answer, Host, eventually, request};

async fn source(host: &Host) -> Value {
    let body = json!({
        "template": "base", "timeout": 900, "metadata": {"job": "7"}, "envs": {"TOKEN": "hush"}, "cpu": 2,
        "memory_mb": 512, "lifecycle": {"on_timeout": "pause", "auto_resume": true},
        "exposed_ports": [{"port": 8000, "public": true}], "allow_public_traffic": false, "capture_output": true,
    });
    host.create(body).await.expect(201)
}

fn path(sandbox: &Value) -> String {
    format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap())
}

#[tokio::test]
async fn forks_are_like_their_source_and_have_sessions_of_their_own() {
    let host = Host::new().await;
    let source = source(&host).await;

    let answer = host.post(&format!("{}/fork", path(&source)), json!({"count": 3})).await;

    assert!(!answer.text.contains("hush") && !answer.text.contains("envs"), "{}", answer.text);
    let forked = answer.expect(201);
    let forked = forked["sandboxes"].as_array().unwrap();
    assert_eq!(forked.len(), 3);
    for sandbox in forked {
        for field in [
            "template",
            "template_version",
            "timeout",
            "lifecycle",
            "metadata",
            "exposed_ports",
            "network",
            "capture_output",
            "cpu",
            "memory_mb",
            "disk_gib",
            "state",
        ] {
            assert_eq!(sandbox[field], source[field], "{field}");
        }
        assert_eq!(sandbox["session"]["data_plane_url"], sandbox["data_plane_url"]);
        assert_eq!(host.get(&path(sandbox)).await.expect(200)["metadata"], json!({"job": "7"}));
    }
    let distinct =
        |field: fn(&Value) -> &Value| forked.iter().map(|one| field(one).to_string()).collect::<BTreeSet<_>>();
    assert_eq!(distinct(|one| &one["id"]).len(), 3);
    assert_eq!(distinct(|one| &one["session"]["access_token"]).len(), 3);
    assert_eq!(host.usage().await["sandboxes"], 4);
}

#[tokio::test]
async fn a_fork_of_a_fork_still_has_the_environment_sealed_for_itself() {
    let host = Host::new().await;
    let source = source(&host).await;
    let first = host.post(&format!("{}/fork", path(&source)), json!({})).await.expect(201);
    let first = &first["sandboxes"][0];
    // Sealed values open for their own row only: this would fail if the first fork's were a copy of the source's.
    let second = host.call("POST", &format!("{}/fork", path(first)), &host.write, None).await.expect(201);

    let id = second["sandboxes"][0]["id"].as_str().unwrap();
    let sealed = host.app.store.sandboxes.sealed_envs(id).await.unwrap().unwrap();
    assert_eq!(host.app.vault.unseal(id, &sealed).unwrap().as_slice(), br#"{"TOKEN":"hush"}"#);
}

#[tokio::test]
async fn a_stopped_sandbox_is_forked_and_stays_stopped() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    host.post(&format!("{path}/pause"), json!({})).await.expect(200);

    let forked = host.post(&format!("{path}/fork"), json!({})).await.expect(201);

    assert_eq!(forked["sandboxes"][0]["state"], "ready");
    assert_eq!(host.get(&path).await.expect(200)["state"], "stopped");
}

#[tokio::test]
async fn the_quota_must_have_room_for_all_forks() {
    let quota = Quota { sandboxes: 4, cpu: 100, memory_mb: 100_000, ..Quota::default() };
    let host = Host::with(|config| config.plans.pro.quota = quota).await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);

    let refused = host.post(&format!("{path}/fork"), json!({"count": 4})).await.refused(422, "sandbox_quota_exceeded");

    assert_eq!(
        refused["quota"]["reservation"],
        json!({"sandboxes": 4, "cpu": 4, "memory_mb": 1024, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
               "stored_gib": 0, "stopped": 0, "checkpoints": 0})
    );
    assert_eq!(host.usage().await["sandboxes"], 1);
    host.post(&format!("{path}/fork"), json!({"count": 3})).await.expect(201);
    assert_eq!(host.agent.records().sandboxes.len(), 4);
}

#[tokio::test]
async fn a_fork_that_fails_leaves_nothing_behind() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    host.agent.records().refuse = Some((503, "capacity_unavailable"));

    host.post(&format!("{path}/fork"), json!({"count": 2})).await.refused(503, "capacity_unavailable");

    assert_eq!(host.usage().await["sandboxes"], 1);
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"].as_array().unwrap().len(), 1);
    assert!(host.app.in_flight.is_empty());
}

#[tokio::test]
async fn forks_under_way_are_left_alone_by_the_synchronisation() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    host.agent.hold();
    let order = request("POST", &format!("{path}/fork"), &host.write, Some(json!({"count": 2})));
    let forking = tokio::spawn(host.router().oneshot(order));
    eventually("the rows are there", async || host.usage().await["sandboxes"] == 3).await;

    host.sync().await;
    host.sync().await;

    host.agent.admit(1);
    let forked = Answer::read(forking.await.unwrap().unwrap()).await.expect(201);
    assert_eq!(forked["sandboxes"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn counts_out_of_bounds_are_refused() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}/fork", host.sandbox().await);
    for count in [json!(0), json!(21), json!(-1), json!("two")] {
        host.post(&path, json!({"count": count})).await.blames("count");
    }
    host.post(&path, json!({"number": 2})).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn the_audit_names_the_source_and_every_fork() {
    let host = Host::new().await;
    let source = host.sandbox().await;
    let forked = host.post(&format!("/v1/sandboxes/{source}/fork"), json!({"count": 2})).await.expect(201);
    let ids = forked["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap());
    for id in ids.chain([source.as_str()]) {
        let entries = host.app.store.audit.newest(Some(id), 10).await.unwrap();
        assert_eq!((entries[0].action.as_str(), entries[0].status), ("POST /v1/sandboxes/{id}/fork", 201));
    }
}
