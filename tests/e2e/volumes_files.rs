//! What is in a volume that no sandbox has: read and written by a machine of the host's own, and gone with the volume.

use std::fs;
use std::io;

use futures_util::stream::{self, Stream};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};
use support::{Host, eventually, text};

tests! {
    shared: [
        a_file_written_without_a_sandbox_is_in_the_next_one_and_the_other_way_round,
        what_is_in_a_volume_is_listed_moved_changed_and_removed,
        the_files_of_a_volume_are_its_sandboxs_while_that_lives,
        a_team_gets_no_more_volumes_than_its_plan_has_room_for,
    ],
    alone: [
        a_file_larger_than_memory_streams_up_and_down_and_nobody_holds_it,
        a_volume_that_is_deleted_frees_its_bytes,
    ],
}

/// Of the file that is streamed, in bytes, and of each piece of it.
const LENGTH: usize = 1 << 30;
const PIECE: usize = 1 << 20;
/// Most that a process grows by meanwhile, in bytes.
const GROWTH: u64 = 64 << 20;
/// What the guest of a helper has by default, in bytes: its monitor's memory too.
const HELPER_MEMORY: u64 = 128 << 20;

async fn a_file_written_without_a_sandbox_is_in_the_next_one_and_the_other_way_round() {
    let host = Host::shared();
    let volume = host.volume("exchanged").await;
    volume.write("/in/streamed", "streamed\n").await;
    let document = json!({"path": "/in/document", "content_b64": "ZG9jdW1lbnQK", "mode": "0755"});
    let entry = volume.call(Method::PUT, "/files", Some(document)).await.expect("the document is written");
    assert_eq!((&entry["path"], &entry["size"], &entry["mode"]), (&json!("/in/document"), &json!(9), &json!("0755")));

    let sandbox = volume.sandbox().await;
    assert_eq!(
        sandbox.out("cat /data/in/*; stat -c '%a %U' /data/in/*").await,
        "document\nstreamed\n755 user\n644 user\n"
    );
    sandbox.out("mkdir /data/out && echo made-inside > /data/out/file && ln -s file /data/out/link").await;
    sandbox.delete().await;

    for path in ["/out/file", "/out/link"] {
        assert_eq!(
            text(&volume.read(path).await.bytes().await.expect("the file comes whole")),
            "made-inside\n",
            "{path}"
        );
    }
    // While one helper serves, another sandbox takes the volume from it.
    let next = volume.sandbox().await;
    assert_eq!(next.out("cat /data/out/file").await, "made-inside\n");
}

async fn what_is_in_a_volume_is_listed_moved_changed_and_removed() {
    let host = Host::shared();
    let volume = host.volume("rearranged").await;
    for path in ["/a/1", "/a/2", "/b"] {
        volume.write(path, path).await;
    }
    let made = volume.call(Method::POST, "/directories?path=/c/d", Some(json!({"mode": "0700"}))).await;
    assert_eq!(made.expect("the directory is made")["mode"], "0700");

    let page = volume.call(Method::GET, "/directories?path=/&depth=2&limit=3", None).await.expect("a page");
    assert_eq!(paths(&page), ["/a", "/a/1", "/a/2"]);
    let token = page["next_token"].as_str().expect("there is more");
    let rest = format!("/directories?path=/&depth=2&limit=3&next_token={token}");
    assert_eq!(paths(&volume.call(Method::GET, &rest, None).await.expect("a page")), ["/b", "/c", "/c/d"]);

    let change = json!({"move_to": "/c/moved", "mode": "0600", "uid": 0});
    let moved = volume.call(Method::PATCH, "/path?path=/a/1", Some(change)).await.expect("the file is moved");
    assert_eq!((&moved["path"], &moved["uid"]), (&json!("/c/moved"), &json!(0)));
    let taken = volume.call(Method::PATCH, "/path?path=/a/2", Some(json!({"move_to": "/b"}))).await;
    assert_eq!(taken.expect_err("something is there").code(), Some("conflict"));
    volume.call(Method::DELETE, "/files?path=/b", None).await.expect("the file is removed");
    volume.call(Method::DELETE, "/path?path=/a", None).await.expect("the directory is removed, with what is in it");
    assert_eq!(volume.files().stat("/a/2").await.expect_err("it is gone").status(), Some(404));

    let sandbox = volume.sandbox().await;
    let found = text(
        &sandbox.root_sh("cd /data && find . -mindepth 1 -printf '%p %m %U\\n' | sort && cat c/moved").await.stdout,
    );
    assert_eq!(found, "./c 755 1000\n./c/d 700 1000\n./c/moved 600 0\n/a/1");
}

async fn the_files_of_a_volume_are_its_sandboxs_while_that_lives() {
    let host = Host::shared();
    let volume = host.volume("occupied").await;
    volume.write("/file", "before").await;
    let sandbox = volume.sandbox().await;

    let document = json!({"path": "/file", "content_b64": ""});
    let requests = [
        (Method::GET, "/files?path=/file", None),
        (Method::PUT, "/files", Some(document)),
        (Method::DELETE, "/files?path=/file", None),
        (Method::GET, "/directories?path=/", None),
        (Method::POST, "/directories?path=/d", None),
        (Method::GET, "/path?path=/file", None),
        (Method::PATCH, "/path?path=/file", Some(json!({"mode": "0600"}))),
        (Method::DELETE, "/path?path=/file", None),
        (Method::DELETE, "", None),
    ];
    for (method, rest, body) in requests {
        let what = format!("{method} {rest}");
        let error = volume.call(method, rest, body).await.expect_err(&what);
        assert_eq!((error.status(), error.code()), (Some(409), Some("volume_attached")), "{what}: {error}");
    }

    assert_eq!(sandbox.out("cat /data/file").await, "before");
}

