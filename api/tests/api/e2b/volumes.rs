//! Volumes as the SDKs see them.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::support::{Answer, Host, with_header};

impl Host {
    /// The id and the token of a new volume.
    async fn sdk_volume(&self, name: &str) -> (String, String) {
        let made = self.sdk("POST", "/volumes", Some(json!({"name": name}))).await.expect(201);
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        (text("volumeID"), text("token"))
    }

    async fn content(&self, method: &str, path: &str, token: &str, body: Body) -> Answer {
        let request = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {token}"));
        self.send(request.header("content-type", "application/octet-stream").body(body).unwrap()).await
    }
}

#[tokio::test]
async fn volumes_are_made_listed_and_destroyed() {
    let host = Host::new().await;
    let (id, _) = host.sdk_volume("models").await;
    let listed = host.sdk("GET", "/volumes", None).await.expect(200);
    assert_eq!(listed, json!([{"volumeID": id, "name": "models"}]));
    let shown = host.sdk("GET", &format!("/volumes/{id}"), None).await.expect(200);
    assert_eq!((&shown["volumeID"], &shown["name"], shown["token"].is_string()), (&json!(id), &json!("models"), true));
    host.sdk("DELETE", &format!("/volumes/{id}"), None).await.expect(204);
    host.sdk("DELETE", &format!("/volumes/{id}"), None).await.fails(404);
}

#[tokio::test]
async fn a_sandbox_is_made_with_volumes_and_says_so() {
    let host = Host::new().await;
    host.sdk_volume("models").await;
    let mounts = json!([{"name": "models", "path": "/data"}]);
    let made = host.sdk_create(json!({"templateID": "base", "volumeMounts": mounts})).await;
    let id = made["sandboxID"].as_str().unwrap();
    assert_eq!(host.sdk("GET", &format!("/sandboxes/{id}"), None).await.expect(200)["volumeMounts"], mounts);
    assert_eq!(host.sdk("GET", "/v2/sandboxes", None).await.expect(200)[0]["volumeMounts"], mounts);
    let second = json!({"templateID": "base", "volumeMounts": mounts});
    host.sdk("POST", "/v2/sandboxes", Some(second)).await.fails(409);
    let unknown = json!({"templateID": "base", "volumeMounts": [{"name": "others", "path": "/data"}]});
    host.sdk("POST", "/v2/sandboxes", Some(unknown)).await.fails(422);
}

#[tokio::test]
async fn content_is_written_read_listed_and_removed_with_the_token() {
    let host = Host::new().await;
    let (id, token) = host.sdk_volume("models").await;
    let at = |path: &str| format!("/volumecontent/{id}/{path}");
    let empty = Body::empty;

    let written =
        host.content("PUT", &at("file?path=hello.txt&mode=384"), &token, Body::from("hello")).await.expect(201);
    assert_eq!(
        (&written["path"], &written["name"], &written["mode"]),
        (&json!("/hello.txt"), &json!("hello.txt"), &json!(384))
    );
    assert_eq!((&written["type"], &written["size"]), (&json!("file"), &json!(5)));
    assert!(["atime", "mtime", "ctime"].iter().all(|time| written[*time].is_string()), "{written}");
    assert_eq!(host.content("GET", &at("file?path=/hello.txt"), &token, empty()).await.text, "hello");
    assert_eq!(host.content("GET", &at("path?path=/hello.txt"), &token, empty()).await.expect(200), written);
    let made = host.content("POST", &at("dir?path=/a/b&force=true"), &token, empty()).await.expect(201);
    assert_eq!(made["type"], "directory");
    host.content("POST", &at("dir?path=/c/d"), &token, empty()).await.fails(404);
    let listed = host.content("GET", &at("dir?path=/&depth=2"), &token, empty()).await.expect(200);
    let names: Vec<&Value> = listed.as_array().unwrap().iter().map(|entry| &entry["path"]).collect();
    assert_eq!(names, ["/a/b", "/hello.txt"]);
    let change = Body::from(json!({"mode": 420, "uid": 5}).to_string());
    let changed = host.content("PATCH", &at("path?path=/hello.txt"), &token, change).await.expect(200);
    assert_eq!((&changed["mode"], &changed["uid"]), (&json!(420), &json!(5)));
    host.content("DELETE", &at("path?path=/hello.txt"), &token, empty()).await.expect(204);
    host.content("GET", &at("path?path=/hello.txt"), &token, empty()).await.fails(404);
}

#[tokio::test]
async fn a_token_is_one_volumes_and_as_good_as_its_key() {
    let host = Host::new().await;
    let (id, token) = host.sdk_volume("models").await;
    let (other, _) = host.sdk_volume("others").await;
    let path = format!("/volumecontent/{id}/file?path=/a");
    host.content("PUT", &path, &token, Body::from("x")).await.expect(201);
    host.content("PUT", &format!("/volumecontent/{other}/file?path=/a"), &token, Body::from("x")).await.fails(401);
    for wrong in [host.write.as_str(), "spv_", "spv_nonsense", &token[..token.len() - 2]] {
        host.content("GET", &path, wrong, Body::empty()).await.fails(401);
    }

    let request = Request::get(format!("/volumes/{id}")).header("x-api-key", &host.read).body(Body::empty()).unwrap();
    let reading = host.send(request).await.expect(200)["token"].as_str().unwrap().to_owned();
    host.content("GET", &path, &reading, Body::empty()).await.expect_text("x");
    host.content("PUT", &path, &reading, Body::from("y")).await.fails(403);
    for key in host.app.store.keys.all().await.unwrap() {
        host.app.store.keys.revoke(&key.id, None, jiff::Timestamp::now()).await.unwrap();
    }
    host.content("GET", &path, &token, Body::empty()).await.fails(401);
}

#[tokio::test]
async fn a_repeated_request_gets_another_token_for_the_same_volume() {
    let host = Host::new().await;
    let create = || {
        let request = super::sdk_request("POST", "/volumes", &host.write, Some(json!({"name": "models"})));
        with_header(request, "idempotency-key", "k")
    };
    let first = host.send(create()).await.expect(201);
    let again = host.send(create()).await.expect(201);
    assert_eq!(first["volumeID"], again["volumeID"]);
    assert_ne!(first["token"], again["token"]);
    let path = format!("/volumecontent/{}/file?path=/a", first["volumeID"].as_str().unwrap());
    host.content("PUT", &path, again["token"].as_str().unwrap(), Body::from("x")).await.expect(201);
}

impl Answer {
    #[track_caller]
    fn expect_text(self, text: &str) {
        assert_eq!((self.status.as_u16(), self.text.as_str()), (200, text));
    }
}
