//! Snapshots: taken, listed, started from, deleted, by id and by name.

use serde_json::{Value, json};

use super::id;
use crate::support::Host;

async fn take(host: &Host, sandbox: &str, body: Value) -> Value {
    host.sdk("POST", &format!("/sandboxes/{sandbox}/snapshots"), Some(body)).await.expect(201)
}

#[tokio::test]
async fn a_snapshot_is_found_and_started_from_by_its_id_and_its_names() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    let named = take(&host, &sandbox, json!({"name": "before"})).await;
    let nameless = take(&host, &sandbox, json!({})).await;
    let snapshot = named["snapshotID"].as_str().unwrap().to_owned();
    assert_eq!((&named["names"], &nameless["names"]), (&json!(["before"]), &json!([])));
    assert!(host.agent.records().checkpoints[&snapshot].memory, "with its memory, unless it is asked without");

    for template in [snapshot.as_str(), "before", "acme/before", "before:default", "acme/before:latest"] {
        let created = host.sdk_create(json!({"templateID": template})).await;
        assert_eq!(created["templateID"], snapshot, "{template}");
        let shown = host.get(&format!("/v1/sandboxes/{}", id(&created))).await.expect(200);
        assert_eq!(shown["snapshot_id"], snapshot);
    }
    for template in ["base:latest", "acme/base", "base:2"] {
        assert_eq!(host.sdk_create(json!({"templateID": template})).await["templateID"], "base", "{template}");
    }
    host.sdk("POST", "/v2/sandboxes", Some(json!({"templateID": "rival/before"}))).await.fails(404);
}

#[tokio::test]
async fn snapshots_are_listed_by_sandbox_and_name_page_by_page() {
    let host = Host::new().await;
    let (one, other) = (host.sdk_sandbox().await, host.sdk_sandbox().await);
    take(&host, &one, json!({"name": "a"})).await;
    take(&host, &one, json!({"name": "b", "memory": false})).await;
    take(&host, &other, json!({"name": "c"})).await;

    let listed = async |query: &str| -> (Vec<String>, Option<String>) {
        let answer = host.sdk("GET", &format!("/snapshots{query}"), None).await;
        let next = answer.header("x-next-token").map(str::to_owned);
        let name = |one: &Value| one["names"][0].as_str().unwrap().to_owned();
        (answer.expect(200).as_array().unwrap().iter().map(name).collect(), next)
    };
    assert_eq!(listed("").await.0, ["c", "b", "a"]);
    assert_eq!(listed(&format!("?sandboxID={one}")).await.0, ["b", "a"]);
    assert_eq!(listed("?name=a").await.0, ["a"]);
    assert_eq!(listed(&format!("?name=a&sandboxID={other}")).await.0, [""; 0]);
    let (page, next) = listed("?limit=2").await;
    assert_eq!(page, ["c", "b"]);
    assert_eq!(listed(&format!("?limit=2&nextToken={}", next.unwrap())).await, (vec!["a".to_owned()], None));
    host.sdk("GET", "/snapshots?nam=a", None).await.fails(400);
}

#[tokio::test]
async fn a_name_moves_to_the_newest_snapshot_once_that_is_taken() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    let snapshots = format!("/sandboxes/{sandbox}/snapshots");
    let older = take(&host, &sandbox, json!({"name": "n"})).await;
    let started_from =
        async |template: &str| host.sdk_create(json!({"templateID": template})).await["templateID"].clone();

    host.agent.records().refuse = Some((502, "guest_failed"));
    assert!(host.sdk("POST", &snapshots, Some(json!({"name": "n"}))).await.status.is_server_error());
    host.agent.records().refuse = None;
    assert_eq!(started_from("n").await, older["snapshotID"], "one that fails takes nothing");

    let newer = take(&host, &sandbox, json!({"name": "n"})).await;
    assert_eq!(newer["names"], json!(["n"]));
    assert_eq!(started_from("n:latest").await, newer["snapshotID"]);
    let id = older["snapshotID"].as_str().unwrap();
    assert_eq!(started_from(id).await, older["snapshotID"], "the other one is there, by its id");
    let shown = host.get(&format!("/v1/checkpoints/{id}")).await.expect(200);
    assert_eq!(shown["name"], id);
    // `/v1` takes nobody's name.
    let body = Some(json!({"name": "n"}));
    let path = format!("/v1/sandboxes/{sandbox}/checkpoints");
    host.call("POST", &path, &host.write, body).await.refused(409, "conflict");
}

#[tokio::test]
async fn a_snapshot_is_deleted_once_by_any_of_its_names() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    take(&host, &sandbox, json!({"name": "n"})).await;

    host.sdk("DELETE", "/templates/acme%2Fn%3Adefault", None).await.expect(204);

    host.sdk("DELETE", "/templates/n", None).await.fails(404);
    take(&host, &sandbox, json!({"name": "n"})).await;
    assert!(host.agent.records().checkpoints.len() == 1);
}