async fn a_team_gets_no_more_volumes_than_its_plan_has_room_for() {
    let client = Host::shared().client_of_one();
    let first = client.create_volume("quota-1").await.expect("there is room for one");

    // Two would be within the number of volumes, and over what they may grow to.
    let second = client.create_volume("quota-2").await.map(|volume| volume.id);

    client.delete_volume(&first.id).await.expect("the volume is deleted");
    let error = second.expect_err("there is no room for two");
    assert_eq!((error.status(), error.code()), (Some(422), Some("volume_quota_exceeded")), "{error}");
    let third = client.create_volume("quota-3").await.expect("there is room again");
    client.delete_volume(&third.id).await.expect("the volume is deleted");
}

async fn a_file_larger_than_memory_streams_up_and_down_and_nobody_holds_it() {
    let host = Host::shared();
    let volume = host.volume("streamed").await;
    host.leaks_nothing().await;
    volume.write("/small", "small").await;
    let helpers = host.helpers();
    assert_eq!(helpers.len(), 1, "one machine works with the volume: {helpers:?}");
    let watched = [
        ("the API", host.api_pid().expect("an API runs")),
        ("the agent", host.agent_pid().expect("an agent runs")),
        ("the test", Pid::this()),
    ]
    .map(|(name, pid)| Watched::new(name, pid, GROWTH));
    let monitor = Watched { before: 0, ..Watched::new("the helper's monitor", helpers[0], HELPER_MEMORY + GROWTH) };

    let written = volume.files().upload("/large", None, Some(LENGTH as u64), pieces(LENGTH / PIECE)).await;
    let written = written.expect("it is written");
    assert_eq!(written.size, LENGTH as u64);
    let mut download = volume.files().download("/large").await.expect("it is read");
    let (mut expected, mut number) = (piece(0), 0);
    let mut offset = 0;
    while let Some(mut bytes) = download.next().await.expect("it goes on") {
        while !bytes.is_empty() {
            if offset / PIECE != number {
                number = offset / PIECE;
                expected = piece(number);
            }
            let at = offset % PIECE;
            let part = bytes.split_to(bytes.len().min(PIECE - at));
            assert!(part == expected[at..at + part.len()], "piece {number} is not what was written");
            offset += part.len();
        }
    }

    assert_eq!(offset, LENGTH);
    assert_eq!(host.helpers(), helpers, "another machine took over");
    watched.iter().chain([&monitor]).for_each(Watched::check);
    let sandbox = volume.sandbox().await;
    assert_eq!(sandbox.out("stat -c %s /data/large && cat /data/small").await, format!("{LENGTH}\nsmall"));
}

async fn a_volume_that_is_deleted_frees_its_bytes() {
    let host = Host::shared();
    let volume = host.volume("freed").await;
    volume.files().upload("/large", None, None, pieces(64)).await.expect("it is written");
    volume.write("/small", "small").await;
    let id = volume.id.clone();
    let held = async || host.agent_volume(&id).await.expect("the agent has it").retained_bytes;
    let full = held().await;
    assert!((64 << 20..80 << 20).contains(&full), "{full} bytes for 64 MiB");

    // What is deleted in a volume is given back too, at the latest when it is unmounted.
    volume.call(Method::DELETE, "/files?path=/large", None).await.expect("the file is removed");
    eventually("the volume holds less", || async { held().await < 16 << 20 }).await;
    volume.files().upload("/large", None, None, pieces(64)).await.expect("it is written");
    host.leaks_nothing().await;
    let before = free_bytes();
    volume.delete().await;

    assert!(host.files_of(&id).is_empty(), "{:?}", host.files_of(&id));
    let freed = free_bytes().saturating_sub(before);
    assert!(freed > 56 << 20, "{freed} bytes are free that 64 MiB held");
}

/// A piece of a file: each of its words is another than all others of the file.
fn piece(number: usize) -> Vec<u8> {
    let first = number * PIECE;
    let mut piece = vec![0; PIECE];
    for (index, word) in piece.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(first + index + 1).to_le_bytes());
    }
    piece
}

/// `count` pieces, made one after the other.
fn pieces<T: From<Vec<u8>> + Send + 'static>(count: usize) -> impl Stream<Item = io::Result<T>> + Send + 'static {
    stream::iter((0..count).map(|number| Ok(piece(number).into())))
}

fn paths(page: &Value) -> Vec<&str> {
    page["entries"].as_array().expect("entries").iter().map(|entry| entry["path"].as_str().expect("a path")).collect()
}

fn free_bytes() -> u64 {
    let disk = statvfs("/var/lib/sandpiper").expect("the disk's free space");
    disk.blocks_free() * disk.fragment_size()
}

/// A process whose memory must not grow by more than so much.
struct Watched {
    name: &'static str,
    pid: Pid,
    most: u64,
    before: u64,
}

impl Watched {
    fn new(name: &'static str, pid: Pid, most: u64) -> Self {
        // proc_pid_clear_refs(5): the highest there was is what there is, from now on.
        fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name, pid, most, before: memory(pid, "VmRSS") }
    }

    fn check(&self) {
        let grown = memory(self.pid, "VmHWM").saturating_sub(self.before);
        println!("{}: at most {} MiB, of {} MiB", self.name, grown >> 20, self.most >> 20);
        assert!(grown < self.most, "{} grew by {grown} bytes", self.name);
    }
}

/// Bytes of memory that a process has, or had at most.
fn memory(pid: Pid, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}
