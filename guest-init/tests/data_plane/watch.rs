//! Watches of folders: as a stream, and asked for.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::support::{Events, Server, folder_of_nobody, open_folder, soon, until};

/// Events that wait for who asks now and then.
const MAX_EVENTS: usize = 10_000;

/// Watches at a time.
const MAX_WATCHES: usize = 64;

impl Server {
    async fn watch(&self, message: Value, headers: &[(&str, &str)]) -> Events {
        let mut events = self.stream_of("filesystem.Filesystem", "WatchDir", message, headers).await;
        assert_eq!(events.next_message().await.unwrap(), json!({"start": {}}));
        events
    }

    async fn create_watcher(&self, message: Value) -> Value {
        let (status, watcher) = self.filesystem("root", "CreateWatcher", message).await;
        assert_eq!(status, StatusCode::OK, "{watcher}");
        watcher
    }

    /// What a watcher has seen when it has seen `last`.
    async fn seen_until(&self, watcher: &Value, last: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        soon(async {
            while !seen.contains(last) {
                let (status, events) = self.filesystem("root", "GetWatcherEvents", watcher.clone()).await;
                assert_eq!(status, StatusCode::OK, "{events}");
                for event in events["events"].as_array().into_iter().flatten() {
                    let event = words(event);
                    assert!(!event.starts_with("CREATE") || seen.insert(event.clone()), "{event} comes twice");
                    seen.insert(event);
                }
            }
        })
        .await;
        seen
    }
}

/// `CREATE name` for an event.
fn words(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap().strip_prefix("EVENT_TYPE_").unwrap();
    format!("{kind} {}", event["name"].as_str().unwrap())
}

/// The next event of a stream.
async fn next(events: &mut Events) -> String {
    words(&events.next_message().await.unwrap()["filesystem"])
}

/// Descriptors of inotify that this process holds.
fn watches() -> usize {
    let held = fs::read_dir("/proc/self/fd").unwrap();
    held.filter(|fd| fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|to| to.ends_with("anon_inode:inotify")))
        .count()
}

#[tokio::test]
async fn a_stream_tells_each_kind_of_change() {
    let server = Server::start();
    let folder = folder_of_nobody(&server);
    let mut events = server.watch(json!({"path": folder, "includeEntry": true}), &[]).await;
    let (a, b) = (format!("{folder}/a"), format!("{folder}/b"));

    fs::write(&a, "abc").unwrap();
    let created = events.next_message().await.unwrap();
    let written = next(&mut events).await;
    fs::set_permissions(&a, Permissions::from_mode(0o600)).unwrap();
    let changed = next(&mut events).await;
    fs::rename(&a, &b).unwrap();
    let moved = [next(&mut events).await, next(&mut events).await];
    fs::remove_file(&b).unwrap();
    let removed = events.next_message().await.unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();

    assert_eq!(words(&created["filesystem"]), "CREATE a");
    assert_eq!(created["filesystem"]["entry"]["path"], a);
    assert_eq!((written.as_str(), changed.as_str()), ("WRITE a", "CHMOD a"));
    assert_eq!(moved, ["RENAME a", "CREATE b"]);
    assert_eq!(removed, json!({"filesystem": {"name": "b", "type": "EVENT_TYPE_REMOVE"}}));
    assert_eq!(next(&mut events).await, "CHMOD .");
}

#[tokio::test]
async fn a_stream_has_keepalives_and_a_deadline_and_ends_with_its_client() {
    let server = Server::start();
    let message = json!({"path": open_folder(&server)});
    let mut events =
        server.watch(message.clone(), &[("keepalive-ping-interval", "1"), ("connect-timeout-ms", "1500")]).await;

    assert_eq!(events.next_message().await.unwrap(), json!({"keepalive": {}}));
    assert_eq!(events.next_message().await.unwrap()["last"]["error"]["code"], "deadline_exceeded");
    drop(events);
    until(|| watches() == 0).await;
    let left = server.watch(message, &[]).await;
    assert_eq!(watches(), 1);
    drop(left);

    until(|| watches() == 0).await;
}

#[tokio::test]
async fn new_folders_are_watched_with_what_is_in_them_already() {
    let server = Server::start();
    let folder = &folder_of_nobody(&server);
    fs::create_dir_all(format!("{folder}/old/er")).unwrap();
    let flat = server.create_watcher(json!({"path": folder})).await;
    let deep = server.create_watcher(json!({"path": folder, "recursive": true})).await;

    fs::write(format!("{folder}/old/er/1"), "").unwrap();
    // Faster than any watch can be set.
    fs::create_dir_all(format!("{folder}/new/er")).unwrap();
    fs::write(format!("{folder}/new/er/2"), "").unwrap();
    server.seen_until(&deep, "CREATE new/er/2").await;
    fs::write(format!("{folder}/new/er/3"), "").unwrap();
    server.seen_until(&deep, "CREATE new/er/3").await;
    fs::rename(format!("{folder}/new"), format!("{folder}/moved")).unwrap();
    server.seen_until(&deep, "CREATE moved/er/2").await;
    fs::write(format!("{folder}/moved/er/4"), "").unwrap();
    server.seen_until(&deep, "CREATE moved/er/4").await;
    fs::remove_dir_all(format!("{folder}/moved")).unwrap();
    let end = server.seen_until(&deep, "REMOVE moved").await;
    fs::write(format!("{folder}/last"), "").unwrap();
    let flat = server.seen_until(&flat, "CREATE last").await;

    assert!(end.contains("REMOVE moved/er/4"), "{end:?}");
    assert!(flat.iter().all(|event| !event.contains('/')), "{flat:?}");
}

