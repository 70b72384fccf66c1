//! `GET /v1/sandboxes`: pages and filters.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Host, eventually};

fn ids(list: &Value) -> Vec<String> {
    list["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

async fn create_many(host: &Host, count: usize, metadata: Value) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let body = host.create(json!({"template": "base", "metadata": metadata})).await.expect(201);
        ids.push(body["id"].as_str().unwrap().to_owned());
    }
    ids
}

#[tokio::test]
async fn pages_show_every_sandbox_once_newest_first() {
    let host = Host::new().await;
    let mut made = create_many(&host, 7, json!({})).await;
    made.sort_unstable();
    made.reverse();

    let (mut seen, mut path) = (Vec::new(), "/v1/sandboxes?limit=3".to_owned());
    let mut sizes = Vec::new();
    loop {
        let page = host.get(&path).await.expect(200);
        sizes.push(ids(&page).len());
        seen.extend(ids(&page));
        let Some(token) = page["next_token"].as_str() else { break };
        path = format!("/v1/sandboxes?limit=3&next_token={token}");
    }

    assert_eq!(seen, made);
    assert_eq!(sizes, [3, 3, 1]);
}

#[tokio::test]
async fn a_full_last_page_has_no_token() {
    let host = Host::new().await;
    create_many(&host, 2, json!({})).await;
    let page = host.get("/v1/sandboxes?limit=2").await.expect(200);
    assert!(page.get("next_token").is_none(), "{page}");
}

#[tokio::test]
async fn what_changes_between_pages_neither_repeats_nor_hides() {
    let host = Host::new().await;
    let mut old = create_many(&host, 4, json!({})).await;
    old.sort_unstable();
    old.reverse();
    let first = host.get("/v1/sandboxes?limit=2").await.expect(200);

    create_many(&host, 1, json!({})).await;
    host.call("DELETE", &format!("/v1/sandboxes/{}", old[1]), &host.write, None).await.expect(204);
    let token = first["next_token"].as_str().unwrap();
    let second = host.get(&format!("/v1/sandboxes?limit=2&next_token={token}")).await.expect(200);

    assert_eq!(ids(&second), old[2..]);
}

#[tokio::test]
async fn tokens_belong_to_their_filters_and_their_team() {
    let host = Host::new().await;
    create_many(&host, 3, json!({"job": "1"})).await;
    let page = host.get("/v1/sandboxes?limit=1&query[metadata][job]=1").await.expect(200);
    let token = page["next_token"].as_str().unwrap();

    let same = format!("/v1/sandboxes?limit=2&query[metadata][job]=1&next_token={token}");
    host.get(&same).await.expect(200);

    host.get(&format!("/v1/sandboxes?next_token={token}")).await.blames("next_token");
    host.get(&format!("/v1/sandboxes?query[metadata][job]=2&next_token={token}")).await.blames("next_token");
    host.call("GET", &same, &host.foreign, None).await.blames("next_token");
    host.get("/v1/sandboxes?next_token=broken").await.blames("next_token");
}

#[tokio::test]
async fn metadata_filters_must_all_match() {
    let host = Host::new().await;
    let both = create_many(&host, 1, json!({"job": "1", "user": "ann b"})).await;
    create_many(&host, 1, json!({"job": "1", "user": "ben"})).await;
    create_many(&host, 1, json!({"user": "ann b"})).await;

    let found =
        host.get("/v1/sandboxes?query[metadata][job]=1&query%5Bmetadata%5D%5Buser%5D=ann%20b").await.expect(200);

    assert_eq!(ids(&found), both);
    let none = host.get("/v1/sandboxes?query[metadata][job]=%27%20OR%201=1").await.expect(200);
    assert_eq!(ids(&none), Vec::<String>::new());
}

#[tokio::test]
async fn state_filters_match_any_and_know_their_aliases() {
    let host = Host::with(|config| config.timing.create_wait = Duration::from_millis(20)).await;
    let ready = host.sandbox().await;
    let failed = host.sandbox().await;
    // These two may have been answered in `creating`.
    eventually("both are ready", async || {
        ids(&host.get("/v1/sandboxes?query[state][]=ready").await.expect(200)).len() == 2
    })
    .await;
    host.agent.fail(&failed);
    host.sync().await;
    host.agent.hold();
    let creating = host.sandbox().await;

    for (query, expected) in [
        ("query[state][]=ready", vec![&ready]),
        ("query[state][]=running", vec![&creating, &ready]),
        ("query[state][]=ready&query[state][]=failed", vec![&failed, &ready]),
        ("query[state][]=paused", vec![]),
        ("", vec![&creating, &failed, &ready]),
    ] {
        let mut found = ids(&host.get(&format!("/v1/sandboxes?{query}")).await.expect(200));
        let mut expected: Vec<String> = expected.into_iter().cloned().collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{query}");
    }
}

#[tokio::test]
async fn parameters_that_make_no_sense_are_refused() {
    let host = Host::new().await;
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=-3", "limit"),
        ("limit=many", "limit"),
        ("query[state][]=destroyed", "query[state][]"),
        ("query[state][]=runing", "query[state][]"),
        ("query[meta][job]=1", "query[meta][job]"),
        ("metadata=1", "metadata"),
    ] {
        host.get(&format!("/v1/sandboxes?{query}")).await.blames(field);
    }
    host.get("/v1/sandboxes?limit=1000").await.expect(200);
}
