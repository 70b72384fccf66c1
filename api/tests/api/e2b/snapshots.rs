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
async fn a_snapshot_is_deleted_once_by_any_of_its_names() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    take(&host, &sandbox, json!({"name": "n"})).await;
    host.sdk("POST", &format!("/sandboxes/{sandbox}/snapshots"), Some(json!({"name": "n"}))).await.fails(409);

    host.sdk("DELETE", "/templates/acme%2Fn%3Adefault", None).await.expect(204);

    host.sdk("DELETE", "/templates/n", None).await.fails(404);
    take(&host, &sandbox, json!({"name": "n"})).await;
    assert!(host.agent.records().checkpoints.len() == 1);
}
