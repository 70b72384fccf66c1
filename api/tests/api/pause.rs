//! `POST /v1/sandboxes/{id}/pause` and `…/stop`, and the way back.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sandpiper_protocol::agent::{Lifecycle, SandboxState};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::agent::RETAINED;
use crate::support::{Answer, Host, eventually, request};

async fn states(host: &Host, filter: &str) -> Vec<Value> {
    let mut list = host.get(&format!("/v1/sandboxes?{filter}")).await.expect(200);
    list["sandboxes"].as_array_mut().unwrap().iter_mut().map(|sandbox| sandbox["state"].take()).collect()
}

/// The path of a new sandbox that is stopped.
async fn stopped(host: &Host) -> String {
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    host.post(&format!("{path}/pause"), json!({})).await.expect(200);
    path
}

#[tokio::test]
async fn a_paused_sandbox_is_stopped_and_stays_so_when_it_is_paused_again() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    for name in ["pause", "stop", "pause"] {
        let sandbox = host.post(&format!("/v1/sandboxes/{id}/{name}"), json!({})).await.expect(200);
        assert_eq!((&sandbox["id"], &sandbox["state"]), (&json!(id), &json!("stopped")));
        assert!(sandbox["stopped_at"].is_string() && sandbox["deadline"].is_null(), "{sandbox}");
    }
    assert_eq!(host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["state"], "stopped");
}

#[tokio::test]
async fn a_stopped_sandbox_holds_disk_and_no_runtime() {
    let host = Host::with(|config| config.plans.pro.quota.sandboxes = 1).await;
    let path = stopped(&host).await;
    let usage = json!({
        "sandboxes": 0, "cpu": 0, "memory_mb": 0, "stopped": 1, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
        "checkpoints": 0, "retained_bytes": RETAINED,
    });
    assert_eq!(host.usage().await, usage);

    host.create(json!({"template": "base"})).await.expect(201);

    host.call("DELETE", &path, &host.write, None).await.expect(204);
    let usage = json!({
        "sandboxes": 1, "cpu": 1, "memory_mb": 256, "stopped": 0, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
        "checkpoints": 0, "retained_bytes": RETAINED,
    });
    assert_eq!(host.usage().await, usage);
}

#[tokio::test]
async fn resume_brings_the_same_sandbox_back_with_a_session_and_its_own_timeout() {
    let host = Host::new().await;
    for (body, ahead) in [(json!({}), 300), (json!({"timeout": 2000}), 2000)] {
        let path = stopped(&host).await;
        for name in ["resume", "connect"] {
            let answer = host.post(&format!("{path}/{name}"), body.clone()).await.expect(200);
            assert_eq!(format!("/v1/sandboxes/{}", answer["sandbox"]["id"].as_str().unwrap()), path);
            assert_eq!(answer["sandbox"]["state"], "ready");
            assert!(answer["session"]["access_token"].is_string());
            let deadline: Timestamp = answer["sandbox"]["deadline"].as_str().unwrap().parse().unwrap();
            let until = deadline.duration_since(Timestamp::now());
            assert!(until > SignedDuration::from_secs(ahead - 60), "{until}");
            assert!(until <= SignedDuration::from_secs(ahead), "{until}");
        }
    }
}

#[tokio::test]
async fn the_way_to_stopped_and_back_is_shown() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    for (name, during, after) in [("pause", "stopping", "stopped"), ("resume", "restoring", "ready")] {
        host.agent.hold();
        let order = request("POST", &format!("{path}/{name}"), &host.write, None);
        let working = tokio::spawn(host.router().oneshot(order));
        eventually("the state is shown", async || host.get(&path).await.expect(200)["state"] == during).await;
        assert_eq!(states(&host, "query[state][]=running").await, [during]);
        assert_eq!(host.usage().await["sandboxes"], 1);
        host.sync().await;
        assert_eq!(states(&host, "").await, [during]);

        host.agent.admit(1);
        Answer::read(working.await.unwrap().unwrap()).await.expect(200);

        assert_eq!(states(&host, "").await, [after]);
    }
}

#[tokio::test]
async fn a_pause_that_takes_long_is_answered_while_it_goes_on() {
    // Long enough for it to have begun, also on a machine with much else to do.
    let host = Host::with(|config| config.timing.work_wait = Duration::from_secs(1)).await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    for (refusal, after) in [(Some((502, "guest_failed")), "ready"), (None, "stopped")] {
        host.agent.hold();
        host.agent.records().refuse = refusal;

        let sandbox = host.post(&format!("{path}/pause"), json!({})).await.expect(202);

        assert_eq!(sandbox["state"], "stopping");
        host.sync().await;
        assert_eq!(states(&host, "").await, ["stopping"]);
        host.agent.admit(1);
        eventually("it ends", async || host.get(&path).await.expect(200)["state"] == after).await;
    }
}

#[tokio::test]
async fn resume_needs_room_in_the_quota() {
    let host = Host::with(|config| config.plans.pro.quota.sandboxes = 1).await;
    let path = stopped(&host).await;
    let other = host.sandbox().await;

    let refused = host.post(&format!("{path}/resume"), json!({})).await.refused(422, "sandbox_quota_exceeded");

    assert_eq!(
        refused["quota"]["reservation"],
        json!({"sandboxes": 1, "cpu": 1, "memory_mb": 256, "volumes": 0, "volume_gib": 0, "templates": 0, "build_minutes": 0, "webhooks": 0,
               "stored_gib": 0, "stopped": 0, "checkpoints": 0})
    );
    assert_eq!(host.get(&path).await.expect(200)["state"], "stopped");
    host.call("DELETE", &format!("/v1/sandboxes/{other}"), &host.write, None).await.expect(204);
    host.post(&format!("{path}/resume"), json!({})).await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_resumes_never_pass_the_quota() {
    let host = Host::with(|config| config.plans.pro.quota.sandboxes = 3).await;
    let mut resumes = Vec::new();
    for _ in 0..8 {
        let path = stopped(&host).await;
        resumes.push(request("POST", &format!("{path}/resume"), &host.write, None));
    }

    let answers = host.at_once(resumes).await;

    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 3);
    assert_eq!(host.usage().await["sandboxes"], 3);
}

