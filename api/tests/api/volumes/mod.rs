//! Volumes: their records. Which sandbox has one is in `attachment`, what is in those that none has in `content`.

mod attachment;
mod content;

use sandpiper_api::plan::Quota;
use sandpiper_protocol::volume::Volume;
use serde_json::{Value, json};

use crate::support::volumes::{StubVolume, VOLUME_RETAINED};
use crate::support::{Answer, Host, eventually, request, with_header};

impl Host {
    /// The id of a new volume of team `acme`.
    pub(crate) async fn volume(&self, name: &str) -> String {
        let made = self.post("/v1/volumes", json!({"name": name})).await.expect(201);
        made["id"].as_str().unwrap().to_owned()
    }

    pub(super) async fn create_with(&self, volume: &str) -> Answer {
        self.create(json!({"template": "base", "volume_mounts": {"/data": volume}})).await
    }

    /// The id of a new sandbox that has this volume.
    pub(super) async fn sandbox_with(&self, volume: &str) -> String {
        self.create_with(volume).await.expect(201)["id"].as_str().unwrap().to_owned()
    }

    pub(super) async fn attached_to(&self, volume: &str) -> Value {
        self.get(&format!("/v1/volumes/{volume}")).await.expect(200)["attached_to"].take()
    }

    pub(super) async fn act(&self, method: &str, path: &str) -> Answer {
        self.call(method, path, &self.write, None).await
    }
}

#[tokio::test]
async fn a_volume_is_made_listed_shown_and_deleted() {
    let host = Host::new().await;
    let made = host.post("/v1/volumes", json!({"name": "models", "team": "acme"})).await.expect(201);
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!((&made["name"], &made["team"], &made["size_gib"]), (&json!("models"), &json!("acme"), &json!(10)));
    assert_eq!((&made["state"], &made["retained_bytes"]), (&json!("ready"), &json!(VOLUME_RETAINED)));
    assert_eq!(made.get("attached_to"), None);
    assert_eq!(host.get(&format!("/v1/volumes/{id}")).await.expect(200), made);
    let second = host.volume("second").await;

    let first_page = host.get("/v1/volumes?limit=1").await.expect(200);
    assert_eq!(first_page["volumes"][0]["id"], second.as_str());
    let token = first_page["next_token"].as_str().unwrap();
    let last_page = host.get(&format!("/v1/volumes?limit=1&next_token={token}")).await.expect(200);
    assert_eq!(last_page, json!({"volumes": [made]}));

    host.act("DELETE", &format!("/v1/volumes/{id}")).await.expect(204);
    host.get(&format!("/v1/volumes/{id}")).await.refused(404, "not_found");
    assert!(!host.agent.records().volumes.contains_key(&id));
    host.volume("models").await;
}

#[tokio::test]
async fn a_name_is_one_volumes_and_plain() {
    let host = Host::new().await;
    host.volume("models").await;
    host.post("/v1/volumes", json!({"name": "models"})).await.refused(409, "conflict");
    host.call("POST", "/v1/volumes", &host.foreign, Some(json!({"name": "models"}))).await.expect(201);
    for name in ["", ".x", "a/b", "a b"] {
        host.post("/v1/volumes", json!({"name": name})).await.blames("name");
    }
}

#[tokio::test]
async fn volumes_have_a_quota_of_their_own() {
    let quota = Quota { sandboxes: 9, cpu: 9, memory_mb: 9000, volumes: 2, volume_gib: 100, ..Quota::default() };
    let host = Host::with(|config| config.plans.pro.quota = quota).await;
    host.volume("one").await;
    let two = host.volume("two").await;

    let refused = host.post("/v1/volumes", json!({"name": "three"})).await.refused(422, "volume_quota_exceeded");

    assert_eq!(refused["quota"]["limits"]["volumes"], 2);
    assert_eq!(
        (&refused["quota"]["usage"]["volumes"], &refused["quota"]["usage"]["volume_gib"]),
        (&json!(2), &json!(20))
    );
    let reservation = json!({"sandboxes": 0, "cpu": 0, "memory_mb": 0, "volumes": 1, "volume_gib": 10,
        "templates": 0, "build_minutes": 0, "webhooks": 0,
               "stored_gib": 0, "stopped": 0, "checkpoints": 0});
    assert_eq!(refused["quota"]["reservation"], reservation);
    assert_eq!(host.usage().await["retained_bytes"], 2 * VOLUME_RETAINED);
    host.act("DELETE", &format!("/v1/volumes/{two}")).await.expect(204);
    host.volume("three").await;
}

