//! Which requests come through, and what the others are told.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;
use crate::stats::{Kind, Outcome, RequestLabels};

#[tokio::test]
async fn host_names_lead_to_the_data_plane_and_to_ports() {
    let house = House::new(mirror()).await;
    let token = house.token();
    let bearer = format!("Bearer {token}");

    let (status, seen) = house.get(HOST, "/files?path=/a%20b", &[("authorization", &bearer)]).await;
    assert_eq!(status, 200);
    assert!(seen.starts_with("GET /files?path=/a%20b on 49983\n"), "{seen}");
    let e2b = format!("49983-{HOST}:{}", house.address.port());
    let (_, seen) = house.get(&e2b, "/files", &[("x-access-token", &token)]).await;
    assert!(seen.starts_with("GET /files on 49983\n"), "{seen}");

    let (status, seen) = house.get("P8000-ROUTE0TOKEN1.sandbox.localhost.:7080", "/", &[]).await;
    assert_eq!(status, 200);
    assert!(seen.starts_with("GET / on 8000\n"), "{seen}");
    assert!(seen.contains("\nhost: P8000-ROUTE0TOKEN1.sandbox.localhost.:7080\n"), "{seen}");
    let (_, seen) = house.get("8000-route0token1.sandbox.localhost", "/x", &[]).await;
    assert!(seen.starts_with("GET /x on 8000\n"), "{seen}");

    let answered = |kind| house.stats.requests.get_or_create(&RequestLabels { kind, outcome: Outcome::Answered }).get();
    assert_eq!((answered(Kind::DataPlane), answered(Kind::Preview)), (2, 2));
}

#[tokio::test]
async fn what_is_not_there_is_told_apart() {
    let house = House::new(mirror()).await;
    let message = "No sandbox has this host name: use the data-plane or preview URL that the API gave";
    let not_exposed = "The sandbox does not expose this port: expose it first";
    let closed = "The sandbox is running but port is not open";
    let table = [
        ("example.com", 404, "unknown_host", message, json!(null)),
        ("nosuch.sandbox.localhost", 502, "sandbox_not_found", "The sandbox was not found", json!(null)),
        ("p9-route0token1.sandbox.localhost", 404, "port_not_exposed", not_exposed, json!(9)),
        (CLOSED, 502, "port_closed", closed, json!(8002)),
    ];
    for (host, status, error, message, port) in table {
        let request = Request::get("/health").header("host", host).body(Full::<Bytes>::default()).expect("valid");
        let response = house.send(request).await;
        let request_id = response.headers()["x-request-id"].to_str().expect("text").to_owned();
        assert_eq!(
            (response.status().as_u16(), response.headers()["content-type"].as_bytes()),
            (status, &b"application/json"[..])
        );
        let document: Value = serde_json::from_str(&text(response).await).expect("JSON");
        let (told, told_port) = (&document["message"], &document["port"]);
        assert_eq!((&document["error"], told, told_port), (&json!(error), &json!(message), &port), "{host}");
        assert_eq!((&document["code"], &document["request_id"]), (&json!(status), &json!(request_id)), "{host}");
    }
}

