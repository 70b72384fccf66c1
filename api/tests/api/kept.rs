//! What a team may keep: bytes on the disk, stopped sandboxes, checkpoints.

use axum::body::Body;
use axum::http::Request;
use sandpiper_api::plan::{GIB, Quota};
use sandpiper_protocol::agent::SandboxState;
use serde_json::{Value, json};

use crate::support::agent::RETAINED;
use crate::support::volumes::long_body;
use crate::support::{Answer, Host, request, with_header};

/// Room for everything but what is kept, of which `change` says how much there may be.
async fn host_with(change: impl FnOnce(&mut Quota)) -> Host {
    Host::with(|config| {
        let quota = &mut config.plans.pro.quota;
        (quota.stored_gib, quota.stopped, quota.checkpoints) = (0, 0, 0);
        change(quota);
    })
    .await
}

impl Host {
    /// Has every sandbox hold so many bytes.
    async fn hold(&self, bytes: u64) {
        self.agent.records().sandboxes.values_mut().for_each(|one| one.retained_bytes = bytes);
        self.sync().await;
    }

    async fn pause(&self, id: &str) -> Answer {
        self.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await
    }

    async fn take_checkpoint(&self, sandbox: &str) -> Answer {
        self.post(&format!("/v1/sandboxes/{sandbox}/checkpoints"), json!({})).await
    }
}

/// The answers by their statuses.
fn count(answers: &[Answer], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status.as_u16() == status).count()
}

#[tokio::test]
async fn nothing_new_is_stored_beyond_the_quota_and_a_deletion_makes_room_at_once() {
    let host = host_with(|quota| quota.stored_gib = 2).await;
    let (full, other) = (host.sandbox().await, host.sandbox().await);
    host.template("node").await;
    let checkpoint = host.checkpoint(&other, json!({})).await;
    host.hold(GIB).await;

    let fork = format!("/v1/sandboxes/{other}/fork");
    let image = json!({"source": {"image": {"reference": "registry.example/node:22"}}});
    let refusals = [
        host.create(json!({"template": "base"})).await.refused(422, "sandbox_quota_exceeded"),
        host.create(json!({"snapshot_id": checkpoint["id"]})).await.refused(422, "sandbox_quota_exceeded"),
        host.post(&fork, json!({})).await.refused(422, "sandbox_quota_exceeded"),
        host.take_checkpoint(&other).await.refused(422, "checkpoint_quota_exceeded"),
        host.post("/v1/volumes", json!({"name": "more"})).await.refused(422, "volume_quota_exceeded"),
        host.build("node", image.clone()).await.refused(422, "template_quota_exceeded"),
        host.send_file(&host.write, Body::from("tar")).await.refused(422, "template_quota_exceeded"),
    ];
    let usage = host.usage().await;
    for refused in &refusals {
        assert_eq!((&refused["quota"]["limits"]["stored_gib"], &refused["quota"]["usage"]), (&json!(2), &usage));
        assert!(refused["message"].as_str().unwrap().contains("2 GiB"), "{refused}");
    }
    let kinds = refusals.map(|refused| refused["quota"]["reservation"].clone());
    assert_eq!(
        (&kinds[0]["sandboxes"], &kinds[3]["checkpoints"], &kinds[4]["volumes"]),
        (&json!(1), &json!(1), &json!(1))
    );
    // What is there goes on, and is what a resume brings back; another team has room of its own.
    assert_eq!(host.get(&format!("/v1/sandboxes/{full}")).await.expect(200)["state"], "ready");
    host.pause(&full).await.expect(200);
    host.post(&format!("/v1/sandboxes/{full}/resume"), json!({})).await.expect(200);
    host.call("POST", "/v1/sandboxes", &host.foreign, Some(json!({"template": "base"}))).await.expect(201);

    host.call("DELETE", &format!("/v1/sandboxes/{full}"), &host.write, None).await.expect(204);

    host.take_checkpoint(&other).await.expect(201);
    host.post("/v1/volumes", json!({"name": "more"})).await.expect(201);
    host.build("node", image).await.expect(202);
    host.create(json!({"template": "base"})).await.expect(201);
}

