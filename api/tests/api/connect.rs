//! `POST /v1/sandboxes/{id}/connect` and `…/resume`, and `…/session`.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::support::Host;

fn deadline(sandbox: &Value) -> Timestamp {
    sandbox["deadline"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn connect_gives_a_new_session_and_moves_the_deadline_out() {
    let host = Host::new().await;
    let created = host.create(json!({"template": "base"})).await.expect(201);
    let path = format!("/v1/sandboxes/{}", created["id"].as_str().unwrap());
    for (name, timeout) in [("connect", 1000), ("resume", 2000)] {
        let answer = host.post(&format!("{path}/{name}"), json!({"timeout": timeout})).await.expect(200);
        assert_eq!(answer["sandbox"]["id"], created["id"]);
        assert_ne!(answer["session"]["access_token"], created["session"]["access_token"]);
        let ahead = deadline(&answer["sandbox"]).duration_since(Timestamp::now());
        assert!(ahead > SignedDuration::from_secs(timeout - 60), "{ahead}");
    }
}

#[tokio::test]
async fn the_deadline_is_never_moved_closer() {
    let host = Host::new().await;
    let created = host.create(json!({"template": "base", "timeout": 5000})).await.expect(201);
    let path = format!("/v1/sandboxes/{}/connect", created["id"].as_str().unwrap());

    let answer = host.post(&path, json!({"timeout": 10})).await.expect(200);

    assert_eq!(deadline(&answer["sandbox"]), deadline(&created));
}

#[tokio::test]
async fn without_a_timeout_the_original_one_counts() {
    let host = Host::new().await;
    let created = host.create(json!({"template": "base", "timeout": 500})).await.expect(201);
    let path = format!("/v1/sandboxes/{}/connect", created["id"].as_str().unwrap());
    host.post(&path, json!({"timeout": 700})).await.expect(200);

    host.call("POST", &path, &host.write, None).await.expect(200);

    assert_eq!(host.agent.records().timeouts, [Some(700), Some(500)]);
}

#[tokio::test]
async fn a_sandbox_that_failed_or_vanished_cannot_be_connected_to() {
    let host = Host::new().await;
    let (failed, vanished) = (host.sandbox().await, host.sandbox().await);
    host.agent.fail(&failed);
    host.agent.records().sandboxes.remove(&vanished);

    host.post(&format!("/v1/sandboxes/{failed}/connect"), json!({})).await.refused(409, "invalid_state");
    host.post(&format!("/v1/sandboxes/{vanished}/connect"), json!({})).await.refused(404, "not_found");
    let live = host.sandbox().await;
    host.post(&format!("/v1/sandboxes/{live}/connect"), json!({"timeout": 0})).await.blames("timeout");
    host.post(&format!("/v1/sandboxes/{live}/connect"), json!({"time": 9})).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn a_new_session_leaves_the_deadline_where_it_is() {
    let host = Host::new().await;
    let created = host.create(json!({"template": "base"})).await.expect(201);
    let path = format!("/v1/sandboxes/{}", created["id"].as_str().unwrap());

    let answer = host.call("POST", &format!("{path}/session"), &host.write, None).await.expect(200);

    assert_ne!(answer["session"]["access_token"], created["session"]["access_token"]);
    assert_eq!(deadline(&host.get(&path).await.expect(200)), deadline(&created));
    assert!(host.agent.records().timeouts.is_empty());
}

#[tokio::test]
async fn a_sandbox_that_does_not_run_has_no_session() {
    let host = Host::new().await;
    let (stopped, failed) = (host.sandbox().await, host.sandbox().await);
    host.post(&format!("/v1/sandboxes/{stopped}/pause"), json!({})).await.expect(200);
    host.agent.fail(&failed);
    for sandbox in [&stopped, &failed] {
        let answer = host.call("POST", &format!("/v1/sandboxes/{sandbox}/session"), &host.write, None).await;
        answer.refused(409, "invalid_state");
    }
}