#[tokio::test]
async fn a_tree_that_is_made_while_it_is_watched_is_told_whole_and_once() {
    let server = Server::start();
    let folder = &folder_of_nobody(&server);
    let watcher = server.create_watcher(json!({"path": folder, "recursive": true})).await;
    let below = ["", "/in", "/in/side", "/in/side/file"];
    let made: BTreeSet<_> = (0..200).flat_map(|number| below.map(|rest| format!("CREATE {number}{rest}"))).collect();

    // Beside the server, so that what is made is now found, now told by the kernel, now both.
    let maker = std::thread::spawn({
        let folder = folder.clone();
        move || {
            for number in 0..200 {
                fs::create_dir_all(format!("{folder}/{number}/in/side")).unwrap();
                fs::write(format!("{folder}/{number}/in/side/file"), "").unwrap();
            }
            fs::write(format!("{folder}/last"), "").unwrap();
        }
    });
    let mut seen = server.seen_until(&watcher, "CREATE last").await;
    maker.join().unwrap();
    // The name may be told before what is found in the last folder.
    fs::write(format!("{folder}/very-last"), "").unwrap();
    seen.extend(server.seen_until(&watcher, "CREATE very-last").await);

    let missing: Vec<_> = made.difference(&seen).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test]
async fn a_watcher_that_is_asked_too_late_says_that_events_were_lost() {
    let server = Server::start();
    let folder = folder_of_nobody(&server);
    let watcher = server.create_watcher(json!({"path": folder})).await;
    let mut events = server.watch(json!({"path": folder}), &[]).await;

    let files = ["a", "b"].map(|name| format!("{folder}/{name}"));
    for file in &files {
        fs::write(file, "").unwrap();
    }
    // The kernel makes one event of two that are the same, so they take turns.
    for _ in 0..MAX_EVENTS {
        for file in &files {
            fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
        }
    }
    soon(async { while events.next_message().await.unwrap()["last"]["error"]["code"] != "resource_exhausted" {} })
        .await;
    let (status, lost) = soon(async {
        loop {
            let answer = server.filesystem("root", "GetWatcherEvents", watcher.clone()).await;
            if answer.0 != StatusCode::OK {
                return answer;
            }
        }
    })
    .await;
    // More of the same crowd may be lost yet; what comes after it is told.
    soon(async {
        for number in 0.. {
            fs::write(format!("{folder}/after-{number}"), "").unwrap();
            let (_, seen) = server.filesystem("root", "GetWatcherEvents", watcher.clone()).await;
            if seen["events"].to_string().contains("after-") {
                break;
            }
        }
    })
    .await;

    assert_eq!((status, &lost["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("resource_exhausted")));
}

#[tokio::test]
async fn watchers_are_bounded_and_end_when_they_are_removed() {
    let server = Server::start();
    let message = json!({"path": open_folder(&server)});
    let mut kept = Vec::new();
    for _ in 0..MAX_WATCHES {
        kept.push(server.create_watcher(message.clone()).await);
    }

    let (status, refused) = server.filesystem("root", "CreateWatcher", message.clone()).await;
    let first = kept.pop().unwrap();
    let (removed, _) = server.filesystem("root", "RemoveWatcher", first.clone()).await;
    let (again, _) = server.filesystem("root", "RemoveWatcher", first.clone()).await;
    let (asked, _) = server.filesystem("root", "GetWatcherEvents", first).await;
    server.create_watcher(message).await;

    assert_eq!((status, &refused["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("resource_exhausted")));
    assert_eq!((removed, again, asked), (StatusCode::OK, StatusCode::NOT_FOUND, StatusCode::NOT_FOUND));
    until(|| watches() == MAX_WATCHES).await;
}

#[tokio::test]
async fn a_user_watches_no_more_than_it_may_read() {
    let server = Server::start();
    let folder = folder_of_nobody(&server);
    let private = format!("{folder}/private");
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    let fail = async |user: &str, path: &str| {
        server.filesystem(user, "CreateWatcher", json!({"path": path, "recursive": true})).await.1["code"].clone()
    };

    assert_eq!(fail("nobody", &private).await, "permission_denied");
    assert_eq!(fail("root", "/no/such").await, "not_found");
    assert_eq!(fail("root", "/etc/hostname").await, "invalid_argument");
    assert_eq!(fail("stranger", "/").await, "unauthenticated");
    let (status, watcher) =
        server.filesystem("nobody", "CreateWatcher", json!({"path": folder, "recursive": true})).await;
    assert_eq!(status, StatusCode::OK, "{watcher}");
    fs::write(format!("{private}/secret"), "").unwrap();
    fs::write(format!("{folder}/shown"), "").unwrap();
    let seen = server.seen_until(&watcher, "CREATE shown").await;
    assert!(seen.iter().all(|event| !event.contains("secret")), "{seen:?}");
}
