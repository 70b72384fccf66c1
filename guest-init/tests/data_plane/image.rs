//! What a template's image says of processes and files, and the command that it starts.

use std::fs;

use crate::support::{Server, open_folder, soon};
use sandpiper_init::serve::Settings;
use serde_json::json;

const ROOT: (&str, &str) = ("authorization", "Basic cm9vdDo=");

/// Everything of this machine's own, so that the folder is one that there is.
fn settings(folder: &str) -> Settings {
    let envs = [("FROM_IMAGE".to_owned(), "yes".to_owned())].into();
    Settings { envs, default_user: "65533:12".to_owned(), folder: Some(folder.to_owned()), volume: None }
}

#[tokio::test]
async fn processes_start_as_the_images_user_in_its_folder_unless_a_request_says_otherwise() {
    let server = Server::start_with(settings("/usr"));
    let process = |more: serde_json::Value| {
        let mut process = json!({"cmd": "/bin/sh", "args": ["-c", "id -u; id -g; id -G; pwd; echo $HOME $FROM_IMAGE"]});
        process.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"process": process})
    };

    let by_image = server.stream("Start", process(json!({})), &[]).await.outcome().await;
    let by_request = server.stream("Start", process(json!({"cwd": "bin"})), &[ROOT]).await.outcome().await;

    assert_eq!(by_image.stdout(), "65533\n12\n12\n/usr\n/ yes\n", "{:?}", by_image.error);
    let lines: Vec<_> = by_request.stdout().lines().map(str::to_owned).collect();
    assert_eq!((lines[0].as_str(), lines[3].as_str()), ("0", "/usr/bin"));
}

#[tokio::test]
async fn a_folder_of_the_image_that_is_gone_is_no_reason_not_to_start() {
    let server = Server::start_with(settings("/no/such/folder"));

    let outcome = server.shell("pwd").await.outcome().await;

    assert_eq!(outcome.stdout(), "/\n", "{:?}", outcome.error);
}

#[tokio::test]
async fn relative_paths_of_files_count_from_the_images_folder() {
    let there = tempfile::tempdir().unwrap();
    fs::write(there.path().join("file"), "text").unwrap();
    let server =
        Server::start_with(Settings { default_user: "root".to_owned(), ..settings(there.path().to_str().unwrap()) });

    let (_, read) = server.get("/files?path=file").await;
    let (status, body) = server.post("/files?path=new", "application/octet-stream", "new").await;
    let (_, stat) = server.filesystem("root", "Stat", json!({"path": "file"})).await;

    assert_eq!(read, "text");
    assert!(status.is_success(), "{body:?}");
    assert_eq!(fs::read(there.path().join("new")).unwrap(), b"new");
    assert_eq!(stat["entry"]["size"], "4");
}

#[tokio::test]
async fn the_start_command_is_a_process_that_can_be_connected_to() {
    let server = Server::start();
    let fifo = format!("{}/fifo", open_folder(&server));

    let running =
        server.app().run_start_command(&format!("echo up as $(id -u); mkfifo {fifo}; read _ <{fifo}")).await.unwrap();
    let mut events = server.stream("Connect", json!({"process": {"tag": "start"}}), &[]).await;
    let pid = events.pid().await;
    let seen = events.read_until("up as").await;
    let (_, list) = server.call("List", json!({})).await;
    server.shell(&format!("echo >{fifo}")).await.outcome().await;

    assert_eq!(seen, "up as 0\n");
    assert_eq!((&list["processes"][0]["pid"], &list["processes"][0]["tag"]), (&json!(pid), &json!("start")));
    assert_eq!(soon(running.ended()).await, None);
}

#[tokio::test]
async fn a_start_command_that_fails_is_told_with_what_it_said() {
    let server = Server::start();
    let stranger = Server::start_with(Settings { default_user: "stranger".to_owned(), ..Settings::default() });

    let running = server.app().run_start_command("echo no port is free >&2; exit 3").await.unwrap();
    let problem = soon(running.ended()).await.unwrap();
    let refused = stranger.app().run_start_command("true").await.unwrap_err();

    assert_eq!(problem, "The start command has ended: exit status 3. It said last: no port is free");
    assert!(refused.contains("no user \"stranger\""), "{refused}");
}
