//! How long stopped sandboxes are kept, and checkpoints, volumes and versions of templates that nobody uses.

use jiff::{SignedDuration, Timestamp};
use sandpiper_api::auth::last_use;
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

#[tokio::test]
async fn a_checkpoint_that_nobody_uses_is_deleted_when_it_was_announced() {
    let host = Host::with(|config| config.plans.pro.checkpoint_days = 7).await;
    let sandbox = host.sandbox().await;
    let taken = async || host.checkpoint(&sandbox, json!({})).await["id"].as_str().unwrap().to_owned();
    let (idle, used) = (taken().await, taken().await);
    let child = host.create(json!({"snapshot_id": used})).await.expect(201)["id"].as_str().unwrap().to_owned();
    let path = |id: &str| format!("/v1/checkpoints/{id}");
    host.sync().await;
    let shown = host.get(&path(&idle)).await.expect(200);
    assert_eq!(time(&shown, "expires_at").duration_since(time(&shown, "created_at")), 7 * DAY);
    assert_eq!(host.get(&path(&used)).await.expect(200)["expires_at"], Value::Null);
    assert_eq!(host.get("/v1/sandbox_limits").await.expect(200)["checkpoint_days"], 7);

    host.pass(6 * DAY);
    host.sync().await;
    host.get(&path(&idle)).await.expect(200);
    host.pass(2 * DAY);
    host.sync().await;

    host.get(&path(&idle)).await.refused(404, "not_found");
    let entry = &host.app.store.audit.newest(Some(&idle), 1).await.unwrap()[0];
    assert_eq!((entry.key_id.as_str(), entry.action.as_str()), ("retention", "DELETE /v1/checkpoints/{id}"));
    let events = host.get("/v1/events?limit=100").await.expect(200);
    let is_told = |event: &Value| event["type"] == "checkpoint.deleted" && event["resource"]["id"] == idle;
    assert!(events["events"].as_array().unwrap().iter().any(is_told), "{events}");

    // It has its days from the last time that somebody used it.
    host.call("DELETE", &format!("/v1/sandboxes/{child}"), &host.write, None).await.expect(204);
    host.sync().await;
    let left = time(&host.get(&path(&used)).await.expect(200), "expires_at").duration_since(host.app.clock.now());
    assert!(left > 6 * DAY && left <= 7 * DAY, "{left:?}");

    // A plan that keeps it for ever takes the announcement back.
    let mut host = host;
    host.config.plans.pro.checkpoint_days = 0;
    let host = host.restart().await;
    host.sync().await;
    assert_eq!(host.get(&path(&used)).await.expect(200)["expires_at"], Value::Null);
    host.pass(100 * DAY);
    host.sync().await;
    host.get(&path(&used)).await.expect(200);
}

#[tokio::test]
async fn a_volume_is_kept_while_a_sandbox_mounts_it_or_somebody_reads_its_files() {
    let host = Host::with(|config| config.plans.pro.volume_days = 7).await;
    let made = async |name: &str| {
        host.post("/v1/volumes", json!({"name": name})).await.expect(201)["id"].as_str().unwrap().to_owned()
    };
    let (idle, mounted, read) = (made("idle").await, made("mounted").await, made("read").await);
    let body = json!({"template": "base", "volume_mounts": {"/data": "mounted"}});
    let sandbox = host.create(body).await.expect(201)["id"].as_str().unwrap().to_owned();
    host.post(&format!("/v1/sandboxes/{sandbox}/pause"), json!({})).await.expect(200);
    let path = |id: &str| format!("/v1/volumes/{id}");
    host.sync().await;
    let first = time(&host.get(&path(&read)).await.expect(200), "expires_at");
    assert_eq!(host.get(&path(&mounted)).await.expect(200)["expires_at"], Value::Null);

    host.pass(6 * DAY);
    host.get(&format!("/v1/volumes/{read}/directories?path=/")).await.expect(200);
    last_use::write_down(&host.app).await.unwrap();
    host.sync().await;
    assert!(time(&host.get(&path(&read)).await.expect(200), "expires_at") > first);
    host.pass(2 * DAY);
    host.sync().await;

    host.get(&path(&idle)).await.refused(404, "not_found");
    for id in [&mounted, &read] {
        host.get(&path(id)).await.expect(200);
    }
    let entry = &host.app.store.audit.newest(Some(&idle), 1).await.unwrap()[0];
    assert_eq!((entry.key_id.as_str(), entry.action.as_str()), ("retention", "DELETE /v1/volumes/{id}"));
    host.post(&format!("/v1/sandboxes/{sandbox}/resume"), json!({})).await.expect(200);
}

#[tokio::test]
async fn of_a_template_the_newest_version_the_tagged_and_those_in_use_are_kept() {
    let host = Host::with(|config| config.plans.pro.template_version_days = 7).await;
    host.template("app").await;
    let mut ids = Vec::new();
    for body in [json!({}), json!({"tags": ["stable"]}), json!({}), json!({})] {
        let mut body = body;
        body["source"] = json!({"image": {"reference": "node"}});
        let id = host.build("app", body).await.expect(202)["id"].as_str().unwrap().to_owned();
        host.agent.finish_build(&id);
        host.sync().await;
        ids.push(id);
    }
    let [idle, tagged, used, newest] = ids.try_into().unwrap();
    host.create(json!({"template": "app:3"})).await.expect(201);
    let show = async |id: &str| host.get(&format!("/v1/templates/app/versions/{id}")).await;
    host.sync().await;
    assert!(show(&idle).await.expect(200)["expires_at"].is_string());
    for id in [&tagged, &used, &newest] {
        assert_eq!(show(id).await.expect(200)["expires_at"], Value::Null);
    }

    host.pass(8 * DAY);
    host.sync().await;

    show(&idle).await.refused(404, "not_found");
    for id in [&tagged, &used, &newest] {
        show(id).await.expect(200);
    }
    let entry = &host.app.store.audit.newest(Some(&idle), 1).await.unwrap()[0];
    assert_eq!(entry.key_id, "retention");
}
