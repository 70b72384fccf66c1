//! `template`, with an API that builds as it is told.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::{Asked, command, listen, ok, printed};

/// How the only build of a test ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Ready,
    Failed,
    /// When it is cancelled.
    Never,
    /// Likewise; whoever asks for it to be begun waits for the response until it is cancelled or given up.
    NeverSlowly,
    /// When it is cancelled, and then it is ready already.
    ReadyBefore,
}

impl End {
    fn waits(self) -> bool {
        !matches!(self, End::Ready | End::Failed)
    }
}

/// What the API was asked, in that order.
#[derive(Default)]
struct Calls {
    all: Mutex<Vec<(String, Value)>>,
    changed: Condvar,
    context: Mutex<Vec<u8>>,
}

impl Calls {
    fn lines(&self) -> Vec<String> {
        self.all.lock().unwrap().iter().map(|(line, _)| line.clone()).collect()
    }

    fn body_of(&self, line: &str) -> Value {
        let all = self.all.lock().unwrap();
        all.iter().find(|(asked, _)| asked == line).unwrap_or_else(|| panic!("no {line}")).1.clone()
    }

    fn add(&self, line: &str, body: Value) {
        self.all.lock().unwrap().push((line.to_owned(), body));
        self.changed.notify_all();
    }

    fn wait_for(&self, line: &str) {
        let all = self.all.lock().unwrap();
        let is_missing = |all: &mut Vec<(String, Value)>| !all.iter().any(|(asked, _)| asked == line);
        let (_all, waited) = self.changed.wait_timeout_while(all, Duration::from_secs(60), is_missing).unwrap();
        assert!(!waited.timed_out(), "{line} was not asked");
    }
}

fn version(state: &str) -> Value {
    let error = json!({"code": "step_failed", "message": "step 2 ended with status 7: RUN false", "step": 2});
    json!({
        "id": "ver1", "template": "app", "number": 4, "state": state, "source": "dockerfile", "tags": ["v1"], "size": 1 << 20,
        "runtime_baseline": {"cpu": 1, "memory_mb": 512}, "created_at": "2027-01-15T08:00:00Z",
        "error": if state == "failed" { error } else { Value::Null },
    })
}

fn entry(number: u64, text: &str) -> Value {
    json!({"number": number, "time": "2027-01-15T08:00:00Z", "level": "info", "step": 1, "text": text})
}

/// An API without the template `app`, whose first version is this build. Its log breaks off once.
fn builder(end: End) -> (SocketAddr, Arc<Calls>) {
    let calls = Arc::new(Calls::default());
    let asked = Arc::clone(&calls);
    let address = listen(move |request, stream| {
        asked.add(&request.line, request.body.clone());
        answer(end, request, stream, &asked);
    });
    (address, calls)
}

fn answer(end: End, request: &Asked, stream: &mut TcpStream, calls: &Calls) {
    let state = match end {
        End::Ready => "ready",
        End::Failed => "failed",
        End::Never | End::NeverSlowly | End::ReadyBefore => "building",
    };
    let said = match request.line.as_str() {
        "GET /v1/templates/app" => {
            let missing = json!({"error": "not_found", "message": "no template", "request_id": "req1"}).to_string();
            let head = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n", missing.len());
            return drop(write!(stream, "{head}Connection: close\r\n\r\n{missing}"));
        }
        "POST /v1/templates" => json!({
            "slug": "app", "team": "acme", "visibility": "private", "description": "", "latest_version": null,
        }),
        "PUT /v1/templates/uploads" => {
            calls.context.lock().unwrap().clone_from(&request.raw);
            json!({"id": "upl1", "bytes": request.raw.len(), "sha256": "00"})
        }
        "DELETE /v1/templates/uploads/upl1" => Value::Null,
        "POST /v1/templates/app/versions" => {
            if end == End::NeverSlowly {
                calls.wait_for("interrupted");
            }
            version("queued")
        }
        "GET /v1/templates/app/versions/ver1" => version(state),
        "POST /v1/templates/app/versions/ver1/cancel" if end == End::ReadyBefore => version("ready"),
        "POST /v1/templates/app/versions/ver1/cancel" => version("cancelled"),
        "GET /v1/templates/app/versions/ver1/logs" => return log(end, request, stream),
        unknown => panic!("{unknown}"),
    };
    let _ = stream.write_all(&ok(&said));
}

