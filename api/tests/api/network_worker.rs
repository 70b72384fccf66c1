//! Network policies while the agent is away, slow or unwilling, and across deaths of this process.

use std::time::Duration;

use jiff::SignedDuration;
use sandpiper_api::orchestration::network::PolicyWorker;
use sandpiper_protocol::agent::NetworkPolicy;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{Host, eventually, request};

async fn put(host: &Host, id: &str, body: Value) -> Value {
    host.call("PUT", &format!("/v1/sandboxes/{id}/network"), &host.write, Some(body)).await.expect(200)
}

async fn shown(host: &Host, id: &str) -> Value {
    host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["network"].take()
}

/// One round by a worker that has seen nothing fail.
async fn work(host: &Host) {
    PolicyWorker::new(host.app.clone()).round().await.unwrap();
}

fn closed() -> Value {
    json!({"allow_internet_access": false})
}

#[tokio::test]
async fn without_the_agent_a_policy_is_recorded_and_only_the_newest_is_sent_later() {
    let mut host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.stop();
    for entry in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        let answer = put(&host, &id, json!({"deny_out": [entry]})).await;
        assert_eq!((&answer["apply_status"], &answer["network"]["deny_out"]), (&json!("pending"), &json!([entry])));
    }
    let mut worker = PolicyWorker::new(host.app.clone());
    worker.round().await.unwrap();
    assert_eq!(shown(&host, &id).await["apply_status"], "pending");
    assert!(shown(&host, &id).await["apply_error"].is_string());
    host.agent.resume();

    worker.round().await.unwrap();

    let network = shown(&host, &id).await;
    assert_eq!((&network["apply_status"], network.get("apply_error")), (&json!("applied"), None));
    assert_eq!(host.agent.network(&id).policy.deny_out, ["192.0.2.3"]);
    assert_eq!(host.agent.records().policy_orders, [4]);
    // Nothing is left to do.
    worker.round().await.unwrap();
    assert_eq!(host.agent.records().policy_orders, [4]);
}

#[tokio::test]
async fn an_agent_that_takes_long_is_not_waited_for() {
    let host = Host::with(|config| config.timing.apply_wait = Duration::from_millis(20)).await;
    let id = host.sandbox().await;
    host.agent.hold();

    let answer = put(&host, &id, closed()).await;

    assert_eq!(answer["apply_status"], "pending");
    host.agent.admit(2);
    work(&host).await;
    assert_eq!(shown(&host, &id).await["apply_status"], "applied");
    assert!(!host.agent.network(&id).policy.allow_internet_access);
}

#[tokio::test]
async fn what_was_recorded_survives_a_kill_of_this_process() {
    let mut host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.stop();
    put(&host, &id, closed()).await;

    let mut host = host.restart().await;

    assert_eq!(shown(&host, &id).await["apply_status"], "pending");
    host.agent.resume();
    work(&host).await;
    assert_eq!(shown(&host, &id).await["apply_status"], "applied");
    assert!(!host.agent.network(&id).policy.allow_internet_access);
}

#[tokio::test]
async fn a_call_of_a_dead_process_that_arrives_late_does_not_bring_an_old_policy_back() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.hold();
    let path = format!("/v1/sandboxes/{id}/network");
    let late = tokio::spawn(host.router().oneshot(request("PUT", &path, &host.write, Some(closed()))));
    eventually("the first is on its way", async || host.agent.records().policy_orders == [2]).await;
    let host = host.restart().await;
    let newer = tokio::spawn(host.router().oneshot(request("PUT", &path, &host.write, Some(json!({})))));
    eventually("the second is on its way", async || host.agent.records().policy_orders == [2, 3]).await;

    host.agent.admit(2);

    for answer in [late, newer] {
        assert_eq!(answer.await.unwrap().unwrap().status().as_u16(), 200);
    }
    assert_eq!(host.agent.network(&id).policy, NetworkPolicy::default());
    assert_eq!(shown(&host, &id).await["apply_status"], "applied");
}

#[tokio::test]
async fn a_policy_that_the_agent_refuses_is_tried_again_after_growing_pauses() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.records().refuse_policies = Some((400, "invalid_request"));
    let answer = put(&host, &id, closed()).await;
    assert_eq!(answer["apply_status"], "pending");
    assert_eq!(answer["network"]["apply_error"], "stub says invalid_request");
    let mut worker = PolicyWorker::new(host.app.clone());
    let mut attempts = async |wait: SignedDuration| {
        host.pass(wait);
        worker.round().await.unwrap();
        host.agent.records().policy_orders.len()
    };

    assert_eq!(attempts(SignedDuration::ZERO).await, 2);
    assert_eq!(attempts(SignedDuration::ZERO).await, 2);
    assert_eq!(attempts(SignedDuration::from_millis(1100)).await, 3);
    assert_eq!(attempts(SignedDuration::from_millis(1100)).await, 3);
    assert_eq!(attempts(SignedDuration::from_millis(1100)).await, 4);
    // Another policy is another matter.
    put(&host, &id, json!({})).await;
    assert_eq!(attempts(SignedDuration::ZERO).await, 6);
    host.agent.records().refuse_policies = None;
    assert_eq!(attempts(SignedDuration::from_secs(61)).await, 7);
    assert_eq!(shown(&host, &id).await["apply_status"], "applied");
}

