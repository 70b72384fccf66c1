//! Every operation of the document that a key may ask for, without a key, with a key that may only read, and with another team's
//! key. What people alone may ask for, and what their roles are good for: [`people`].

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::accounts;
use crate::operator;
use crate::support::data_plane::empty_data_plane;
use crate::support::{Host, request, with_header};

/// An operation, and what is needed to try it.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    path: &'static str,
    /// A body that the operation accepts.
    body: Option<fn() -> Value>,
    /// Parameters that it needs.
    query: &'static str,
    /// Whether it acts on one sandbox, checkpoint, volume or template, so that another team gets 404.
    of_one: bool,
    /// Whether its body is a stream, which takes no idempotency key.
    streams: bool,
}

const fn operation(method: &'static str, path: &'static str) -> Operation {
    Operation { method, path, body: None, query: "", of_one: true, streams: false }
}

/// A sandbox, a checkpoint, a volume, and a template with a version that is being built and a file for it, to try operations on.
pub(crate) struct Ids {
    sandbox: String,
    checkpoint: String,
    volume: String,
    template: String,
    version: String,
    upload: String,
}

impl Ids {
    pub(crate) async fn new(host: &Host) -> Self {
        let sandbox = host.sandbox().await;
        host.agent.records().data_plane = Some(empty_data_plane().await);
        let checkpoint = host.checkpoint(&sandbox, json!({})).await["id"].as_str().unwrap().to_owned();
        let volume = host.volume(&sandbox).await;
        let directory = format!("/v1/volumes/{volume}/directories?path=/");
        host.call("POST", &directory, &host.write, None).await.expect(201);
        let file = json!({"path": "/f", "content_b64": ""});
        host.call("PUT", &format!("/v1/volumes/{volume}/files"), &host.write, Some(file)).await.expect(200);
        let template = sandbox.clone();
        host.template(&template).await;
        let version = host.building(&template).await;
        let upload = host.upload(b"x").await;
        Self { sandbox, checkpoint, volume, template, version, upload }
    }

    fn of_nobody() -> Self {
        Self {
            sandbox: "sbx0000000000000000000000".into(),
            checkpoint: "ckp0000000000000000000000".into(),
            volume: "vol0000000000000000000000".into(),
            template: "none".into(),
            version: "ver0000000000000000000000".into(),
            upload: "upl0000000000000000000000".into(),
        }
    }
}

