//! The receivers that docs/webhooks.md shows, run as they stand there.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use reqwest::{Client, RequestBuilder};
use sandpiper_skip::skipped;
use sandpiper_webhook::{SigningKey, sign};
use tempfile::TempDir;

const PAGE: &str = include_str!("../../../docs/webhooks.md");
/// As the API makes it.
const TEST_EVENT: &str = r#"{"createdAt":"2026-08-01T10:00:01.5Z","id":"test event","metadata":{"test":"true"},"status":"PENDING","updatedAt":"2026-08-01T10:00:01.5Z"}"#;
const SECRET: &str = "sk_test_c2VjcmV0";
/// For whatever a test waits for.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A receiver of the page, in a folder of its own. Killed when dropped.
struct Receiver {
    interpreter: &'static str,
    file: &'static str,
    folder: TempDir,
    child: Child,
    url: String,
    client: Client,
}

impl Receiver {
    /// Starts the page's only program in `language`. `None` where there is no interpreter for it.
    async fn start(language: &str, interpreter: &'static str, file: &'static str) -> Option<Self> {
        if Command::new(interpreter).arg("--version").stdout(Stdio::null()).status().is_err() {
            skipped(&format!("{file} of docs/webhooks.md"), format!("{interpreter} is not installed"));
            return None;
        }
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let (_, program) = PAGE.split_once(&format!("```{language}\n")).unwrap();
        fs::write(folder.path().join(file), program.split_once("\n```").unwrap().0).unwrap();
        let (child, url) = run(interpreter, file, folder.path());
        let client = Client::builder().no_proxy().timeout(TIMEOUT).build().unwrap();
        let receiver = Self { interpreter, file, folder, child, url, client };
        receiver.wait_until_it_answers().await;
        Some(receiver)
    }

