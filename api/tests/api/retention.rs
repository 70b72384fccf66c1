//! How long stopped sandboxes are kept.

use jiff::{SignedDuration, Timestamp};
use sandpiper_api::config::Config;
use serde_json::{Value, json};

use crate::support::Host;

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn keeps(days: u32) -> impl FnOnce(&mut Config) {
    move |config| config.plans.pro.stopped_days = days
}

impl Host {
    /// A sandbox that was stopped.
    async fn paused(&self) -> String {
        let id = self.sandbox().await;
        self.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);
        id
    }

    async fn shown(&self, id: &str) -> Value {
        self.get(&format!("/v1/sandboxes/{id}")).await.expect(200)
    }

    async fn is_there(&self, id: &str) -> bool {
        self.get(&format!("/v1/sandboxes/{id}")).await.status == 200
    }
}

fn time(sandbox: &Value, field: &str) -> Timestamp {
    sandbox[field].as_str().unwrap_or_else(|| panic!("{sandbox}")).parse().unwrap()
}

#[tokio::test]
async fn a_stopped_sandbox_is_deleted_when_it_was_announced_and_audited() {
    let host = Host::with(keeps(30)).await;
    let (id, running) = (host.paused().await, host.sandbox().await);
    host.sync().await;
    let shown = host.shown(&id).await;
    assert_eq!(time(&shown, "expires_at").duration_since(time(&shown, "stopped_at")), 30 * DAY);
    assert_eq!(host.shown(&running).await["expires_at"], Value::Null);
    let limits = host.get("/v1/sandbox_limits").await.expect(200);
    assert_eq!(limits["stopped_days"], 30);

    host.pass(29 * DAY);
    host.sync().await;
    assert!(host.is_there(&id).await);
    host.pass(2 * DAY);
    host.sync().await;

    assert!(!host.is_there(&id).await && host.is_there(&running).await);
    let entries = host.app.store.audit.newest(Some(&id), 1).await.unwrap();
    assert_eq!((entries[0].key_id.as_str(), entries[0].status), ("retention", 204));
}

#[tokio::test]
async fn without_days_in_the_plan_it_is_kept() {
    let host = Host::new().await;
    let id = host.paused().await;
    host.pass(1000 * DAY);
    host.sync().await;
    host.sync().await;
    assert_eq!(host.shown(&id).await["expires_at"], Value::Null);
}

#[tokio::test]
async fn a_plan_that_begins_to_count_gives_a_days_notice() {
    let host = Host::new().await;
    let id = host.paused().await;
    host.pass(60 * DAY);
    let mut host = host;
    host.config.plans.pro.stopped_days = 30;
    let host = host.restart().await;

    host.sync().await;
    host.sync().await;

    let left = time(&host.shown(&id).await, "expires_at").duration_since(host.app.clock.now());
    assert!(left > DAY - SignedDuration::from_mins(5) && left <= DAY, "{left:?}");
    host.pass(DAY);
    host.sync().await;
    assert!(!host.is_there(&id).await);
}

#[tokio::test]
async fn what_was_resumed_has_its_days_anew() {
    let host = Host::with(keeps(2)).await;
    let id = host.paused().await;
    host.sync().await;
    let first = time(&host.shown(&id).await, "expires_at");

    host.pass(2 * DAY);
    host.post(&format!("/v1/sandboxes/{id}/resume"), json!({})).await.expect(200);
    host.sync().await;
    assert_eq!(host.shown(&id).await["expires_at"], Value::Null);
    host.sync().await;
    host.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(200);
    host.sync().await;

    // By the agent's clock it was stopped just now, so that a day's notice is what is left.
    assert!(time(&host.shown(&id).await, "expires_at") > first);
    assert!(host.is_there(&id).await);
}