#[tokio::test]
async fn two_resumes_of_one_sandbox_both_succeed_and_count_once() {
    let host = Host::new().await;
    let path = stopped(&host).await;
    host.agent.hold();
    let resume = || request("POST", &format!("{path}/resume"), &host.write, None);
    let first = tokio::spawn(host.router().oneshot(resume()));
    eventually("the first is at work", async || host.agent.records().timeouts.len() == 1).await;
    let second = tokio::spawn(host.router().oneshot(resume()));
    eventually("the second is too", async || host.agent.records().timeouts.len() == 2).await;
    host.agent.admit(2);

    for answer in [first, second] {
        Answer::read(answer.await.unwrap().unwrap()).await.expect(200);
    }

    assert_eq!(host.usage().await["sandboxes"], 1);
    assert!(host.app.in_flight.is_empty());
}

#[tokio::test]
async fn a_pause_or_resume_that_fails_changes_nothing() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    for (name, state, live) in [("pause", "ready", 1), ("resume", "stopped", 0)] {
        host.agent.records().refuse = Some((502, "guest_failed"));
        host.post(&format!("{path}/{name}"), json!({})).await.refused(503, "guest_failed");

        assert_eq!(states(&host, "").await, [state]);
        assert_eq!(host.usage().await["sandboxes"], live);
        host.agent.records().refuse = None;
        host.post(&format!("{path}/pause"), json!({})).await.expect(200);
    }
}

#[tokio::test]
async fn a_resume_that_this_process_died_in_is_settled_by_what_the_agent_has() {
    let host = Host::new().await;
    let path = stopped(&host).await;
    host.agent.hold();
    let lost = tokio::spawn(host.router().oneshot(request("POST", &format!("{path}/resume"), &host.write, None)));
    eventually("it is at work", async || host.agent.records().timeouts.len() == 1).await;
    lost.abort();
    let host = host.restart().await;
    host.sync().await;
    assert_eq!(states(&host, "").await, ["restoring"]);

    host.agent.turn(path.rsplit('/').next().unwrap(), SandboxState::Stopped);
    host.sync().await;

    assert_eq!(states(&host, "").await, ["stopped"]);
    assert_eq!(host.usage().await["sandboxes"], 0);
}

#[tokio::test]
async fn what_the_agent_stops_and_wakes_by_itself_is_followed() {
    let host = Host::new().await;
    let lifecycle = json!({"on_timeout": "pause", "auto_resume": true, "pause_memory": true});
    let created = host.create(json!({"template": "base", "lifecycle": lifecycle})).await.expect(201);
    assert_eq!(created["lifecycle"], lifecycle);
    let id = created["id"].as_str().unwrap();
    for (state, shown) in [
        (SandboxState::Stopping, "stopping"),
        (SandboxState::Stopped, "stopped"),
        (SandboxState::Restoring, "restoring"),
        (SandboxState::Ready, "ready"),
        (SandboxState::Stopped, "stopped"),
    ] {
        host.agent.turn(id, state);
        host.sync().await;
        assert_eq!(states(&host, "").await, [shown]);
    }
    // However long ago.
    host.pass(SignedDuration::from_hours(1000));
    host.sync().await;
    assert_eq!(states(&host, "query[state][]=paused").await, ["stopped"]);
    assert!(host.agent.records().deletes.is_empty());
}

#[tokio::test]
async fn a_failed_sandbox_can_neither_be_paused_nor_resumed() {
    let host = Host::new().await;
    let path = stopped(&host).await;
    host.agent.fail(path.rsplit('/').next().unwrap());
    host.sync().await;
    for name in ["pause", "resume", "fork", "checkpoints"] {
        let refused = host.post(&format!("{path}/{name}"), json!({})).await.refused(409, "invalid_state");
        assert!(refused["message"].as_str().unwrap().contains("The kernel panicked"), "{refused}");
    }
}

#[tokio::test]
async fn a_shorthand_and_the_lifecycle_reach_the_agent() {
    let host = Host::new().await;
    for (body, auto_resume) in [
        (json!({"template": "base", "auto_pause": true}), false),
        (json!({"template": "base", "auto_pause": true, "lifecycle": {"auto_resume": true}}), true),
        (json!({"template": "base", "auto_pause": true, "lifecycle": {"on_timeout": "pause"}}), false),
    ] {
        let created = host.create(body).await.expect(201);
        let lifecycle = json!({"on_timeout": "pause", "auto_resume": auto_resume, "pause_memory": true});
        assert_eq!(created["lifecycle"], lifecycle);
        let order = host.agent.records().orders.last().unwrap().lifecycle;
        assert_eq!(serde_json::from_value::<Lifecycle>(created["lifecycle"].clone()).unwrap(), order);
    }
}

#[tokio::test]
async fn the_timeout_of_a_stopped_sandbox_can_be_changed_for_its_next_start() {
    let host = Host::new().await;
    let path = stopped(&host).await;

    let updated = host.call("PATCH", &path, &host.write, Some(json!({"timeout": 900}))).await.expect(200);

    assert_eq!((&updated["state"], &updated["timeout"]), (&json!("stopped"), &json!(900)));
    host.post(&format!("{path}/resume"), json!({})).await.expect(200);
    assert_eq!(host.agent.records().timeouts.last(), Some(&Some(900)));
}
