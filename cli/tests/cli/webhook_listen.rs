//! `sandpiper webhook listen`, as it is run, against senders that are right, wrong, impatient, and cut off.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use sandpiper_webhook::{SigningKey, sign};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const SECRET: &str = "sk_test_c2VjcmV0";
const BODY: &str = r#"{"id":"pay_1","status":"PENDING","updatedAt":"2026-08-01T10:00:00.000001Z"}"#;
/// For whatever a test waits for.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The receiver, killed when dropped.
struct Listener {
    child: Child,
    url: String,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Listener {
    fn start(store: &Path) -> Self {
        Self::start_with(store, &[])
    }

    fn start_with(store: &Path, more: &[&str]) -> Self {
        let mut child = command(store).arg("--json").args(more).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut listener = Self { child, url: String::new(), lines };
        listener.url = listener.line()["listening"].as_str().unwrap().to_owned();
        listener
    }

    /// The next line that it prints.
    fn line(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(store: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandpiper"));
    command.args(["webhook", "listen", "--port", "0", "--store"]).arg(store);
    command.env_clear().env("SANDPIPER_WEBHOOK_SECRET", SECRET).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// A store in a folder that is removed in the end.
fn store() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    (folder, path)
}

/// What is in the store, by name.
fn kept(store: &Path) -> BTreeMap<String, String> {
    let file =
        |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap());
    fs::read_dir(store).unwrap().map(|entry| file(entry.unwrap())).collect()
}

fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

fn signature(time: i64, body: &str) -> String {
    sign(&SigningKey::from_api_key(SECRET).unwrap(), time, body.as_bytes())
}

fn client() -> Client {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Client::builder().no_proxy().timeout(TIMEOUT).build().unwrap()
}

/// A delivery, signed, without its key.
fn unnamed(client: &Client, url: &str, body: &str) -> RequestBuilder {
    client.post(url).header("X-Webhook-Signature", signature(now(), body)).body(body.to_owned())
}

fn delivery(client: &Client, url: &str, key: &str, body: &str) -> RequestBuilder {
    unnamed(client, url, body).header("Idempotency-Key", key)
}

/// The status and text of an answer.
async fn answer(request: RequestBuilder) -> (StatusCode, String) {
    let response = request.send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

fn ok(text: &str) -> (StatusCode, String) {
    (StatusCode::OK, text.to_owned())
}

#[tokio::test]
async fn a_delivery_is_kept_once_exactly_as_it_came_and_printed() {
    let (_folder, store) = store();
    let mut listener = Listener::start(&store);
    let client = client();

    assert_eq!(answer(delivery(&client, &listener.url, "dlv_1", BODY)).await, ok("stored\n"));
    assert_eq!(answer(delivery(&client, &listener.url, "dlv_1", BODY)).await, ok("duplicate\n"));
    assert_eq!(answer(delivery(&client, &listener.url, "dlv_2", " not JSON \n")).await, ok("stored\n"));

    assert_eq!(
        kept(&store),
        [("dlv_1.json", BODY), ("dlv_2.json", " not JSON \n")].map(|(name, body)| (name.into(), body.into())).into()
    );
    let payment = json!({"id": "pay_1", "status": "PENDING", "updatedAt": "2026-08-01T10:00:00.000001Z"});
    assert_eq!(listener.line(), json!({"outcome": "stored", "idempotency_key": "dlv_1", "payment": payment}));
    assert_eq!(listener.line(), json!({"outcome": "duplicate", "idempotency_key": "dlv_1", "payment": payment}));
    assert_eq!(listener.line(), json!({"outcome": "stored", "idempotency_key": "dlv_2", "payment": {}}));
}

#[tokio::test]
async fn an_event_of_a_team_is_taken_with_the_secret_of_its_webhook() {
    const SECRET: &str = "whsec_c2VjcmV0";
    const EVENT: &str = r#"{"sequence":42,"type":"sandbox.crashed","resource":{"kind":"sandbox","id":"sbx1"},"data":{},"created_at":"2026-01-01T00:00:00Z"}"#;
    let (_folder, store) = store();
    let mut listener = Listener::start_with(&store, &["--secret", SECRET]);
    let client = client();

    // The same key, under another prefix.
    assert_eq!(answer(delivery(&client, &listener.url, "dlv_1", EVENT)).await, ok("stored\n"));

    let event = json!({"sequence": 42, "type": "sandbox.crashed", "resource": {"kind": "sandbox", "id": "sbx1"}});
    assert_eq!(listener.line(), json!({"outcome": "stored", "idempotency_key": "dlv_1", "event": event}));
    assert_eq!(kept(&store)["dlv_1.json"], EVENT);
}

#[tokio::test]
async fn people_read_a_line_for_each_request_without_what_would_move_their_cursor() {
    let (_folder, store) = store();
    let mut child = command(&store).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let start = lines.next().unwrap().unwrap();
    let url = start.split([' ', ',']).nth(2).unwrap();
    let mut listener = Listener { child, url: url.to_owned(), lines };
    let client = client();

    answer(delivery(&client, url, "dlv_1", r#"{"id":"\u001b[2Jpay_1","status":"FAILED"}"#)).await;
    answer(delivery(&client, url, "dlv_1", "{}")).await;
    answer(client.post(url)).await;
    listener.child.kill().unwrap();

    assert_eq!(start, format!("Listening on {url}, keeping deliveries in {}", store.display()));
    assert_eq!(
        listener.lines.by_ref().map(Result::unwrap).collect::<Vec<_>>(),
        [
            r"stored     dlv_1  \u{1b}[2Jpay_1  FAILED",
            "duplicate  dlv_1  -  -",
            "refused    401  There is no X-Webhook-Signature header",
        ]
    );
}

#[tokio::test]
async fn what_is_not_genuine_is_answered_with_401_and_why() {
    let (_folder, store) = store();
    let mut listener = Listener::start(&store);
    let client = client();
    let post = || client.post(&listener.url).header("Idempotency-Key", "dlv_1").body(BODY);
    let (good, old) = (signature(now(), BODY), signature(now() - 700, BODY));
    let unauthorized = |reason: &str| (StatusCode::UNAUTHORIZED, format!("{reason}\n"));

    let absent = answer(post()).await;
    let twice = answer(post().header("X-Webhook-Signature", &good).header("X-Webhook-Signature", &good)).await;
    let foreign = answer(post().header("X-Webhook-Signature", signature(now(), "{}"))).await;
    let not_text = answer(post().header("X-Webhook-Signature", &b"v=1, x=\xff"[..])).await;
    let (status, too_old) = answer(post().header("X-Webhook-Signature", old)).await;

    assert_eq!(absent, unauthorized("There is no X-Webhook-Signature header"));
    assert_eq!(twice, unauthorized("The X-Webhook-Signature header was sent more than once"));
    assert_eq!(foreign, unauthorized("The signature is not of this body, time and secret"));
    assert_eq!(not_text, unauthorized("The X-Webhook-Signature header is malformed: it is not UTF-8"));
    assert!(status == StatusCode::UNAUTHORIZED && too_old.contains("600 s are allowed"), "{too_old}");
    assert!(kept(&store).is_empty());
    let reason = "There is no X-Webhook-Signature header";
    assert_eq!(listener.line(), json!({"outcome": "refused", "status": 401, "reason": reason}));
}

#[tokio::test]
async fn a_delivery_needs_one_key() {
    let (_folder, store) = store();
    let listener = Listener::start(&store);
    let client = client();
    let key = "Idempotency-Key";
    let bad_request = |reason: &str| (StatusCode::BAD_REQUEST, format!("{reason}\n"));
    let exactly_one = bad_request("There must be exactly one Idempotency-Key header");
    let not_visible = bad_request("The Idempotency-Key is empty or not made of visible ASCII characters");

    assert_eq!(answer(unnamed(&client, &listener.url, BODY)).await, exactly_one);
    assert_eq!(answer(delivery(&client, &listener.url, "a", BODY).header(key, "b")).await, exactly_one);
    assert_eq!(answer(delivery(&client, &listener.url, "", BODY)).await, not_visible);
    assert_eq!(answer(delivery(&client, &listener.url, "a b", BODY)).await, not_visible);
    assert_eq!(answer(delivery(&client, &listener.url, "../x", BODY)).await, ok("stored\n"));
    assert_eq!(kept(&store).into_keys().collect::<Vec<_>>(), ["%2E.%2Fx.json"]);
}

#[tokio::test]
async fn only_post_is_taken_and_only_so_much() {
    let (_folder, store) = store();
    let listener = Listener::start(&store);
    let client = client();
    let large = "x".repeat(1024 * 1024);
    let too_large = large.clone() + "x";

    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let response = client.request(method, &listener.url).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(response.headers()["allow"], "POST");
    }
    assert_eq!(answer(delivery(&client, &listener.url, "large", &large)).await, ok("stored\n"));
    let (status, _) = answer(delivery(&client, &listener.url, "too-large", &too_large)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(kept(&store).into_keys().collect::<Vec<_>>(), ["large.json"]);
}

#[tokio::test]
async fn concurrent_duplicates_are_one() {
    let (_folder, store) = store();
    let listener = Listener::start(&store);
    let client = client();
    let mut sending = JoinSet::new();
    for _ in 0..32 {
        sending.spawn(answer(delivery(&client, &listener.url, "dlv_1", BODY)));
    }

    let answers = sending.join_all().await;

    assert!(answers.iter().all(|(status, _)| status.is_success()), "{answers:?}");
    assert_eq!(answers.iter().filter(|(_, text)| text == "stored\n").count(), 1);
    assert_eq!(kept(&store), [("dlv_1.json".to_owned(), BODY.to_owned())].into());
}

#[tokio::test]
async fn what_cannot_be_kept_is_not_acknowledged() {
    let (_folder, store) = store();
    let listener = Listener::start(&store);
    let client = client();

    fs::remove_dir(&store).unwrap();
    let (status, reason) = answer(delivery(&client, &listener.url, "dlv_1", BODY)).await;
    fs::create_dir(&store).unwrap();
    let again = answer(delivery(&client, &listener.url, "dlv_1", BODY)).await;

    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(reason.starts_with("The delivery cannot be kept: "), "{reason}");
    assert_eq!(again, ok("stored\n"));
}

#[tokio::test]
async fn a_delivery_whose_sender_got_no_answer_is_a_duplicate_after_a_kill() {
    let (_folder, store) = store();
    let listener = Listener::start(&store);
    let client = client();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: merchant.example.test\r\ncontent-length: {}\r\nidempotency-key: dlv_1\r\n\
         x-webhook-signature: {}\r\n\r\n",
        BODY.len(),
        signature(now(), BODY)
    );
    let mut sender = TcpStream::connect(listener.url.strip_prefix("http://").unwrap()).await.unwrap();
    sender.write_all(format!("{head}{BODY}").as_bytes()).await.unwrap();
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !store.join("dlv_1.json").exists() {
        assert!(tokio::time::Instant::now() < deadline, "the delivery was not kept");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    listener.kill();
    drop(sender);

    let listener = Listener::start(&store);

    assert_eq!(answer(delivery(&client, &listener.url, "dlv_1", BODY)).await, ok("duplicate\n"));
    assert_eq!(kept(&store), [("dlv_1.json".to_owned(), BODY.to_owned())].into());
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_it_is_killed_under_load() {
    const ROUNDS: usize = 8;
    const SENDERS: usize = 8;
    let (_folder, store) = store();
    let body = |key: &str| format!(r#"{{"id":"{key}","status":"COMPLETED"}}"#);
    let mut sent = Vec::new();
    let mut acknowledged = Vec::new();
    for round in 0..ROUNDS {
        let listener = Listener::start(&store);
        let mut senders = JoinSet::new();
        for sender in 0..SENDERS {
            let (client, url) = (client(), listener.url.clone());
            // Sends until the receiver is gone; the last one has no answer.
            senders.spawn(async move {
                let (mut sent, mut acknowledged) = (Vec::new(), Vec::new());
                loop {
                    let key = format!("dlv_{round}_{sender}_{}", sent.len());
                    sent.push(key.clone());
                    match delivery(&client, &url, &key, &body(&key)).send().await {
                        Ok(response) if response.status().is_success() => acknowledged.push(key),
                        Ok(response) => panic!("answered with {}", response.status()),
                        Err(_) => return (sent, acknowledged),
                    }
                }
            });
        }
        // A different moment in every round.
        let before = kept_count(&store);
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while kept_count(&store) < before + SENDERS * (round + 1) {
            assert!(tokio::time::Instant::now() < deadline, "nothing is kept");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        listener.kill();
        for (of_sender, acknowledged_of_sender) in senders.join_all().await {
            sent.extend(of_sender);
            acknowledged.extend(acknowledged_of_sender);
        }
    }
    assert!(acknowledged.len() > ROUNDS * SENDERS, "{} were acknowledged", acknowledged.len());

    let found = kept(&store);
    for key in &acknowledged {
        assert_eq!(found.get(&format!("{key}.json")), Some(&body(key)), "{key}");
    }

    // What was not acknowledged comes again, as all else might.
    let listener = Listener::start(&store);
    let client = client();
    for key in &sent {
        let text = match found.contains_key(&format!("{key}.json")) {
            true => "duplicate\n",
            false => "stored\n",
        };
        assert_eq!(answer(delivery(&client, &listener.url, key, &body(key))).await, ok(text), "{key}");
    }
    let expected: BTreeMap<_, _> = sent.iter().map(|key| (format!("{key}.json"), body(key))).collect();
    assert_eq!(kept(&store), expected);
}

/// Deliveries in the store, while it is being written to.
fn kept_count(store: &Path) -> usize {
    let is_delivery = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|extension| extension == "json");
    fs::read_dir(store).unwrap().filter_map(Result::ok).filter(is_delivery).count()
}

#[tokio::test]
async fn https_is_served_with_a_given_certificate() {
    let (folder, store) = store();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let files = ["--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()];
    let listener = Listener::start_with(&store, &files);
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let authority = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).unwrap();
    let client = Client::builder().no_proxy().tls_certs_only([authority]).timeout(TIMEOUT).build().unwrap();
    let url = listener.url.replace("127.0.0.1", "localhost");

    assert!(url.starts_with("https://localhost:"), "{url}");
    assert_eq!(answer(delivery(&client, &url, "dlv_1", BODY)).await, ok("stored\n"));
}

#[tokio::test]
async fn it_ends_well_when_asked_to() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (_folder, store) = store();
        let mut listener = Listener::start(&store);
        let client = client();
        // Its connection stays open.
        assert_eq!(answer(delivery(&client, &listener.url, "dlv_1", BODY)).await, ok("stored\n"));

        listener.signal(signal);

        assert_eq!(listener.child.wait().unwrap().code(), Some(0), "{signal}");
    }
}
