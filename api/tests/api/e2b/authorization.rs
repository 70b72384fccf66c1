//! Every path, without a key, with a key that may only read, and with another team's key.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Request;
use sandpiper_api::e2b;
use serde_json::{Value, json};

use super::{id, sdk_request};
use crate::support::Host;

/// An operation, and what is needed to try it.
struct Operation {
    method: &'static str,
    path: &'static str,
    body: Option<fn() -> Value>,
    /// Whether it acts on one sandbox, so that another team gets 404.
    of_one: bool,
}

const fn of_one(method: &'static str, path: &'static str) -> Operation {
    Operation { method, path, body: None, of_one: true }
}

const fn of_team(method: &'static str, path: &'static str) -> Operation {
    Operation { of_one: false, ..of_one(method, path) }
}

/// All of them. A new one has to be added here, or `every_operation_is_listed` fails.
const OPERATIONS: [Operation; 40] = [
    of_team("GET", "/v2/sandboxes"),
    Operation { body: Some(|| json!({"templateID": "base"})), ..of_team("POST", "/v2/sandboxes") },
    of_team("GET", "/sandboxes"),
    Operation { body: Some(|| json!({"templateID": "base"})), ..of_team("POST", "/sandboxes") },
    of_one("GET", "/sandboxes/{id}"),
    of_one("DELETE", "/sandboxes/{id}"),
    of_one("POST", "/v2/sandboxes/{id}/connect"),
    of_one("POST", "/sandboxes/{id}/connect"),
    of_one("POST", "/sandboxes/{id}/resume"),
    Operation { body: Some(|| json!({"timeout": 60})), ..of_one("POST", "/sandboxes/{id}/timeout") },
    of_one("POST", "/sandboxes/{id}/refreshes"),
    of_one("POST", "/sandboxes/{id}/pause"),
    of_one("POST", "/sandboxes/{id}/snapshots"),
    of_team("GET", "/snapshots"),
    of_one("DELETE", "/templates/{id}"),
    of_one("POST", "/sandboxes/{id}/fork"),
    Operation { body: Some(|| json!({})), ..of_one("PUT", "/sandboxes/{id}/network") },
    of_one("GET", "/sandboxes/{id}/metrics"),
    of_team("GET", "/sandboxes/metrics"),
    of_one("GET", "/v2/sandboxes/{id}/logs"),
    of_one("GET", "/sandboxes/{id}/logs"),
    of_team("GET", "/templates"),
    of_one("GET", "/templates/{id}"),
    Operation { body: Some(|| json!({"public": false})), ..of_one("PATCH", "/templates/{id}") },
    Operation { body: Some(|| json!({"target": "base", "tags": ["t"]})), ..of_team("POST", "/templates/tags") },
    Operation { body: Some(|| json!({"name": "base", "tags": ["t"]})), ..of_team("DELETE", "/templates/tags") },
    of_team("GET", "/templates/aliases/{alias}"),
    of_one("GET", "/templates/{id}/tags"),
    of_one("GET", "/templates/{id}/files/{hash}"),
    of_one("GET", "/templates/{id}/builds/{build}/status"),
    of_one("GET", "/templates/{id}/builds/{build}/logs"),
    of_team("GET", "/v2/templates"),
    Operation { body: Some(|| json!({"name": "new"})), ..of_team("POST", "/v2/templates") },
    Operation { body: Some(|| json!({"public": false})), ..of_one("PATCH", "/v2/templates/{id}") },
    Operation { body: Some(|| json!({"fromImage": "node"})), ..of_one("POST", "/v2/templates/{id}/builds/{build}") },
    Operation { body: Some(|| json!({"name": "new"})), ..of_team("POST", "/v3/templates") },
    of_team("GET", "/volumes"),
    Operation { body: Some(|| json!({"name": "v"})), ..of_team("POST", "/volumes") },
    of_one("GET", "/volumes/{id}"),
    of_one("DELETE", "/volumes/{id}"),
];

/// Of which nothing but the refusal is there.
const NOT_YET: [(&str, &str); 3] = [("POST", "/secrets"), ("GET", "/secrets/{id}"), ("POST", "/templates")];

fn path(operation: &Operation, id: &str) -> String {
    let path = operation.path.replace("{id}", id);
    path.replace("{alias}", "base").replace("{hash}", "ab").replace("{build}", "b")
}

fn body(operation: &Operation) -> Option<Value> {
    operation.body.map(|body| body())
}

/// Whether it acts on the sandbox, and not on a snapshot or template of the same path.
fn is_of_sandbox(operation: &Operation) -> bool {
    operation.of_one && operation.path.contains("/sandboxes/")
}

fn is_of_template(operation: &Operation) -> bool {
    operation.path.contains("/templates")
}

#[test]
fn every_operation_is_listed() {
    let routes = e2b::routes();
    let served: BTreeSet<_> = routes
        .iter()
        .flat_map(|route| route.methods.iter().map(|method| (*method, route.path)))
        .filter(|operation| !NOT_YET.contains(operation))
        .collect();

    let tested: BTreeSet<_> = OPERATIONS.iter().map(|operation| (operation.method, operation.path)).collect();

    assert_eq!(served, tested);
}

#[tokio::test]
async fn every_operation_needs_a_key() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    for operation in &OPERATIONS {
        let path = path(operation, &sandbox);
        let without = Request::builder().method(operation.method).uri(&path).body(Body::empty()).unwrap();
        host.send(without).await.fails(401);
        for key in ["nonsense", &format!("e2b_{}", "0".repeat(40))] {
            host.send(sdk_request(operation.method, &path, key, body(operation))).await.fails(401);
        }
    }
    for (method, path) in NOT_YET {
        let without = Request::builder().method(method).uri(path.replace("{id}", "x")).body(Body::empty()).unwrap();
        host.send(without).await.fails(401);
    }
}