/// The first time one line, and half of the next; then from where the reader is, one of them twice.
fn log(end: End, request: &Asked, stream: &mut TcpStream) {
    let event = |number, text| format!("event: log\nid: {number}\ndata: {}\n\n", entry(number, text));
    let (first, second) = (event(1, "STEP 1/2: FROM scratch"), event(2, "\u{1b}[2Jdone"));
    let last_read = request.headers["last-event-id"].as_str();
    let said = match (end, last_read) {
        (end, _) if end.waits() => first,
        (_, "0") => format!(": hello\n\n{first}{}", &second[..second.len() / 2]),
        (_, "1") => format!("{first}{second}event: end\ndata: {{\"state\": \"ready\"}}\n\n"),
        other => panic!("{:?}", other.1),
    };
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{said}");
    if end.waits() {
        // Until the reader goes.
        let _ = std::io::copy(stream, &mut std::io::sink());
    }
}

fn context() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    for (path, content) in [
        ("Dockerfile", "FROM scratch\nCOPY src /src\n"),
        ("src/main.py", "print(1)"),
        ("notes", "not for others"),
        (".dockerignore", "notes\n"),
    ] {
        fs::write(folder.path().join(path), content).unwrap();
    }
    folder
}

/// Builds a folder to its end.
fn build(api: SocketAddr, folder: &Path, more: &[&str]) -> Output {
    let arguments = [&["template", "build", folder.to_str().unwrap(), "-t", "app:v1"], more].concat();
    command(api, &arguments).env("TOKEN", "hunter2").output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_folder_becomes_a_version_and_its_log_is_read_to_the_end_though_it_breaks_off() {
    let (api, calls) = builder(End::Ready);
    let folder = context();

    let options = ["--target", "release", "--build-arg", "A=b=c", "--secret", "id=token,env=TOKEN", "--start", "serve"];
    let built = build(api, folder.path(), &[&options[..], &["--ready", "true", "--memory", "1024"]].concat());

    assert_eq!(text(&built.stdout), "app:4\n");
    assert!(built.status.success(), "{}", text(&built.stderr));
    let said: Vec<_> = text(&built.stderr).lines().collect();
    assert_eq!(said[1..], ["[1] STEP 1/2: FROM scratch", "[1] \\u{1b}[2Jdone"], "each line once, and harmless");
    assert_eq!(
        calls.body_of("POST /v1/templates/app/versions"),
        json!({
            "source": {"dockerfile": {
                "context": "upl1", "path": "Dockerfile", "target": "release", "args": {"A": "b=c"},
                "secrets": {"token": "hunter2"}, "no_cache": false,
            }},
            "runtime_baseline": {"memory_mb": 1024}, "start_cmd": "serve", "ready_cmd": "true", "tags": ["v1"],
        })
    );
    assert_eq!(calls.body_of("POST /v1/templates"), json!({"slug": "app"}));
    assert_eq!(calls.lines().last().unwrap(), "DELETE /v1/templates/uploads/upl1", "nobody else needs it");
    let sent = calls.context.lock().unwrap().clone();
    let mut sent = tar::Archive::new(sent.as_slice());
    let paths: Vec<_> = sent.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned()).collect();
    assert_eq!(paths, [".dockerignore", "Dockerfile", "src", "src/main.py"].map(Path::new));
}

#[test]
fn a_build_that_fails_says_why_and_has_a_status_of_its_own() {
    let (api, _) = builder(End::Failed);
    let folder = context();

    let plain = build(api, folder.path(), &[]);
    let json = build(api, folder.path(), &["--json"]);

    assert_eq!((plain.status.code(), text(&plain.stdout)), (Some(1), ""));
    let last = text(&plain.stderr).lines().last().unwrap();
    assert_eq!(last, "error: app:4 could not be built: step 2 ended with status 7: RUN false");
    assert_eq!((json.status.code(), text(&json.stderr)), (Some(1), ""));
    let lines: Vec<Value> = text(&json.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[..2], [entry(1, "STEP 1/2: FROM scratch"), entry(2, "\u{1b}[2Jdone")]);
    assert_eq!(lines[2]["error"]["code"], "step_failed");
}

#[test]
fn ctrl_c_cancels_the_build_and_a_detached_one_is_left_alone() {
    let (api, calls) = builder(End::Never);
    let folder = context();
    let arguments = ["template", "build", folder.path().to_str().unwrap(), "-t", "app"];

    let detached = build(api, folder.path(), &["--detach"]);
    assert_eq!((detached.status.code(), text(&detached.stdout)), (Some(0), "app:4\n"));
    let following = command(api, &arguments).spawn().unwrap();
    calls.wait_for("GET /v1/templates/app/versions/ver1/logs");
    assert!(!calls.lines().iter().any(|line| line.ends_with("/cancel")), "{:?}", calls.lines());
    kill(Pid::from_raw(following.id().cast_signed()), Signal::SIGINT).unwrap();
    let interrupted = following.wait_with_output().unwrap();

    assert_eq!(interrupted.status.code(), Some(130));
    assert!(text(&interrupted.stderr).contains("cancelled: app:4"), "{}", text(&interrupted.stderr));
    calls.wait_for("POST /v1/templates/app/versions/ver1/cancel");
}

