//! `Idempotency-Key`: a repeated request is answered, not done again.

use jiff::SignedDuration;
use sandpiper_api::orchestration::sync::Synchronizer;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{Answer, Host, eventually, request, with_header};

async fn create(host: &Host, key: &str, body: Value) -> Answer {
    host.send(with_header(request("POST", "/v1/sandboxes", &host.write, Some(body)), "idempotency-key", key)).await
}

fn base() -> Value {
    json!({"template": "base"})
}

#[tokio::test]
async fn a_repetition_gets_the_first_answer_with_a_new_session() {
    let host = Host::new().await;
    let first = create(&host, "k1", base()).await;
    assert_eq!(first.header("idempotency-replayed"), None);
    let mut first = first.expect(201);

    let again = create(&host, "k1", base()).await;

    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let mut again = again.expect(201);
    assert_ne!(first["session"]["access_token"], again["session"]["access_token"]);
    first["session"].take();
    again["session"].take();
    assert_eq!(first, again);
    assert_eq!(host.agent.records().sandboxes.len(), 1);
}

#[tokio::test]
async fn no_session_is_stored() {
    let host = Host::new().await;
    let token = create(&host, "k1", base()).await.expect(201)["session"]["access_token"].as_str().unwrap().to_owned();

    assert!(!host.stores(&token).await);
    assert!(host.stores("data_plane_url").await);
}

#[tokio::test]
async fn another_request_with_the_key_is_refused() {
    let host = Host::new().await;
    create(&host, "k1", base()).await.expect(201);
    create(&host, "k1", json!({"template": "base", "timeout": 5})).await.refused(422, "idempotency_key_reused");
}

#[tokio::test]
async fn keys_belong_to_their_team() {
    let host = Host::new().await;
    let ours = create(&host, "k1", base()).await.expect(201);
    let theirs = request("POST", "/v1/sandboxes", &host.foreign, Some(base()));
    let theirs = host.send(with_header(theirs, "idempotency-key", "k1")).await.expect(201);
    assert_ne!(ours["id"], theirs["id"]);
}