#[tokio::test]
async fn a_repeated_request_makes_one_volume() {
    let host = Host::new().await;
    let create =
        || with_header(request("POST", "/v1/volumes", &host.write, Some(json!({"name": "m"}))), "idempotency-key", "k");
    let first = host.send(create()).await.expect(201);
    let again = host.send(create()).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.expect(201), first);
    assert_eq!(host.agent.records().volumes.len(), 1);
}

#[tokio::test]
async fn of_two_paths_under_one_key_the_second_is_another_request() {
    let host = Host::new().await;
    let volume = host.volume("m").await;
    let make = |path: &str| {
        let request = request("POST", &format!("/v1/volumes/{volume}/directories?path={path}"), &host.write, None);
        with_header(request, "idempotency-key", "k")
    };
    host.send(make("/a")).await.expect(201);
    host.send(make("/b")).await.refused(422, "idempotency_key_reused");
    assert_eq!(host.send(make("/a")).await.header("idempotency-replayed"), Some("true"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_process_that_dies_while_it_makes_a_volume_leaves_none_half_made() {
    let host = Host::new().await;
    host.agent.hold();
    let order = request("POST", "/v1/volumes", &host.write, Some(json!({"name": "m"})));
    let order = with_header(order, "idempotency-key", "k");
    let waiting = tokio::spawn(tower::ServiceExt::oneshot(host.router(), order));
    let list = async || host.get("/v1/volumes").await.expect(200);
    eventually("the row is there", async || list().await["volumes"][0]["state"] == "creating").await;

    waiting.abort();
    let host = host.restart().await;
    host.agent.admit(1000);
    host.app.store.processes.outlive_others().await.unwrap();
    let repeated = request("POST", "/v1/volumes", &host.write, Some(json!({"name": "m"})));
    let made = host.send(with_header(repeated, "idempotency-key", "k")).await.expect(201);

    assert_eq!(made["state"], "ready");
    assert_eq!(host.get("/v1/volumes").await.expect(200)["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(host.agent.records().volumes.len(), 1);
}

#[tokio::test]
async fn rows_follow_what_the_agent_has() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    let state = async || host.get(&format!("/v1/volumes/{volume}")).await.expect(200)["state"].take();
    let lost = host.agent.records().volumes.remove(&volume).unwrap();
    host.sync().await;
    assert_eq!(state().await, "failed");
    host.create_with("models").await.refused(422, "unknown_volume");
    host.agent.records().volumes.insert(volume.clone(), lost);
    host.sync().await;
    assert_eq!(state().await, "ready");

    // One that no row stands for is left alone: it may hold what nobody has elsewhere.
    let stranger = "vol0000000000000000000000";
    let like = host.agent.records().volumes[&volume].clone();
    let like = StubVolume { volume: Volume { id: stranger.into(), ..like.volume.clone() }, ..like };
    host.agent.records().volumes.insert(stranger.to_owned(), like);
    host.sync().await;
    host.sync().await;
    assert!(host.agent.records().volumes.contains_key(stranger));
}

#[tokio::test]
async fn a_removal_that_broke_off_is_finished() {
    let mut host = Host::new().await;
    let volume = host.volume("models").await;
    host.agent.stop();
    host.act("DELETE", &format!("/v1/volumes/{volume}")).await.refused(503, "host_unavailable");
    assert_eq!(host.get(&format!("/v1/volumes/{volume}")).await.expect(200)["state"], "deleting");
    host.agent.resume();
    let host = host.restart().await;
    host.app.store.processes.outlive_others().await.unwrap();
    host.sync().await;
    eventually("the agent removes it", async || host.agent.records().volumes.is_empty()).await;
    host.sync().await;
    host.get(&format!("/v1/volumes/{volume}")).await.refused(404, "not_found");
}
