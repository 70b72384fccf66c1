//! Files for builds: of any length, of one team, for a while.

use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt;
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::support::volumes::long_body;
use crate::support::{Answer, Host, eventually, with_header};

impl Host {
    pub(crate) async fn send_file(&self, key: &str, body: Body) -> Answer {
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

    for _ in 0..2 {
        host.pass(SignedDuration::from_hours(23));
        host.sync().await;
        let built = host.build_with(&id).await.expect(202);
        host.agent.fail_build(built["id"].as_str().unwrap(), "source_refused");
        host.sync().await;
    }
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
async fn a_team_sends_so_many_files_of_unknown_length_at_a_time() {
    let host = Host::new().await;
    let end = CancellationToken::new();
    // Its first piece comes when it ends.
    let slow = || futures_util::stream::once(end.clone().cancelled_owned()).map(|()| std::io::Result::Ok("x"));
    let sent = (0..5).map(|_| Box::pin(host.send_file(&host.write, Body::from_stream(slow()))));

    let (first, _, others) = futures_util::future::select_all(sent).await;

    first.refused(429, "rate_limited");
    end.cancel();
    for answer in futures_util::future::join_all(others).await {
        answer.expect(201);
    }
    host.send_file(&host.write, Body::from("x")).await.expect(201);
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

/// A file of so many bytes that is being sent until `end`.
async fn sending(host: &Host, length: u64, end: &CancellationToken) -> (JoinHandle<Answer>, String) {
    let content = futures_util::stream::once(end.clone().cancelled_owned());
    let content = content.map(move |()| std::io::Result::Ok(vec![0_u8; usize::try_from(length).unwrap()]));
    let request = Request::put("/v1/templates/uploads").header("authorization", format!("Bearer {}", host.write));
    let request = request.header("content-length", length).body(Body::from_stream(content)).unwrap();
    let router = host.router();
    let sent = tokio::spawn(async move { Answer::read(router.oneshot(request).await.unwrap()).await });
    let newest = async || host.sent_files().await["uploads"][0].clone();
    eventually("its row is there", async || newest().await["sha256"] == Value::Null && newest().await.is_object())
        .await;
    (sent, newest().await["id"].as_str().unwrap().to_owned())
}

impl Host {
    async fn sent_files(&self) -> Value {
        self.get("/v1/templates/uploads").await.expect(200)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn files_that_are_sent_at_once_do_not_pass_the_limit_together() {
    let host = Host::with(|config| config.plans.pro.build.upload_bytes = 3 << 20).await;
    let file = || {
        let request = Request::put("/v1/templates/uploads").header("authorization", format!("Bearer {}", host.write));
        request.header("content-length", 2 << 20).body(Body::from(vec![0; 2 << 20])).unwrap()
    };

    let answers = host.at_once((0..8).map(|_| file())).await;

    let created = answers.iter().filter(|answer| answer.status == 201).count();
    let refused = answers.iter().filter(|answer| answer.status == 413).count();
    assert_eq!((created, refused), (1, 7));
}

#[tokio::test]
async fn files_are_listed_newest_first_also_those_that_are_being_sent() {
    let host = Host::new().await;
    let mut ids = Vec::new();
    for content in [b"a", b"b"] {
        ids.push(host.upload(content).await);
    }
    let end = CancellationToken::new();
    let (sent, unfinished) = sending(&host, 7, &end).await;
    ids.push(unfinished);

    let first = host.get("/v1/templates/uploads?limit=2").await.expect(200);
    let token = first["next_token"].as_str().unwrap();
    let last = host.get(&format!("/v1/templates/uploads?limit=2&next_token={token}")).await.expect(200);

    let listed = [&first["uploads"][0], &first["uploads"][1], &last["uploads"][0]];
    assert_eq!(listed.map(|file| file["id"].as_str().unwrap()), [&*ids[2], &*ids[1], &*ids[0]]);
    assert_eq!((&listed[0]["bytes"], &listed[0]["sha256"]), (&json!(7), &Value::Null));
    assert_eq!((&listed[1]["bytes"], &listed[1]["sha256"]), (&json!(1), &json!("ab".repeat(32))));
    assert_eq!(last.get("next_token"), None);
    let foreign = host.call("GET", "/v1/templates/uploads", &host.foreign, None).await.expect(200);
    assert_eq!(foreign, json!({"uploads": []}));
    end.cancel();
    sent.await.unwrap().expect(201);
}

#[tokio::test]
async fn a_file_is_deleted_while_it_is_being_sent() {
    let host = Host::new().await;
    let end = CancellationToken::new();
    let (sent, id) = sending(&host, 7, &end).await;

    host.call("DELETE", &format!("/v1/templates/uploads/{id}"), &host.write, None).await.expect(204);
    end.cancel();

    sent.await.unwrap().refused(409, "conflict");
    assert!(host.agent.records().uploads.is_empty());
    assert_eq!(host.usage().await["retained_bytes"], 0);
}

#[tokio::test]
async fn what_a_process_that_died_was_receiving_counts_no_longer() {
    let host = Host::new().await;
    let end = CancellationToken::new();
    let (sent, id) = sending(&host, 7, &end).await;
    host.sync().await;
    assert_eq!(host.sent_files().await["uploads"][0]["id"], id, "it is being received");
    assert_eq!(host.usage().await["retained_bytes"], 7);

    // As another process sees it, and after that one has joined.
    let host = host.restart().await;
    host.app.store.processes.outlive_others().await.unwrap();
    host.sync().await;

    assert_eq!(host.sent_files().await, json!({"uploads": []}));
    assert_eq!(host.usage().await["retained_bytes"], 0);
    sent.abort();
}

#[tokio::test]
async fn a_file_is_kept_while_a_build_that_needs_it_is_under_way() {
    let host = Host::new().await;
    host.template("node").await;
    let (needed, context) = (host.upload(b"archive").await, host.upload(b"context").await);
    let built = host.build_with(&needed).await.expect(202)["id"].as_str().unwrap().to_owned();
    let dockerfile = json!({"source": {"dockerfile": {"context": context}}});
    let second = host.build("node", dockerfile).await.expect(202)["id"].as_str().unwrap().to_owned();
    host.upload(b"other").await;

    host.pass(SignedDuration::from_hours(25));
    host.sync().await;

    let kept = || host.agent.records().uploads.keys().cloned().collect::<Vec<_>>();
    let mut both = vec![needed, context.clone()];
    both.sort();
    assert_eq!(kept(), both);
    host.agent.finish_build(&built);
    host.sync().await;
    host.sync().await;
    assert_eq!(kept(), [context]);
    host.agent.fail_build(&second, "step_failed");
    host.sync().await;
    host.sync().await;
    assert!(kept().is_empty());
}