    async fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.url) = run(self.interpreter, self.file, self.folder.path());
        self.wait_until_it_answers().await;
    }

    async fn wait_until_it_answers(&self) {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while self.client.get(&self.url).send().await.is_err() {
            assert!(tokio::time::Instant::now() < deadline, "{} does not answer", self.file);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn post(&self, body: &str) -> RequestBuilder {
        self.client.post(&self.url).body(body.to_owned())
    }

    async fn status(&self, request: RequestBuilder) -> u16 {
        request.send().await.unwrap().status().as_u16()
    }

    /// The status for a body that is signed and has a key.
    async fn deliver(&self, key: &str, body: &str) -> u16 {
        let signature = signature(now(), body);
        self.status(self.post(body).header("X-Webhook-Signature", signature).header("Idempotency-Key", key)).await
    }

    /// The status for a signature header, with everything else right.
    async fn status_of(&self, body: &str, header: &str) -> u16 {
        self.status(self.post(body).header("X-Webhook-Signature", header).header("Idempotency-Key", "dlv_bad")).await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the program on a port that was free a moment ago.
fn run(interpreter: &str, file: &str, folder: &Path) -> (Child, String) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let child = Command::new(interpreter)
        .args([file, &address.port().to_string()])
        .current_dir(folder)
        .env("SANDPIPER_WEBHOOK_SECRET", SECRET)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (child, format!("http://{address}/"))
}

fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

fn signature(time: i64, body: &str) -> String {
    sign(&SigningKey::from_api_key(SECRET).unwrap(), time, body.as_bytes())
}

fn payment(id: &str, status: &str, amount: &str, second: u32) -> String {
    let updated_at = format!("2026-08-01T10:00:{second:02}.5Z");
    format!(r#"{{"id":"{id}","status":"{status}","actualAmount":"{amount}","updatedAt":"{updated_at}"}}"#)
}

async fn refuses_what_is_not_genuine(receiver: &Receiver) {
    let body = payment("pay_1", "COMPLETED", "1.00", 0);
    let good = signature(now(), &body);
    let time = good.split(", ").nth(1).unwrap();
    for header in [
        signature(now(), "{}"),
        signature(now() - 700, &body),
        signature(now() + 700, &body),
        good.replace("v=1", "v=2"),
        good.replace("v=1", "v=01"),
        good.replace("v=1", "v =1"),
        good.replace("v=1", "v"),
        good.replace("hmac-sha256", "none"),
        good.replace("hmac-sha256", "HMAC-SHA256"),
        good.replace("t=", "t=0"),
        good.replace("t=", "t=+"),
        good.replace(time, "t=99999999999999999999"),
        good.replace(time, "t="),
        good.replace("s=", "s=0"),
        good[..good.len() - 1].to_owned(),
        good.to_uppercase(),
        format!("{good}, {time}"),
        format!("{good}, x=1, x=1"),
        format!("{good}, t =1"),
        format!("{good},"),
        format!("{good}, {good}"),
        "x".to_owned(),
        String::new(),
    ] {
        assert_eq!(receiver.status_of(&body, &header).await, 401, "{header:?}");
    }
    let named = || receiver.post(&body).header("Idempotency-Key", "dlv_bad");
    assert_eq!(receiver.status(named()).await, 401);
    let twice = named().header("X-Webhook-Signature", &good).header("X-Webhook-Signature", &good);
    assert_eq!(receiver.status(twice).await, 401);

    let nameless = || receiver.post(&body).header("X-Webhook-Signature", &good);
    assert_eq!(receiver.status(nameless()).await, 400);
    let two_names = nameless().header("Idempotency-Key", "a").header("Idempotency-Key", "b");
    assert_eq!(receiver.status(two_names).await, 400);
}

async fn accepts_what_is_genuine(receiver: &Receiver) {
    let body = payment("pay_1", "PENDING", "", 1);
    let good = signature(now(), &body);
    let mut reversed: Vec<&str> = good.split(", ").collect();
    reversed.reverse();
    let spellings = [good.clone(), good.replace(' ', ""), reversed.join(" ,\t"), format!("kid=7, {good}, x=a=b")];
    for (number, header) in spellings.iter().enumerate() {
        let key = format!("dlv_good_{number}");
        let request = receiver.post(&body).header("X-Webhook-Signature", header).header("Idempotency-Key", key);
        assert_eq!(receiver.status(request).await, 200, "{header:?}");
    }
    // As at the edge of the window, less what a slow machine takes.
    let old = receiver.post(&body).header("X-Webhook-Signature", signature(now() - 570, &body));
    assert_eq!(receiver.status(old.header("Idempotency-Key", "dlv_old")).await, 200);
}

#[tokio::test]
async fn the_python_receiver_verifies_deduplicates_and_reconciles() {
    let Some(mut receiver) = Receiver::start("python", "python3", "receiver.py").await else { return };
    refuses_what_is_not_genuine(&receiver).await;
    accepts_what_is_genuine(&receiver).await;

    assert_eq!(receiver.deliver("dlv_test", TEST_EVENT).await, 200);
    assert_eq!(receiver.deliver("dlv_no_payment", "{}").await, 200);
    assert_eq!(receiver.deliver("dlv_failed", &payment("pay_2", "FAILED", "", 1)).await, 200);
    assert_eq!(receiver.deliver("dlv_corrected", &payment("pay_2", "COMPLETED", "9.50", 3)).await, 200);
    assert_eq!(receiver.deliver("dlv_overtaken", &payment("pay_2", "COMPLETED", "9.00", 2)).await, 200);
    receiver.kill_and_restart().await;
    assert_eq!(receiver.deliver("dlv_corrected", &payment("pay_2", "COMPLETED", "9.50", 3)).await, 200);

    let query = "import sqlite3; db = sqlite3.connect('webhooks.db'); \
                 print(db.execute('SELECT count(*), sum(1 - applied) FROM deliveries').fetchone(), \
                 db.execute('SELECT id, status, actual_amount FROM payments ORDER BY id').fetchall())";
    let expected = "(10, 1) [('pay_1', 'PENDING', ''), ('pay_2', 'COMPLETED', '9.50')]\n";
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let asked = Command::new("python3").args(["-c", query]).current_dir(receiver.folder.path()).output().unwrap();
        let found = String::from_utf8(asked.stdout).unwrap();
        if found == expected {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "found {found}");
    }
}

#[tokio::test]
async fn the_javascript_receiver_verifies_and_deduplicates() {
    let Some(mut receiver) = Receiver::start("js", "node", "receiver.mjs").await else { return };
    refuses_what_is_not_genuine(&receiver).await;
    accepts_what_is_genuine(&receiver).await;

    assert_eq!(receiver.deliver("dlv_test", TEST_EVENT).await, 200);
    let body = payment("pay_2", "COMPLETED", "9.50", 3);
    assert_eq!(receiver.deliver("dlv_1", &body).await, 200);
    receiver.kill_and_restart().await;
    assert_eq!(receiver.deliver("dlv_1", &body).await, 200);

    let files = fs::read_dir(receiver.folder.path().join("webhooks")).unwrap();
    let bodies: Vec<_> = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    assert_eq!(bodies.len(), 6);
    assert_eq!(bodies.iter().filter(|found| **found == body).count(), 1);
}