#[tokio::test]
async fn a_sandbox_that_does_not_run_answers_502() {
    let house = House::new(mirror()).await;
    for state in [SandboxState::Creating, SandboxState::Stopping, SandboxState::Stopped, SandboxState::Failed] {
        house.change(|target| target.state = state);
        let (status, answer) = house.get(HOST, "/health", &[]).await;
        assert_eq!(status, 502, "{state:?}");
        assert!(answer.starts_with(r#"{"error":"sandbox_not_running""#), "{answer}");
    }
    house.change(|target| target.state = SandboxState::Ready);
    let gone = house.folder.path().join("gone");
    house.change(|target| target.vsock = gone);
    let (status, answer) = house.get(HOST, "/health", &[]).await;
    assert_eq!(status, 502);
    assert!(answer.starts_with(r#"{"error":"sandbox_unreachable""#), "{answer}");
}

#[tokio::test]
async fn a_paused_sandbox_is_woken_by_those_who_may_use_it_and_by_nobody_else() {
    let house = House::new(mirror()).await;
    let token = house.token();
    let pause = || house.change(|target| (target.state, target.wakes) = (SandboxState::Stopped, true));
    let woken = || house.table.woken.load(Ordering::Relaxed);
    pause();

    let (health, _) = house.get(HOST, "/health", &[]).await;
    let (denied, _) = house.get(HOST, "/files", &[]).await;
    let (private, _) = house.get(PRIVATE, "/", &[]).await;
    assert_eq!((health.as_u16(), denied.as_u16(), private.as_u16(), woken()), (502, 401, 401, 0));

    let (files, seen) = house.get(HOST, "/files", &[("x-access-token", &token)]).await;
    assert!(files == 200 && seen.starts_with("GET /files on 49983\n"), "{seen}");
    pause();
    assert_eq!(house.get(PUBLIC, "/", &[]).await.0, 200);
    pause();
    assert_eq!(house.get(HOST, "/health", &[("x-access-token", &token)]).await.0, 200);
    assert_eq!(woken(), 3);
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_woken_is_said_to_be_paused() {
    let house = House::new(mirror()).await;
    house.change(|target| (target.state, target.wakes) = (SandboxState::Stopped, true));
    let table = [
        (WakeError::NoRoom, 503, "sandbox_not_resumed", "no room"),
        (WakeError::QuotaExceeded, 429, "sandbox_quota_exceeded", "pause or delete another"),
        (WakeError::TeamDisabled, 403, "team_disabled", "ask them to enable it"),
        (WakeError::VolumeTaken, 409, "volume_attached", "one of its volumes is in use"),
        (WakeError::Failed, 503, "sandbox_not_resumed", "logs"),
        (WakeError::TimedOut, 504, "sandbox_not_resumed", "in time"),
    ];
    for (error, expected, code, words) in table {
        *house.table.sleep.lock().expect("no panic under the lock") = Some(error);
        let (status, answer) = house.get(PUBLIC, "/", &[]).await;
        assert_eq!(status.as_u16(), expected, "{error:?}");
        assert!(answer.starts_with(&format!(r#"{{"error":"{code}""#)) && answer.contains(words), "{answer}");
    }
    // Without leave to wake it, it is what it was.
    house.change(|target| target.wakes = false);
    let (status, answer) = house.get(PUBLIC, "/", &[]).await;
    assert!(status == 502 && answer.contains("paused"), "{answer}");
}

#[tokio::test]
async fn nobody_gets_through_to_what_a_disabled_team_has_and_only_who_might_learns_of_it() {
    let house = House::new(mirror()).await;
    house.change(|target| target.team_disabled = true);
    let token = house.token();
    let (access, lasting) = (("x-access-token", token.as_str()), house.sessions.lasting(SANDBOX));
    for (host, path, headers) in [
        (PUBLIC, "/", vec![]),
        (PRIVATE, "/", vec![access]),
        (HOST, "/files", vec![access]),
        (HOST, "/files", vec![("x-access-token", lasting.as_str())]),
        (HOST, "/health", vec![]),
    ] {
        let (status, answer) = house.get(host, path, &headers).await;
        assert_eq!(status, 403, "{host}{path}: {answer}");
        assert!(answer.starts_with(r#"{"error":"team_disabled""#), "{answer}");
    }
    assert_eq!(house.get(PRIVATE, "/", &[]).await.0, 401);
    // Nor does a request wake anything.
    house.change(|target| (target.state, target.wakes) = (SandboxState::Stopped, true));
    assert_eq!(house.get(PUBLIC, "/", &[]).await.0, 403);
    assert_eq!(house.table.woken.load(Ordering::Relaxed), 0);

    house.change(|target| target.team_disabled = false);

    assert_eq!(house.get(PUBLIC, "/", &[]).await.0, 200);
}

#[tokio::test]
async fn people_get_a_page() {
    let house = House::new(mirror()).await;
    let request = Request::get("/what-was-asked").header("host", CLOSED).header("accept", "text/html,*/*;q=0.8");
    let response = house.send(request.body(Full::<Bytes>::default()).expect("valid")).await;
    assert_eq!(response.status(), 502);
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    let policy = response.headers()["content-security-policy"].to_str().expect("text").to_owned();
    let page = text(response).await;
    assert!(page.starts_with("<!doctype html>"), "{page}");
    assert!(page.contains("port is not open") && page.contains("Port 8002"), "{page}");
    assert!(!page.contains("what-was-asked") && !page.contains("src=") && !page.contains("url("), "{page}");
    // A browser applies the one style, because the policy names its digest.
    let style = page.split_once("<style>").and_then(|(_, rest)| rest.split_once("</style>")).expect("a style").0;
    let digest = STANDARD.encode(Sha256::digest(style));
    assert!(policy.starts_with("default-src 'none'") && policy.contains(&digest), "{policy}");
}

#[tokio::test]
async fn only_good_tokens_open_the_data_plane() {
    let house = House::new(mirror()).await;
    let foreign = house.sessions.mint("sbx06bbbbbbbbbbbbbbbbbbbbb", None).0;
    let brief = Sessions::open(&house.folder.path().join("key"), Duration::ZERO).expect("the same key");
    let expired = brief.mint(SANDBOX, None).0;
    let revoked = house.sessions.mint(SANDBOX, Some("keya")).0;
    house.sessions.revoke(vec!["keya".to_owned()]).expect("written");
    let wrong = format!("{}x", house.token());

    let table = [
        (vec![], "An access token is needed"),
        (vec![("authorization", format!("Bearer {wrong}"))], "is not valid"),
        (vec![("authorization", "Bearer secret".to_owned())], "is not valid"),
        (vec![("authorization", "Basic cm9vdDo=".to_owned())], "An access token is needed"),
        (vec![("x-access-token", expired)], "has expired"),
        (vec![("x-access-token", revoked)], "is revoked"),
        (vec![("authorization", format!("Bearer {foreign}"))], "belongs to another sandbox"),
    ];
    for (headers, reason) in table {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let (status, answer) = house.get(HOST, "/files?path=x", &headers).await;
        assert_eq!(status, 401, "{reason}");
        assert!(answer.contains(reason) && answer.starts_with(r#"{"error":"unauthorized""#), "{answer}");
    }
    // A query string is no place for a token, unless a WebSocket is asked for.
    let (status, _) = house.get(HOST, &format!("/files?access_token={}", house.token()), &[]).await;
    assert_eq!(status, 401);
}

#[tokio::test]
async fn refusals_carry_a_challenge() {
    let house = House::new(mirror()).await;
    let request = Request::get("/").header("host", HOST).body(Full::<Bytes>::default()).expect("valid");
    let response = house.send(request).await;
    assert_eq!(response.headers()["www-authenticate"], r#"Bearer realm="sandpiper""#);
    assert_eq!(response.headers()["cache-control"], "no-store");
}

#[tokio::test]
async fn health_needs_no_token_and_nothing_else_does_without() {
    let house = House::new(mirror()).await;
    let (status, seen) = house.get(HOST, "/health?x=1", &[]).await;
    assert_eq!(status, 200);
    assert!(seen.starts_with("GET /health?x=1 on 49983\n"), "{seen}");
    for path in ["/healthz", "/health/", "/health/../files", "/%68ealth", "//health"] {
        assert_eq!(house.get(HOST, path, &[]).await.0, 401, "{path}");
    }
    let post = Request::post("/health").header("host", HOST).body(Full::<Bytes>::default()).expect("valid");
    assert_eq!(house.send(post).await.status(), 401);
}

#[tokio::test]
async fn private_ports_need_the_token_and_public_ones_can_be_closed() {
    let house = House::new(mirror()).await;
    let token = house.token();
    assert_eq!(house.get(PUBLIC, "/", &[]).await.0, 200);
    assert_eq!(house.get(PRIVATE, "/", &[]).await.0, 401);
    assert_eq!(house.get(PRIVATE, "/health", &[]).await.0, 401);
    assert_eq!(house.get(PRIVATE, "/", &[("x-access-token", &token)]).await.0, 200);
    house.change(|target| target.allow_public_traffic = false);
    assert_eq!(house.get(PUBLIC, "/", &[]).await.0, 401);
    assert_eq!(house.get(PUBLIC, "/", &[("x-access-token", &token)]).await.0, 200);
}

#[tokio::test]
async fn browsers_may_call_the_data_plane_from_any_page() {
    let house = House::new(mirror()).await;
    let request = Request::options("/files")
        .header("host", HOST)
        .header("origin", "https://app.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type")
        .body(Full::<Bytes>::default())
        .expect("valid");
    let response = house.send(request).await;
    assert_eq!(response.status(), 204);
    assert_eq!(response.headers()["access-control-allow-origin"], "*");
    assert_eq!(response.headers()["access-control-allow-headers"], "authorization,content-type");

    let token = house.token();
    let request = Request::get("/files").header("host", HOST).header("x-access-token", token);
    let response = house.send(request.body(Full::<Bytes>::default()).expect("valid")).await;
    assert_eq!(response.headers()["access-control-allow-origin"], "*");
}

#[tokio::test]
async fn a_refusal_is_read_even_in_the_middle_of_an_upload() {
    let house = House::new(mirror()).await;
    let body = Full::new(Bytes::from(vec![0; 20 << 20]));
    let response = house.send(Request::post("/files").header("host", HOST).body(body).expect("valid")).await;
    assert_eq!(response.status(), 401);
}

#[tokio::test]
async fn a_refused_client_is_not_told_to_continue() {
    let house = House::new(mirror()).await;
    let request =
        format!("POST /files HTTP/1.1\r\nHost: {HOST}\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n");
    let answer = house.raw(&request).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}
