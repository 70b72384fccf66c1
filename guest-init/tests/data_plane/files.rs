//! `GET` and `POST /files`, with real files and users.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::support::{Server, folder_of_nobody, open_folder, whole};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

const BYTES: &str = "application/octet-stream";

fn json(body: &Bytes) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|error| panic!("{error}: {body:?}"))
}

fn names(folder: &str) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn twenty_mebibytes_go_up_and_down_unchanged() {
    let server = Server::start();
    let path = format!("{}/deep/er/large", open_folder(&server));
    let sent: Vec<u8> =
        (0..20 * 1024 * 1024_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11).to_le_bytes()[0]).collect();

    let (up, answer) = server.post(&format!("/files?path={path}"), BYTES, sent.clone()).await;
    let (down, received) = server.get(&format!("/files?path={path}")).await;

    assert_eq!((up, down), (StatusCode::OK, StatusCode::OK));
    assert_eq!(json(&answer), json!([{"path": path, "name": "large", "type": "file"}]));
    assert!(received == sent, "the bytes are the same");
}

#[tokio::test]
async fn a_form_carries_several_files() {
    let server = Server::start();
    let folder = open_folder(&server);
    let part = |path: &str, text: &str| {
        format!("--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{path}\"\r\n\r\n{text}\r\n")
    };
    let body = part(&format!("{folder}/a"), "one") + &part(&format!("{folder}/b"), "two") + "--edge--\r\n";

    let (status, answer) = server.post("/files?username=root", "multipart/form-data; boundary=edge", body).await;
    let elsewhere = part("ignored", "three") + "--edge--\r\n";
    let uri = format!("/files?path={folder}/c");
    let (_, second) = server.post(&uri, "multipart/form-data; boundary=edge", elsewhere).await;

    assert_eq!((status, json(&answer).as_array().unwrap().len()), (StatusCode::OK, 2));
    assert_eq!(json(&second)[0]["path"], format!("{folder}/c"));
    let text = |name| fs::read_to_string(format!("{folder}/{name}")).unwrap();
    assert_eq!((text("a"), text("b"), text("c")), ("one".into(), "two".into(), "three".into()));
}

#[tokio::test]
async fn a_form_writes_to_no_other_path_than_the_querys() {
    let server = Server::start();
    let folder = open_folder(&server);
    let part = |path: &str| {
        format!("--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{path}\"\r\n\r\ntext\r\n")
    };
    let body = part("a") + &part(&format!("{folder}/b")) + "--edge--\r\n";

    let (status, _) = server.post(&format!("/files?path={folder}/a"), "multipart/form-data; boundary=edge", body).await;

    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(!fs::exists(format!("{folder}/b")).unwrap());
}