/// All of them. A new operation has to be added here, or `every_operation_is_listed` fails.
pub(crate) const OPERATIONS: [Operation; 59] = [
    Operation { of_one: false, ..operation("GET", "/v1/sandboxes") },
    Operation { of_one: false, body: Some(|| json!({"template": "base"})), ..operation("POST", "/v1/sandboxes") },
    operation("GET", "/v1/sandboxes/{id}"),
    Operation { body: Some(|| json!({"metadata": {}})), ..operation("PATCH", "/v1/sandboxes/{id}") },
    operation("DELETE", "/v1/sandboxes/{id}"),
    operation("POST", "/v1/sandboxes/{id}/connect"),
    operation("POST", "/v1/sandboxes/{id}/resume"),
    operation("POST", "/v1/sandboxes/{id}/session"),
    operation("POST", "/v1/sandboxes/{id}/pause"),
    operation("POST", "/v1/sandboxes/{id}/stop"),
    operation("POST", "/v1/sandboxes/{id}/fork"),
    operation("GET", "/v1/sandboxes/{id}/checkpoints"),
    operation("POST", "/v1/sandboxes/{id}/checkpoints"),
    Operation { of_one: false, ..operation("GET", "/v1/checkpoints") },
    operation("GET", "/v1/checkpoints/{id}"),
    operation("DELETE", "/v1/checkpoints/{id}"),
    Operation { of_one: false, ..operation("GET", "/v1/volumes") },
    Operation { of_one: false, body: Some(|| json!({"name": "new"})), ..operation("POST", "/v1/volumes") },
    operation("GET", "/v1/volumes/{id}"),
    operation("DELETE", "/v1/volumes/{id}"),
    Operation { query: "path=/f", ..operation("GET", "/v1/volumes/{id}/files") },
    Operation { body: Some(|| json!({"path": "/f", "content_b64": ""})), ..operation("PUT", "/v1/volumes/{id}/files") },
    Operation { query: "path=/f", ..operation("DELETE", "/v1/volumes/{id}/files") },
    Operation { query: "path=/", ..operation("GET", "/v1/volumes/{id}/directories") },
    Operation { query: "path=/d", ..operation("POST", "/v1/volumes/{id}/directories") },
    Operation { query: "path=/", ..operation("GET", "/v1/volumes/{id}/path") },
    Operation {
        query: "path=/f",
        body: Some(|| json!({"mode": "0600"})),
        ..operation("PATCH", "/v1/volumes/{id}/path")
    },
    Operation { query: "path=/f", ..operation("DELETE", "/v1/volumes/{id}/path") },
    operation("GET", "/v1/sandboxes/{id}/ports/{port}"),
    Operation { body: Some(|| json!({})), ..operation("PUT", "/v1/sandboxes/{id}/ports/{port}") },
    operation("DELETE", "/v1/sandboxes/{id}/ports/{port}"),
    Operation { body: Some(|| json!({})), ..operation("PUT", "/v1/sandboxes/{id}/network") },
    operation("GET", "/v1/sandboxes/{id}/network/denied"),
    Operation { of_one: false, query: "destination=tcp:example.com:443", ..operation("GET", "/v1/network/explain") },
    Operation { query: "path=~", ..operation("GET", "/v1/sandboxes/{id}/files") },
    Operation { query: "path=~", ..operation("GET", "/v1/sandboxes/{id}/directories") },
    Operation { query: "path=~", ..operation("GET", "/v1/sandboxes/{id}/path") },
    operation("GET", "/v1/sandboxes/{id}/logs"),
    operation("GET", "/v1/sandboxes/{id}/metrics"),
    Operation { of_one: false, query: "ids=sbx0000000000000000000000", ..operation("GET", "/v1/sandboxes/metrics") },
    Operation { of_one: false, ..operation("GET", "/v1/metrics") },
    Operation { of_one: false, ..operation("GET", "/v1/sandbox_limits") },
    Operation { of_one: false, ..operation("GET", "/v1/usage") },
    Operation { of_one: false, ..operation("GET", "/v1/templates") },
    Operation { of_one: false, body: Some(|| json!({"slug": "new"})), ..operation("POST", "/v1/templates") },
    Operation { of_one: false, ..operation("GET", "/v1/templates/uploads") },
    Operation { of_one: false, streams: true, ..operation("PUT", "/v1/templates/uploads") },
    operation("DELETE", "/v1/templates/uploads/{id}"),
    operation("GET", "/v1/templates/{slug}"),
    Operation { body: Some(|| json!({"visibility": "private"})), ..operation("PATCH", "/v1/templates/{slug}") },
    operation("DELETE", "/v1/templates/{slug}"),
    operation("GET", "/v1/templates/{slug}/versions"),
    Operation {
        body: Some(|| json!({"source": {"image": {"reference": "node"}}})),
        ..operation("POST", "/v1/templates/{slug}/versions")
    },
    operation("GET", "/v1/templates/{slug}/versions/{version}"),
    operation("DELETE", "/v1/templates/{slug}/versions/{version}"),
    operation("POST", "/v1/templates/{slug}/versions/{version}/cancel"),
    operation("GET", "/v1/templates/{slug}/versions/{version}/logs"),
    Operation { of_one: false, ..operation("GET", "/v1/egress_profiles") },
    Operation { of_one: false, ..operation("GET", "/v1/events") },
];

impl Operation {
    pub(crate) fn mutates(&self) -> bool {
        self.method != "GET"
    }

