//! `GET /v2/sandboxes` and the older `GET /sandboxes`.

use serde_json::{Value, json};

use super::id;
use crate::support::Host;

async fn make(host: &Host, count: usize, metadata: Value) -> Vec<String> {
    let mut made = Vec::new();
    for _ in 0..count {
        made.push(id(&host.sdk_create(json!({"templateID": "base", "metadata": metadata})).await));
    }
    made
}

fn ids(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(id).collect()
}

/// All pages: their sizes, and the ids on them.
async fn pages(host: &Host, query: &str) -> (Vec<usize>, Vec<String>) {
    let (mut sizes, mut seen, mut path) = (Vec::new(), Vec::new(), format!("/v2/sandboxes?{query}"));
    loop {
        let answer = host.sdk("GET", &path, None).await;
        let token = answer.header("x-next-token").map(str::to_owned);
        let page = ids(&answer.expect(200));
        sizes.push(page.len());
        seen.extend(page);
        let Some(token) = token else { return (sizes, seen) };
        path = format!("/v2/sandboxes?{query}&nextToken={token}");
    }
}

#[tokio::test]
async fn pages_have_running_and_paused_sandboxes_once_in_the_order_of_their_start() {
    let host = Host::new().await;
    let made = make(&host, 5, json!({})).await;
    host.sdk("POST", &format!("/sandboxes/{}/pause", made[1]), Some(json!({}))).await.expect(204);

    assert_eq!(pages(&host, "limit=2&order=asc").await, (vec![2, 2, 1], made.clone()));
    let newest_first: Vec<String> = made.iter().rev().cloned().collect();
    assert_eq!(pages(&host, "limit=3").await, (vec![3, 2], newest_first));
    assert_eq!(pages(&host, "state=paused").await, (vec![1], vec![made[1].clone()]));
    assert_eq!(pages(&host, "state=running,paused&limit=5").await.0, [5]);
    let answer = host.sdk("GET", "/v2/sandboxes?state=paused", None).await;
    assert_eq!(answer.header("x-total-running"), Some("4"));
    let old = host.sdk("GET", "/sandboxes", None).await.expect(200);
    assert_eq!(ids(&old).len(), 4, "the older path lists what runs");
}

#[tokio::test]
async fn an_entry_has_every_field_that_the_sdks_demand() {
    let host = Host::new().await;
    make(&host, 1, json!({"a": "b"})).await;
    let list = host.sdk("GET", "/v2/sandboxes", None).await.expect(200);
    let fields = [
        "templateID",
        "sandboxID",
        "clientID",
        "startedAt",
        "endAt",
        "cpuCount",
        "memoryMB",
        "diskSizeMB",
        "state",
        "envdVersion",
    ];
    for field in fields {
        assert!(list[0].get(field).is_some_and(|value| !value.is_null()), "{field}: {list}");
    }
    assert_eq!((&list[0]["state"], &list[0]["metadata"]), (&json!("running"), &json!({"a": "b"})));
    assert_eq!(list[0].get("envdAccessToken"), None);
}

#[tokio::test]
async fn metadata_filters_come_encoded_twice_and_hold_together() {
    let host = Host::new().await;
    let wanted = make(&host, 1, json!({"a b": "c&d", "app": "x"})).await;
    make(&host, 1, json!({"a b": "other", "app": "x"})).await;

    let (_, both) = pages(&host, "metadata=a%252520b%3Dc%252526d%26app%3Dx").await;
    assert_eq!(both, wanted);
    assert_eq!(pages(&host, "metadata=app%3Dx").await.1.len(), 2);
    assert_eq!(pages(&host, "metadata=app%3Dy").await.1.len(), 0);
    let old = host.sdk("GET", "/sandboxes?metadata=a%252520b%3Dc%252526d", None).await.expect(200);
    assert_eq!(ids(&old), wanted);
}

#[tokio::test]
async fn lists_can_be_cut_by_template_and_start() {
    let host = Host::new().await;
    let made = make(&host, 2, json!({})).await;
    assert_eq!(pages(&host, "template=base").await.1.len(), 2);
    assert_eq!(pages(&host, "template=other").await.1.len(), 0);
    let list = host.sdk("GET", "/v2/sandboxes?order=asc", None).await.expect(200);
    assert_eq!(id(&list[0]), made[0]);
    assert_eq!(pages(&host, "startedAfter=2020-01-01T00:00:00Z").await.1.len(), 2);
    assert_eq!(pages(&host, "startedAfter=2100-01-01T00:00:00Z").await.1.len(), 0);
}

#[tokio::test]
async fn what_is_no_parameter_or_no_token_of_the_list_is_refused() {
    let host = Host::new().await;
    make(&host, 2, json!({})).await;
    let answer = host.sdk("GET", "/v2/sandboxes?limit=1", None).await;
    let token = answer.header("x-next-token").unwrap().to_owned();
    for query in ["limit=0", "state=ready", "order=up", "startedAfter=now", "nextToken=x", "metdata=a%3Db"] {
        host.sdk("GET", &format!("/v2/sandboxes?{query}"), None).await.fails(400);
    }
    host.sdk("GET", &format!("/v2/sandboxes?state=paused&nextToken={token}"), None).await.fails(400);
}