#[tokio::test]
async fn a_signed_url_is_for_its_user_and_its_one_path() {
    let server = Server::start();
    let secret = format!("{}/secret", open_folder(&server));
    fs::write(&secret, "root's").unwrap();
    let get = async |query: String| {
        let request = Request::get(format!("/files?{query}")).header("authorization", "Basic bm9ib2R5Og==");
        whole(server.send(request.body(Full::default()).unwrap()).await).await.0
    };
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();

    // The field says nobody, who may not; the default user is root.
    assert_eq!(get(format!("path={secret}")).await, StatusCode::FORBIDDEN);
    assert_eq!(get(format!("path={secret}&signature=x")).await, StatusCode::OK);
    assert_eq!(get(format!("path={secret}&username=nobody&signature=x")).await, StatusCode::FORBIDDEN);
    assert_eq!(get(format!("path={secret}&path=/etc/hostname&signature=x")).await, StatusCode::BAD_REQUEST);
    assert_eq!(get(format!("path={secret}&username=root&username=nobody")).await, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn metadata_comes_with_a_file_and_goes_with_the_next_upload() {
    let server = Server::start();
    let folder = folder_of_nobody(&server);
    // The second lies where only the file itself may be written.
    let shared = format!("{}/shared", open_folder(&server));
    fs::write(&shared, "").unwrap();
    std::os::unix::fs::chown(&shared, Some(65534), None).unwrap();
    let metadata = async |path: &str| {
        let (_, stat) = server.filesystem("nobody", "Stat", json!({"path": path})).await;
        stat["entry"]["metadata"].clone()
    };

    for path in [&format!("{folder}/file"), &shared] {
        let put = async |fields: &[(&str, &str)]| {
            let mut request =
                Request::post(format!("/files?path={path}&username=nobody")).header("content-type", BYTES);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            whole(server.send(request.body(Full::new("x".into())).unwrap()).await).await
        };
        let (first, written) = put(&[("X-Metadata-Origin", "upload"), ("X-Metadata-Colour", "blue")]).await;
        let had = metadata(path).await;
        put(&[("X-Metadata-Origin", "second")]).await;
        let replaced = metadata(path).await;
        put(&[]).await;

        assert_eq!(first, StatusCode::OK);
        assert_eq!(json(&written)[0]["metadata"], json!({"origin": "upload", "colour": "blue"}));
        assert_eq!(had, json!({"origin": "upload", "colour": "blue"}));
        assert_eq!(replaced, json!({"origin": "second"}));
        assert_eq!(metadata(path).await, Value::Null);
    }
    let (too_long, _) = {
        let request = Request::post(format!("/files?path={folder}/long")).header("content-type", BYTES);
        let request = request.header("x-metadata-a", "x".repeat(4_000)).body(Full::default()).unwrap();
        whole(server.send(request).await).await
    };
    assert_eq!(too_long, StatusCode::BAD_REQUEST);
    assert!(!fs::exists(format!("{folder}/long")).unwrap());
}

#[tokio::test]
async fn magic_links_lead_no_download_past_the_permissions_of_folders() {
    let server = Server::start();
    let private = format!("{}/private", open_folder(&server));
    fs::create_dir(&private).unwrap();
    fs::write(format!("{private}/secret"), "root's").unwrap();
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    // The server has a file open that anybody might read, in a folder that lets nobody in.
    let held = fs::File::open(format!("{private}/secret")).unwrap();
    let magic = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));

    let (status, body) = server.get(&format!("/files?path={magic}&username=nobody")).await;

    assert!([StatusCode::BAD_REQUEST, StatusCode::FORBIDDEN].contains(&status), "{status}: {body:?}");
}

#[tokio::test]
async fn new_files_and_folders_belong_to_the_user() {
    let server = Server::start();
    let folder = folder_of_nobody(&server);

    let (status, _) = server.post(&format!("/files?path={folder}/new/file&username=nobody"), BYTES, "x").await;

    assert_eq!(status, StatusCode::OK);
    for path in ["new", "new/file"] {
        let meta = fs::metadata(format!("{folder}/{path}")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (65534, 65534), "{path}");
    }
    assert_eq!(fs::metadata(format!("{folder}/new/file")).unwrap().mode() & 0o777, 0o644);
}

#[tokio::test]
async fn a_user_reads_and_writes_no_more_than_its_own() {
    let server = Server::start();
    let folder = open_folder(&server);
    let secret = format!("{folder}/secret");
    fs::write(&secret, "root's").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();

    let (read, body) = server.get(&format!("/files?path={secret}&username=nobody")).await;
    let (write, _) = server.post(&format!("/files?path={secret}&username=nobody"), BYTES, "x").await;
    let (new, _) = server.post(&format!("/files?path={folder}/new&username=nobody"), BYTES, "x").await;
    let (by_root, text) = server.get(&format!("/files?path={secret}&username=root")).await;

    assert_eq!((read, write, new), (StatusCode::FORBIDDEN, StatusCode::FORBIDDEN, StatusCode::FORBIDDEN));
    assert_eq!(json(&body)["code"], 403);
    assert_eq!((by_root, text), (StatusCode::OK, Bytes::from("root's")));
}

#[tokio::test]
async fn what_the_kernel_keeps_for_root_is_not_another_users() {
    let server = Server::start();
    // Its access is decided by the effective user alone, and the folder of another process by that and by capabilities.
    let setting = "/proc/sys/vm/mmap_rnd_bits";
    let elsewhere = format!("/proc/{}/cwd/etc/hostname", std::os::unix::process::parent_id());
    let read = async |path: &str, user: &str| server.get(&format!("/files?path={path}&username={user}")).await.0;

    assert_eq!(read(setting, "nobody").await, StatusCode::FORBIDDEN);
    assert_eq!(read(&elsewhere, "nobody").await, StatusCode::FORBIDDEN);
    assert_eq!(read(setting, "root").await, StatusCode::OK);
}

