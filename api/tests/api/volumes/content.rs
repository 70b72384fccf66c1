//! What is in volumes that no sandbox has.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;

use crate::support::volumes::long_body;
use crate::support::{Host, request, with_header};

fn put_bytes(host: &Host, path: &str, body: Body) -> Request<Body> {
    let mut request = request("PUT", path, &host.write, None);
    *request.body_mut() = body;
    with_header(request, "content-type", "application/octet-stream")
}

#[tokio::test]
async fn small_files_go_in_and_out_in_json() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    let files = format!("/v1/volumes/{volume}/files");
    // Of each length, so that every end of base64 comes up.
    for content in ["", "h", "he", "hel", "hello, volume"] {
        let body = json!({"path": "/a b/n&m.txt", "content_b64": BASE64.encode(content), "mode": "600"});
        let written = host.call("PUT", &files, &host.write, Some(body)).await.expect(200);
        assert_eq!((&written["size"], &written["mode"]), (&json!(content.len()), &json!("0600")));
        let read = request("GET", &format!("{files}?path=/a%20b/n%26m.txt"), &host.read, None);
        let read = host.send(with_header(read, "accept", "application/json")).await.expect(200);
        let expected = json!({
            "path": "/a b/n&m.txt", "size": content.len(), "mode": "0600", "content_b64": BASE64.encode(content),
        });
        assert_eq!(read, expected);
    }
    let bytes = host.get(&format!("{files}?path=/a%20b/n%26m.txt")).await;
    assert_eq!(
        (bytes.header("content-type"), bytes.text.as_str()),
        (Some("application/octet-stream"), "hello, volume")
    );
    let part = request("GET", &format!("{files}?path=/a%20b/n%26m.txt"), &host.read, None);
    let part = host.send(with_header(part, "range", "bytes=7-12")).await;
    assert_eq!((part.status.as_u16(), part.text.as_str()), (206, "volume"));
    assert_eq!(part.header("content-range"), Some("bytes 7-12/13"));

    let put = async |body| host.call("PUT", &files, &host.write, Some(body)).await;
    put(json!({"path": "a", "content_b64": ""})).await.blames("path");
    put(json!({"path": "/a/../b", "content_b64": ""})).await.blames("path");
    put(json!({"path": "/a", "content_b64": "%"})).await.blames("content_b64");
    put(json!({"path": "/a", "content_b64": "", "mode": "rw"})).await.blames("mode");
    put(json!({"path": "/a"})).await.blames("body");
    host.act("DELETE", &format!("{files}?path=/a%20b/n%26m.txt")).await.expect(204);
    host.get(&format!("{files}?path=/a%20b/n%26m.txt")).await.refused(404, "not_found");
}

#[tokio::test]
async fn a_document_has_a_limit_and_a_stream_has_none() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    let path = format!("/v1/volumes/{volume}/files?path=/big&mode=0640");

    let written = host.send(put_bytes(&host, &path, long_body(100))).await.expect(200);

    assert_eq!((&written["size"], &written["mode"]), (&json!(100 << 20), &json!("0640")));
    let whole = request("GET", &format!("/v1/volumes/{volume}/files?path=/big"), &host.read, None);
    host.send(with_header(whole, "accept", "application/json")).await.refused(413, "too_large");
    let large = with_header(
        request("PUT", &format!("/v1/volumes/{volume}/files"), &host.write, None),
        "content-length",
        "99999999",
    );
    host.send(large).await.refused(413, "too_large");
    let keyed = put_bytes(&host, &path, Body::empty());
    host.send(with_header(keyed, "idempotency-key", "k")).await.blames("Idempotency-Key");
}

#[tokio::test]
async fn directories_are_made_and_listed_in_pages() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    let at = |path: &str| format!("/v1/volumes/{volume}/{path}");
    let made =
        host.call("POST", &at("directories?path=/a"), &host.write, Some(json!({"mode": "700"}))).await.expect(201);
    assert_eq!((&made["kind"], &made["mode"]), (&json!("directory"), &json!("0700")));
    host.act("POST", &at("directories?path=/a")).await.expect(200);
    host.act("POST", &at("directories?path=/b")).await.expect(201);

    let first = host.get(&at("directories?path=/&limit=1")).await.expect(200);
    let token = first["next_token"].as_str().unwrap();
    let second = host.get(&at(&format!("directories?path=/&limit=1&next_token={token}"))).await.expect(200);

    assert_eq!((&first["entries"][0]["path"], &second["entries"][0]["path"]), (&json!("/a"), &json!("/b")));
    assert_eq!(second.get("next_token"), None);
    host.get(&at(&format!("directories?path=/a&next_token={token}"))).await.blames("next_token");
    host.get(&at("directories?path=/&depth=0")).await.blames("depth");
    host.get(&at("directories")).await.blames("path");
}

#[tokio::test]
async fn what_is_at_a_path_is_shown_changed_and_removed() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    let at = |path: &str| format!("/v1/volumes/{volume}/path?path={path}");
    host.act("POST", &format!("/v1/volumes/{volume}/directories?path=/a")).await.expect(201);
    assert_eq!(host.get(&at("/a")).await.expect(200)["uid"], 1000);
    let change = json!({"mode": "1777", "uid": 0, "move_to": "/b"});
    let changed = host.call("PATCH", &at("/a"), &host.write, Some(change)).await.expect(200);
    assert_eq!((&changed["path"], &changed["mode"], &changed["uid"]), (&json!("/b"), &json!("1777"), &json!(0)));
    host.call("PATCH", &at("/b"), &host.write, Some(json!({"move_to": "c"}))).await.blames("move_to");
    host.act("DELETE", &at("/b")).await.expect(204);
    host.act("DELETE", &at("/b")).await.refused(404, "not_found");
}

#[tokio::test]
async fn what_is_in_a_volume_is_its_sandboxs_while_that_lives() {
    let host = Host::new().await;
    let volume = host.volume("models").await;
    let sandbox = host.sandbox_with("models").await;
    for (method, path) in [
        ("GET", "files"),
        ("DELETE", "files"),
        ("GET", "directories"),
        ("POST", "directories"),
        ("GET", "path"),
        ("DELETE", "path"),
    ] {
        let refused =
            host.act(method, &format!("/v1/volumes/{volume}/{path}?path=/a")).await.refused(409, "volume_attached");
        assert!(refused["message"].as_str().unwrap().contains(&sandbox), "{refused}");
    }
    let stream = put_bytes(&host, &format!("/v1/volumes/{volume}/files?path=/a"), Body::from("x"));
    host.send(stream).await.refused(409, "volume_attached");
}

/// A removal that the agent does in three turns: the response, and how many turns it has had.
async fn remove_within(work_wait: Duration) -> (u16, u32) {
    let host = Host::with(|config| config.timing.work_wait = work_wait).await;
    let volume = host.volume("models").await;
    host.act("POST", &format!("/v1/volumes/{volume}/directories?path=/a")).await.expect(201);
    host.agent.records().turns_left = 3;
    let response = host.act("DELETE", &format!("/v1/volumes/{volume}/path?path=/a")).await;
    (response.status.as_u16(), 3 - host.agent.records().turns_left)
}

#[tokio::test]
async fn a_removal_that_takes_long_goes_on_until_it_is_done_or_the_time_is_over() {
    assert_eq!(remove_within(Duration::from_secs(60)).await, (204, 3));
    assert_eq!(remove_within(Duration::ZERO).await, (202, 1));
}
