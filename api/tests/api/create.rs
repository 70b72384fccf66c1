//! `POST /v1/sandboxes`: what comes out of it, and what is left when it fails.

use std::time::Duration;

use serde_json::json;

use crate::support::agent::VERSIONS;
use crate::support::{Host, eventually, request};
use tower::ServiceExt;

#[tokio::test]
async fn a_sandbox_is_made_with_the_defaults_and_comes_with_a_session() {
    let host = Host::new().await;

    let answer = host.create(json!({"template": "base"})).await;

    let location = answer.header("location").unwrap().to_owned();
    let body = answer.expect(201);
    let id = body["id"].as_str().unwrap();
    assert_eq!(location, format!("/v1/sandboxes/{id}"));
    assert!(sandpiper_protocol::id::is_valid("sbx", id), "{id}");
    assert_eq!(body["state"], "ready");
    assert_eq!(body["team"], "acme");
    assert_eq!(body["template"], "base");
    assert_eq!(body["template_version"], VERSIONS[1]);
    assert_eq!(body["timeout"], 300);
    assert_eq!(body["lifecycle"], json!({"on_timeout": "kill", "auto_resume": false, "pause_memory": true}));
    assert_eq!((&body["cpu"], &body["memory_mb"], &body["disk_gib"]), (&json!(1), &json!(256), &json!(20)));
    assert_eq!(body["volume_mounts"], json!({}));
    assert_eq!(body["capture_output"], false);
    assert_eq!(body["metadata"], json!({}));
    assert_eq!(body["exposed_ports"], json!([]));
    assert_eq!(
        body["network"],
        json!({
            "allow_internet_access": true, "allow_package_registry_access": false, "allow_public_traffic": true,
            "allow_out": [], "deny_out": [], "egress_profiles": [], "apply_status": "applied",
        })
    );
    assert_eq!(body["session"]["access_token"], "token-1");
    assert_eq!(body["session"]["data_plane_url"], body["data_plane_url"]);
    for time in ["deadline", "created_at", "started_at"] {
        assert!(body[time].as_str().unwrap().ends_with('Z'), "{time}: {}", body[time]);
    }
    assert!(body.get("error").is_none());
}

#[tokio::test]
async fn the_agent_gets_what_the_request_said() {
    let host = Host::new().await;
    let body = json!({
        "template": "base", "timeout": 60, "cpu": 2, "memory_mb": 1024, "envs": {"TOKEN": "hush"},
        "exposed_ports": [{"port": 8000, "protocol": "http", "public": true}, {"port": 9000}],
        "allow_public_traffic": false, "capture_output": true,
    });

    let answer = host.create(body).await;

    let text = answer.text.clone();
    let created = answer.expect(201);
    let order = host.agent.records().orders[0].clone();
    assert_eq!((order.timeout_seconds, order.cpu, order.memory_mb, order.disk_gib), (60, 2, 1024, 20));
    assert_eq!(order.envs["TOKEN"], "hush");
    assert_eq!(
        order.exposed_ports.iter().map(|port| (port.port, port.public)).collect::<Vec<_>>(),
        [(8000, true), (9000, false)]
    );
    assert!(!order.allow_public_traffic && order.capture_output);
    assert_eq!(created["capture_output"], true);
    assert_eq!(created["exposed_ports"][1], json!({"port": 9000, "protocol": "http", "public": false}));
    assert!(!text.contains("hush") && !text.contains("envs"), "{text}");
}

#[tokio::test]
async fn envs_are_sealed_in_the_database() {
    let host = Host::new().await;

    host.create(json!({"template": "base", "envs": {"TOKEN": "hush-hush-hush"}})).await.expect(201);

    assert!(!host.stores("hush-hush-hush").await);
    assert!(host.stores("base").await);
}

#[tokio::test]
async fn metadata_values_become_text() {
    let host = Host::new().await;
    let metadata = json!({"s": "text", "n": 1.5, "i": 7, "b": true, "z": null, "o": {"a": [1, 2]}});

    let body = host.create(json!({"template": "base", "metadata": metadata})).await.expect(201);

    let text = json!({"s": "text", "n": "1.5", "i": "7", "b": "true", "z": "null", "o": "{\"a\":[1,2]}"});
    assert_eq!(body["metadata"], text);
    let shown = host.get(&format!("/v1/sandboxes/{}", body["id"].as_str().unwrap())).await.expect(200);
    assert_eq!(shown["metadata"], text);
}

