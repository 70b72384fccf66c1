//! The synchronisation with the agent, round by round.

use jiff::SignedDuration;
use sandpiper_api::orchestration::sync::Synchronizer;
use sandpiper_protocol::id;
use serde_json::json;

use crate::support::{Host, eventually, request, with_header};
use tower::ServiceExt;

#[tokio::test]
async fn a_sandbox_whose_time_is_over_disappears() {
    let host = Host::new().await;
    host.sandbox().await;
    host.agent.records().sandboxes.clear();

    host.sync().await;

    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"], json!([]));
    assert_eq!(host.get("/v1/sandbox_limits").await.expect(200)["quota"]["usage"]["sandboxes"], 0);
}

#[tokio::test]
async fn a_sandbox_that_the_agent_cannot_read_is_left_alone_until_it_can() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let unreadable = host.agent.records().sandboxes.remove(&id).unwrap();
    host.agent.records().unreadable.push(id.clone());

    host.sync().await;
    host.pass(SignedDuration::from_hours(48));
    host.sync().await;

    assert_eq!(host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["state"], "ready");

    host.agent.records().unreadable.clear();
    host.agent.records().sandboxes.insert(id.clone(), unreadable);
    host.sync().await;
    host.sync().await;

    assert_eq!(host.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["state"], "ready");
    assert!(host.agent.records().deletes.is_empty());
}

#[tokio::test]
async fn a_failure_is_kept_for_a_while_after_the_agent_forgot_it() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    host.agent.fail(&id);
    host.sync().await;
    host.agent.records().sandboxes.clear();
    host.sync().await;
    let list = host.get("/v1/sandboxes").await.expect(200);
    assert_eq!(list["sandboxes"][0]["state"], "failed");

    host.pass(SignedDuration::from_hours(2));
    host.sync().await;

    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"], json!([]));
}

#[tokio::test]
async fn a_failure_leaves_the_list_at_its_deadline() {
    let host = Host::new().await;
    let created = host.create(json!({"template": "base", "timeout": 60})).await.expect(201);
    host.agent.fail(created["id"].as_str().unwrap());
    host.sync().await;
    host.agent.records().sandboxes.clear();
    host.pass(SignedDuration::from_secs(50));
    host.sync().await;
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"][0]["state"], "failed");

    host.pass(SignedDuration::from_secs(20));
    host.sync().await;

    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"], json!([]));
}

#[tokio::test]
async fn what_ended_by_itself_is_stopped_says_why_and_costs_nothing_until_it_is_resumed() {
    let host = Host::new().await;
    let [killed, paused] = [json!({}), json!({"on_timeout": "pause"})].map(|lifecycle| json!({"lifecycle": lifecycle}));
    for (mut order, has_deadline) in [(killed, true), (paused, false)] {
        order["template"] = json!("base");
        let created = host.create(order).await.expect(201);
        let path = format!("/v1/sandboxes/{}", created["id"].as_str().unwrap());
        host.agent.lose(created["id"].as_str().unwrap());
        for _ in 0..2 {
            host.sync().await;
            let shown = host.get(&path).await.expect(200);
            assert_eq!(shown["state"], "stopped");
            assert_eq!(shown["error"], json!({"code": "guest_panicked", "message": "The kernel panicked"}));
            assert!(shown["stopped_at"].is_string());
            assert_eq!(shown["deadline"], if has_deadline { created["deadline"].clone() } else { json!(null) });
            assert_eq!((&host.usage().await["sandboxes"], &host.usage().await["stopped"]), (&json!(0), &json!(1)));
        }
        assert!(host.agent.records().deletes.is_empty());

        let resumed = host.post(&format!("{path}/resume"), json!({})).await.expect(200)["sandbox"].clone();

        assert_eq!((&resumed["state"], &resumed["error"]), (&json!("ready"), &json!(null)));
        host.call("DELETE", &path, &host.write, None).await.expect(204);
        host.agent.records().deletes.clear();
    }
}

#[tokio::test]
async fn a_sandbox_without_a_row_is_removed_but_not_at_first_sight() {
    let host = Host::new().await;
    let kept = host.sandbox().await;
    let orphan = id::generate("sbx");
    host.agent.insert(&orphan);
    let mut synchronizer = Synchronizer::new(host.app.clone());

    synchronizer.round().await.unwrap();
    assert_eq!(host.agent.records().sandboxes.len(), 2);

    synchronizer.round().await.unwrap();
    eventually("the orphan is gone", async || host.agent.records().sandboxes.len() == 1).await;
    assert!(host.agent.records().sandboxes.contains_key(&kept));
    assert_eq!(host.agent.records().deletes, [orphan]);
}

#[tokio::test]
async fn a_start_that_this_process_died_in_is_settled_by_what_the_agent_has() {
    let host = Host::new().await;
    host.sync().await;
    host.agent.hold();
    for n in 0..2 {
        let order = request("POST", "/v1/sandboxes", &host.write, Some(json!({"template": "base"})));
        let lost = tokio::spawn(host.router().oneshot(with_header(order, "x-request-id", &format!("r{n}"))));
        eventually("the order arrives", async || host.agent.records().orders.len() == n + 1).await;
        lost.abort();
    }
    let made = host.agent.records().orders[0].id.clone();
    let host = host.restart().await;
    host.agent.insert(&made);
    let list = host.get("/v1/sandboxes?query[state][]=creating").await.expect(200);
    assert_eq!(list["sandboxes"].as_array().unwrap().len(), 2);

    host.sync().await;

    let list = host.get("/v1/sandboxes").await.expect(200);
    assert_eq!(list["sandboxes"].as_array().unwrap().len(), 1);
    assert_eq!(list["sandboxes"][0]["id"], made.as_str());
    assert_eq!(list["sandboxes"][0]["state"], "ready");
}

#[tokio::test]
async fn an_agent_that_is_away_changes_nothing() {
    let mut host = Host::new().await;
    host.sandbox().await;
    host.agent.stop();

    assert!(Synchronizer::new(host.app.clone()).round().await.is_err());

    let list = host.get("/v1/sandboxes").await.expect(200);
    assert_eq!(list["sandboxes"][0]["state"], "ready");
}

#[tokio::test]
async fn sandboxes_are_followed_although_a_template_cannot_be_written_down() {
    let host = Host::new().await;
    host.sandbox().await;
    let mut broken = host.agent.records().templates[1].clone();
    (broken.id, broken.baseline.cpu) = ("ver0000000000000000000007".into(), 0);
    host.agent.records().templates.push(broken);
    host.agent.records().sandboxes.clear();

    let round = Synchronizer::new(host.app.clone()).round().await;

    assert!(round.is_err(), "and it is said");
    assert_eq!(host.get("/v1/sandboxes").await.expect(200)["sandboxes"], json!([]));
}
