//! What sandboxes used over time.

use jiff::Timestamp;
use serde_json::json;

use crate::support::Host;

#[tokio::test]
async fn a_window_has_what_was_measured_in_it_also_of_a_stopped_sandbox() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    let path = format!("/v1/sandboxes/{sandbox}/metrics");
    for second in [1_800_000_000, 1_800_000_005, 1_800_000_010] {
        host.agent.measure(&sandbox, second);
    }

    let all = host.get(&path).await.expect(200);
    assert_eq!((&all["step"], &all["cpu"], &all["memory_mb"]), (&json!(5), &json!(1), &json!(256)));
    let point = json!({
        "time": "2027-01-15T08:00:00Z", "cpu_used_pct": 50.0, "memory_bytes": 64 << 20, "disk_bytes": 3 << 20,
        "received_bytes_per_second": 70, "sent_bytes_per_second": 80,
    });
    assert_eq!((all["points"].as_array().unwrap().len(), &all["points"][0]), (3, &point));

    host.call("POST", &format!("/v1/sandboxes/{sandbox}/pause"), &host.write, None).await.expect(200);
    let window = "start=2027-01-15T08:00:03Z&end=2027-01-15T09:00:06%2B01:00";
    let shown = host.get(&format!("{path}?{window}")).await.expect(200);
    assert_eq!(shown["points"].as_array().unwrap().len(), 1);
    assert_eq!(shown["points"][0]["time"], "2027-01-15T08:00:05Z");
    assert_eq!(host.get(&format!("{path}?start={}", Timestamp::MAX)).await.expect(200)["points"], json!([]));
}

#[tokio::test]
async fn a_window_that_is_none_is_refused() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}/metrics", host.sandbox().await);
    host.get(&format!("{path}?start=1800000000")).await.blames("start");
    host.get(&format!("{path}?end=yesterday")).await.blames("end");
    host.get(&format!("{path}?start=2027-01-15T08:00:00Z&end=2027-01-15T07:00:00Z")).await.blames("start");
    host.get(&format!("{path}?since=1h")).await.blames("since");
}

#[tokio::test]
async fn an_agent_that_is_away_is_said_to_be() {
    let mut host = Host::new().await;
    let path = format!("/v1/sandboxes/{}/metrics", host.sandbox().await);
    host.agent.stop();
    assert!(host.get(&path).await.status.is_server_error());
}