#[tokio::test]
async fn templates_are_named_by_slug_by_version_or_by_number() {
    let host = Host::new().await;
    let by_id = format!("base:{}", VERSIONS[0]);
    for (template, version) in [("base", VERSIONS[1]), (by_id.as_str(), VERSIONS[0]), ("base:1", VERSIONS[0])] {
        let body = host.create(json!({"template": template})).await.expect(201);
        assert_eq!(body["template_version"], version, "{template}");
        assert_eq!(body["template"], "base");
    }
    for template in ["nothing", "base:3", "base:", "base:ver0000000000000000000009"] {
        host.create(json!({"template": template})).await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn a_template_that_appears_is_found_and_one_that_disappears_is_not_started() {
    let host = Host::new().await;
    host.create(json!({"template": "fresh"})).await.refused(404, "not_found");
    {
        let mut records = host.agent.records();
        let mut fresh = records.templates.remove(1);
        (fresh.slug, fresh.id) = ("fresh".into(), "ver0000000000000000000003".into());
        records.templates.push(fresh);
    }

    host.create(json!({"template": "fresh"})).await.expect(201);

    // The look for `fresh` showed that the second version of `base` is gone.
    let body = host.create(json!({"template": "base"})).await.expect(201);
    assert_eq!(body["template_version"], VERSIONS[0]);
    let listed = host.get("/v1/templates").await.expect(200);
    assert_eq!(listed["templates"][0]["slug"], "base");
    assert_eq!(listed["templates"][0]["latest_version"]["number"], 1);
    assert_eq!(listed["templates"][1]["runtime_baseline"], json!({"cpu": 1, "memory_mb": 256}));
}

#[tokio::test]
async fn a_slow_start_is_answered_in_creating_and_becomes_ready() {
    let host = Host::with(|config| config.timing.create_wait = Duration::from_millis(20)).await;
    host.agent.hold();

    let body = host.create(json!({"template": "base"})).await.expect(201);

    assert_eq!((&body["state"], &body["session"]), (&json!("creating"), &json!(null)));
    let path = format!("/v1/sandboxes/{}", body["id"].as_str().unwrap());
    host.sync().await;
    assert_eq!(host.get(&path).await.expect(200)["state"], "creating");
    host.post(&format!("{path}/connect"), json!({})).await.refused(409, "invalid_state");
    host.agent.admit(1);
    eventually("ready", async || host.get(&path).await.expect(200)["state"] == "ready").await;
    host.post(&format!("{path}/connect"), json!({})).await.expect(200);
    let entries = host.app.store.audit.newest(body["id"].as_str(), 10).await.unwrap();
    let creates: Vec<_> = entries.iter().filter(|entry| entry.action == "POST /v1/sandboxes").collect();
    assert!(matches!(creates[..], [create] if create.status == 201), "{entries:?}");
}

#[tokio::test]
async fn a_refused_start_is_an_error_and_leaves_neither_sandbox_nor_quota() {
    let host = Host::new().await;
    for (status, code, answered) in [
        (502, "guest_failed", (503, "guest_failed")),
        (503, "capacity_unavailable", (503, "capacity_unavailable")),
        (500, "internal", (500, "internal")),
    ] {
        host.agent.records().refuse = Some((status, code));
        host.create(json!({"template": "base"})).await.refused(answered.0, answered.1);
        let newest = &host.app.store.audit.newest(None, 1).await.unwrap()[0];
        assert_eq!((newest.action.as_str(), newest.status), ("POST /v1/sandboxes", answered.0));
    }
    assert_eq!(host.app.store.audit.newest(None, 10).await.unwrap().len(), 3);

    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"], json!([]));
    assert_eq!(host.get("/v1/sandbox_limits").await.expect(200)["quota"]["usage"]["sandboxes"], 0);
}

#[tokio::test]
async fn an_agent_that_is_away_is_503_with_a_time_to_try_again() {
    let mut host = Host::new().await;
    host.sync().await;
    host.agent.stop();

    let answer = host.create(json!({"template": "base"})).await;

    assert_eq!(answer.header("retry-after"), Some("5"));
    answer.refused(503, "host_unavailable");
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"], json!([]));
}

#[tokio::test]
async fn an_agent_that_dies_during_the_start_leaves_no_sandbox_behind() {
    let mut host = Host::new().await;
    host.sync().await;
    host.agent.hold();
    let (router, order) =
        (host.router(), request("POST", "/v1/sandboxes", &host.write, Some(json!({"template": "base"}))));
    let creating = tokio::spawn(router.oneshot(order));
    eventually("the order arrives", async || host.agent.records().orders.len() == 1).await;
    host.agent.stop();
    let answer = creating.await.unwrap().unwrap();
    assert_eq!(answer.status().as_u16(), 503);

    // The agent is back, and had the sandbox after all.
    let id = host.agent.records().orders[0].id.clone();
    host.agent.insert(&id);
    host.agent.resume();
    let mut synchronizer = sandpiper_api::orchestration::sync::Synchronizer::new(host.app.clone());
    eventually("the sandbox is removed", async || {
        synchronizer.round().await.unwrap();
        host.agent.records().sandboxes.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_stop_the_start() {
    let host = Host::new().await;
    host.sync().await;
    host.agent.hold();
    let (router, order) =
        (host.router(), request("POST", "/v1/sandboxes", &host.write, Some(json!({"template": "base"}))));
    let creating = tokio::spawn(router.oneshot(order));
    eventually("the order arrives", async || host.agent.records().orders.len() == 1).await;

    creating.abort();
    host.agent.admit(1);

    eventually("ready", async || {
        let list = host.get("/v1/sandboxes?query[state][]=ready").await.expect(200);
        list["sandboxes"].as_array().unwrap().len() == 1
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_can_be_deleted_while_it_starts() {
    let host = Host::with(|config| config.timing.create_wait = Duration::from_millis(20)).await;
    host.agent.hold();
    let body = host.create(json!({"template": "base"})).await.expect(201);
    let path = format!("/v1/sandboxes/{}", body["id"].as_str().unwrap());

    host.call("DELETE", &path, &host.write, None).await.expect(204);

    host.get(&path).await.refused(404, "not_found");
    host.agent.admit(1);
    let mut synchronizer = sandpiper_api::orchestration::sync::Synchronizer::new(host.app.clone());
    eventually("nothing is left at the agent", async || {
        synchronizer.round().await.unwrap();
        host.app.in_flight.is_empty() && host.agent.records().sandboxes.is_empty()
    })
    .await;
}
