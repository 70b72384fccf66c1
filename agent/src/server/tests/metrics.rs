//! What sandboxes used lately, through pauses and restarts of the agent.

use sandpiper_protocol::agent::Metrics;

use super::snapshots::Sandbox;
use super::*;
use crate::samples;

impl Sandbox<'_> {
    /// What is known of a window.
    async fn metrics(&self, window: &str) -> Metrics {
        let (status, answer) = self.agent.ask("GET", &format!("/sandboxes/{}/metrics{window}", self.id), "").await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }
}

impl Agent {
    /// Measures as the agent does by itself, now and then.
    fn measure(&self) {
        for _ in 0..2 {
            assert!(samples::sample_all(self.sandboxes.context(), &self.sandboxes.list()).is_none());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sandbox_used_is_known_after_a_pause_and_to_the_next_agent() {
    let agent = Agent::with_machines().await;
    let (sandbox, _) = agent.create(create(&agent.import().await.id)).await;
    assert_eq!(sandbox.metrics("?end=1").await, Metrics { step_seconds: 5, points: Vec::new() });

    agent.measure();

    let metrics = sandbox.metrics("").await;
    let point = metrics.points.first().expect("a point");
    assert!(point.memory_bytes > 64 << 10, "{point:?}");
    let at = point.time.as_second();
    assert_eq!(sandbox.metrics(&format!("?start={at}&end={at}")).await.points.len(), 1);
    assert_eq!(sandbox.metrics("?end=1000000").await.points, []);
    assert_eq!(sandbox.metrics(&format!("?start={}", at + 1_000_000)).await.points, []);

    sandbox.ask("pause", json!({})).await;
    let id = sandbox.id.clone();
    let agent = agent.follow().await;
    let sandbox = agent.sandbox(id.as_str());
    assert_eq!(sandbox.metrics("").await.points.first(), Some(point));
    let before = sandbox.metrics("").await;
    agent.measure();
    assert_eq!(sandbox.metrics("").await, before, "one that is stopped uses nothing");

    sandbox.delete().await;
    assert_eq!(agent.ask("GET", &format!("/sandboxes/{id}/metrics"), "").await.0, 404);
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_is_none_is_refused() {
    let agent = Agent::start("exit 1").await;
    let id = id::generate("sbx");
    assert_eq!(agent.ask("GET", &format!("/sandboxes/{id}/metrics?start=then"), "").await.0, 400);
    assert_eq!(agent.error("GET", &format!("/sandboxes/{id}/metrics?start=5"), "").await.0, 404);
}