#[tokio::test]
async fn a_request_at_work_is_not_begun_again() {
    let host = Host::new().await;
    host.sync().await;
    host.agent.hold();
    let order = request("POST", "/v1/sandboxes", &host.write, Some(base()));
    let first = tokio::spawn(host.router().oneshot(with_header(order, "idempotency-key", "k1")));
    eventually("the order arrives", async || host.agent.records().orders.len() == 1).await;

    let second = create(&host, "k1", base()).await;

    assert_eq!(second.header("retry-after"), Some("1"));
    second.refused(409, "idempotency_in_progress");
    host.agent.admit(1);
    let first = Answer::read(first.await.unwrap().unwrap()).await.expect(201);
    assert_eq!(create(&host, "k1", base()).await.expect(201)["id"], first["id"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_repetitions_make_one_sandbox() {
    let host = Host::new().await;
    host.sync().await;
    let create = |_| {
        let order = request("POST", "/v1/sandboxes", &host.write, Some(base()));
        with_header(order, "idempotency-key", "k1")
    };
    let answers = host.at_once((0..16).map(create)).await;

    let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert!(count(201) >= 1 && count(201) + count(409) == 16, "{answers:?}");
    assert_eq!(host.agent.records().sandboxes.len(), 1);
}

#[tokio::test]
async fn what_failed_may_be_tried_again_with_the_key() {
    let host = Host::new().await;
    host.agent.records().refuse = Some((503, "capacity_unavailable"));
    create(&host, "k1", base()).await.refused(503, "capacity_unavailable");
    host.agent.records().refuse = None;

    let answer = create(&host, "k1", base()).await;

    assert_eq!(answer.header("idempotency-replayed"), None);
    answer.expect(201);
}

#[tokio::test]
async fn a_repeated_delete_is_not_404() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    let delete = || with_header(request("DELETE", &path, &host.write, None), "idempotency-key", "k1");
    host.send(delete()).await.expect(204);

    let again = host.send(delete()).await;

    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    again.expect(204);
    host.call("DELETE", &path, &host.write, None).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_key_is_forgotten_after_a_day() {
    let host = Host::new().await;
    let first = create(&host, "k1", base()).await.expect(201);
    host.pass(SignedDuration::from_hours(25));
    let later = create(&host, "k1", base()).await;
    assert_eq!(later.header("idempotency-replayed"), None);
    assert_ne!(later.expect(201)["id"], first["id"]);
}

#[tokio::test]
async fn after_a_crash_the_sandbox_that_was_made_is_the_answer() {
    let host = Host::new().await;
    host.sync().await;
    host.agent.hold();
    let order = request("POST", "/v1/sandboxes", &host.write, Some(base()));
    let lost = tokio::spawn(host.router().oneshot(with_header(order, "idempotency-key", "k1")));
    eventually("the order arrives", async || host.agent.records().orders.len() == 1).await;
    lost.abort();
    let id = host.agent.records().orders[0].id.clone();
    // The process is killed now; the agent finishes.
    let host = host.restart().await;
    host.agent.insert(&id);

    let answer = create(&host, "k1", base()).await.expect(201);

    assert_eq!(answer["id"], id.as_str());
    assert_eq!(answer["state"], "ready");
    assert!(answer["session"]["access_token"].is_string());
    let again = create(&host, "k1", base()).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.expect(201)["id"], id.as_str());
}

#[tokio::test]
async fn after_a_crash_before_anything_was_made_the_request_is_done() {
    let host = Host::new().await;
    host.sync().await;
    host.agent.hold();
    let order = request("POST", "/v1/sandboxes", &host.write, Some(base()));
    let lost = tokio::spawn(host.router().oneshot(with_header(order, "idempotency-key", "k1")));
    eventually("the order arrives", async || host.agent.records().orders.len() == 1).await;
    lost.abort();
    let host = host.restart().await;
    let first = host.agent.records().orders[0].id.clone();
    // The agent never made it.
    Synchronizer::new(host.app.clone()).round().await.unwrap();
    host.agent.admit(2);

    let answer = create(&host, "k1", base()).await.expect(201);

    assert_ne!(answer["id"], first.as_str());
}

#[tokio::test]
async fn what_was_made_for_a_request_that_failed_is_the_answer() {
    let host = Host::new().await;
    host.sync().await;
    host.agent.hold();
    let order = request("POST", "/v1/sandboxes", &host.write, Some(base()));
    let failed = tokio::spawn(host.router().oneshot(with_header(order, "idempotency-key", "k1")));
    eventually("the order arrives", async || host.agent.records().orders.len() == 1).await;
    let rename = async |from: &str, to: &str| {
        let statement = format!("ALTER TABLE {from} RENAME TO {to}");
        host.alter(&statement, &statement).await;
    };
    // The database is away when the agent has made the sandbox, and still when the request is first repeated.
    rename("sandboxes", "elsewhere").await;
    host.agent.admit(1);
    Answer::read(failed.await.unwrap().unwrap()).await.refused(500, "internal");
    create(&host, "k1", base()).await.refused(500, "internal");
    rename("elsewhere", "sandboxes").await;

    let answer = create(&host, "k1", base()).await.expect(201);

    let orders = host.agent.records().orders.iter().map(|order| order.id.to_string()).collect::<Vec<_>>();
    assert_eq!(orders, [answer["id"].as_str().unwrap()]);
    assert_eq!(answer["state"], "ready");
}

#[tokio::test]
async fn a_response_that_could_not_be_stored_is_stored_when_the_database_is_back() {
    let host = Host::new().await;
    host.sync().await;
    host.agent.hold();
    let order = request("POST", "/v1/sandboxes", &host.write, Some(base()));
    let first = tokio::spawn(host.router().oneshot(with_header(order, "idempotency-key", "k1")));
    eventually("the order arrives", async || host.agent.records().orders.len() == 1).await;
    let rename = async |from: &str, to: &str| {
        let statement = format!("ALTER TABLE {from} RENAME TO {to}");
        host.alter(&statement, &statement).await;
    };
    rename("idempotency_keys", "elsewhere").await;
    host.agent.admit(1);
    let first = Answer::read(first.await.unwrap().unwrap()).await.expect(201);
    rename("elsewhere", "idempotency_keys").await;

    // Long before the lease of the first request is over.
    eventually("the response is stored", async || create(&host, "k1", base()).await.json()["id"] == first["id"]).await;

    assert_eq!(create(&host, "k1", base()).await.header("idempotency-replayed"), Some("true"));
    assert_eq!(host.agent.records().orders.len(), 1);
}

#[tokio::test]
async fn a_key_must_be_visible_ascii() {
    let host = Host::new().await;
    create(&host, "two words", base()).await.blames("Idempotency-Key");
    create(&host, &"k".repeat(256), base()).await.blames("Idempotency-Key");
    create(&host, &"k".repeat(255), base()).await.expect(201);
}

/// A POST of team `acme` with a key.
async fn post(host: &Host, key: &str, path: &str, body: Value) -> Answer {
    host.send(with_header(request("POST", path, &host.write, Some(body)), "idempotency-key", key)).await
}

#[tokio::test]
async fn repeated_forks_get_the_first_ones_with_new_sessions() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}/fork", host.sandbox().await);
    let mut first = post(&host, "k1", &path, json!({"count": 2})).await.expect(201);

    let again = post(&host, "k1", &path, json!({"count": 2})).await;

    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let mut again = again.expect(201);
    for n in 0..2 {
        let sessions = (first["sandboxes"][n]["session"].take(), again["sandboxes"][n]["session"].take());
        assert!(sessions.1["access_token"].is_string());
        assert_ne!(sessions.0["access_token"], sessions.1["access_token"]);
        assert_eq!(sessions.0["data_plane_url"], sessions.1["data_plane_url"]);
    }
    assert_eq!(first, again);
    assert_eq!(host.agent.records().sandboxes.len(), 3);
}