#[tokio::test]
async fn one_that_is_refused_does_not_hold_up_the_others() {
    let mut host = Host::new().await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(host.sandbox().await);
    }
    host.agent.stop();
    for id in &ids {
        put(&host, id, closed()).await;
    }
    host.agent.resume();
    // Gone at the agent, which this process does not know yet.
    host.agent.records().sandboxes.remove(&ids[7]);

    work(&host).await;

    let held = ids.iter().filter(|id| **id != ids[7]).map(|id| host.agent.network(id).policy.allow_internet_access);
    assert!(held.into_iter().all(|open| !open));
}

#[tokio::test]
async fn a_stopped_sandbox_is_resumed_with_the_policy_that_was_pending() {
    let mut host = Host::new().await;
    let id = host.sandbox().await;
    let path = format!("/v1/sandboxes/{id}");
    host.post(&format!("{path}/pause"), json!({})).await.expect(200);
    host.agent.stop();
    assert_eq!(put(&host, &id, closed()).await["apply_status"], "pending");
    host.agent.resume();
    // It must not run with another.
    host.agent.records().refuse_policies = Some((503, "capacity_unavailable"));
    host.post(&format!("{path}/resume"), json!({})).await.refused(503, "capacity_unavailable");
    host.post(&format!("{path}/fork"), json!({})).await.refused(503, "capacity_unavailable");
    assert_eq!(host.get(&path).await.expect(200)["state"], "stopped");
    host.agent.records().refuse_policies = None;

    let resumed = host.post(&format!("{path}/resume"), json!({})).await.expect(200);

    assert_eq!(resumed["sandbox"]["network"]["apply_status"], "applied");
    assert!(!host.agent.network(&id).policy.allow_internet_access);
}

#[tokio::test]
async fn forks_of_a_sandbox_with_a_pending_policy_have_it_too() {
    let mut host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.stop();
    put(&host, &id, closed()).await;
    host.agent.resume();

    let forked = host.post(&format!("/v1/sandboxes/{id}/fork"), json!({})).await.expect(201);

    let fork = &forked["sandboxes"][0];
    assert_eq!(fork["network"]["apply_status"], "applied");
    assert!(!host.agent.network(fork["id"].as_str().unwrap()).policy.allow_internet_access);
}

#[tokio::test]
async fn a_running_sandbox_can_be_connected_to_while_its_policy_is_pending() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.records().refuse_policies = Some((400, "invalid_request"));
    put(&host, &id, closed()).await;

    let connected = host.post(&format!("/v1/sandboxes/{id}/connect"), json!({})).await.expect(200);

    assert_eq!(connected["sandbox"]["network"]["apply_status"], "pending");
}

#[tokio::test]
async fn what_changed_while_a_sandbox_was_made_is_sent_when_it_is_ready() {
    let host = Host::with(|config| config.timing.create_wait = Duration::from_millis(20)).await;
    host.agent.hold();
    let created = host.create(json!({"template": "base"})).await.expect(201);
    let id = created["id"].as_str().unwrap();
    put(&host, id, closed()).await;
    work(&host).await;
    assert!(host.agent.records().policy_orders.is_empty());

    host.agent.admit(2);
    eventually("ready", async || host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["state"] == "ready").await;
    work(&host).await;

    assert!(!host.agent.network(id).policy.allow_internet_access);
    assert_eq!(shown(&host, id).await["apply_status"], "applied");
}

#[tokio::test]
async fn a_database_that_is_older_than_the_agent_raises_its_version() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    // As if this database had been put back from a copy since.
    host.agent.records().sandboxes.get_mut(&id).unwrap().network_version = 9;

    host.sync().await;

    assert_eq!(host.app.store.sandboxes.wanted_policy(&id).await.unwrap().unwrap().state.version, 10);
    work(&host).await;
    assert_eq!(host.agent.network(&id).version, 10);
    // The same without a round in between: the agent's answer tells.
    host.agent.records().sandboxes.get_mut(&id).unwrap().network_version = 99;
    assert_eq!(put(&host, &id, closed()).await["apply_status"], "applied");
    let held = host.agent.network(&id);
    assert_eq!((held.version, held.policy.allow_internet_access), (100, false));
}

#[tokio::test]
async fn a_policy_that_the_agent_has_lost_is_sent_again() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let before = host.agent.network(&id);
    put(&host, &id, closed()).await;
    {
        let mut records = host.agent.records();
        records.sandboxes.get_mut(&id).unwrap().network_version = before.version;
        records.policies.insert(id.clone(), before.policy);
    }

    host.sync().await;

    assert_eq!(shown(&host, &id).await["apply_status"], "pending");
    work(&host).await;
    assert!(!host.agent.network(&id).policy.allow_internet_access);
}

#[tokio::test]
async fn a_policy_that_is_written_down_but_not_in_force_is_not_called_applied() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.records().refuse_policies = Some((500, "internal"));
    put(&host, &id, closed()).await;
    // The agent records a policy before it enforces it.
    host.agent.records().sandboxes.get_mut(&id).unwrap().network_version = 2;

    host.sync().await;

    assert_eq!(shown(&host, &id).await["apply_status"], "pending");
    host.agent.records().refuse_policies = None;
    work(&host).await;
    assert_eq!(shown(&host, &id).await["apply_status"], "applied");
    assert_eq!(host.agent.records().policy_orders, [2, 2]);
}