#[tokio::test]
async fn replacing_keeps_the_mode_and_follows_links() {
    let server = Server::start();
    let folder = open_folder(&server);
    let script = format!("{folder}/script");
    fs::write(&script, "old and longer").unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o775)).unwrap();
    symlink("script", format!("{folder}/link")).unwrap();

    let (status, _) = server.post(&format!("/files?path={folder}/link"), BYTES, "new").await;

    assert_eq!(status, StatusCode::OK);
    assert_eq!(fs::read_to_string(&script).unwrap(), "new");
    assert_eq!(fs::metadata(&script).unwrap().mode() & 0o777, 0o775);
    assert!(fs::symlink_metadata(format!("{folder}/link")).unwrap().is_symlink());
}

#[tokio::test]
async fn a_file_in_a_folder_that_is_not_the_users_is_written_in_place() {
    let server = Server::start();
    let folder = open_folder(&server);
    let path = format!("{folder}/shared");
    fs::write(&path, "old and longer").unwrap();
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();

    let (status, _) = server.post(&format!("/files?path={path}&username=nobody"), BYTES, "new").await;

    assert_eq!((status, fs::read_to_string(&path).unwrap().as_str()), (StatusCode::OK, "new"));
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_what_was_there() {
    use tokio::io::AsyncWriteExt;
    let server = Server::start();
    let folder = folder_of_nobody(&server);
    fs::write(format!("{folder}/file"), "old").unwrap();

    let mut stream = tokio::net::UnixStream::connect(server.folder().join("data-plane")).await.unwrap();
    let head = format!(
        "POST /files?path={folder}/file HTTP/1.1\r\nhost: x\r\ncontent-type: {BYTES}\r\ncontent-length: 9000000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&[b'x'; 600_000]).await.unwrap();
    crate::support::until(|| names(&folder).len() == 2).await;
    drop(stream);

    crate::support::until(|| names(&folder) == ["file"]).await;
    assert_eq!(fs::read_to_string(format!("{folder}/file")).unwrap(), "old");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_told_so() {
    let server = Server::start();
    let folder = open_folder(&server);
    symlink("loop", format!("{folder}/loop")).unwrap();
    let get = async |query: String| {
        let (status, body) = server.get(&format!("/files?{query}")).await;
        assert_eq!(json(&body)["code"], status.as_u16());
        status
    };

    assert_eq!(get(format!("path={folder}")).await, StatusCode::BAD_REQUEST);
    assert_eq!(get("path=/dev/null".into()).await, StatusCode::BAD_REQUEST);
    assert_eq!(get("path=a%00b".into()).await, StatusCode::BAD_REQUEST);
    assert_eq!(get(String::new()).await, StatusCode::BAD_REQUEST);
    assert_eq!(get(format!("path={folder}/loop")).await, StatusCode::BAD_REQUEST);
    assert_eq!(get(format!("path={folder}/none")).await, StatusCode::NOT_FOUND);
    assert_eq!(get("path=/etc/hostname&username=stranger".into()).await, StatusCode::UNAUTHORIZED);
    let post = async |uri: &str, kind: &str| server.post(uri, kind, "x").await.0;
    assert_eq!(post("/files?path=/tmp", BYTES).await, StatusCode::BAD_REQUEST);
    assert_eq!(post("/files?path=/tmp/x/", "text/plain").await, StatusCode::BAD_REQUEST);
    assert_eq!(post("/files", BYTES).await, StatusCode::BAD_REQUEST);
    assert_eq!(post("/files?path=/dev/full", BYTES).await, StatusCode::BAD_REQUEST);
    assert_eq!(post("/files?path=/x", "multipart/form-data; boundary=b").await, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_range_is_a_part_of_the_file() {
    let server = Server::start();
    let path = format!("{}/numbers", open_folder(&server));
    let text: Vec<u8> = (0..300_000_u32).flat_map(|number| number.to_be_bytes()).collect();
    fs::write(&path, &text).unwrap();
    let get = async |range: &str| {
        let request = Request::get(format!("/files?path={path}")).header("range", range);
        let response = server.send(request.body(Full::default()).unwrap()).await;
        let header = response.headers().get("content-range").map(|value| value.to_str().unwrap().to_owned());
        let (status, body) = whole(response).await;
        (status, header.unwrap_or_default(), body)
    };

    let across = get("bytes=262140-262150").await;
    let tail = get("bytes=-4").await;
    let beyond = get("bytes=1200000-").await;

    assert_eq!(
        across,
        (
            StatusCode::PARTIAL_CONTENT,
            "bytes 262140-262150/1200000".into(),
            Bytes::copy_from_slice(&text[262_140..=262_150])
        )
    );
    assert_eq!(tail.2, Bytes::copy_from_slice(&text[1_199_996..]));
    assert_eq!((beyond.0, beyond.1.as_str()), (StatusCode::RANGE_NOT_SATISFIABLE, "bytes */1200000"));
}

#[tokio::test]
async fn files_of_the_kernel_are_as_long_as_what_they_hold() {
    let server = Server::start();

    let (proc, version) = server.get("/files?path=/proc/version").await;
    let (empty, nothing) = server.get("/files?path=/dev/../proc/self/task/../clear_refs&username=nobody").await;

    assert_eq!(proc, StatusCode::OK);
    assert!(version.starts_with(b"Linux version"));
    assert_eq!(empty, StatusCode::FORBIDDEN, "{nothing:?}");
}

#[tokio::test]
async fn a_large_upload_that_is_refused_still_gets_its_answer() {
    let server = Server::start();
    let large = vec![b'x'; 20 * 1024 * 1024];

    let (status, body) = server.post("/files?path=/etc/passwd/x&username=nobody", BYTES, large).await;

    assert_eq!((status, &json(&body)["code"]), (StatusCode::BAD_REQUEST, &json!(400)));
}

#[tokio::test]
async fn a_full_disk_is_told_and_nothing_is_left_on_it() {
    let server = Server::start();
    let disk = format!("{}/disk", open_folder(&server));
    fs::create_dir(&disk).unwrap();
    let mounted = Mounted::tmpfs(&disk, "size=1m");
    let large = vec![b'x'; 4 * 1024 * 1024];

    let (status, _) = server.post(&format!("/files?path={disk}/large"), BYTES, large).await;

    assert_eq!(status, StatusCode::INSUFFICIENT_STORAGE);
    assert_eq!(names(&disk), Vec::<String>::new());
    drop(mounted);
}

#[tokio::test]
async fn what_unpacks_to_more_than_the_disk_holds_is_told_and_leaves_nothing() {
    let server = Server::start();
    let disk = format!("{}/disk", open_folder(&server));
    fs::create_dir(&disk).unwrap();
    let mounted = Mounted::tmpfs(&disk, "size=4m");
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..256 {
        bomb.write_all(&[0; 1 << 20]).unwrap();
    }
    let request = Request::post(format!("/files?path={disk}/large"))
        .header("content-type", BYTES)
        .header("content-encoding", "gzip")
        .body(Full::new(bomb.finish().unwrap().into()));

    let (status, _) = whole(server.send(request.unwrap()).await).await;

    assert_eq!(status, StatusCode::INSUFFICIENT_STORAGE);
    assert_eq!(names(&disk), Vec::<String>::new());
    drop(mounted);
}

#[tokio::test]
async fn parts_that_do_not_fit_twice_stay_as_they_are() {
    let server = Server::start();
    let disk = format!("{}/disk", open_folder(&server));
    fs::create_dir(&disk).unwrap();
    let mounted = Mounted::tmpfs(&disk, "size=1m");
    fs::write(format!("{disk}/part"), vec![b'x'; 600_000]).unwrap();
    let message = json!({"source_paths": [format!("{disk}/part")], "destination": format!("{disk}/whole")});

    let (status, _) = server.post("/files/compose", "application/json", message.to_string()).await;

    assert_eq!(status, StatusCode::INSUFFICIENT_STORAGE);
    assert_eq!(names(&disk), ["part"]);
    assert_eq!(fs::metadata(format!("{disk}/part")).unwrap().len(), 600_000);
    drop(mounted);
}

/// A file system that is there until this is dropped.
struct Mounted(String);

impl Mounted {
    fn tmpfs(path: &str, options: &str) -> Self {
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options)).unwrap();
        Self(path.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        nix::mount::umount2(self.0.as_str(), nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}
