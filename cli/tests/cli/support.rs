//! Servers that the command talks to: an API with one sandbox, and its data plane, the real one or one that lies.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use sandpiper_init::reap::{Exit, Spawning};
use sandpiper_init::serve::{App, Settings, serve};
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};

/// What a server was asked.
pub(crate) struct Asked {
    /// `GET /files?path=a`
    pub(crate) line: String,
    /// By names in lower case.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) raw: Vec<u8>,
    /// The same, where it is JSON.
    pub(crate) body: Value,
}

/// What it says: everything after the status line.
pub(crate) fn ok(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()).into_bytes()
}

/// Serves HTTP, one request a connection; a connection is closed once `answer` returns. Ends with the process.
pub(crate) fn listen(answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (answer, mut stream) = (Arc::clone(&answer), stream.unwrap());
            std::thread::spawn(move || {
                let asked = read(&stream);
                answer(&asked, &mut stream);
            });
        }
    });
    address
}

fn read(stream: &TcpStream) -> Asked {
    let mut lines = BufReader::new(stream);
    let line = |lines: &mut BufReader<&TcpStream>| {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let request = line(&mut lines).trim_end_matches(" HTTP/1.1").to_owned();
    let mut headers = HashMap::new();
    while let Some((name, value)) = line(&mut lines).split_once(": ") {
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut raw = Vec::new();
    let mut take = |lines: &mut BufReader<&TcpStream>, length: u64| lines.take(length).read_to_end(&mut raw).unwrap();
    if let Some(length) = headers.get("content-length") {
        take(&mut lines, length.parse().unwrap());
    } else if headers.contains_key("transfer-encoding") {
        // A client that ends in the middle of it leaves no length to read.
        while let Ok(length @ 1..) = u64::from_str_radix(&line(&mut lines), 16) {
            take(&mut lines, length);
            line(&mut lines);
        }
    }
    let body = serde_json::from_slice(&raw).unwrap_or_default();
    Asked { line: request, headers, raw, body }
}

/// An API whose one sandbox, `sbx1`, has its data plane at `data_plane`.
pub(crate) fn api(data_plane: SocketAddr) -> SocketAddr {
    let session = json!({"data_plane_url": format!("http://{data_plane}"), "access_token": "token", "expires_at": ""});
    let sandbox = |id: &str| {
        json!({
            "id": id, "state": "running", "template": "base", "cpu": 1, "memory_mb": 512, "created_at": "",
            "deadline": null, "lifecycle": {"on_timeout": "kill", "auto_resume": false},
            "exposed_ports": [{"port": 8000, "protocol": "http", "public": true}],
            "network": {"allow_internet_access": true, "allow_public_traffic": true, "apply_status": "applied"},
        })
    };
    listen(move |asked, stream| {
        let answer = match asked.line.as_str() {
            "GET /v1/sandboxes/sbx1" => sandbox("sbx1"),
            "POST /v1/sandboxes" => {
                let mut created = sandbox(if asked.body["snapshot_id"].is_null() { "sbx1" } else { "sbxrestored" });
                created["session"] = session.clone();
                created
            }
            "POST /v1/sandboxes/sbx1/connect" => json!({"session": session}),
            "POST /v1/sandboxes/sbx1/resume" => json!({"sandbox": sandbox("sbx1"), "session": session}),
            "POST /v1/sandboxes/sbx1/pause"
            | "POST /v1/sandboxes/sbxrestored/pause"
            | "POST /v1/sandboxes/sbxfork/pause" => sandbox("sbx1"),
            "POST /v1/sandboxes/sbx1/checkpoints" => json!({
                "id": "ckp1", "name": "before", "sandbox": "sbx1", "template": "base", "memory": true, "cpu": 1,
                "memory_mb": 512, "state": "ready", "size": 1, "created_at": "",
            }),
            "POST /v1/sandboxes/sbxrestored/fork" => {
                let mut fork = sandbox("sbxfork");
                fork["session"] = session.clone();
                json!({"sandboxes": [fork]})
            }
            "GET /v1/sandboxes/sbx1/network/denied?limit=100" => json!({"total": 0, "denied": []}),
            "GET /v1/sandboxes/sbx1/ports/8000" | "PUT /v1/sandboxes/sbx1/ports/8000" => {
                json!({"port": 8000, "url": "http://p8000.test", "public": true, "status": "open"})
            }
            "GET /v1/sandbox_limits" => json!({
                "plan": "basic", "cpu_values": [1, 2], "max_timeout": 3600,
                "quota": {"limits": {"sandboxes": 20}, "usage": {"sandboxes": 3}},
            }),
            unknown => panic!("{unknown}"),
        };
        let _ = stream.write_all(&ok(&answer));
    })
}

/// The real data plane, as root on this machine's own files. To be called on a runtime.
pub(crate) fn real_data_plane(folder: &std::path::Path) -> SocketAddr {
    sandpiper_init::reap::start().unwrap();
    let socket = folder.join("data-plane");
    // Login shells read nothing of this machine's root.
    let envs = [("HOME".to_owned(), folder.display().to_string())].into();
    let app = App::new(Settings { default_user: "root".to_owned(), envs, ..Settings::default() });
    tokio::spawn(serve(UnixListener::bind(&socket).unwrap(), Arc::new(app)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        loop {
            let (mut outside, _) = listener.accept().await.unwrap();
            let mut inside = UnixStream::connect(&socket).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut outside, &mut inside).await });
        }
    });
    address
}

pub(crate) fn command(api: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandpiper"));
    command.args(["--url", &format!("http://{api}"), "--api-key", "spk_test"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command where the data plane's reaper waits for all children of the process. Returns its status, what it printed,
/// and its errors.
#[expect(clippy::zombie_processes, reason = "the data plane's reaper waits for it")]
pub(crate) async fn reaped(mut command: Command, input: &[u8]) -> (i32, Vec<u8>, String) {
    let spawning = Spawning::begin();
    let mut child: Child = command.stdin(Stdio::piped()).spawn().unwrap();
    let ended = spawning.claim(child.id().cast_signed());
    let input = input.to_vec();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut stderr = child.stderr.take().unwrap();
    let writing = tokio::task::spawn_blocking(move || stdin.write_all(&input));
    let reading = tokio::task::spawn_blocking(move || {
        let (mut output, mut errors) = (Vec::new(), String::new());
        stdout.read_to_end(&mut output).unwrap();
        stderr.read_to_string(&mut errors).unwrap();
        (output, errors)
    });
    let (output, errors) = reading.await.unwrap();
    // A command that did not read its input has closed it.
    let _ = writing.await.unwrap();
    match ended.await.unwrap() {
        Exit::Code(code) => (code, output, errors),
        Exit::Signal(signal) => panic!("ended by signal {signal}: {errors}"),
    }
}

/// What a command printed, which must have succeeded.
pub(crate) fn printed(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