#[tokio::test]
async fn repeated_checkpoints_pauses_and_resumes_are_done_once() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    for (operation, status) in [("checkpoints", 201), ("pause", 200), ("resume", 200)] {
        let path = format!("{path}/{operation}");
        let first = post(&host, operation, &path, json!({})).await.expect(status);
        let again = post(&host, operation, &path, json!({})).await;
        assert_eq!(again.header("idempotency-replayed"), Some("true"), "{operation}");
        let again = again.expect(status);
        assert_eq!((&first["id"], &first["state"]), (&again["id"], &again["state"]), "{operation}");
    }
    assert_eq!(host.agent.records().checkpoints.len(), 1);
    assert_eq!(host.agent.records().timeouts.len(), 1);
    // Another operation is another request.
    post(&host, "pause", &format!("{path}/resume"), json!({})).await.refused(422, "idempotency_key_reused");
}

#[tokio::test]
async fn a_repeated_resume_of_what_has_stopped_since_has_no_session() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}", host.sandbox().await);
    post(&host, "k1", &format!("{path}/resume"), json!({})).await.expect(200);
    host.post(&format!("{path}/pause"), json!({})).await.expect(200);
    assert_eq!(post(&host, "k1", &format!("{path}/resume"), json!({})).await.expect(200)["session"], json!(null));
}

#[tokio::test]
async fn a_repeated_delete_of_a_checkpoint_is_not_404() {
    let host = Host::new().await;
    let sandbox = host.sandbox().await;
    let checkpoint = host.checkpoint(&sandbox, json!({})).await;
    let path = format!("/v1/checkpoints/{}", checkpoint["id"].as_str().unwrap());
    for _ in 0..2 {
        host.send(with_header(request("DELETE", &path, &host.write, None), "idempotency-key", "k1")).await.expect(204);
    }
}

#[tokio::test]
async fn after_a_crash_the_forks_that_were_made_are_the_answer() {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}/fork", host.sandbox().await);
    host.agent.hold();
    let order = with_header(request("POST", &path, &host.write, Some(json!({"count": 2}))), "idempotency-key", "k1");
    let lost = tokio::spawn(host.router().oneshot(order));
    eventually("the rows are there", async || host.usage().await["sandboxes"] == 3).await;
    lost.abort();
    let list = host.get("/v1/sandboxes?query[state][]=creating").await.expect(200);
    // The process is killed now; the agent finishes.
    let host = host.restart().await;
    let made: Vec<_> = list["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    made.iter().for_each(|id| host.agent.insert(id));

    let answer = post(&host, "k1", &path, json!({"count": 2})).await.expect(201);

    let mut answered: Vec<_> = answer["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].as_str()).collect();
    answered.sort_unstable();
    answered.reverse();
    assert_eq!(answered, made.into_iter().map(Some).collect::<Vec<_>>());
    assert!(answer["sandboxes"][1]["session"]["access_token"].is_string());
}

/// A host that was killed while the agent was at work on a checkpoint, with what was asked and the checkpoint's id.
async fn killed_at_a_checkpoint() -> (Host, impl Fn(&Host) -> axum::http::Request<axum::body::Body>, String) {
    let host = Host::new().await;
    let path = format!("/v1/sandboxes/{}/checkpoints", host.sandbox().await);
    let order = move |host: &Host| {
        let body = json!({"name": "n"});
        with_header(request("POST", &path, &host.write, Some(body)), "idempotency-key", "k1")
    };
    host.agent.hold();
    let lost = tokio::spawn(host.router().oneshot(order(&host)));
    eventually("the order arrives", async || host.agent.records().checkpoint_orders.len() == 1).await;
    lost.abort();
    let id = host.agent.records().checkpoint_orders[0].clone();
    (host.restart().await, order, id)
}

#[tokio::test]
async fn after_a_crash_the_checkpoint_that_was_taken_is_the_answer() {
    let (host, order, id) = killed_at_a_checkpoint().await;
    let sandbox = host.agent.records().sandboxes.keys().next().unwrap().clone();
    host.agent.insert_checkpoint(&id, &sandbox);

    let answer = host.send(order(&host)).await.expect(201);

    assert_eq!((&answer["id"], &answer["state"]), (&json!(id), &json!("ready")));
}

#[tokio::test]
async fn after_a_crash_before_it_was_taken_the_checkpoint_is_taken_under_its_name() {
    let (host, order, id) = killed_at_a_checkpoint().await;

    let again = tokio::spawn(host.router().oneshot(order(&host)));
    eventually("it is asked for again", async || host.agent.records().checkpoint_orders.len() == 2).await;
    host.agent.admit(2);

    let answer = Answer::read(again.await.unwrap().unwrap()).await.expect(201);
    assert_eq!((&answer["name"], &answer["state"]), (&json!("n"), &json!("ready")));
    assert_ne!(answer["id"], id.as_str());
}