#[test]
fn a_build_that_is_begun_in_the_moment_of_ctrl_c_is_cancelled_too() {
    let (api, calls) = builder(End::NeverSlowly);
    let folder = context();
    let arguments = ["template", "build", folder.path().to_str().unwrap(), "-t", "app", "--detach"];
    let mut building = command(api, &arguments).spawn().unwrap();
    calls.wait_for("POST /v1/templates/app/versions");

    kill(Pid::from_raw(building.id().cast_signed()), Signal::SIGINT).unwrap();
    // The signal is there before the response.
    let mut said = BufReader::new(building.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line == "cancelling: app"));
    calls.add("interrupted", Value::Null);
    let interrupted = building.wait_with_output().unwrap();

    assert_eq!(interrupted.status.code(), Some(130));
    assert_eq!(said.next().as_deref(), Some("cancelled: app:4"));
    assert!(calls.lines().contains(&"POST /v1/templates/app/versions/ver1/cancel".to_owned()), "{:?}", calls.lines());
}

#[test]
fn what_was_ready_before_it_could_be_cancelled_is_said_to_be() {
    let (api, calls) = builder(End::ReadyBefore);
    let folder = context();
    let arguments = ["template", "build", folder.path().to_str().unwrap(), "-t", "app"];
    let building = command(api, &arguments).spawn().unwrap();
    calls.wait_for("GET /v1/templates/app/versions/ver1/logs");

    kill(Pid::from_raw(building.id().cast_signed()), Signal::SIGINT).unwrap();
    let interrupted = building.wait_with_output().unwrap();

    assert_eq!((interrupted.status.code(), text(&interrupted.stdout)), (Some(0), "app:4\n"));
}

/// A response of an API that refuses.
fn refusal(status: &str, code: &str) -> Vec<u8> {
    let body = json!({"error": code, "message": "not now", "request_id": "req1"}).to_string();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    format!("{head}Connection: close\r\n\r\n{body}").into_bytes()
}

#[test]
fn what_passes_does_not_keep_the_end_of_a_build_from_being_seen() {
    let calls = Arc::new(Calls::default());
    let asked = Arc::clone(&calls);
    let api = listen(move |request, stream| {
        let shown = request.line == "GET /v1/templates/app/versions/ver1";
        if shown && !asked.lines().contains(&"refused".to_owned()) && asked.lines().contains(&"read".to_owned()) {
            asked.add("refused", Value::Null);
            return drop(stream.write_all(&refusal("503 Service Unavailable", "unavailable")));
        }
        if request.line.ends_with("/logs") && request.headers["last-event-id"] == "1" {
            asked.add("read", Value::Null);
        }
        answer(End::Ready, request, stream, &asked);
    });
    let folder = context();

    let built = build(api, folder.path(), &[]);

    assert_eq!((built.status.code(), text(&built.stdout)), (Some(0), "app:4\n"), "{}", text(&built.stderr));
    assert!(calls.lines().contains(&"refused".to_owned()));
}

#[test]
fn a_build_that_is_lost_sight_of_has_a_status_of_its_own() {
    let api = listen(|request, stream| match request.line.as_str() {
        "GET /v1/templates/app/versions/ver1/logs" => {
            drop(stream.write_all(&refusal("401 Unauthorized", "unauthorized")));
        }
        _ => answer(End::Ready, request, stream, &Calls::default()),
    });
    let folder = context();

    let built = build(api, folder.path(), &[]);

    assert_eq!((built.status.code(), text(&built.stdout)), (Some(3), ""));
    assert!(text(&built.stderr).contains("sandpiper template logs -f app:4"), "{}", text(&built.stderr));
}

#[test]
fn an_archive_may_come_through_a_pipe_and_is_no_folder() {
    let (api, calls) = builder(End::Ready);
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let written = pipe.clone();
    let writer = std::thread::spawn(move || fs::write(written, "archive").unwrap());

    let arguments = ["template", "build", "-t", "app", "--archive"];
    let built = command(api, &[&arguments[..], &[pipe.to_str().unwrap()]].concat()).output().unwrap();
    let refused = command(api, &[&arguments[..], &[folder.path().to_str().unwrap()]].concat()).output().unwrap();

    writer.join().unwrap();
    assert_eq!((built.status.code(), text(&built.stdout)), (Some(0), "app:4\n"), "{}", text(&built.stderr));
    assert_eq!(*calls.context.lock().unwrap(), b"archive");
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("is a folder"), "{}", text(&refused.stderr));
}

