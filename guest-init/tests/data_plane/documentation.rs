//! The examples of docs/data-plane.md and docs/filesystem.md, with curl, as they stand there.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use sandpiper_documentation::{OF_A_DATA_PLANE, Shell, runnable};
use sandpiper_init::serve::Settings;

use crate::support::Server;

/// What the pages take for granted of a sandbox.
const USER: &str = "user";
const USER_ID: u32 = 1000;
const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\n";

/// All that a client may ask a data plane for.
const REQUESTS: [&str; 23] = [
    "/health",
    "/metrics",
    "/envs",
    "/files?",
    "/files\"",
    "/files/compose",
    "process.Process/Start",
    "process.Process/Connect",
    "process.Process/List",
    "process.Process/SendInput",
    "process.Process/StreamInput",
    "process.Process/CloseStdin",
    "process.Process/SendSignal",
    "process.Process/Update",
    "filesystem.Filesystem/Stat",
    "filesystem.Filesystem/ListDir",
    "filesystem.Filesystem/MakeDir",
    "filesystem.Filesystem/Move",
    "filesystem.Filesystem/Remove",
    "filesystem.Filesystem/WatchDir",
    "filesystem.Filesystem/CreateWatcher",
    "filesystem.Filesystem/GetWatcherEvents",
    "filesystem.Filesystem/RemoveWatcher",
];

#[test]
fn the_pages_have_an_example_of_every_request() {
    let shown: String = OF_A_DATA_PLANE.into_iter().flat_map(runnable).map(|example| example.command).collect();
    let missing: Vec<_> = REQUESTS.into_iter().filter(|request| !shown.contains(request)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[tokio::test]
async fn the_examples_of_the_page_on_the_data_plane_do_what_it_shows() {
    run(OF_A_DATA_PLANE[0]).await;
}

#[tokio::test]
async fn the_examples_of_the_page_on_folders_do_what_it_shows() {
    run(OF_A_DATA_PLANE[1]).await;
}

async fn run(page: &'static str) {
    let users = tempfile::tempdir().unwrap();
    // Before the server has threads, which are to be there too.
    enter_machine_with_user(users.path());
    let envs = [("GREETING".to_owned(), "hello".to_owned())].into();
    let server = Server::start_with(Settings { envs, default_user: USER.to_owned(), ..Settings::default() });
    fs::write(server.folder().join(".curlrc"), format!("unix-socket = {:?}\n", server.socket())).unwrap();
    let variables = [
        ("CURL_HOME", server.folder().to_str().unwrap()),
        ("DATA_PLANE", "http://localhost"),
        ("TOKEN", "the proxy's to check"),
    ];
    let work = tempfile::tempdir().unwrap();
    let shell = Shell {
        folder: work.path().to_owned(),
        variables: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        timeout: Duration::from_secs(200),
    };

    let ran = tokio::task::spawn_blocking(move || shell.run(&runnable(page))).await.unwrap();

    ran.unwrap_or_else(|failed| panic!("{page}: {failed}"));
}

/// Gives this thread, and those that it starts, a view of the files in which there is the user `user` with a home. What is
/// mounted there goes with them. Root's home is another, so that nothing is written to the real one.
fn enter_machine_with_user(folder: &Path) {
    unshare(CloneFlags::CLONE_NEWNS).expect("root may");
    let bind = |source: &Path, target: &str| {
        mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("root may");
    };
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).expect("root may");
    fs::create_dir_all(folder.join("home/user")).unwrap();
    chown(folder.join("home/user"), Some(USER_ID), Some(USER_ID)).unwrap();
    for (name, text) in [("passwd", PASSWD), ("group", GROUP)] {
        fs::write(folder.join(name), text).unwrap();
        bind(&folder.join(name), &format!("/etc/{name}"));
    }
    fs::create_dir(folder.join("root")).unwrap();
    fs::set_permissions(folder.join("root"), fs::Permissions::from_mode(0o700)).unwrap();
    for name in ["home", "root"] {
        bind(&folder.join(name), &format!("/{name}"));
    }
}