    pub(crate) fn path(&self, ids: &Ids) -> String {
        let mark = if self.query.is_empty() { "" } else { "?" };
        let id = match self.path.split('/').nth(2) {
            Some("checkpoints") => &ids.checkpoint,
            Some("volumes") => &ids.volume,
            Some("templates") => &ids.upload,
            _ => &ids.sandbox,
        };
        let path = self.path.replace("{id}", id).replace("{port}", "8000");
        path.replace("{slug}", &ids.template).replace("{version}", &ids.version) + mark + self.query
    }

    /// The path with one parameter more.
    fn path_with(&self, ids: &Ids, parameter: &str) -> String {
        let mark = if self.query.is_empty() { '?' } else { '&' };
        format!("{}{mark}{parameter}", self.path(ids))
    }

    pub(crate) fn body(&self) -> Option<Value> {
        self.body.map(|body| body())
    }
}

async fn document(host: &Host) -> Value {
    host.send(Request::get("/openapi.json").body(Body::empty()).unwrap()).await.json()
}

/// Names of the query parameters of an operation.
fn parameters(document: &Value, operation: &Operation) -> Vec<String> {
    let parameters = &document["paths"][operation.path][operation.method.to_lowercase()]["parameters"];
    let of_query = parameters.as_array().into_iter().flatten().filter(|parameter| parameter["in"] == "query");
    of_query.map(|parameter| parameter["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_operation_is_listed() {
    let host = Host::new().await;
    let document = document(&host).await;
    let methods = |item: &Value| item.as_object().unwrap().keys().map(|key| key.to_uppercase()).collect::<Vec<_>>();
    let documented: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        // Its messages are its own, and so are its tests: `mcp.rs`.
        .filter(|(path, _)| *path != "/mcp")
        .flat_map(|(path, item)| methods(item).into_iter().map(move |method| (method, path.clone())))
        .collect();

    let tested: BTreeSet<(String, String)> = OPERATIONS
        .iter()
        .map(|operation| (operation.method, operation.path))
        .chain(accounts::operations())
        .chain(operator::operations())
        .map(|(method, path)| (method.to_owned(), path.to_owned()))
        .collect();

    assert_eq!(documented, tested);
}

#[tokio::test]
async fn every_operation_needs_a_key() {
    let host = Host::new().await;
    let ids = Ids::new(&host).await;
    for operation in &OPERATIONS {
        let path = operation.path(&ids);
        let without = Request::builder().method(operation.method).uri(&path).body(Body::empty()).unwrap();
        let answer = host.send(without).await;
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{} {path}", operation.method);
        answer.refused(401, "unauthorized");

        let unknown = format!("spk_{}", "0".repeat(40));
        host.call(operation.method, &path, &unknown, operation.body()).await.refused(401, "unauthorized");
        host.call(operation.method, &path, "nonsense", operation.body()).await.refused(401, "unauthorized");
    }
}

#[tokio::test]
async fn operations_that_change_something_need_a_key_that_may_write() {
    let host = Host::new().await;
    let ids = Ids::new(&host).await;
    for operation in OPERATIONS.iter().filter(|operation| operation.mutates()) {
        let answer = host.call(operation.method, &operation.path(&ids), &host.read, operation.body()).await;
        answer.refused(403, "insufficient_scope");
        // Capability comes before schema.
        let answer = host.call(operation.method, &operation.path(&ids), &host.read, Some(json!({"no": 1}))).await;
        answer.refused(403, "insufficient_scope");
    }
    for operation in OPERATIONS.iter().filter(|operation| !operation.mutates()) {
        let answer = host.call(operation.method, &operation.path(&ids), &host.read, None).await;
        assert_ne!(answer.status.as_u16(), 403, "{} {}", operation.method, operation.path);
    }
}

#[tokio::test]
async fn no_operation_is_for_keys_of_a_disabled_team() {
    let host = Host::new().await;
    let ids = Ids::new(&host).await;
    host.disable("acme").await;
    for operation in &OPERATIONS {
        for key in [&host.read, &host.write] {
            host.call(operation.method, &operation.path(&ids), key, operation.body()).await.refused_as_disabled();
        }
        if !operation.of_one && !operation.streams {
            let answer = host.call(operation.method, &operation.path(&ids), &host.foreign, operation.body()).await;
            assert!(answer.status.is_success(), "{} {}: {}", operation.method, operation.path, answer.text);
        }
    }
}

#[tokio::test]
async fn a_kept_answer_is_for_keys_that_may_write() {
    let host = Host::new().await;
    for operation in OPERATIONS.iter().filter(|operation| operation.mutates() && !operation.streams) {
        let what = format!("{} {}", operation.method, operation.path);
        let ids = Ids::new(&host).await;
        if operation.method == "DELETE" {
            host.agent.fail_build(&ids.version, "step_failed");
            host.sync().await;
        }
        host.call("PUT", &format!("/v1/sandboxes/{}/ports/8000", ids.sandbox), &host.write, Some(json!({})))
            .await
            .expect(200);
        let path = operation.path(&ids);
        let send = async |key: &str| {
            let request = request(operation.method, &path, key, operation.body());
            host.send(with_header(request, "idempotency-key", &what.replace(' ', "-"))).await
        };
        send(&host.read).await.refused(403, "insufficient_scope");
        let first = send(&host.write).await;
        assert!(first.status.is_success(), "{what}: {}", first.status);

        send(&host.read).await.refused(403, "insufficient_scope");

        assert_eq!(send(&host.write).await.header("idempotency-replayed"), Some("true"), "{what}");
    }
}

#[tokio::test]
async fn parameters_that_the_document_does_not_name_are_refused() {
    let host = Host::new().await;
    let document = document(&host).await;
    let ids = Ids::new(&host).await;
    for operation in &OPERATIONS {
        let what = format!("{} {}", operation.method, operation.path);
        let path = |query: &str| operation.path_with(&ids, query);
        for query in ["limt=1", "limit", "team=rival", "team=acme&teem=acme"] {
            let name = query.split(['=', '&']).next().unwrap();
            let named = |name: &str| parameters(&document, operation).iter().any(|known| known == name);
            if query != "team=acme&teem=acme" && named(name) {
                continue;
            }
            for keyed in [false, true] {
                let mut order = request(operation.method, &path(query), &host.write, operation.body());
                if keyed {
                    order = with_header(order, "idempotency-key", "k");
                }
                let answer = host.send(order).await;
                assert_eq!(answer.status.as_u16(), 400, "{what} {query}: {}", answer.text);
                answer.refused(400, "invalid_request");
            }
            // Who may not do it is told that first.
            if operation.mutates() {
                let answer = host.call(operation.method, &path(query), &host.read, operation.body()).await;
                answer.refused(403, "insufficient_scope");
            }
        }
    }
}

#[tokio::test]
async fn every_list_is_paged() {
    let host = Host::new().await;
    let document = document(&host).await;
    let ids = Ids::new(&host).await;
    let is_list = |operation: &&Operation| {
        let id = &document["paths"][operation.path][operation.method.to_lowercase()]["operationId"];
        operation.method == "GET" && (id.as_str().unwrap().starts_with("list_") || operation.path.ends_with("/logs"))
    };
    let lists: Vec<_> = OPERATIONS.iter().filter(is_list).collect();
    assert!(lists.len() >= 7);
    for operation in lists {
        let known = parameters(&document, operation);
        assert!(["limit", "next_token"].iter().all(|name| known.iter().any(|known| known == name)), "{known:?}");
        let path = |parameter: &str| operation.path_with(&ids, parameter);
        host.get(&path("limit=0")).await.blames("limit");
        host.get(&path("next_token=x")).await.blames("next_token");
        host.get(&path("limit=1")).await.expect(200);
    }
}

#[tokio::test]
async fn pages_of_what_the_host_lists_have_everything_once() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    let profiles = host.get("/v1/egress_profiles").await.expect(200);
    assert_eq!((&profiles["profiles"], profiles.get("next_token")), (&json!(["package-registries", "weather"]), None));

    let first = host.get("/v1/egress_profiles?limit=1").await.expect(200);
    let token = first["next_token"].as_str().unwrap();
    let second = host.get(&format!("/v1/egress_profiles?limit=1&next_token={token}")).await.expect(200);

    assert_eq!((&first["profiles"], &second["profiles"]), (&json!(["package-registries"]), &json!(["weather"])));
    assert_eq!(second.get("next_token"), None);
    host.get(&format!("/v1/templates?next_token={token}")).await.blames("next_token");
    host.get(&format!("/v1/sandboxes/{id}/logs?next_token={token}")).await.blames("next_token");
}

#[tokio::test]
async fn what_another_team_has_does_not_exist() {
    let host = Host::new().await;
    let (ids, nobody) = (Ids::new(&host).await, Ids::of_nobody());
    let id = &ids.sandbox;
    host.call("PUT", &format!("/v1/sandboxes/{id}/ports/8000"), &host.write, Some(json!({}))).await.expect(200);
    for operation in OPERATIONS.iter().filter(|operation| operation.of_one) {
        let answer = host.call(operation.method, &operation.path(&ids), &host.foreign, operation.body()).await;
        let foreign = answer.refused(404, "not_found");

        // Indistinguishable from one that never was.
        let answer = host.call(operation.method, &operation.path(&nobody), &host.foreign, operation.body()).await;
        let absent = answer.refused(404, "not_found");
        let own = if operation.path.contains("{slug}") { &nobody.template } else { &nobody.sandbox };
        let message = foreign["message"].as_str().unwrap().replace(id, own);
        let message = message.replace(&ids.checkpoint, &nobody.checkpoint).replace(&ids.volume, &nobody.volume);
        let message = message.replace(&ids.upload, &nobody.upload);
        assert_eq!(absent["message"], message);
    }
    // Nor can a sandbox be made from it.
    for start in [json!({"snapshot_id": ids.checkpoint}), json!({"template": ids.checkpoint})] {
        host.call("POST", "/v1/sandboxes", &host.foreign, Some(start)).await.refused(404, "not_found");
    }
    let list = host.call("GET", "/v1/checkpoints", &host.foreign, None).await.expect(200);
    assert_eq!(list["checkpoints"], json!([]));
    host.get(&format!("/v1/checkpoints/{}", ids.checkpoint)).await.expect(200);
    let list = host.call("GET", "/v1/sandboxes", &host.foreign, None).await.expect(200);
    assert_eq!(list["sandboxes"], json!([]));
    host.get(&format!("/v1/sandboxes/{id}")).await.expect(200);
}

#[tokio::test]
async fn a_key_acts_for_its_own_team_only() {
    let host = Host::new().await;
    host.get("/v1/sandboxes?team=acme").await.expect(200);
    host.get("/v1/sandboxes?team=rival").await.refused(404, "not_found");
    host.get("/v1/sandbox_limits?team=rival").await.refused(404, "not_found");
    host.get("/v1/checkpoints?team=rival").await.refused(404, "not_found");
    host.create(json!({"template": "base", "team": "rival"})).await.refused(404, "not_found");
    host.create(json!({"template": "base", "team": "acme"})).await.expect(201);
}

#[tokio::test]
async fn a_revoked_key_is_refused() {
    let host = Host::new().await;
    host.get("/v1/templates").await.expect(200);
    for key in host.app.store.keys.all().await.unwrap() {
        assert!(host.app.store.keys.revoke(&key.id, None, jiff::Timestamp::now()).await.unwrap());
    }
    host.get("/v1/templates").await.refused(401, "unauthorized");
}

#[tokio::test]
async fn the_other_header_for_keys_works_too() {
    let host = Host::new().await;
    let request = Request::get("/v1/templates").body(Body::empty()).unwrap();
    host.send(with_header(request, "x-api-key", &host.read)).await.expect(200);
}
