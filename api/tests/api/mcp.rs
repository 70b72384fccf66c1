//! `/mcp`: who may begin and go on with sessions, how many there are, and that tools act with the caller's own key.

use std::path::PathBuf;

use axum::body::Body;
use axum::http::Request;
use sandpiper_api::mcp::Mcp;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{Answer, Host};

/// What `/mcp` says to a message; not read to its end, since it may be a stream.
async fn post(mcp: &Mcp, key: &str, session: Option<&str>, message: &Value) -> axum::response::Response {
    let mut request = Request::post("/mcp")
        .header("authorization", format!("Bearer {key}"))
        .header("host", "api.test")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    mcp.router().oneshot(request.body(Body::from(message.to_string())).unwrap()).await.unwrap()
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }})
}

/// The id of a new session.
async fn begin(mcp: &Mcp, key: &str) -> String {
    let response = post(mcp, key, None, &initialize()).await;
    assert_eq!(response.status(), 200);
    response.headers()["mcp-session-id"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_session_belongs_to_the_team_that_began_it() {
    let host = Host::new().await;
    let mcp = Mcp::new(host.app.clone(), "http://127.0.0.1:1").unwrap();
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});

    let session = begin(&mcp, &host.write).await;

    assert_eq!(post(&mcp, &host.foreign, Some(&session), &initialized).await.status(), 404);
    assert_eq!(post(&mcp, &host.write, Some("none"), &initialized).await.status(), 404);
    assert_eq!(post(&mcp, &host.write, Some(&session), &initialized).await.status(), 202);
}

#[tokio::test]
async fn a_key_is_asked_for_and_one_that_only_reads_is_refused() {
    let host = Host::new().await;
    let mcp = Mcp::new(host.app.clone(), "http://127.0.0.1:1").unwrap();

    assert_eq!(post(&mcp, "spk_nonsense", None, &initialize()).await.status(), 401);
    assert_eq!(post(&mcp, &host.read, None, &initialize()).await.status(), 403);
}

#[tokio::test]
async fn a_team_has_so_many_sessions_and_one_that_is_ended_makes_room() {
    let host = Host::new().await;
    let mcp = Mcp::new(host.app.clone(), "http://127.0.0.1:1").unwrap();
    let mut sessions = Vec::new();
    for _ in 0..32 {
        sessions.push(begin(&mcp, &host.write).await);
    }

    assert_eq!(post(&mcp, &host.write, None, &initialize()).await.status(), 429);
    begin(&mcp, &host.foreign).await;
    let end = Request::delete("/mcp")
        .header("host", "api.test")
        .header("authorization", format!("Bearer {}", host.write))
        .header("mcp-session-id", &sessions[0])
        .body(Body::empty())
        .unwrap();
    assert!(mcp.router().oneshot(end).await.unwrap().status().is_success());
    begin(&mcp, &host.write).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_so_many_calls_at_a_time() {
    let host = Host::new().await;
    let inner = listen().await;
    let mcp = Mcp::new(host.app.clone(), &format!("http://{}", inner.local_addr().unwrap())).unwrap();
    let api = host.router();
    tokio::spawn(async move { axum::serve(inner, api).await });
    let session = begin(&mcp, &host.write).await;
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    post(&mcp, &host.write, Some(&session), &initialized).await;
    // All of them wait for the session's sandbox.
    host.agent.hold();
    let mut calls = tokio::task::JoinSet::new();
    for id in 2..=18 {
        let (mcp, key, session) = (mcp.clone(), host.write.clone(), session.clone());
        calls.spawn(async move {
            let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {
                "name": "network", "arguments": {},
            }});
            Answer::read(post(&mcp, &key, Some(&session), &call).await).await.text
        });
    }

    let refused = calls.join_next().await.unwrap().unwrap();
    assert!(refused.contains("16 calls at a time"), "{refused}");
    host.agent.admit(100);

    let others = calls.join_all().await;
    assert!(others.len() == 16 && others.iter().all(|text| text.contains("allow_internet_access")), "{others:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_makes_a_sandbox_with_its_own_key() {
    let cache = std::env::var_os("SANDPIPER_CACHE").map_or_else(|| "/var/cache/sandpiper".into(), PathBuf::from);
    let python = cache.join("mcp-client/bin/python");
    if !python.exists() {
        return sandpiper_skip::skipped("the MCP server with the official client", "it is not installed");
    }
    let host = Host::new().await;
    let (inner, outer) = (listen().await, listen().await);
    let mcp = Mcp::new(host.app.clone(), &format!("http://{}", inner.local_addr().unwrap())).unwrap();
    let url = format!("http://{}/mcp", outer.local_addr().unwrap());
    let (api, tools) = (host.router(), mcp.router());
    tokio::spawn(async move { axum::serve(inner, api).await });
    tokio::spawn(async move { axum::serve(outer, tools).await });

    let output = tokio::process::Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/tests/cli/mcp_client.py"))
        .arg(json!([["network", {}], ["network", {"allow_internet_access": false}]]).to_string())
        .arg(url)
        .env("SANDPIPER_API_KEY", &host.write)
        .output()
        .await
        .unwrap();

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[0]["tools"].as_array().unwrap().len() == 12, "{printed}");
    assert!(lines[1]["text"].as_str().unwrap().contains(r#""allow_internet_access":true"#), "{printed}");
    assert!(lines[2]["text"].as_str().unwrap().contains(r#""allow_internet_access":false"#), "{printed}");
    // One conversation, one sandbox.
    assert_eq!(host.usage().await["sandboxes"], 1);
}

async fn listen() -> tokio::net::TcpListener {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap()
}
