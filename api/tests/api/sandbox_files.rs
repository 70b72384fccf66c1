//! `GET /v1/sandboxes/{id}/files`, `…/directories` and `…/path`, of a real data plane.

use sandpiper_protocol::agent::SandboxState;
use serde_json::json;

use crate::support::Host;
use crate::support::data_plane::data_plane;

#[tokio::test]
async fn who_may_read_sees_what_is_in_a_sandbox() {
    let Some((url, folder)) = data_plane("files of a sandbox").await else { return };
    let host = Host::new().await;
    host.agent.records().data_plane = Some(url);
    let id = host.sandbox().await;
    let root = folder.path().join("look");
    std::fs::create_dir_all(root.join("b")).unwrap();
    std::fs::write(root.join("a"), "hello").unwrap();
    std::os::unix::fs::symlink("/nowhere", root.join("c")).unwrap();
    let root = root.to_str().unwrap();
    let get = async |what: &str, query: &str| {
        host.call("GET", &format!("/v1/sandboxes/{id}/{what}?{query}"), &host.read, None).await
    };

    let file = get("path", &format!("path={root}/a")).await.expect(200);
    assert_eq!((&file["kind"], &file["size"], &file["mode"]), (&json!("file"), &json!(5), &json!("0644")));
    assert_eq!((&file["owner"], &file["path"]), (&json!("root"), &json!(format!("{root}/a"))));
    assert!(file["modified_at"].is_string());
    let first = get("directories", &format!("path={root}/../look&limit=2")).await.expect(200);
    let kinds = |list: &serde_json::Value| {
        list["entries"].as_array().unwrap().iter().map(|entry| entry["kind"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&first), [json!("file"), json!("directory")]);
    let next = first["next_token"].as_str().unwrap();
    let rest = get("directories", &format!("path={root}/../look&limit=2&next_token={next}")).await.expect(200);
    assert_eq!((kinds(&rest), &rest["entries"][0]["target"]), (vec![json!("symlink")], &json!("/nowhere")));
    assert!(rest.get("next_token").is_none());
    let content = get("files", &format!("path={root}/a")).await;
    assert_eq!((content.header("content-length"), content.text.as_str()), (Some("5"), "hello"));
    assert_eq!(content.header("content-type"), Some("application/octet-stream"));

    for what in ["files", "directories", "path"] {
        get(what, &format!("path={root}/none")).await.refused(404, "not_found");
        get(what, "").await.refused(400, "invalid_request");
        get(what, "path=a&path=b").await.refused(400, "invalid_request");
    }
    get("files", &format!("path={root}")).await.refused(400, "invalid_request");
    get("directories", &format!("path={root}/a")).await.refused(400, "invalid_request");
    get("path", &format!("path=/{}", "x".repeat(5000))).await.refused(400, "invalid_request");
}

#[tokio::test]
async fn looking_wakes_nobody() {
    let host = Host::new().await;
    let id = host.sandbox().await;
    // Nobody is there.
    let path = format!("/v1/sandboxes/{id}/directories?path=~");
    host.agent.records().data_plane = Some("http://127.0.0.1:1".to_owned());
    host.call("GET", &path, &host.read, None).await.refused(503, "data_plane_unavailable");
    // The host has paused it, and nothing here knows that yet.
    host.agent.records().sandboxes.get_mut(&id).unwrap().state = SandboxState::Stopped;
    let sessions = host.agent.records().session_keys.len();
    host.call("GET", &path, &host.read, None).await.refused(409, "invalid_state");
    host.sync().await;
    host.call("GET", &path, &host.read, None).await.refused(409, "invalid_state");
    assert_eq!(host.agent.records().session_keys.len(), sessions);
}
