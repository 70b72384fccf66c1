//! Ten thousand broken requests: each is told what is wrong with it, and none leaves anything behind. In a test program of
//! its own, whose memory and descriptors no other test moves.

#[path = "data_plane/support.rs"]
#[allow(dead_code, reason = "made for the tests of the data plane")]
mod support;

use sandpiper_protocol::connect::{COMPRESSED, END_OF_STREAM, envelope};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use self::support::{Server, soon, until};

const REQUESTS: usize = 10_000;
/// After which caches and pools are as large as they get.
const FIRST: usize = 1_000;
const MOST_GROWTH_KIB: usize = 4_096;

/// A request, and what its response begins with or, in a stream, holds.
struct Broken {
    bytes: Vec<u8>,
    expected: Expected,
}

enum Expected {
    Status(u16),
    /// The stream ends with this error.
    Code(&'static str),
    /// The request ends too early. Whether there is a response is the server's affair, that the connection ends is not.
    CutOff,
}

#[tokio::test]
async fn ten_thousand_broken_requests_leave_memory_and_descriptors_where_they_were() {
    let server = Server::start();
    let folder = format!("{}/files", support::open_folder(&server));
    std::fs::create_dir(&folder).unwrap();
    let requests = requests(&folder);
    let send = async |count: usize| {
        let mut wrong = Vec::new();
        for broken in requests.iter().cycle().take(count) {
            wrong.extend(broken.send(&server).await.err());
        }
        wrong.truncate(requests.len());
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    };

    // A broken upload leaves no file; what was being written of it is removed when that is done.
    let is_empty = || std::fs::read_dir(&folder).unwrap().next().is_none();
    send(FIRST).await;
    until(is_empty).await;
    let before = Held::now();
    send(REQUESTS).await;

    until(is_empty).await;
    until(|| Held::now().descriptors <= before.descriptors && Held::now().tasks <= before.tasks + 2).await;
    let after = Held::now();
    assert!(after.kib <= before.kib + MOST_GROWTH_KIB, "{before:?}, later {after:?}");
    assert_eq!(server.get("/health").await.0, 204);
}

#[derive(Debug)]
struct Held {
    descriptors: usize,
    tasks: usize,
    kib: usize,
}

impl Held {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("there");
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").expect("readable").count(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
            kib: line.trim().strip_suffix(" kB").and_then(|kib| kib.parse().ok()).expect("a number"),
        }
    }
}

impl Broken {
    /// Sends it; if what comes back is not what is expected, says so.
    async fn send(&self, server: &Server) -> Result<(), String> {
        let mut stream = UnixStream::connect(server.folder().join("data-plane")).await.unwrap();
        // A server that has read enough may close before it has read all.
        let _ = stream.write_all(&self.bytes).await;
        if matches!(self.expected, Expected::CutOff) {
            let _ = stream.shutdown().await;
        }
        let mut response = Vec::new();
        let _ = soon(stream.read_to_end(&mut response)).await;
        let response = String::from_utf8_lossy(&response);
        let is_expected = match self.expected {
            Expected::Status(415) => response.starts_with("HTTP/1.1 415 "),
            Expected::Status(status) => {
                response.starts_with(&format!("HTTP/1.1 {status} ")) && response.contains("\"message\":")
            }
            Expected::Code(code) => response.contains(&format!("\"code\":\"{code}\"")),
            Expected::CutOff => !response.starts_with("HTTP/1.1 2") || response.contains("\"error\":{"),
        };
        let request = String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(300)]);
        is_expected.then_some(()).ok_or_else(|| format!("{request}\n--> {response}"))
    }
}

/// One of each kind.
fn requests(folder: &str) -> Vec<Broken> {
    let long = "x".repeat(4_096);
    let mut requests = calls(&long);
    requests.extend(streams());
    requests.extend(files(folder, &long));
    requests.extend(cut_off(folder));
    requests
}