#[tokio::test]
async fn a_file_for_builds_is_refused_where_it_would_be_over_whether_it_says_its_length_or_not() {
    let host = host_with(|quota| quota.stored_gib = 1).await;
    let sandbox = host.sandbox().await;
    host.hold(GIB - (10 << 20)).await;
    let announced = Request::put("/v1/templates/uploads")
        .header("authorization", format!("Bearer {}", host.write))
        .header("content-length", 20 << 20)
        .body(long_body(20))
        .unwrap();

    let refused = host.send(announced).await.refused(422, "template_quota_exceeded");
    let streamed = host.send_file(&host.write, long_body(20)).await.refused(422, "template_quota_exceeded");

    assert_eq!(refused["quota"]["reservation"]["stored_gib"], 1);
    assert_eq!(streamed["quota"]["reservation"]["stored_gib"], 0, "nobody knows");
    assert!(host.agent.records().uploads.is_empty(), "nothing is left of them");
    assert_eq!(host.usage().await["retained_bytes"], GIB - (10 << 20));
    host.send_file(&host.write, long_body(5)).await.expect(201);
    host.call("DELETE", &format!("/v1/sandboxes/{sandbox}"), &host.write, None).await.expect(204);
    host.send_file(&host.write, long_body(20)).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_checkpoints_never_pass_the_quota() {
    let host = host_with(|quota| quota.checkpoints = 2).await;
    let mut sandboxes = Vec::new();
    for _ in 0..8 {
        sandboxes.push(host.sandbox().await);
    }

    let take = |id: &String| request("POST", &format!("/v1/sandboxes/{id}/checkpoints"), &host.write, Some(json!({})));
    let answers = host.at_once(sandboxes.iter().map(take)).await;

    assert_eq!((count(&answers, 201), count(&answers, 422)), (2, 6), "{answers:?}");
    let refused = answers.into_iter().find(|answer| answer.status == 422).unwrap();
    let refused = refused.refused(422, "checkpoint_quota_exceeded");
    assert_eq!(
        (&refused["quota"]["limits"]["checkpoints"], &refused["quota"]["usage"]["checkpoints"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(host.agent.records().checkpoints.len(), 2);
    let list = host.get("/v1/checkpoints").await.expect(200);
    let path = format!("/v1/checkpoints/{}", list["checkpoints"][0]["id"].as_str().unwrap());
    host.call("DELETE", &path, &host.write, None).await.expect(204);
    host.take_checkpoint(&sandboxes[0]).await.expect(201);
}

#[tokio::test]
async fn a_name_that_is_taken_and_a_repeated_request_are_told_so_also_where_there_is_no_room() {
    let host = host_with(|quota| quota.checkpoints = 1).await;
    let path = format!("/v1/sandboxes/{}/checkpoints", host.sandbox().await);
    let take = || with_header(request("POST", &path, &host.write, Some(json!({"name": "n"}))), "idempotency-key", "k");
    let first = host.send(take()).await.expect(201);

    let again = host.send(take()).await;

    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.expect(201), first);
    host.post(&path, json!({"name": "n"})).await.refused(409, "conflict");
    host.post(&path, json!({"name": "m"})).await.refused(422, "checkpoint_quota_exceeded");
    assert_eq!(host.usage().await["checkpoints"], 1, "what was refused is not there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_pauses_never_pass_the_quota_and_what_is_refused_runs_on() {
    let host = host_with(|quota| quota.stopped = 2).await;
    let mut sandboxes = Vec::new();
    for _ in 0..6 {
        sandboxes.push(host.sandbox().await);
    }

    let pause = |id: &String| request("POST", &format!("/v1/sandboxes/{id}/pause"), &host.write, None);
    let answers = host.at_once(sandboxes.iter().map(pause)).await;

    assert_eq!((count(&answers, 200), count(&answers, 422)), (2, 4), "{answers:?}");
    let refused = answers.into_iter().find(|answer| answer.status == 422).unwrap();
    let refused = refused.refused(422, "sandbox_quota_exceeded");
    assert_eq!(
        (&refused["quota"]["limits"]["stopped"], &refused["quota"]["reservation"]["stopped"]),
        (&json!(2), &json!(1))
    );
    assert!(refused["message"].as_str().unwrap().contains("2 stopped sandboxes"), "{refused}");
    let usage = host.usage().await;
    assert_eq!((&usage["sandboxes"], &usage["stopped"]), (&json!(4), &json!(2)));
    let stopped = host.get("/v1/sandboxes?query[state][]=stopped").await.expect(200);
    let stopped = stopped["sandboxes"][0]["id"].as_str().unwrap().to_owned();
    host.pause(&stopped).await.expect(200);
    host.post(&format!("/v1/sandboxes/{stopped}/resume"), json!({})).await.expect(200);
    host.pause(&stopped).await.expect(200);
}

#[tokio::test]
async fn a_pause_under_way_has_its_place_already() {
    let host = host_with(|quota| quota.stopped = 1).await;
    let (one, two) = (host.sandbox().await, host.sandbox().await);
    host.agent.hold();
    let router = host.router();
    let order = request("POST", &format!("/v1/sandboxes/{one}/pause"), &host.write, None);
    let pausing = tokio::spawn(tower::ServiceExt::oneshot(router, order));
    crate::support::eventually("it is being paused", async || {
        host.get(&format!("/v1/sandboxes/{one}")).await.expect(200)["state"] == "stopping"
    })
    .await;
    // The agent has not heard of it yet, and says that both run.
    host.sync().await;

    host.pause(&two).await.refused(422, "sandbox_quota_exceeded");

    host.agent.admit(1);
    Answer::read(pausing.await.unwrap().unwrap()).await.expect(200);
    assert_eq!(host.get(&format!("/v1/sandboxes/{two}")).await.expect(200)["state"], "ready");
}

#[tokio::test]
async fn a_deadline_stops_a_sandbox_in_any_case_and_nothing_new_is_made_until_there_is_room() {
    let host = host_with(|quota| quota.stopped = 1).await;
    let lasting = json!({"template": "base", "lifecycle": {"on_timeout": "pause", "auto_resume": false}});
    let mut sandboxes = Vec::new();
    for _ in 0..3 {
        sandboxes.push(host.create(lasting.clone()).await.expect(201)["id"].as_str().unwrap().to_owned());
    }
    host.pause(&sandboxes[0]).await.expect(200);
    host.create(json!({"template": "base"})).await.expect(201);

    host.agent.turn(&sandboxes[1], SandboxState::Stopped);
    host.sync().await;

    assert_eq!(host.get(&format!("/v1/sandboxes/{}", sandboxes[1])).await.expect(200)["state"], "stopped");
    let usage = host.usage().await;
    assert_eq!((&usage["stopped"], &usage["retained_bytes"]), (&json!(2), &json!(4 * RETAINED)));
    let running = &sandboxes[2];
    let refused = host.create(json!({"template": "base"})).await.refused(422, "sandbox_quota_exceeded");
    assert!(refused["message"].as_str().unwrap().contains("1 stopped sandboxes"), "{refused}");
    host.post(&format!("/v1/sandboxes/{running}/fork"), json!({})).await.refused(422, "sandbox_quota_exceeded");
    host.take_checkpoint(running).await.refused(422, "checkpoint_quota_exceeded");
    host.pause(running).await.refused(422, "sandbox_quota_exceeded");

    host.post(&format!("/v1/sandboxes/{}/resume", sandboxes[1]), json!({})).await.expect(200);

    host.create(json!({"template": "base"})).await.expect(201);
    host.take_checkpoint(running).await.expect(201);
}

#[tokio::test]
async fn the_sdks_are_told_of_a_full_quota_as_of_too_many_requests() {
    let host = host_with(|quota| (quota.stopped, quota.checkpoints) = (1, 1)).await;
    let (one, two) = (host.sandbox().await, host.sandbox().await);
    host.sdk("POST", &format!("/sandboxes/{one}/pause"), None).await.expect(204);
    host.sdk("POST", &format!("/sandboxes/{two}/snapshots"), Some(json!({}))).await.expect(201);

    let pause = host.sdk("POST", &format!("/sandboxes/{two}/pause"), None).await.expect(429);
    let snapshot = host.sdk("POST", &format!("/sandboxes/{two}/snapshots"), Some(json!({}))).await.expect(429);

    let message = |body: &Value| body["message"].as_str().unwrap().to_owned();
    assert!(message(&pause).contains("1 stopped sandboxes"), "{pause}");
    assert!(message(&snapshot).contains("another checkpoint"), "{snapshot}");
}

#[tokio::test]
async fn a_plan_that_says_nothing_of_it_has_no_limit() {
    let quota: Quota = toml::from_str("sandboxes = 9\ncpu = 9\nmemory_mb = 9000").unwrap();
    let host = Host::with(|config| config.plans.pro.quota = quota).await;
    let sandbox = host.sandbox().await;
    host.hold(1 << 50).await;

    host.take_checkpoint(&sandbox).await.expect(201);
    host.pause(&sandbox).await.expect(200);
    host.create(json!({"template": "base"})).await.expect(201);

    let limits = host.get("/v1/sandbox_limits").await.expect(200)["quota"]["limits"].take();
    assert_eq!((&limits["stored_gib"], &limits["stopped"], &limits["checkpoints"]), (&json!(0), &json!(0), &json!(0)));
}
