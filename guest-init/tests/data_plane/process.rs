//! `process.Process`, with real programs.

use std::path::Path;

use crate::support::{Server, soon, until, whole};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use sandpiper_protocol::connect::{END_OF_STREAM, envelope};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const ROOT: (&str, &str) = ("authorization", "Basic cm9vdDo=");
const NOBODY: (&str, &str) = ("authorization", "Basic bm9ib2R5Og==");

/// A process that ended without ever having been waited for would be here, as a zombie.
fn exists(pid: u64) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[tokio::test]
async fn a_command_gives_both_streams_and_its_exit_code() {
    let server = Server::start();

    let mut events = server.shell("echo out; echo err >&2; exit 3").await;
    let pid = events.pid().await;
    let outcome = events.outcome().await;

    assert!(pid > 0);
    assert_eq!((outcome.stdout.as_slice(), outcome.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    let end = json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"});
    assert_eq!((outcome.end, outcome.error), (end, Value::Null));
    assert!(!exists(pid));
}

#[tokio::test]
async fn a_request_whose_end_comes_late_leaves_its_connection_open_for_the_next() {
    let server = Server::start();
    let mut connection = UnixStream::connect(server.socket()).await.unwrap();
    let mut received = String::new();
    let start = json!({"process": {"cmd": "sh", "args": ["-c", "sleep 0.2; echo done"]}}).to_string();
    let chunk = envelope(0, start.as_bytes());
    let head = format!(
        "POST /process.Process/Start HTTP/1.1\r\nHost: sandbox\r\nContent-Type: application/connect+json\r\n\
         Transfer-Encoding: chunked\r\n\r\n{:x}\r\n",
        chunk.len()
    );

    connection.write_all(&[head.as_bytes(), &chunk, b"\r\n"].concat()).await.unwrap();
    read_until(&mut connection, &mut received, r#""pid""#).await;
    connection.write_all(b"0\r\n\r\n").await.unwrap();
    read_until(&mut connection, &mut received, "0\r\n\r\n").await;

    received.clear();
    connection.write_all(b"GET /health HTTP/1.1\r\nHost: sandbox\r\n\r\n").await.unwrap();
    read_until(&mut connection, &mut received, "HTTP/1.1 204").await;
}

/// Reads on until this has come.
async fn read_until(connection: &mut UnixStream, received: &mut String, expected: &str) {
    while !received.contains(expected) {
        let mut piece = [0; 4096];
        let length = soon(connection.read(&mut piece)).await.unwrap();
        assert!(length > 0, "the connection was closed before {expected:?} came; until then: {received:?}");
        received.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
}

#[tokio::test]
async fn user_environment_and_folder_are_what_the_request_says() {
    let server = Server::start();
    let script = "id -un; id -Gn; pwd; echo $HOME $USER $FROM_HOST $FROM_REQUEST; ulimit -n; cat /proc/self/status | grep SigIgn";
    let process = json!({"cmd": "/bin/sh", "args": ["-c", script], "envs": {"FROM_REQUEST": "too"}, "cwd": "/usr"});

    let as_nobody = server.stream("Start", json!({"process": process}), &[NOBODY]).await.outcome().await;
    let as_root = server.stream("Start", json!({"process": process}), &[ROOT]).await.outcome().await;

    let nobody = "nobody\nnogroup\n/usr\n/nonexistent nobody yes too\n";
    assert!(as_nobody.stdout().starts_with(nobody), "{}", as_nobody.stdout());
    assert!(as_nobody.stdout().ends_with("SigIgn:\t0000000000000000\n"), "{}", as_nobody.stdout());
    assert!(as_root.stdout().starts_with("root\nroot"), "{}", as_root.stdout());
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let server = Server::start();
    let start = async |process: Value, user| {
        server.stream("Start", json!({"process": process}), &[user]).await.outcome().await.error
    };
    let stranger = ("authorization", "Basic c3RyYW5nZXI6");

    let no_command = start(json!({"cmd": "no-such-command"}), ROOT).await;
    let no_folder = start(json!({"cmd": "true", "cwd": "/no/such/folder"}), ROOT).await;
    let not_allowed = start(json!({"cmd": "/etc/passwd"}), ROOT).await;
    let forbidden = start(json!({"cmd": "true", "cwd": "/root"}), NOBODY).await;
    let no_user = start(json!({"cmd": "true"}), stranger).await;
    let nothing = start(json!({}), ROOT).await;

    for error in [&no_command, &no_folder, &not_allowed, &forbidden, &nothing] {
        assert_eq!(error["code"], "invalid_argument", "{error}");
    }
    assert!(no_command["message"].as_str().unwrap().contains("no-such-command"), "{no_command}");
    assert!(no_folder["message"].as_str().unwrap().contains("/no/such/folder"), "{no_folder}");
    assert_eq!(no_user["code"], "unauthenticated");
}

#[tokio::test]
async fn a_signal_reaches_the_whole_group() {
    let server = Server::start();
    let mut events = server.shell("sleep 1000 & echo $!; wait").await;
    let pid = events.pid().await;
    let grandchild: u64 = events.read_until("\n").await.trim().parse().unwrap();

    let (status, _) = server.call("SendSignal", json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})).await;
    let outcome = events.outcome().await;
    let again = server.call("SendSignal", json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGTERM"})).await;

    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        outcome.end,
        json!({"exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed"})
    );
    assert_eq!((again.0, &again.1["code"]), (StatusCode::NOT_FOUND, &json!("not_found")));
    until(|| !is_running(grandchild)).await;
}

fn is_running(pid: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("State:") && !status.contains("State:\tZ")
}

#[tokio::test]
async fn input_arrives_and_closing_it_ends_the_reader() {
    let server = Server::start();
    let mut events = server.shell("cat; echo done").await;
    let pid = events.pid().await;

    let sent = server.send_input(pid, b"hello ").await;
    server.send_input(pid, b"again\n").await;
    let closed = server.call("CloseStdin", json!({"process": {"pid": pid}})).await;
    let outcome = events.outcome().await;
    let late = server.send_input(pid, b"x").await;

    assert_eq!((sent.0, closed.0), (StatusCode::OK, StatusCode::OK));
    assert_eq!(outcome.stdout(), "hello again\ndone\n");
    assert_eq!(late.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn without_stdin_the_input_is_empty_and_sending_is_refused() {
    let server = Server::start();
    let request = json!({"process": {"cmd": "sh", "args": ["-c", "cat; echo empty; sleep 1000"]}, "stdin": false});
    let mut events = server.stream("Start", request, &[]).await;
    let pid = events.pid().await;
    events.read_until("empty").await;

    let (status, error) = server.send_input(pid, b"x").await;
    server.call("SendSignal", json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})).await;

    assert_eq!((status, &error["code"]), (StatusCode::BAD_REQUEST, &json!("failed_precondition")));
}

#[tokio::test]
async fn stream_input_writes_every_message_in_order() {
    let server = Server::start();
    let mut events = server.shell("cat").await;
    let pid = events.pid().await;
    let messages = [
        envelope(0, json!({"start": {"process": {"pid": pid}}}).to_string().as_bytes()),
        envelope(0, br#"{"data":{"input":{"stdin":"YWJj"}}}"#),
        envelope(0, br#"{"keepalive":{}}"#),
        envelope(0, br#"{"data":{"input":{"stdin":"ZGVm"}}}"#),
        envelope(END_OF_STREAM, b"{}"),
    ];

    let (status, body) =
        server.post("/process.Process/StreamInput", "application/connect+json", messages.concat()).await;
    server.call("CloseStdin", json!({"process": {"pid": pid}})).await;

    assert_eq!(
        (status, body.to_vec()),
        (StatusCode::OK, [envelope(0, b"{}"), envelope(END_OF_STREAM, b"{}")].concat())
    );
    assert_eq!(events.outcome().await.stdout(), "abcdef");
}

#[tokio::test]
async fn ten_mebibytes_through_a_process_arrive_whole() {
    let server = Server::start();
    let sent: Vec<u8> =
        (0..10 * 1024 * 1024_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect();
    let mut events = server.shell("cat").await;
    let pid = events.pid().await;

    let feed = async {
        for piece in sent.chunks(700_000) {
            assert_eq!(server.send_input(pid, piece).await.0, StatusCode::OK);
        }
        server.call("CloseStdin", json!({"process": {"pid": pid}})).await;
    };
    let (outcome, ()) = tokio::join!(events.outcome(), feed);

    assert_eq!(outcome.stdout.len(), sent.len());
    assert!(outcome.stdout == sent, "the bytes are the same");
}

#[tokio::test]
async fn connecting_late_repeats_the_output_and_goes_on_live() {
    let server = Server::start();
    let mut events = server.shell("echo first; read line; echo second $line").await;
    let pid = events.pid().await;
    events.read_until("first\n").await;
    drop(events);

    let mut late = server.stream("Connect", json!({"process": {"pid": pid}}), &[]).await;
    let start = late.pid().await;
    let repeated = late.read_until("\n").await;
    server.send_input(pid, b"go\n").await;
    let live = late.outcome().await;

    assert_eq!((start, repeated.as_str(), live.stdout().as_str()), (pid, "first\n", "second go\n"));
    assert_eq!(live.end["exited"], true);
}

#[tokio::test]
async fn a_process_that_has_ended_can_still_be_asked_for() {
    let server = Server::start();
    let request = json!({"process": {"cmd": "sh", "args": ["-c", "echo kept; exit 5"]}, "tag": "job"});
    let mut events = server.stream("Start", request, &[]).await;
    events.pid().await;
    events.outcome().await;

    let late = server.stream("Connect", json!({"process": {"tag": "job"}}), &[]).await.outcome().await;
    let unknown = server.stream("Connect", json!({"process": {"tag": "other"}}), &[]).await.outcome().await;

    assert_eq!((late.stdout().as_str(), &late.end["exitCode"]), ("kept\n", &json!(5)));
    assert_eq!(unknown.error["code"], "not_found");
}

#[tokio::test]
async fn list_names_running_processes_only() {
    let server = Server::start();
    let request = json!({"process": {"cmd": "sleep", "args": ["1000"]}, "tag": "sleeper"});
    let mut events = server.stream("Start", request, &[]).await;
    let pid = events.pid().await;

    let (_, running) = server.call("List", json!({})).await;
    server.call("SendSignal", json!({"process": {"tag": "sleeper"}, "signal": "SIGNAL_SIGTERM"})).await;
    let end = events.outcome().await.end;
    let (_, none) = server.call("List", json!({})).await;

    let info = json!({"config": {"cmd": "sleep", "args": ["1000"]}, "pid": pid, "tag": "sleeper"});
    assert_eq!(running, json!({"processes": [info]}));
    assert_eq!((&end["status"], none), (&json!("signal: terminated"), json!({})));
}

#[tokio::test]
async fn a_terminal_has_its_size_and_takes_a_new_one() {
    let server = Server::start();
    let script = "stty size; tty; read line; stty size; echo $TERM";
    let request = json!({
        "process": {"cmd": "sh", "args": ["-c", script]},
        "pty": {"size": {"cols": 101, "rows": 33}},
    });
    let mut events = server.stream("Start", request, &[]).await;
    let pid = events.pid().await;
    let before = events.read_until("/dev/pts/").await;

    let resize = json!({"process": {"pid": pid}, "pty": {"size": {"cols": 7, "rows": 5}}});
    let (resized, _) = server.call("Update", resize).await;
    let wrong = server.send_input(pid, b"x").await;
    let (sent, _) = server.call("SendInput", json!({"process": {"pid": pid}, "input": {"pty": "Cg=="}})).await;
    let after = events.outcome().await;

    assert!(before.starts_with("33 101\r\n"), "{before}");
    assert_eq!((resized, sent), (StatusCode::OK, StatusCode::OK));
    assert_eq!(wrong.1["code"], "invalid_argument");
    let text = String::from_utf8(after.pty).unwrap();
    assert!(text.ends_with("5 7\r\nxterm-256color\r\n"), "{text}");
    assert_eq!(after.end["exited"], true);
}

#[tokio::test]
async fn the_deadline_kills_the_group_and_ends_the_stream() {
    let server = Server::start();
    let request = json!({"process": {"cmd": "sh", "args": ["-c", "sleep 1000 & echo $!; wait"]}, "tag": "late"});
    let mut events = server.stream("Start", request, &[("connect-timeout-ms", "400")]).await;
    events.pid().await;
    let grandchild: u64 = events.read_until("\n").await.trim().parse().unwrap();

    let outcome = events.outcome().await;
    let end = server.stream("Connect", json!({"process": {"tag": "late"}}), &[]).await.outcome().await.end;

    assert_eq!(outcome.error["code"], "deadline_exceeded");
    assert_eq!(end["status"], "signal: killed");
    until(|| !is_running(grandchild)).await;
}

#[tokio::test]
async fn an_idle_stream_says_that_it_is_alive() {
    let server = Server::start();
    let request = json!({"process": {"cmd": "sh", "args": ["-c", "sleep 1.5; echo x"]}});

    let outcome = server.stream("Start", request, &[("keepalive-ping-interval", "1")]).await.outcome().await;

    assert!(outcome.keepalives >= 1);
    assert_eq!(outcome.stdout(), "x\n");
}

#[tokio::test]
async fn what_a_command_leaves_behind_neither_delays_its_end_nor_dies_of_it() {
    let server = Server::start();
    let file = server.folder().join("survived");
    let script = format!(
        "(trap '' HUP; while ! test -e {0}.go; do sleep 0.05; done; echo more && echo yes > {0}) & echo started",
        file.display()
    );

    let outcome = server.shell(&script).await.outcome().await;
    std::fs::write(file.with_extension("go"), "").unwrap();

    assert_eq!((outcome.stdout().as_str(), &outcome.end["exited"]), ("started\n", &json!(true)));
    until(|| file.exists()).await;
}

#[tokio::test]
async fn output_without_a_listener_goes_on_and_the_newest_is_kept() {
    let server = Server::start();
    let mut events = server.shell("head -c 5000000 /dev/zero; echo last; read line").await;
    let pid = events.pid().await;
    drop(events);

    let mut late = server.stream("Connect", json!({"process": {"pid": pid}}), &[]).await;
    late.pid().await;
    late.read_until("last\n").await;
    let (status, _) = server.send_input(pid, b"\n").await;

    assert_eq!(status, StatusCode::OK);
    assert_eq!(late.outcome().await.end["exited"], true);
}

#[tokio::test]
async fn orphans_are_reaped_and_statuses_of_children_are_not_lost() {
    // SAFETY: this call takes no pointer; it makes this process the parent of its descendants' orphans, as PID 1 is.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
    let server = Server::start();

    let mut orphans = Vec::new();
    for code in 1..=20 {
        let mut events = server.shell(&format!("(exec >&- 2>&-; sleep 0.1) & echo $!; exit {code}")).await;
        events.pid().await;
        let outcome = events.outcome().await;
        assert_eq!(outcome.end["exitCode"], code);
        orphans.push(outcome.stdout().trim().parse::<u64>().unwrap());
    }

    until(|| orphans.iter().all(|pid| !exists(*pid))).await;
}

#[tokio::test]
async fn other_methods_and_services_are_unimplemented() {
    let server = Server::start();

    let unary = server.post("/volume.Volume/Stat", "application/json", r#"{"path":"/"}"#).await;
    let stream = server.post("/volume.Volume/WatchDir", "application/connect+json", envelope(0, b"{}")).await;
    let method = server.post("/process.Process/Dance", "application/json", "{}").await;
    let grpc = server.post("/process.Process/List", "application/grpc", "").await;
    let get = server.get("/process.Process/List").await;
    let nothing = server.get("/nothing").await;
    let broken = server.call("SendSignal", json!({"process": {"pid": 1}, "signal": 9})).await;

    assert_eq!(unary.0, StatusCode::NOT_IMPLEMENTED);
    assert_eq!(serde_json::from_slice::<Value>(&unary.1).unwrap()["code"], "unimplemented");
    assert_eq!((stream.0, stream.1[0]), (StatusCode::OK, END_OF_STREAM));
    assert_eq!(serde_json::from_slice::<Value>(&stream.1[5..]).unwrap()["error"]["code"], "unimplemented");
    assert_eq!(method.0, StatusCode::NOT_IMPLEMENTED);
    assert_eq!((grpc.0, get.0), (StatusCode::UNSUPPORTED_MEDIA_TYPE, StatusCode::METHOD_NOT_ALLOWED));
    assert_eq!(nothing.0, StatusCode::NOT_FOUND);
    assert_eq!((broken.0, &broken.1["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_argument")));
}

#[tokio::test]
async fn a_call_ends_at_the_time_that_its_client_gave_it() {
    let server = Server::start();
    let mut events = server.shell("sleep 1000").await;
    let pid = events.pid().await;
    // More than its pipe takes, and it reads nothing.
    let input = json!({"process": {"pid": pid}, "input": {"stdin": STANDARD.encode(vec![0; 1 << 20])}});
    let start = json!({"start": {"process": {"pid": pid}}}).to_string();
    let stream = [envelope(0, start.as_bytes()), envelope(0, json!({"data": input}).to_string().as_bytes())].concat();
    let send = async |method: &str, kind: &str, body: Vec<u8>| {
        let request = Request::post(format!("/process.Process/{method}")).header("content-type", kind);
        let request = request.header("connect-timeout-ms", "300").body(Full::new(body.into())).unwrap();
        whole(server.send(request).await).await
    };

    let unary = send("SendInput", "application/json", input.to_string().into_bytes()).await;
    let streamed = send("StreamInput", "application/connect+json", stream).await;
    server.call("SendSignal", json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})).await;

    assert_eq!(unary.0, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(serde_json::from_slice::<Value>(&unary.1).unwrap()["code"], "deadline_exceeded");
    assert_eq!((streamed.0, streamed.1[0]), (StatusCode::OK, END_OF_STREAM));
    assert_eq!(serde_json::from_slice::<Value>(&streamed.1[5..]).unwrap()["error"]["code"], "deadline_exceeded");
}

#[tokio::test]
async fn a_compressed_message_is_refused_and_identity_is_none() {
    let server = Server::start();
    let list = async |encoding: &str| {
        let request = Request::post("/process.Process/List").header("content-type", "application/json");
        let request = request.header("content-encoding", encoding).body(Full::new("{}".into())).unwrap();
        let (status, body) = whole(server.send(request).await).await;
        (status, serde_json::from_slice::<Value>(&body).unwrap()["code"].clone())
    };

    assert_eq!(list("identity").await, (StatusCode::OK, Value::Null));
    assert_eq!(list("gzip").await, (StatusCode::NOT_IMPLEMENTED, json!("unimplemented")));
}

#[tokio::test]
async fn metrics_tell_what_there_is_and_what_is_used() {
    let server = Server::start();

    let (status, body) = server.get("/metrics").await;
    let (posted, _) = server.post("/metrics", "application/json", "").await;

    let metrics: Value = serde_json::from_slice(&body).unwrap();
    let number = |name: &str| metrics[name].as_f64().unwrap_or_else(|| panic!("{name}: {metrics}"));
    assert_eq!((status, posted), (StatusCode::OK, StatusCode::METHOD_NOT_ALLOWED));
    assert!(number("ts") > 1.7e9 && number("cpu_count") >= 1.0, "{metrics}");
    assert!((0.0..=100.0).contains(&number("cpu_used_pct")), "{metrics}");
    for (used, total) in [("mem_used", "mem_total"), ("mem_cache", "mem_total"), ("disk_used", "disk_total")] {
        assert!(number(used) > 0.0 && number(used) <= number(total), "{metrics}");
    }
    assert_eq!(metrics["mem_total_mib"].as_u64(), metrics["mem_total"].as_u64().map(|bytes| bytes >> 20));
}

#[tokio::test]
async fn the_environment_of_all_processes_can_be_asked_for() {
    let server = Server::start();

    let (status, body) = server.get("/envs").await;

    assert_eq!(
        (status, serde_json::from_slice::<Value>(&body).unwrap()),
        (StatusCode::OK, json!({"FROM_HOST": "yes"}))
    );
}

#[tokio::test]
async fn health_is_an_empty_answer() {
    let server = Server::start();

    let (status, body) = server.get("/health").await;

    assert_eq!((status, body.len()), (StatusCode::NO_CONTENT, 0));
}

#[tokio::test]
async fn many_processes_at_once_keep_their_own_output() {
    let server = Server::start();
    let runs = (0..50).map(|number| {
        let server = &server;
        async move { (number, server.shell(&format!("echo {number}; exit {number}")).await.outcome().await) }
    });

    for (number, outcome) in soon(futures_util::future::join_all(runs)).await {
        assert_eq!((outcome.stdout(), outcome.end["exitCode"].as_u64().unwrap_or(0)), (format!("{number}\n"), number));
    }
}