fn request(head: &str, fields: &[&str], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for field in fields {
        bytes += &format!("{field}\r\n");
    }
    [bytes.as_bytes(), b"\r\n", body].concat()
}

const JSON: &str = "content-type: application/json";
const STREAM: &str = "content-type: application/connect+json";
const BYTES: &str = "content-type: application/octet-stream";
const FORM: &str = "content-type: multipart/form-data; boundary=b";

fn status(status: u16, head: &str, fields: &[&str], body: &[u8]) -> Broken {
    Broken { bytes: request(head, fields, body), expected: Expected::Status(status) }
}

/// Unary calls.
fn calls(long: &str) -> Vec<Broken> {
    let stat = |code: u16, path: &str| {
        let body = json!({"path": path}).to_string();
        status(code, "POST /filesystem.Filesystem/Stat", &[JSON], body.as_bytes())
    };
    let list = |code: u16, fields: &[&str], body: &[u8]| status(code, "POST /process.Process/List", fields, body);
    vec![
        stat(400, "a\0b"),
        stat(400, &format!("/{long}")),
        stat(400, &"/x".repeat(4_096)),
        stat(404, "../../../../../no/such"),
        stat(404, "/etc/passwd/../no-such"),
        list(400, &[JSON], b""),
        list(400, &[JSON], b"{"),
        list(400, &[JSON], b"7"),
        list(400, &[JSON], b"\xff\xfe"),
        list(400, &[JSON], "[".repeat(100_000).as_bytes()),
        list(415, &["content-type: application/grpc"], b""),
        list(415, &[STREAM], b"{}"),
        list(501, &[JSON, "content-encoding: gzip"], b"{}"),
        status(400, "POST /process.Process/SendInput", &[JSON], br#"{"process":{"pid":-1},"input":{"stdin":""}}"#),
        status(404, "POST /process.Process/SendInput", &[JSON], br#"{"process":{"pid":1},"input":{"stdin":"AA"}}"#),
        status(400, "POST /process.Process/SendSignal", &[JSON], br#"{"process":{},"signal":"SIGNAL_SIGKILL"}"#),
        status(404, "POST /process.Process/Update", &[JSON], br#"{"process":{"tag":"none"}}"#),
        status(501, "POST /process.Process/No", &[JSON], b"{}"),
        status(405, "GET /process.Process/List", &[], b""),
        status(
            401,
            "POST /filesystem.Filesystem/Stat",
            &[JSON, "authorization: Basic c3RyYW5nZXI6"],
            br#"{"path":"/"}"#,
        ),
        status(404, "GET /no/such", &[], b""),
        status(405, "DELETE /files", &[], b""),
    ]
}

/// Calls with streams.
fn streams() -> Vec<Broken> {
    let call = |method: &str, code: &'static str, body: &[u8]| Broken {
        bytes: request(&format!("POST /{method}"), &[STREAM], body),
        expected: Expected::Code(code),
    };
    let start = |code, body: &[u8]| call("process.Process/Start", code, body);
    let command = |json: serde_json::Value| envelope(0, json.to_string().as_bytes());
    vec![
        start("invalid_argument", b""),
        start("invalid_argument", b"\0\0"),
        start("invalid_argument", b"\0\0\0\0\x09{}"),
        start("invalid_argument", b"\0\xff\xff\xff\xff{}"),
        start("invalid_argument", &envelope(COMPRESSED, b"{}")),
        start("invalid_argument", &envelope(END_OF_STREAM, b"{}")),
        start("invalid_argument", &envelope(0, b"{]")),
        start("invalid_argument", &command(json!({"process": {"cmd": "a\0b"}}))),
        start("invalid_argument", &command(json!({"process": {"cmd": "x".repeat(5_000)}}))),
        start("invalid_argument", &command(json!({"process": {"cmd": "true", "envs": {"a=b": ""}}}))),
        start("invalid_argument", &command(json!({"process": {"cmd": "true", "cwd": "/no/such"}}))),
        call("process.Process/Connect", "not_found", &command(json!({"process": {"pid": 1}}))),
        call("process.Process/StreamInput", "invalid_argument", &command(json!({"keepalive": {}}))),
        call("filesystem.Filesystem/WatchDir", "not_found", &command(json!({"path": "/no/such"}))),
        call("filesystem.Filesystem/WatchDir", "invalid_argument", &command(json!({"path": "/etc/passwd"}))),
        call("no.Such/Method", "unimplemented", b""),
    ]
}

/// Requests for files.
fn files(folder: &str, long: &str) -> Vec<Broken> {
    let get = |code: u16, query: &str| status(code, &format!("GET /files?{query}"), &[], b"");
    let put = |code: u16, query: &str, fields: &[&str], body: &[u8]| {
        status(code, &format!("POST /files?{query}"), fields, body)
    };
    let file = format!("path={folder}/file");
    vec![
        get(400, "path=a%00b"),
        get(400, &format!("path=/{long}")),
        get(404, "path=../../../../no/such"),
        get(400, "path=%zz"),
        get(400, "path=/etc/hostname&path=/"),
        get(400, ""),
        get(400, "path=/"),
        get(401, "path=/etc/hostname&username=stranger"),
        get(401, "path=/etc/hostname&username=a:b"),
        put(400, "path=a%00b", &[BYTES], b"x"),
        put(400, &format!("path={folder}/{long}"), &[BYTES], b"x"),
        put(400, &file, &[BYTES, "content-encoding: gzip"], b"no gzip"),
        put(415, &file, &[BYTES, "content-encoding: br"], b"x"),
        put(400, &file, &[BYTES, &format!("x-metadata-a: {long}")], b"x"),
        put(400, &file, &["content-type: text/plain"], b"x"),
        put(400, &file, &[FORM], b"--b\r\n\r\n"),
        put(400, &file, &[FORM], b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nno end"),
        put(400, "", &[FORM], b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\r\n--b--\r\n"),
        status(400, "POST /files/compose", &[JSON], b"{}"),
        status(400, "POST /files/compose", &[JSON], br#"{"source_paths":["a\u0000b"],"destination":"/tmp/x"}"#),
        status(401, "POST /files/compose", &[JSON], br#"{"source_paths":["a"],"destination":"b","username":"no"}"#),
        status(405, "GET /files/compose", &[], b""),
    ]
}

/// Requests that end before they are whole, and what is no request.
fn cut_off(folder: &str) -> Vec<Broken> {
    let cut = |bytes: Vec<u8>, missing: usize| {
        let length = bytes.len().saturating_sub(missing);
        Broken { bytes: bytes[..length].to_vec(), expected: Expected::CutOff }
    };
    let upload = request(&format!("POST /files?path={folder}/cut"), &[BYTES], &[b'x'; 400_000]);
    let input = [envelope(0, br#"{"start":{"process":{"pid":1}}}"#), vec![0; 3]].concat();
    vec![
        cut(upload.clone(), 1),
        cut(upload, 399_999),
        cut(request("POST /process.Process/List", &[JSON], b"{}"), 1),
        cut(request("POST /process.Process/Start", &[STREAM], &envelope(0, &[b' '; 5_000])), 2_000),
        cut(request("POST /process.Process/StreamInput", &[STREAM], &input), 1),
        cut(request("POST /files", &[FORM], b"--b\r\nContent-Disposition: form-data; name"), 5),
        cut(request("POST /files/compose", &[JSON], b"{}"), 1),
        cut(request("GET /health", &[], b""), 2),
        cut(b"GET / HTTP/9.9\r\n\r\n".to_vec(), 0),
        cut(b"\x16\x03\x01\x02\0\x01\0".to_vec(), 0),
        cut(vec![b'x'; 300_000], 0),
        cut(Vec::new(), 0),
    ]
}
