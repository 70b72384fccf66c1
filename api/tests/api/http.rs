//! What every request passes through.

use std::num::NonZeroU32;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use crate::support::{Host, request, with_header};

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn sane_request_ids_are_kept_and_others_replaced() {
    let host = Host::new().await;
    let answer = host.send(with_header(get("/healthz"), "x-request-id", "job-42.a_b:1")).await;
    assert_eq!(answer.header("x-request-id"), Some("job-42.a_b:1"));
    for odd in ["two words", "a\"b", &"x".repeat(129)] {
        let answer = host.send(with_header(get("/healthz"), "x-request-id", odd)).await;
        assert!(answer.header("x-request-id").unwrap().starts_with("req"), "{odd}");
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_get_the_envelope() {
    let host = Host::new().await;
    host.send(get("/v1/nothing")).await.refused(404, "not_found");
    host.send(get("/")).await.refused(404, "not_found");
    let answer = host.call("PUT", "/v1/sandboxes", &host.write, None).await;
    assert!(answer.header("allow").is_some_and(|allowed| allowed.contains("POST")));
    answer.refused(405, "method_not_allowed");
}

#[tokio::test]
async fn bodies_have_a_limit() {
    let host = Host::new().await;
    let body = json!({"template": "base", "metadata": {"k": "v".repeat(1024 * 1024)}});
    host.create(body).await.refused(413, "too_large");
}

#[tokio::test]
async fn a_body_that_is_no_json_is_refused() {
    let host = Host::new().await;
    for body in ["{", "{\"template\": \"base\"} trailing", "template=base", "{\"template\":\"a\",\"template\":\"b\"}"] {
        let mut order = request("POST", "/v1/sandboxes", &host.write, None);
        *order.body_mut() = Body::from(body);
        host.send(order).await.refused(400, "invalid_request");
    }
    host.call("POST", "/v1/sandboxes", &host.write, None).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn too_many_requests_of_one_key_are_told_to_wait_and_do_not_harm_others() {
    let host = Host::with(|config| {
        config.rate_limit.per_second = NonZeroU32::MIN;
        config.rate_limit.burst = NonZeroU32::new(2).unwrap();
    })
    .await;
    host.get("/v1/templates").await.expect(200);
    host.get("/v1/templates").await.expect(200);

    let answer = host.get("/v1/templates").await;

    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&seconds));
    answer.refused(429, "rate_limited");
    host.call("GET", "/v1/templates", &host.foreign, None).await.expect(200);
}

#[tokio::test]
async fn all_keys_of_a_team_share_its_rate_and_another_team_has_its_own() {
    let host = Host::with(|config| {
        config.team_rate_limit.per_second = NonZeroU32::MIN;
        config.team_rate_limit.burst = NonZeroU32::new(3).unwrap();
    })
    .await;
    for key in [&host.write, &host.read, &host.write] {
        host.call("GET", "/v1/templates", key, None).await.expect(200);
    }
    for key in [&host.write, &host.read] {
        let answer = host.call("GET", "/v1/templates", key, None).await;
        assert!(answer.header("retry-after").is_some());
        answer.refused(429, "rate_limited");
    }
    host.call("GET", "/v1/templates", &host.foreign, None).await.expect(200);
}

#[tokio::test]
async fn health_and_metrics_need_no_key() {
    let host = Host::new().await;
    host.sandbox().await;
    host.get("/v1/sandboxes/sbx0000000000000000000000").await.refused(404, "not_found");

    let health = host.send(get("/healthz")).await.expect(200);
    let metrics = host.metrics().await;

    assert_eq!(health["status"], "ok");
    host.send(get("/metrics")).await.refused(404, "not_found");
    assert_eq!(metrics.status.as_u16(), 200);
    for line in [
        "sandpiper_api_sandboxes{state=\"ready\"} 1",
        "sandpiper_api_requests_total{method=\"POST\",route=\"/v1/sandboxes\",status=\"201\"} 1",
        "sandpiper_api_requests_total{method=\"GET\",route=\"/v1/sandboxes/{id}\",status=\"404\"} 1",
        "sandpiper_api_agent_calls_total{operation=\"create\",result=\"success\"} 1",
    ] {
        assert!(metrics.text.contains(line), "{line}\n{}", metrics.text);
    }
}

#[tokio::test]
async fn without_its_database_the_process_says_so() {
    let host = Host::new().await;
    host.database.close().await;
    let health = host.send(get("/healthz")).await.expect(503);
    assert_eq!(health["status"], "database_unavailable");
    let body = host.get("/v1/sandboxes").await.refused(500, "internal");
    assert!(!body["message"].as_str().unwrap().to_lowercase().contains("pool"));
}