#[tokio::test]
async fn no_operation_is_for_keys_of_a_disabled_team_nor_for_what_they_have_made() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    let volume = host.sdk("POST", "/volumes", Some(json!({"name": "v"}))).await.expect(201);
    let content = format!("/volumecontent/{}/dir?path=/", volume["volumeID"].as_str().unwrap());
    let token = volume["token"].as_str().unwrap();
    host.disable("acme").await;
    for operation in &OPERATIONS {
        let request = sdk_request(operation.method, &path(operation, &sandbox), &host.write, body(operation));
        let message = host.send(request).await.fails(403);
        assert!(message.contains("ask the operator"), "{} {}: {message}", operation.method, operation.path);
    }
    host.call("GET", &content, token, None).await.fails(403);
    host.send(sdk_request("GET", "/v2/sandboxes", &host.foreign, None)).await.expect(200);
}

#[tokio::test]
async fn what_changes_something_needs_a_key_that_may_write() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    for operation in OPERATIONS.iter().filter(|operation| is_of_sandbox(operation) && operation.method != "GET") {
        let path = path(operation, &sandbox);
        host.send(sdk_request(operation.method, &path, &host.read, body(operation))).await.fails(403);
    }
    for path in ["/v2/sandboxes", "/sandboxes"] {
        let body = Some(json!({"templateID": "base"}));
        host.send(sdk_request("POST", path, &host.read, body)).await.fails(403);
    }
    for operation in OPERATIONS.iter().filter(|operation| is_of_template(operation) && operation.method != "GET") {
        let request = sdk_request(operation.method, &path(operation, "any"), &host.read, body(operation));
        host.send(request).await.fails(403);
    }

    let shown = host.send(sdk_request("GET", &format!("/sandboxes/{sandbox}"), &host.read, None)).await.expect(200);
    assert_eq!(shown.get("envdAccessToken"), None, "a way in is not for keys that only read");
}

#[tokio::test]
async fn what_another_team_has_does_not_exist() {
    let host = Host::new().await;
    let sandbox = host.sdk_sandbox().await;
    let nobodys = "sbx0000000000000000000000";
    for operation in OPERATIONS.iter().filter(|operation| is_of_sandbox(operation)) {
        let send = async |id: &str| {
            let request = sdk_request(operation.method, &path(operation, id), &host.foreign, body(operation));
            host.send(request).await.fails(404)
        };
        assert_eq!(send(&sandbox).await.replace(&sandbox, nobodys), send(nobodys).await, "{}", operation.path);
    }
    let snapshot = host.sdk("POST", &format!("/sandboxes/{sandbox}/snapshots"), Some(json!({"name": "n"}))).await;
    let snapshot = snapshot.expect(201)["snapshotID"].as_str().unwrap().to_owned();
    for name in [&snapshot, "n", "acme%2Fn"] {
        host.send(sdk_request("DELETE", &format!("/templates/{name}"), &host.foreign, None)).await.fails(404);
    }
    for template in [&snapshot, "n", "acme/n"] {
        let body = Some(json!({"templateID": template}));
        host.send(sdk_request("POST", "/v2/sandboxes", &host.foreign, body)).await.fails(404);
    }
    host.template("mine").await;
    for operation in OPERATIONS.iter().filter(|operation| operation.of_one && is_of_template(operation)) {
        for id in ["mine", "acme%2Fmine", "none"] {
            let request = sdk_request(operation.method, &path(operation, id), &host.foreign, body(operation));
            host.send(request).await.fails(404);
        }
    }
    host.send(sdk_request("GET", "/templates/aliases/acme%2Fmine", &host.foreign, None)).await.fails(404);
    let volume = host.volume("v").await;
    for method in ["GET", "DELETE"] {
        host.send(sdk_request(method, &format!("/volumes/{volume}"), &host.foreign, None)).await.fails(404);
    }
    host.send(sdk_request("DELETE", &format!("/volumes/{volume}"), &host.read, None)).await.fails(403);
    let listed = host.send(sdk_request("GET", "/v2/sandboxes", &host.foreign, None)).await.expect(200);
    assert_eq!(listed, json!([]));
    let many = format!("/sandboxes/metrics?sandbox_ids={sandbox}");
    let metrics = host.send(sdk_request("GET", &many, &host.foreign, None)).await.expect(200);
    assert_eq!(metrics, json!({"sandboxes": {}}));
}

#[tokio::test]
async fn both_spellings_of_a_key_are_the_same_key() {
    let host = Host::new().await;
    let created = host.sdk_create(json!({"templateID": "base"})).await;

    let shown = host.get(&format!("/v1/sandboxes/{}", id(&created))).await.expect(200);

    assert_eq!((&shown["team"], &shown["state"]), (&json!("acme"), &json!("ready")));
    let bearer = crate::support::request("GET", "/v2/sandboxes", &host.write, None);
    assert_eq!(host.send(bearer).await.expect(200).as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_not_there_yet_is_said_clearly() {
    let host = Host::new().await;
    // By which the host's templates are known.
    host.sdk_sandbox().await;
    for (method, path) in NOT_YET {
        host.sdk(method, &path.replace("{id}", "x"), Some(json!({}))).await.fails(501);
    }
    host.sdk("DELETE", "/templates/base", None).await.fails(403);
    host.sdk("GET", "/sandboxes/x/y/z", None).await.fails(404);
    host.sdk("PATCH", "/sandboxes", None).await.fails(405);
}
