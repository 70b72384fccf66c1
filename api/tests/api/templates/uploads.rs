//! Files for builds: of any length, of one team, for a while.

use axum::body::Body;
use axum::http::Request;
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::support::volumes::long_body;
use crate::support::{Answer, Host, with_header};

impl Host {
    pub(super) async fn send_file(&self, key: &str, body: Body) -> Answer {
        let request = Request::put("/v1/templates/uploads").header("authorization", format!("Bearer {key}"));
        self.send(request.body(body).unwrap()).await
    }

    /// The id of a new file of team `acme`.
    pub(crate) async fn upload(&self, content: &'static [u8]) -> String {
        let sent = self.send_file(&self.write, Body::from(content)).await.expect(201);
        sent["id"].as_str().unwrap().to_owned()
    }

    async fn build_with(&self, upload: &str) -> Answer {
        self.build("node", json!({"source": {"archive": upload}})).await
    }
}

#[tokio::test]
async fn a_file_passes_through_and_is_kept_for_a_day_after_its_last_use() {
    let host = Host::new().await;
    host.template("node").await;
    let sent = host.send_file(&host.write, long_body(20)).await.expect(201);
    let id = sent["id"].as_str().unwrap().to_owned();
    assert_eq!((&sent["bytes"], &sent["sha256"]), (&json!(20 << 20), &json!("ab".repeat(32))));
    assert_eq!(host.agent.records().uploads[&id], 20 << 20);
    assert_eq!(host.usage().await["retained_bytes"], 20 << 20);

    host.pass(SignedDuration::from_hours(23));
    host.build_with(&id).await.expect(202);
    host.pass(SignedDuration::from_hours(23));
    host.sync().await;
    host.build_with(&id).await.expect(202);
    host.pass(SignedDuration::from_hours(25));
    host.sync().await;

    assert!(host.agent.records().uploads.is_empty());
    host.build_with(&id).await.refused(404, "not_found");
    assert_eq!(host.usage().await["retained_bytes"], 0);
}

#[tokio::test]
async fn a_file_is_deleted() {
    let host = Host::new().await;
    let id = host.upload(b"tar").await;
    let path = format!("/v1/templates/uploads/{id}");
    host.call("DELETE", &path, &host.write, None).await.expect(204);
    assert!(host.agent.records().uploads.is_empty());
    host.call("DELETE", &path, &host.write, None).await.refused(404, "not_found");
}

#[tokio::test]
async fn files_of_a_day_have_a_limit_together() {
    let host = Host::with(|config| config.plans.pro.build.upload_bytes = 3 << 20).await;
    host.send_file(&host.write, long_body(2)).await.expect(201);
    let announced = Body::from(vec![0; (1 << 20) + 1]);
    host.send_file(&host.write, announced).await.refused(413, "too_large");
    // Of which nobody knows how long it is.
    host.send_file(&host.write, long_body(50)).await.refused(413, "too_large");
    assert_eq!(host.agent.records().uploads.len(), 1, "nothing of it is left");
    host.send_file(&host.write, long_body(1)).await.expect(201);
    host.send_file(&host.write, Body::from("x")).await.refused(413, "too_large");
    // Each team has its own.
    host.send_file(&host.foreign, Body::from("x")).await.expect(201);
}

#[tokio::test]
async fn a_file_is_not_for_keys_that_read_and_takes_no_idempotency_key() {
    let host = Host::new().await;
    host.send_file(&host.read, Body::from("x")).await.refused(403, "insufficient_scope");
    let request = Request::put("/v1/templates/uploads").header("authorization", format!("Bearer {}", host.write));
    let keyed = with_header(request.body(Body::from("x")).unwrap(), "idempotency-key", "k");
    host.send(keyed).await.blames("Idempotency-Key");
}

#[tokio::test]
async fn a_file_that_breaks_off_leaves_nothing() {
    let host = Host::new().await;
    let broken = futures_util::stream::iter([Ok("some"), Err(std::io::Error::other("gone"))]);
    let answer = host.send_file(&host.write, Body::from_stream(broken)).await;
    assert!(answer.status.is_server_error() || answer.status.is_client_error(), "{answer:?}");
    assert!(host.agent.records().uploads.is_empty());
    assert_eq!(host.usage().await["retained_bytes"], Value::from(0));
}