#[test]
fn what_cannot_be_sent_is_said_before_a_build_is_begun() {
    let (api, calls) = builder(End::Ready);
    let folder = context();
    let path = folder.path().to_str().unwrap();
    let refused = |arguments: &[&str], why: &str| {
        let output = command(api, &[&["template", "build", "-t", "app"], arguments].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(text(&output.stderr).contains(why), "{arguments:?}: {}", text(&output.stderr));
    };

    refused(&["./not-there"], "./not-there is not a folder");
    refused(&[path, "-f", "not-there"], "not-there");
    refused(&[path, "--secret", "id=x,src=/not-there"], "/not-there");
    refused(&["--image", "a", "--no-cache"], "There is no Dockerfile");
    refused(&["--archive", "/not-there"], "/not-there");
    fs::write(folder.path().join(".dockerignore"), "[").unwrap();
    refused(&[path], ".dockerignore");

    assert_eq!(calls.lines(), [""; 0]);
}

#[test]
fn a_log_is_read_page_by_page_and_no_further_than_it_goes() {
    let api = listen(|asked, stream| {
        let page = match asked.line.as_str() {
            "GET /v1/templates/app/versions?limit=100" => {
                let mut older = version("ready");
                older["number"] = json!(3);
                json!({"versions": [older, version("building")]})
            }
            "GET /v1/templates/app/versions/ver1/logs?limit=100" => {
                json!({"entries": [entry(1, "one")], "state": "building", "next_token": "1"})
            }
            // While the build goes on there is always a next page.
            "GET /v1/templates/app/versions/ver1/logs?limit=100&next_token=1" => {
                json!({"entries": [], "state": "building", "next_token": "1"})
            }
            unknown => panic!("{unknown}"),
        };
        let _ = stream.write_all(&ok(&page));
    });

    assert_eq!(printed(command(api, &["template", "logs", "app"]).output().unwrap()), "[1] one\n");
}

#[test]
fn templates_and_versions_are_listed_shown_tagged_and_deleted() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let changes = Arc::clone(&calls);
    let api = listen(move |asked, stream| {
        let template = |slug: &str, team: Value, latest: Value| {
            json!({
                "slug": slug, "team": team, "visibility": "private", "description": "\u{1b}[2J", "latest_version": latest,
            })
        };
        let own =
            template("app", json!("acme"), json!({"id": "ver1", "number": 4, "created_at": "2027-01-15T08:00:00Z"}));
        let said = match asked.line.as_str() {
            "GET /v1/templates?limit=100" => {
                json!({"templates": [own, template("base", Value::Null, Value::Null)]})
            }
            "GET /v1/templates/app" => own,
            "GET /v1/templates/app/versions?limit=100" => json!({"versions": [version("failed")]}),
            "GET /v1/templates/acme%2Fapp/versions/v1" => version("ready"),
            "DELETE /v1/templates/app" | "DELETE /v1/templates/app/versions/3" => {
                changes.lock().unwrap().push(asked.line.clone());
                Value::Null
            }
            "POST /templates/tags" => {
                changes.lock().unwrap().push(format!("tag {}", asked.body));
                json!({"tags": ["stable"], "buildID": "0"})
            }
            unknown => panic!("{unknown}"),
        };
        let _ = stream.write_all(&ok(&said));
    });
    let run = |arguments: &[&str]| printed(command(api, &[&["template"], arguments].concat()).output().unwrap());

    let listed = run(&["ls"]);
    assert!(
        ["app", "4", "acme", "base", "the host's", "\\u{1b}[2J"].iter().all(|word| listed.contains(word)),
        "{listed}"
    );
    let shown = run(&["show", "app"]);
    assert!(["app:4", "failed: step_failed", "v1", "1.00 MiB"].iter().all(|word| shown.contains(word)), "{shown}");
    let shown = run(&["show", "acme/app:v1"]);
    assert!(["number", "4", "runtime_baseline"].iter().all(|word| shown.contains(word)), "{shown}");
    assert_eq!(run(&["tag", "app", "stable"]), "app:4\n");
    assert_eq!(run(&["rm", "app:3", "app"]), "app:3\napp\n");

    let calls = calls.lock().unwrap();
    let tagged = json!({"target": "app:4", "tags": ["stable"]});
    let deleted = ["DELETE /v1/templates/app/versions/3", "DELETE /v1/templates/app"];
    assert_eq!(*calls, [&format!("tag {tagged}"), deleted[0], deleted[1]]);
}
