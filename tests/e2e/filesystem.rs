//! Folders, watches, metadata and composed files of a real guest, through the ingress.

use serde_json::{Value, json};
use support::{Host, Sandbox, eventually};

tests! {
    shared: [
        folders_are_made_listed_moved_and_removed,
        a_watcher_tells_what_a_program_changes_and_goes_on_after_a_pause,
        metadata_of_an_upload_is_kept_by_the_disk,
        parts_are_composed_by_the_user_that_asks,
        a_file_is_not_sent_again_to_who_has_it,
        the_metrics_are_those_of_the_guest,
    ],
    alone: [],
}

async fn folders_are_made_listed_moved_and_removed() {
    let sandbox = Host::shared().sandbox().await;

    call(&sandbox, "MakeDir", json!({"path": "a/b"})).await;
    sandbox.sh("echo text > a/b/file; ln -s b a/link").await;
    call(&sandbox, "Move", json!({"source": "a/b/file", "destination": "a/c/file"})).await;
    let list = call(&sandbox, "ListDir", json!({"path": "~/a", "depth": 2})).await;
    call(&sandbox, "Remove", json!({"path": "a"})).await;

    let paths: Vec<_> =
        list["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/home/user/a/b", "/home/user/a/c", "/home/user/a/c/file", "/home/user/a/link"]);
    assert_eq!(list["entries"][2]["owner"], "user");
    assert_ne!(sandbox.sh("test -e a").await.end.exit_code, 0);
    let root = send(&sandbox, "filesystem.Filesystem/MakeDir", json!({"path": "/root/a"})).await;
    assert_eq!((root.0, &root.1["code"]), (403, &json!("permission_denied")));
}

async fn a_watcher_tells_what_a_program_changes_and_goes_on_after_a_pause() {
    let mut sandbox = Host::shared().sandbox().await;
    sandbox.sh("mkdir watched").await;
    let watcher = call(&sandbox, "CreateWatcher", json!({"path": "watched", "recursive": true})).await;

    sandbox.sh("mkdir watched/sub").await;
    wait_for(&sandbox, &watcher, "sub").await;
    sandbox.pause_and_resume().await;
    sandbox.sh("echo text > watched/sub/file").await;

    wait_for(&sandbox, &watcher, "sub/file").await;
    call(&sandbox, "RemoveWatcher", watcher.clone()).await;
    let gone = send(&sandbox, "filesystem.Filesystem/GetWatcherEvents", watcher).await;
    assert_eq!((gone.0, &gone.1["code"]), (404, &json!("not_found")));
}

async fn metadata_of_an_upload_is_kept_by_the_disk() {
    let sandbox = Host::shared().sandbox().await;

    let written = request(&sandbox, reqwest::Method::POST, "/files?path=file")
        .header("content-type", "application/octet-stream")
        .header("x-metadata-origin", "upload")
        .body("text")
        .send()
        .await
        .unwrap();
    let stat = call(&sandbox, "Stat", json!({"path": "file"})).await;

    assert_eq!(written.json::<Value>().await.unwrap()[0]["metadata"], json!({"origin": "upload"}));
    assert_eq!(stat["entry"]["metadata"], json!({"origin": "upload"}));
}

async fn parts_are_composed_by_the_user_that_asks() {
    let sandbox = Host::shared().sandbox().await;
    sandbox.sh("printf 'one ' > 1; printf two > 2").await;
    sandbox.root_sh("echo secret > /root/3; ln -s /root/3 /home/user/link").await;
    let compose = async |sources: Value| {
        send(&sandbox, "files/compose", json!({"source_paths": sources, "destination": "whole"})).await.0
    };

    assert_eq!(compose(json!(["1", "/root/3"])).await, 403);
    assert_eq!(compose(json!(["1", "link"])).await, 400);
    assert_eq!(compose(json!(["1", "2"])).await, 200);
    assert_eq!(sandbox.out("cat whole; ls; stat -c %U whole").await, "one twolink\nwhole\nuser\n");
}

async fn a_file_is_not_sent_again_to_who_has_it() {
    let sandbox = Host::shared().sandbox().await;
    let content = vec![b'a'; 1 << 20];
    sandbox.data_plane.write_file("file", content.clone(), None).await.unwrap();
    let get = || request(&sandbox, reqwest::Method::GET, "/files?path=file");

    let first = get().send().await.unwrap();
    let tag = first.headers()["etag"].clone();
    let again = get().header("if-none-match", tag).send().await.unwrap();
    let packed = get().header("accept-encoding", "gzip").send().await.unwrap();

    assert_eq!((first.status().as_u16(), again.status().as_u16()), (200, 304));
    assert!(first.bytes().await.unwrap() == content, "the bytes differ");
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    assert!(packed.bytes().await.unwrap().len() < 64 * 1024);
}

async fn the_metrics_are_those_of_the_guest() {
    let sandbox = Host::shared().sandbox().await;

    let metrics: Value =
        request(&sandbox, reqwest::Method::GET, "/metrics").send().await.unwrap().json().await.unwrap();
    let (cpus, disk) = (sandbox.out("nproc").await, sandbox.out("df --output=size -B1 / | tail -1").await);

    assert_eq!(metrics["cpu_count"].to_string(), cpus.trim());
    assert_eq!(metrics["disk_total"].to_string(), disk.trim());
    assert!(metrics["mem_used"].as_u64().unwrap() < metrics["mem_total"].as_u64().unwrap(), "{metrics}");
}

/// Waits until the watcher has told of `name`.
async fn wait_for(sandbox: &Sandbox, watcher: &Value, name: &str) {
    eventually(&format!("{name} is told"), || async {
        let events = call(sandbox, "GetWatcherEvents", watcher.clone()).await;
        events["events"].as_array().is_some_and(|events| events.iter().any(|event| event["name"] == name))
    })
    .await;
}

/// A call of the service that succeeds.
async fn call(sandbox: &Sandbox, method: &str, message: Value) -> Value {
    let (status, body) = send(sandbox, &format!("filesystem.Filesystem/{method}"), message).await;
    assert_eq!(status, 200, "{method}: {body}");
    body
}

async fn send(sandbox: &Sandbox, path: &str, message: Value) -> (u16, Value) {
    let response =
        request(sandbox, reqwest::Method::POST, &format!("/{path}")).json(&message).send().await.expect("an answer");
    (response.status().as_u16(), response.json().await.expect("JSON"))
}

fn request(sandbox: &Sandbox, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
    let http = Host::shared().client.http();
    http.request(method, format!("{}{path}", sandbox.session.data_plane_url))
        .header("x-access-token", &sandbox.session.access_token)
}
