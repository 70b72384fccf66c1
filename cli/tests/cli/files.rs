//! `cp` and `ls`, with the data plane that guests have, and with one that lies.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{api, command, listen, ok, printed, real_data_plane, reaped};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn write(path: &Path, content: &[u8], mode: u32) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[tokio::test]
async fn a_folder_goes_up_and_comes_down_with_its_permissions_and_without_links() {
    let scratch = tempfile::tempdir().unwrap();
    let api = api(real_data_plane(scratch.path()));
    let (source, guest, back) = (scratch.path().join("src"), scratch.path().join("guest"), scratch.path().join("back"));
    fs::create_dir_all(source.join("a/empty")).unwrap();
    write(&source.join("run.sh"), b"#!/bin/sh\n", 0o755);
    write(&source.join("a/secret name"), &[0xff; 300_000], 0o600);
    write(&source.join("a/none"), b"", 0o444);
    fs::set_permissions(source.join("a"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("/etc/passwd", source.join("link")).unwrap();

    let place = format!("sbx1:{}", guest.display());
    let up = reaped(command(api, &["--json", "cp", "-r", source.to_str().unwrap(), &place]), b"").await;
    assert_eq!(up.0, 0, "{}", up.2);
    let up: Value = serde_json::from_slice(&up.1).unwrap();
    assert_eq!((&up["files"], &up["bytes"], &up["skipped"]), (&json!(3), &json!(300_010), &json!(1)), "{up}");
    // Down again, with a link of the guest's own.
    symlink("/etc/passwd", guest.join("planted")).unwrap();
    let down = reaped(command(api, &["--json", "cp", "-r", &place, back.to_str().unwrap()]), b"").await;
    assert_eq!(down.0, 0, "{}", down.2);

    for folder in [&guest, &back] {
        assert_eq!(mode(&folder.join("run.sh")), 0o755);
        assert_eq!(mode(&folder.join("a")), 0o750);
        assert_eq!(mode(&folder.join("a/secret name")), 0o600);
        assert_eq!(mode(&folder.join("a/none")), 0o444);
        assert_eq!(fs::read(folder.join("a/secret name")).unwrap(), [0xff; 300_000]);
        assert!(is_empty(&folder.join("a/empty")));
        assert!(!folder.join("link").is_symlink());
    }
    assert!(!back.join("planted").is_symlink());
}

#[tokio::test]
async fn one_file_goes_into_a_folder_under_its_own_name_and_through_pipes() {
    let scratch = tempfile::tempdir().unwrap();
    let api = api(real_data_plane(scratch.path()));
    let inside = scratch.path().join("inside");
    fs::create_dir(&inside).unwrap();
    write(&scratch.path().join("tool"), b"content", 0o711);
    let folder = format!("sbx1:{}", inside.display());
    let piped = format!("{folder}/piped");

    let up = reaped(command(api, &["cp", scratch.path().join("tool").to_str().unwrap(), &folder]), b"").await;
    let input: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let sent = reaped(command(api, &["cp", "-", &piped]), &input).await;
    let received = reaped(command(api, &["cp", &piped, "-"]), b"").await;

    assert_eq!((up.0, sent.0, received.0), (0, 0, 0), "{} {} {}", up.2, sent.2, received.2);
    assert_eq!(fs::read(inside.join("tool")).unwrap(), b"content");
    assert_eq!(mode(&inside.join("tool")), 0o711);
    assert!(received.1 == input, "the bytes differ");
}

#[tokio::test]
async fn what_is_not_there_or_a_folder_is_an_error_and_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let api = api(real_data_plane(scratch.path()));
    let out = scratch.path().join("out");
    fs::create_dir(&out).unwrap();

    let missing = reaped(command(api, &["cp", "sbx1:/no/such/file", out.to_str().unwrap()]), b"").await;
    let folder = reaped(command(api, &["cp", "sbx1:/etc", out.to_str().unwrap()]), b"").await;
    let device = reaped(command(api, &["cp", "sbx1:/dev/zero", out.to_str().unwrap()]), b"").await;

    assert!(missing.0 == 125 && missing.2.contains("not_found"), "{}", missing.2);
    assert!(folder.0 == 125 && folder.2.contains("-r"), "{}", folder.2);
    assert!(device.0 == 125 && device.2.contains("neither a file nor a folder"), "{}", device.2);
    assert!(is_empty(&out));
}

/// A data plane whose folder `/evil` has these entries, and whose files are answered by `file`.
fn liar(entries: Value, file: fn(&mut TcpStream)) -> SocketAddr {
    api(listen(move |asked, stream| {
        let path = asked.body["path"].as_str().unwrap_or_default();
        let kind = if path.ends_with("file") { "FILE_TYPE_FILE" } else { "FILE_TYPE_DIRECTORY" };
        let _ = match asked.line.as_str() {
            "POST /filesystem.Filesystem/Stat" => {
                stream.write_all(&ok(&json!({"entry": {"name": "x", "type": kind, "path": path, "mode": 0o755}})))
            }
            "POST /filesystem.Filesystem/ListDir" => stream.write_all(&ok(&json!({"entries": entries}))),
            _ => return file(stream),
        };
    }))
}

fn file_named(name: &str) -> Value {
    json!({"name": name, "type": "FILE_TYPE_FILE", "path": "/evil/x", "mode": 0o6777})
}

#[test]
fn names_that_lead_out_of_the_destination_are_not_written() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("deep/out");
    fs::create_dir_all(&out).unwrap();
    let absolute = scratch.path().join("absolute").to_str().unwrap().to_owned();
    let names = ["..", ".", "", "../up", &absolute, "a/b", "nul\0", "good\u{1b}[2J"];
    let mut entries: Vec<Value> = names.into_iter().map(file_named).collect();
    entries.push(json!({"name": "..", "type": "FILE_TYPE_DIRECTORY", "path": "/evil/..", "mode": 0o777}));
    let api =
        liar(entries.into(), |stream| stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil").unwrap());

    let output = command(api, &["cp", "-r", "sbx1:/evil", out.to_str().unwrap()]).output().unwrap();

    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.matches("not copied").count() == 8 && !errors.contains(['\u{1b}', '\0']), "{errors}");
    let written = |folder: &Path| -> Vec<_> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(written(scratch.path()), ["deep"]);
    assert_eq!(written(&scratch.path().join("deep")), ["out"]);
    assert_eq!(written(&out), ["evil"]);
    assert_eq!(written(&out.join("evil")), ["good\u{1b}[2J"]);
    // Neither set-user-id nor set-group-id comes along.
    assert_eq!(mode(&out.join("evil/good\u{1b}[2J")), 0o777);
}

