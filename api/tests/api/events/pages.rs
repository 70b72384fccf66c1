//! Events, page by page: whose, which, and how long.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use sandpiper_api::event_retention;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{sequences, types};
use crate::support::{Answer, Host, request};

#[tokio::test]
async fn a_team_sees_its_own_events_alone() {
    let host = Host::new().await;
    let own = host.sandbox().await;
    let foreign =
        host.call("POST", "/v1/sandboxes", &host.foreign, Some(json!({"template": "base"}))).await.expect(201);
    host.sandbox().await;
    host.sync().await;

    let theirs = host.events_of(&host.foreign, "").await;

    // Each counts for itself, so that nobody sees how much another does.
    assert_eq!(sequences(&theirs), [1, 2]);
    assert!(theirs.iter().all(|event| event["resource"]["id"] == foreign["id"]));
    assert_eq!(sequences(&host.events().await), [1, 2, 3, 4]);
    assert_eq!(host.events_of(&host.foreign, &format!("&resource={own}")).await, [Value::Null; 0]);
    host.get("/v1/events?team=rival").await.refused(404, "not_found");
}

#[tokio::test]
async fn a_page_says_where_the_next_begins() {
    let host = Host::new().await;
    let none = host.get("/v1/events").await.expect(200);
    assert_eq!(none, json!({"events": [], "next_after": 0, "has_more": false}));
    let id = host.sandbox().await;
    host.volume("models").await;

    let page = host.get("/v1/events?limit=2").await.expect(200);
    assert_eq!((sequences(page["events"].as_array().unwrap()), &page["next_after"]), (vec![1, 2], &json!(2)));
    assert_eq!(page["has_more"], true);
    let page = host.get("/v1/events?limit=2&after=2").await.expect(200);
    assert_eq!(
        (types(page["events"].as_array().unwrap()), &page["next_after"]),
        (vec!["volume.created".to_owned()], &json!(3))
    );
    assert_eq!(page["has_more"], false);
    // What a filter does not select is behind the reader all the same.
    let page = host.get(&format!("/v1/events?resource={id}&type=sandbox.ready&type=sandbox.created")).await.expect(200);
    assert_eq!((sequences(page["events"].as_array().unwrap()), &page["next_after"]), (vec![1, 2], &json!(3)));
    assert_eq!(host.get("/v1/events?after=3").await.expect(200)["events"], json!([]));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let host = Host::new().await;
    host.sandbox().await;
    host.get("/v1/events?after=x").await.blames("after");
    host.get("/v1/events?after=-1").await.blames("after");
    host.get("/v1/events?type=sandbox.gone").await.blames("type");
    host.get("/v1/events?limit=0").await.blames("limit");
    host.get("/v1/events?next_token=x").await.blames("next_token");
    // As after the database was put back from a copy: a reader who waits for 8 would miss what comes before it.
    host.get("/v1/events?after=7").await.blames("after");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_misses_none_while_many_write() {
    let host = Host::with(|config| (config.plans.pro.quota.sandboxes, config.plans.pro.quota.cpu) = (100, 100)).await;
    host.sync().await;
    // The writers are two processes.
    let routers = [host.router(), host.other_process().await];
    let writers: Vec<_> = routers
        .iter()
        .cycle()
        .take(24)
        .map(|router| {
            let create = request("POST", "/v1/sandboxes", &host.write, Some(json!({"template": "base"})));
            let router = router.clone();
            tokio::spawn(async move { Answer::read(router.oneshot(create).await.unwrap()).await.expect(201) })
        })
        .collect();

    let (mut seen, mut after) = (Vec::new(), 0);
    while seen.len() < 48 {
        let page = host.get(&format!("/v1/events?after={after}&limit=5")).await.expect(200);
        after = page["next_after"].as_u64().unwrap();
        seen.extend(page["events"].as_array().unwrap().iter().cloned());
    }

    let mut ids = BTreeSet::new();
    for writer in writers {
        ids.insert(writer.await.unwrap()["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(sequences(&seen), (1..=48).collect::<Vec<_>>());
    for id in ids {
        let of_one: Vec<_> = seen.iter().filter(|event| event["resource"]["id"] == *id).cloned().collect();
        assert_eq!(types(&of_one), ["sandbox.created", "sandbox.ready"]);
    }
}

#[tokio::test]
async fn old_events_are_removed_and_a_late_reader_is_told() {
    let host = Host::with(|config| config.events.keep_days = 2).await;
    host.sandbox().await;
    host.pass(SignedDuration::from_hours(36));
    host.volume("models").await;
    assert_eq!(event_retention::round(&host.app).await.unwrap(), 0);
    host.pass(SignedDuration::from_hours(24));

    assert_eq!(event_retention::round(&host.app).await.unwrap(), 2);
    assert_eq!(event_retention::round(&host.app).await.unwrap(), 0);

    assert_eq!(sequences(&host.events().await), [3]);
    let refused = host.get("/v1/events?after=1").await.refused(410, "events_expired");
    assert!(refused["message"].as_str().unwrap().contains("after=2"), "{refused}");
    assert_eq!(host.get("/v1/events?after=2").await.expect(200)["events"].as_array().unwrap().len(), 1);
    // Numbers go on, also when all are gone.
    host.pass(SignedDuration::from_hours(72));
    assert_eq!(event_retention::round(&host.app).await.unwrap(), 1);
    host.volume("more").await;
    assert_eq!(sequences(&host.events().await), [4]);
}

#[tokio::test]
async fn a_team_keeps_so_many_events() {
    let host = Host::with(|config| config.events.keep_most = 3).await;
    for name in ["a", "b", "c", "d", "e"] {
        host.volume(name).await;
    }
    assert_eq!(event_retention::round(&host.app).await.unwrap(), 2);
    assert_eq!(sequences(&host.events().await), [3, 4, 5]);
}
