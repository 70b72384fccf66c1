//! `/volume/…`: a volume that may hold anything.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::{Value, json};

use crate::support::Server;

/// A server and the root of its volume.
fn start() -> (Server, PathBuf) {
    let server = Server::start();
    let root = server.folder().join("volume");
    fs::create_dir(&root).unwrap();
    (server, root)
}

async fn send(server: &Server, method: &str, uri: &str, body: impl Into<Bytes>) -> (StatusCode, Bytes) {
    let request = Request::builder().method(method).uri(format!("/volume/{uri}")).body(Full::new(body.into()));
    let response = server.send(request.unwrap()).await;
    (response.status(), response.into_body().collect().await.unwrap().to_bytes())
}

async fn ask(server: &Server, method: &str, uri: &str, body: impl Into<Bytes>) -> (u16, Value) {
    let (status, body) = send(server, method, uri, body).await;
    (status.as_u16(), serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// Status and code of a request that fails.
async fn refused(server: &Server, method: &str, uri: &str, body: &'static str) -> (u16, String) {
    let (status, body) = ask(server, method, uri, body).await;
    (status, body["code"].as_str().unwrap_or_default().to_owned())
}

fn owner(path: impl AsRef<Path>) -> (u32, u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

#[tokio::test]
async fn a_file_arrives_with_its_mode_and_owner_and_leaves_whole_or_in_part() {
    let (server, root) = start();
    let bytes: Vec<u8> = (0..700_000_u32).map(|number| number.to_le_bytes()[1]).collect();

    let (status, entry) = ask(&server, "PUT", "files?path=/a/b%20c/file&mode=0640&uid=7&gid=8", bytes.clone()).await;
    assert_eq!(status, 200, "{entry}");
    let expected = json!({"path": "/a/b c/file", "kind": "file", "size": 700_000, "mode": "0640", "uid": 7, "gid": 8});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&entry[name], value, "{name}");
    }
    assert_eq!(owner(root.join("a/b c")), (7, 8, 0o755));
    assert_eq!(fs::read_dir(root.join("a/b c")).unwrap().count(), 1, "nothing is left beside it");
    let (status, whole) = send(&server, "GET", "files?path=/a/b%20c/file", "").await;
    assert_eq!((status, whole.len()), (StatusCode::OK, bytes.len()));
    assert_eq!(whole, bytes);
    let range = Request::get("/volume/files?path=/a/b%20c/file").header("range", "bytes=300000-300003");
    let part = server.send(range.body(Full::default()).unwrap()).await;
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(part.into_body().collect().await.unwrap().to_bytes(), bytes[300_000..=300_003]);
    let (_, shown) = ask(&server, "GET", "path?path=/a/b%20c/file", "").await;
    assert_eq!(shown, entry);

    ask(&server, "PUT", "files?path=/a/b%20c/file", "new").await;
    assert_eq!(owner(root.join("a/b c/file")), (1000, 1000, 0o644));
    assert_eq!(fs::read(root.join("a/b c/file")).unwrap(), b"new");
    assert_eq!(fs::read_dir(root.join("a/b c")).unwrap().count(), 1);
    let (status, _) = send(&server, "DELETE", "files?path=/a/b%20c/file", "").await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let missing = (404, "not_found".to_owned());
    assert_eq!(refused(&server, "GET", "files?path=/a/b%20c/file", "").await, missing);
    assert_eq!(refused(&server, "DELETE", "files?path=/a/b%20c/file", "").await, missing);
}

#[tokio::test]
async fn no_link_leads_out_of_the_volume() {
    let (server, root) = start();
    fs::write(server.folder().join("secret"), "secret").unwrap();
    fs::create_dir(root.join("real")).unwrap();
    fs::write(root.join("real/file"), "inside").unwrap();
    symlink(server.folder(), root.join("out")).unwrap();
    symlink("../../../../../../etc", root.join("up")).unwrap();
    symlink("/proc/self/root", root.join("magic")).unwrap();
    symlink("/real", root.join("absolute")).unwrap();

    for path in ["/out/secret", "/up/passwd", "/magic/etc/passwd"] {
        let read = refused(&server, "GET", &format!("files?path={path}"), "").await;
        assert_eq!(read, (404, "not_found".to_owned()), "{path}");
    }
    // What a link says is missing is not made either, in the volume or elsewhere.
    let written = refused(&server, "PUT", "files?path=/out/new", "x").await;
    assert_eq!(written, (404, "not_found".to_owned()));
    assert!(!server.folder().join("new").exists());
    let (status, inside) = send(&server, "GET", "files?path=/absolute/file", "").await;
    assert_eq!((status, &inside[..]), (StatusCode::OK, &b"inside"[..]), "the volume's root is the root");
    ask(&server, "PUT", "files?path=/absolute/new", "x").await;
    assert!(root.join("real/new").exists());
    ask(&server, "PUT", "files?path=/out", "a file now").await;
    assert!(root.join("out").symlink_metadata().unwrap().is_file(), "the link is replaced, not what it leads to");
    let (_, link) = ask(&server, "GET", "path?path=/up", "").await;
    assert_eq!((&link["kind"], &link["target"]), (&json!("symlink"), &json!("../../../../../../etc")));
    let (status, _) = send(&server, "DELETE", "path?path=/absolute", "").await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert!(root.join("real/file").exists());
    for path in ["", "relative", "/a/../b", "/a//b", "/nul%00"] {
        let refused = refused(&server, "GET", &format!("files?path={path}"), "").await;
        assert_eq!(refused, (400, "invalid_request".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn what_is_no_file_is_not_waited_for() {
    let (server, root) = start();
    let mode = Mode::from_bits_truncate(0o666);
    mknod(&root.join("fifo"), SFlag::S_IFIFO, mode, 0).unwrap();
    mknod(&root.join("device"), SFlag::S_IFCHR, mode, makedev(1, 5)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    fs::create_dir(root.join("folder")).unwrap();

    for name in ["fifo", "device", "socket", "folder"] {
        let read = refused(&server, "GET", &format!("files?path=/{name}"), "").await;
        assert_eq!(read, (400, "invalid_request".to_owned()), "{name}");
    }
    let written = refused(&server, "PUT", "files?path=/folder", "x").await;
    assert_eq!(written, (409, "conflict".to_owned()));
    let below = refused(&server, "PUT", "files?path=/fifo/file", "x").await;
    assert_eq!(below, (400, "invalid_request".to_owned()));
    let (_, fifo) = ask(&server, "GET", "path?path=/fifo", "").await;
    assert_eq!(fifo["kind"], "other");
    assert_eq!(refused(&server, "DELETE", "files?path=/folder", "").await.0, 400);
    assert_eq!(ask(&server, "PUT", "files?path=/fifo", "a file now").await.0, 200);
}

/// All that is in a directory, asked for in pages.
async fn pages(server: &Server, query: &str) -> (Vec<String>, usize) {
    let (mut paths, mut count, mut after) = (Vec::new(), 0, String::new());
    loop {
        let (status, page) = ask(server, "GET", &format!("directories?{query}&after={after}"), "").await;
        assert_eq!(status, 200, "{page}");
        count += 1;
        let entries = page["entries"].as_array().unwrap();
        paths.extend(entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { return (paths, count) };
        after = next.replace('%', "%25").replace('/', "%2F");
    }
}

#[tokio::test]
async fn a_directory_is_listed_in_pages_each_name_once_and_in_order() {
    let (server, root) = start();
    for name in ["b", "a", "c", "a/z", "a/y", "c/deep", "c/deep/er"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::write(root.join(OsStr::from_bytes(b"\xff%")), "").unwrap();
    symlink("/", root.join("c/loop")).unwrap();
    let flat = ["/a", "/b", "/c", "/\u{fffd}%"];
    let deep = ["/a", "/a/y", "/a/z", "/b", "/c", "/c/deep", "/c/loop", "/\u{fffd}%"];

    assert_eq!(pages(&server, "path=/").await, (flat.map(str::to_owned).to_vec(), 1));
    for limit in 1..=9 {
        let (paths, count) = pages(&server, &format!("path=/&depth=2&limit={limit}")).await;
        assert_eq!(paths, deep, "pages of {limit}");
        assert_eq!(count, deep.len().div_ceil(limit));
    }
    assert_eq!(pages(&server, "path=/c&depth=32&limit=2").await.0, ["/c/deep", "/c/deep/er", "/c/loop"]);
    for query in ["limit=0", "limit=1001", "depth=33", "depth=x", "after=%252"] {
        let refused = refused(&server, "GET", &format!("directories?path=/&{query}"), "").await;
        assert_eq!(refused, (400, "invalid_request".to_owned()), "{query}");
    }
    assert_eq!(refused(&server, "GET", "directories?path=/none", "").await.0, 404);
}

#[tokio::test]
async fn a_directory_of_many_names_is_listed_a_page_at_a_time() {
    let (server, root) = start();
    let names: Vec<_> = (0..5_000).map(|number| format!("/many/{number:05}")).collect();
    fs::create_dir(root.join("many")).unwrap();
    for name in &names {
        fs::write(root.join(name.trim_start_matches('/')), "").unwrap();
    }

    let (listed, count) = pages(&server, "path=/many").await;

    assert_eq!((listed, count), (names, 5));
}

#[tokio::test]
async fn a_tree_of_any_depth_and_width_is_removed_and_nothing_else() {
    let made = tempfile::tempdir().unwrap();
    let deep = "mkdir tree && cd tree && for i in $(seq 1500); do mkdir d f && : >file && cd d || exit 1; done";
    // Before there is a server, which takes the status of every child.
    assert!(Command::new("bash").args(["-c", deep]).current_dir(&made).status().unwrap().success());
    let (server, root) = start();
    let tree = root.join("tree");
    fs::rename(made.path().join("tree"), &tree).unwrap();
    fs::create_dir_all(tree.join("wide")).unwrap();
    for number in 0..600 {
        fs::write(tree.join(format!("wide/{number}")), "").unwrap();
    }
    fs::write(root.join("kept"), "").unwrap();
    symlink(root.join("kept"), tree.join("link")).unwrap();
    symlink("/", tree.join("wide/root")).unwrap();

    let mut status = StatusCode::ACCEPTED;
    while status == StatusCode::ACCEPTED {
        (status, _) = send(&server, "DELETE", "path?path=/tree", "").await;
    }

    assert_eq!(status, StatusCode::NO_CONTENT);
    let left: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["kept"]);
    assert_eq!(refused(&server, "DELETE", "path?path=/tree", "").await, (404, "not_found".to_owned()));
    assert_eq!(refused(&server, "DELETE", "path?path=/", "").await, (400, "invalid_request".to_owned()));
}

#[tokio::test]
async fn what_is_there_changes_only_as_a_whole_change_says() {
    let (server, root) = start();
    let (status, made) = ask(&server, "POST", "directories?path=/a/b&mode=0700&uid=5&gid=6", "").await;
    assert_eq!((status, &made["mode"]), (201, &json!("0700")));
    assert_eq!((owner(root.join("a")), owner(root.join("a/b"))), ((5, 6, 0o755), (5, 6, 0o700)));
    assert_eq!(ask(&server, "POST", "directories?path=/a/b&mode=0777", "").await, (200, made));
    fs::write(root.join("file"), "x").unwrap();
    fs::set_permissions(root.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(refused(&server, "POST", "directories?path=/file", "").await, (409, "conflict".to_owned()));

    let change = json!({"mode": "4755", "uid": 9, "move_to": "/a/moved"}).to_string();
    let (status, moved) = ask(&server, "PATCH", "path?path=/file", change).await;
    assert_eq!((status, &moved["path"]), (200, &json!("/a/moved")), "{moved}");
    assert_eq!(owner(root.join("a/moved")), (9, 0, 0o4755));
    let occupied = refused(&server, "PATCH", "path?path=/a/moved", r#"{"mode": "0600", "move_to": "/a/b"}"#).await;
    assert_eq!(occupied, (409, "conflict".to_owned()));
    let into_itself = refused(&server, "PATCH", "path?path=/a", r#"{"move_to": "/a/b/c"}"#).await;
    assert_eq!(into_itself, (400, "invalid_request".to_owned()));
    symlink("nowhere", root.join("link")).unwrap();
    let (status, link) = ask(&server, "PATCH", "path?path=/link", r#"{"uid": 3}"#).await;
    assert_eq!((status, &link["uid"], &link["kind"]), (200, &json!(3), &json!("symlink")));
    for change in
        [r#"{"mode": "0999"}"#, r#"{"uid": 4294967295}"#, r#"{"move_to": "up/../x"}"#, r#"{"moed": "1"}"#, "{"]
    {
        let change = Bytes::from(change);
        let (status, body) = ask(&server, "PATCH", "path?path=/a/moved", change.clone()).await;
        assert_eq!((status, &body["code"]), (400, &json!("invalid_request")), "{change:?}");
    }
    assert_eq!(refused(&server, "PATCH", "path?path=/link", r#"{"mode": "0600"}"#).await.0, 400);
}

#[tokio::test]
async fn a_full_volume_says_so_and_keeps_what_was_there() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
    mount(none, "/", none, private, none).unwrap();
    let (server, root) = start();
    mount(Some("tmpfs"), &root, Some("tmpfs"), MsFlags::empty(), Some("size=1m")).unwrap();
    assert_eq!(ask(&server, "PUT", "files?path=/file", vec![1; 600_000]).await.0, 200);

    let full = ask(&server, "PUT", "files?path=/file", vec![2; 600_000]).await;

    assert_eq!((full.0, &full.1["code"]), (507, &json!("volume_full")));
    assert_eq!(fs::read(root.join("file")).unwrap(), vec![1; 600_000]);
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
    umount(&root).unwrap();
}

#[tokio::test]
async fn without_a_volume_there_is_nothing_to_work_on() {
    let server = Server::start();

    assert_eq!(refused(&server, "PUT", "files?path=/file", "x").await, (404, "not_found".to_owned()));
    assert!(!server.folder().join("volume").exists());
    assert_eq!(refused(&server, "POST", "nothing?path=/", "").await, (404, "not_found".to_owned()));
}