#[test]
fn a_file_that_ends_early_or_has_no_room_leaves_nothing() {
    let out = tempfile::tempdir().unwrap();
    let early =
        liar(json!([]), |stream| stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").unwrap());
    let huge = liar(json!([]), |stream| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\nhalf", u64::MAX / 2).unwrap();
    });
    let endless = liar(json!([]), |stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n").unwrap();
    });
    for (api, reason) in [(early, "broke off"), (huge, "room for"), (endless, "how long the file is")] {
        let output = command(api, &["cp", "sbx1:/file", out.path().to_str().unwrap()]).output().unwrap();

        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(reason), "{errors}");
        assert!(is_empty(out.path()), "{reason}");
    }
}

#[test]
fn an_interrupted_copy_leaves_nothing() {
    let out = tempfile::tempdir().unwrap();
    let api = liar(json!([]), |stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").unwrap();
        // Until the command is gone.
        let _ = std::io::Read::read(stream, &mut [0]);
    });
    let mut child = command(api, &["cp", "sbx1:/file", out.path().to_str().unwrap()]).spawn().unwrap();
    let give_up_at = Instant::now() + Duration::from_secs(30);
    while is_empty(out.path()) {
        assert!(Instant::now() < give_up_at, "the copy does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }

    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();

    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(is_empty(out.path()));
}

#[test]
fn folders_without_end_are_left() {
    let out = tempfile::tempdir().unwrap();
    let again = json!([{"name": "again", "type": "FILE_TYPE_DIRECTORY", "path": "/evil/again", "mode": 0}]);
    let api = liar(again, |_| {});

    let output = command(api, &["cp", "-r", "sbx1:/evil", out.path().to_str().unwrap()]).output().unwrap();

    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("256 levels"));
}

#[test]
fn a_list_is_printed_without_what_a_terminal_would_obey_and_refused_when_too_long() {
    let api = liar(json!([file_named("\u{1b}]0;owned\u{7}")]), |_| {});
    let table = printed(command(api, &["ls", "sbx1:/evil"]).output().unwrap());
    assert!(table.contains("\\u{1b}]0;owned\\u{7}") && !table.contains('\u{1b}'), "{table}");
    let json: Value =
        serde_json::from_str(&printed(command(api, &["--json", "ls", "sbx1"]).output().unwrap())).unwrap();
    assert_eq!(json["name"], "\u{1b}]0;owned\u{7}");

    let long = liar(vec![json!({}); 20_001].into(), |_| {});
    let refused = command(long, &["ls", "sbx1:/evil"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(125));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("at most 20000 entries"));
}
