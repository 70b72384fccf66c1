//! The unary calls of `filesystem.Filesystem`, with real folders and users.

use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with, setxattr};
use serde_json::{Value, json};

use crate::support::{Server, folder_of_nobody, open_folder};

impl Server {
    /// The response of a call by root that succeeds.
    async fn succeed(&self, method: &str, message: Value) -> Value {
        let (status, body) = self.filesystem("root", method, message).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body
    }

    /// The code of a call that fails.
    async fn fail(&self, user: &str, method: &str, message: Value) -> String {
        let (status, body) = self.filesystem(user, method, message).await;
        assert_ne!(status, StatusCode::OK, "{body}");
        body["code"].as_str().unwrap_or_else(|| panic!("{status}: {body}")).to_owned()
    }
}

fn paths(list: &Value) -> Vec<&str> {
    list["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_entry_has_owner_permissions_time_and_metadata() {
    let server = Server::start();
    let path = format!("{}/file", folder_of_nobody(&server));
    fs::write(&path, "abc").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&path, Some(65534), Some(0)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(951_782_400_250);
    File::options().write(true).open(&path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    setxattr(&path, "user.e2b.color", b"blue", XattrFlags::empty()).unwrap();
    setxattr(&path, "user.other", b"hidden", XattrFlags::empty()).unwrap();

    let stat = server.succeed("Stat", json!({"path": path})).await;

    assert_eq!(
        stat["entry"],
        json!({
            "name": "file", "type": "FILE_TYPE_FILE", "path": path, "size": "3", "mode": 0o640,
            "permissions": "-rw-r-----", "owner": "nobody", "group": "root",
            "modifiedTime": "2000-02-29T00:00:00.250000000Z", "metadata": {"color": "blue"},
        })
    );
}

#[tokio::test]
async fn a_symbolic_link_has_the_type_of_what_it_leads_to() {
    let server = Server::start();
    let folder = open_folder(&server);
    fs::create_dir(format!("{folder}/real")).unwrap();
    symlink("real", format!("{folder}/one")).unwrap();
    symlink("one", format!("{folder}/two")).unwrap();
    symlink("nowhere", format!("{folder}/broken")).unwrap();
    symlink("loop", format!("{folder}/loop")).unwrap();

    let stat =
        async |name: &str| server.succeed("Stat", json!({"path": format!("{folder}/{name}")})).await["entry"].clone();
    let (two, broken, looped) = (stat("two").await, stat("broken").await, stat("loop").await);

    assert_eq!((&two["type"], &two["mode"]), (&json!("FILE_TYPE_DIRECTORY"), &json!(0o755)));
    assert_eq!(two["symlinkTarget"], fs::canonicalize(format!("{folder}/real")).unwrap().to_str().unwrap());
    assert_eq!(two["permissions"], "Lrwxrwxrwx");
    assert_eq!((&broken["type"], &broken["symlinkTarget"]), (&json!("FILE_TYPE_SYMLINK"), &json!("nowhere")));
    assert_eq!(looped["type"], "FILE_TYPE_SYMLINK");
}

#[tokio::test]
async fn a_list_has_as_many_levels_as_asked_for_in_order() {
    let server = Server::start();
    let folder = &format!("{}/list", open_folder(&server));
    fs::create_dir_all(format!("{folder}/b/c/d")).unwrap();
    fs::write(format!("{folder}/b.txt"), "").unwrap();
    fs::write(format!("{folder}/a"), "").unwrap();
    symlink("b", format!("{folder}/link")).unwrap();
    let full = |names: &[&str]| names.iter().map(|name| format!("{folder}/{name}")).collect::<Vec<_>>();

    let one = server.succeed("ListDir", json!({"path": folder})).await;
    let two = server.succeed("ListDir", json!({"path": folder, "depth": 2})).await;
    let through_link = server.succeed("ListDir", json!({"path": format!("{folder}/link"), "depth": 1})).await;
    let empty = server.succeed("ListDir", json!({"path": format!("{folder}/b/c/d")})).await;

    assert_eq!(paths(&one), full(&["a", "b", "b.txt", "link"]));
    assert_eq!(paths(&two), full(&["a", "b", "b/c", "b.txt", "link"]));
    assert_eq!(paths(&through_link), full(&["link/c"]));
    assert_eq!(empty, json!({}));
}

#[tokio::test]
async fn a_list_that_is_too_long_or_too_deep_is_refused_by_name() {
    let server = Server::start();
    let (wide, deep) = (format!("{}/wide", open_folder(&server)), format!("{}/deep", open_folder(&server)));
    fs::create_dir(&wide).unwrap();
    for number in 0..20_000 {
        File::create(format!("{wide}/{number}")).unwrap();
    }
    fs::create_dir_all(format!("{deep}/{}", "x/".repeat(256))).unwrap();
    let list = async |path: &str, depth: u32| {
        server.filesystem("root", "ListDir", json!({"path": path, "depth": depth})).await
    };

    let (fits, all) = list(&wide, 1).await;
    File::create(format!("{wide}/last")).unwrap();
    let (too_many, many) = list(&wide, 1).await;
    let (fits_deep, _) = list(&deep, 256).await;
    let (too_deep, _) = list(&deep, 300).await;

    assert_eq!((fits, paths(&all).len()), (StatusCode::OK, 20_000));
    assert_eq!((too_many, &many["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("resource_exhausted")));
    assert!(many["message"].as_str().unwrap().contains(&wide), "{many}");
    assert_eq!((fits_deep, too_deep), (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS));
}

#[tokio::test]
async fn new_folders_belong_to_the_user() {
    let server = Server::start();
    let folder = folder_of_nobody(&server);
    let path = format!("{folder}/new/er");
    fs::write(format!("{folder}/file"), "").unwrap();

    let (status, made) = server.filesystem("nobody", "MakeDir", json!({"path": path})).await;

    assert_eq!((status, &made["entry"]["type"]), (StatusCode::OK, &json!("FILE_TYPE_DIRECTORY")));
    for path in [&format!("{folder}/new"), &path] {
        let meta = fs::metadata(path).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (65534, 65534, 0o755), "{path}");
    }
    let again = async |path: String| server.fail("root", "MakeDir", json!({"path": path})).await;
    assert_eq!(again(path).await, "already_exists");
    assert_eq!(again(format!("{folder}/file")).await, "invalid_argument");
    assert_eq!(again(format!("{folder}/file/below")).await, "invalid_argument");
}

#[tokio::test]
async fn a_move_makes_the_folders_above_and_replaces_a_file() {
    let server = Server::start();
    let folder = folder_of_nobody(&server);
    let (old, new) = (format!("{folder}/old"), format!("{folder}/new/er/name"));
    let message = json!({"source": old, "destination": new});

    fs::write(&old, "first").unwrap();
    let (first, moved) = server.filesystem("nobody", "Move", message.clone()).await;
    fs::write(&old, "second").unwrap();
    let (second, _) = server.filesystem("nobody", "Move", message.clone()).await;
    let missing = server.fail("nobody", "Move", message).await;
    let into_itself = json!({"source": format!("{folder}/new"), "destination": format!("{folder}/new/er/new")});

    assert_eq!((first, &moved["entry"]["path"]), (StatusCode::OK, &json!(new)));
    assert_eq!((second, fs::read_to_string(&new).unwrap().as_str()), (StatusCode::OK, "second"));
    assert_eq!(fs::metadata(format!("{folder}/new/er")).unwrap().uid(), 65534);
    assert_eq!(missing, "not_found");
    assert_eq!(server.fail("nobody", "Move", into_itself).await, "invalid_argument");
    let onto_full = json!({"source": format!("{folder}/new/er"), "destination": folder});
    assert_eq!(server.fail("root", "Move", onto_full).await, "failed_precondition");
}

#[tokio::test]
async fn a_tree_is_removed_and_what_its_links_lead_to_is_not() {
    let server = Server::start();
    let folder = open_folder(&server);
    let tree = format!("{folder}/tree");
    fs::create_dir(format!("{folder}/kept")).unwrap();
    fs::write(format!("{folder}/kept/file"), "kept").unwrap();
    fs::create_dir_all(format!("{tree}/a/b")).unwrap();
    symlink("../../kept", format!("{tree}/a/link")).unwrap();
    for number in 0..1_000 {
        File::create(format!("{tree}/a/b/{number}")).unwrap();
    }

    server.succeed("Remove", json!({"path": format!("{tree}/a/link")})).await;
    symlink("../../kept", format!("{tree}/a/link")).unwrap();
    server.succeed("Remove", json!({"path": tree})).await;
    server.succeed("Remove", json!({"path": tree})).await;
    server.succeed("Remove", json!({"path": format!("{tree}/a/b")})).await;

    assert!(!Path::new(&tree).exists());
    assert_eq!(fs::read_to_string(format!("{folder}/kept/file")).unwrap(), "kept");
    assert_eq!(server.fail("root", "Remove", json!({"path": "/"})).await, "invalid_argument");
    assert_eq!(server.fail("nobody", "Remove", json!({"path": format!("{folder}/kept")})).await, "permission_denied");
}

#[tokio::test]
async fn a_user_sees_and_changes_no_more_than_its_own() {
    let server = Server::start();
    let folder = folder_of_nobody(&server);
    let private = format!("{}/private", open_folder(&server));
    fs::create_dir(&private).unwrap();
    fs::write(format!("{private}/secret"), "").unwrap();
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    symlink(&private, format!("{folder}/link")).unwrap();
    let elsewhere = format!("/proc/{}/root", std::os::unix::process::parent_id());

    for path in [&format!("{private}/secret"), &format!("{folder}/link/secret"), &format!("{elsewhere}/etc")] {
        assert_eq!(server.fail("nobody", "Stat", json!({"path": path})).await, "permission_denied", "{path}");
        assert_eq!(server.fail("nobody", "MakeDir", json!({"path": format!("{path}/x")})).await, "permission_denied");
        assert_eq!(server.fail("nobody", "Remove", json!({"path": path})).await, "permission_denied");
        let away = json!({"source": path, "destination": format!("{folder}/mine")});
        assert_eq!(server.fail("nobody", "Move", away).await, "permission_denied");
    }
    assert_eq!(server.fail("nobody", "ListDir", json!({"path": format!("{folder}/link")})).await, "permission_denied");
    let (_, list) = server.filesystem("nobody", "ListDir", json!({"path": open_folder(&server), "depth": 3})).await;
    assert!(paths(&list).contains(&private.as_str()) && !list.to_string().contains("secret"), "{list}");
    assert!(Path::new(&private).join("secret").exists());
}

#[tokio::test]
async fn magic_links_lead_nobody_past_the_permissions_of_folders() {
    let server = Server::start();
    let folder = folder_of_nobody(&server);
    let private = format!("{}/private", open_folder(&server));
    fs::create_dir_all(format!("{private}/open")).unwrap();
    fs::write(format!("{private}/open/file"), "").unwrap();
    fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
    // The server holds a folder open that its permissions would let anybody read, below one that lets nobody in.
    let held = File::open(format!("{private}/open")).unwrap();
    let magic = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
    symlink(&magic, format!("{folder}/link")).unwrap();

    for path in [&magic, &format!("{folder}/link"), "/proc/self/root/etc"] {
        let code = server.fail("nobody", "ListDir", json!({"path": path})).await;
        assert!(["invalid_argument", "permission_denied"].contains(&code.as_str()), "{path}: {code}");
    }
}

#[tokio::test]
async fn a_folder_that_is_swapped_for_a_link_does_not_lead_its_removal_elsewhere() {
    const FILES: usize = 2_000;
    let server = Server::start();
    let folder = folder_of_nobody(&server);
    let (tree, link, kept) = (format!("{folder}/tree"), format!("{folder}/link"), format!("{folder}/kept"));
    let inner = format!("{tree}/inner");
    for path in [&inner, &kept] {
        fs::create_dir_all(path).unwrap();
        for number in 0..FILES {
            File::create(format!("{path}/{number}")).unwrap();
        }
    }
    symlink(&kept, &link).unwrap();
    let count = |path: &str| fs::read_dir(path).unwrap().count();
    // On a thread of its own: the removal runs on another, and this one waits for it.
    let swap = std::thread::spawn({
        let (inner, link) = (inner.clone(), link.clone());
        move || {
            while fs::read_dir(&inner).unwrap().count() == FILES {}
            renameat_with(CWD, &inner, CWD, &link, RenameFlags::EXCHANGE)
        }
    });

    let (status, _) = server.filesystem("root", "Remove", json!({"path": tree})).await;

    swap.join().unwrap().expect("the folder was swapped while it was being emptied");
    assert_eq!(count(&kept), FILES);
    assert_eq!((count(&link), status), (0, StatusCode::BAD_REQUEST), "the folder itself was emptied, where it went");
}

#[tokio::test]
async fn broken_requests_are_told_so_and_leave_nothing_open() {
    let server = Server::start();
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let file = format!("{}/file", open_folder(&server));
    fs::write(&file, "").unwrap();
    let before = descriptors();

    for _ in 0..50 {
        for method in ["Stat", "ListDir", "MakeDir", "Remove"] {
            let fail = async |user: &str, path: &str| server.fail(user, method, json!({"path": path})).await;
            assert_eq!(fail("root", "a\0b").await, "invalid_argument");
            assert_eq!(fail("root", &format!("/{}", "x".repeat(5_000))).await, "invalid_argument");
            assert_eq!(fail("root", &format!("{file}/below")).await, "invalid_argument");
            assert_eq!(fail("stranger", "/").await, "unauthenticated");
            assert_eq!(server.fail("root", method, json!({"path": 7})).await, "invalid_argument");
        }
        assert_eq!(server.fail("root", "Stat", json!({"path": "/no/such"})).await, "not_found");
        assert_eq!(server.fail("root", "ListDir", json!({"path": "/no/such"})).await, "not_found");
        assert_eq!(server.fail("root", "ListDir", json!({"path": file})).await, "invalid_argument");
    }

    crate::support::until(|| descriptors() <= before + 2).await;
}
