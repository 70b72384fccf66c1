//! What a team's own Prometheus scrapes, and the latest of several sandboxes.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use sandpiper_protocol::agent::MetricPoint;
use serde_json::json;

use crate::support::Host;

/// The samples of a text, by name and labels.
async fn scrape(host: &Host, key: &str) -> BTreeMap<String, u64> {
    let answer = host.call("GET", "/v1/metrics", key, None).await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("content-type").unwrap().split(';').next()),
        (200, Some("application/openmetrics-text"))
    );
    let samples = answer.text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse().unwrap())).unwrap())
        .collect()
}

#[tokio::test]
async fn a_team_scrapes_its_own_sums_and_nothing_of_another() {
    let host = Host::new().await;
    let (first, second) = (host.sandbox().await, host.sandbox().await);
    host.call("POST", &format!("/v1/sandboxes/{first}/pause"), &host.write, Some(json!({}))).await.expect(200);
    host.call("DELETE", &format!("/v1/sandboxes/{second}"), &host.write, None).await.expect(204);
    host.sandbox().await;

    let seen = scrape(&host, &host.read).await;

    for (name, value) in [
        ("sandboxes{state=\"ready\"}", 1),
        ("sandboxes{state=\"stopped\"}", 1),
        ("sandboxes{state=\"failed\"}", 0),
        ("live_sandboxes", 1),
        ("cpus", 1),
        ("memory_bytes", 256 << 20),
        ("events_total{type=\"sandbox.created\"}", 3),
        ("events_total{type=\"sandbox.paused\"}", 1),
        ("events_total{type=\"sandbox.deleted\"}", 1),
        ("events_total{type=\"sandbox.failed\"}", 0),
    ] {
        assert_eq!(seen.get(&format!("sandpiper_team_{name}")), Some(&value), "{name} of {seen:#?}");
    }
    assert!(!seen.keys().any(|name| name.contains(&first)));
    let of_stranger = scrape(&host, &host.foreign).await;
    assert_eq!(of_stranger["sandpiper_team_live_sandboxes"], 0);
    assert_eq!(
        of_stranger.keys().collect::<Vec<_>>(),
        seen.keys().collect::<Vec<_>>(),
        "no label depends on what there is"
    );
    assert!(of_stranger.iter().all(|(name, value)| !name.contains("events") || *value == 0), "{of_stranger:#?}");
}

#[tokio::test]
async fn totals_of_events_outlive_the_events() {
    let host = Host::new().await;
    host.sandbox().await;
    let before = scrape(&host, &host.read).await;
    let tomorrow = Timestamp::now() + SignedDuration::from_hours(24);
    let team = host.app.store.teams.by_slug("acme").await.unwrap().unwrap();
    assert!(host.app.store.events.remove_old(&team.id, tomorrow, 0).await.unwrap() > 0);

    assert_eq!(scrape(&host, &host.read).await, before);
}

#[tokio::test]
async fn the_latest_of_several_sandboxes_comes_at_once_and_of_no_strangers() {
    let host = Host::new().await;
    let (one, silent, stopped) = (host.sandbox().await, host.sandbox().await, host.sandbox().await);
    let point = |seconds_ago, cpu_millis| MetricPoint {
        time: Timestamp::now() - SignedDuration::from_secs(seconds_ago),
        cpu_millis,
        memory_bytes: 7,
        disk_bytes: 8,
        received_bytes_per_second: 9,
        sent_bytes_per_second: 10,
    };
    {
        let mut records = host.agent.records();
        records.metrics.insert(one.clone(), vec![point(20, 100), point(10, 250)]);
        records.metrics.insert(silent.clone(), vec![point(3600, 100)]);
        records.metrics.insert(stopped.clone(), vec![point(10, 100)]);
    }
    host.call("POST", &format!("/v1/sandboxes/{stopped}/pause"), &host.write, Some(json!({}))).await.expect(200);
    let path = format!("/v1/sandboxes/metrics?ids={one},{silent},{stopped},sbx0000000000000000000000");

    let latest = host.get(&path).await.expect(200);

    let sandboxes = latest["sandboxes"].as_object().unwrap();
    assert_eq!(sandboxes.keys().collect::<Vec<_>>(), [&one]);
    assert_eq!((&sandboxes[&one]["point"]["cpu_used_pct"], &sandboxes[&one]["cpu"]), (&json!(25.0), &json!(1)));
    assert_eq!(host.call("GET", &path, &host.foreign, None).await.expect(200)["sandboxes"], json!({}));
    host.get("/v1/sandboxes/metrics").await.blames("ids");
    let many: Vec<_> = (0..101).map(|number| format!("sbx{number}")).collect();
    host.get(&format!("/v1/sandboxes/metrics?ids={}", many.join(","))).await.blames("ids");
}
