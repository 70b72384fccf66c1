//! The real process: what is configured in its file, and what it logs.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::receiver::{Reaction, Receiver};
use crate::support::database::TestDatabase;
use crate::support::eventually;

fn api() -> Command {
    Command::new(env!("CARGO_BIN_EXE_sandpiper-api"))
}

/// Killed when this is dropped.
struct Server {
    child: Child,
    log: Arc<Mutex<Vec<u8>>>,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails when the process has ended, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Logs all that can be logged.
    async fn start(config: &Path) -> Self {
        let mut command = api();
        command.args(["serve", "--config"]).arg(config).env("NO_COLOR", "1").env("SANDPIPER_LOG", "trace");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let log: Arc<Mutex<Vec<u8>>> = Arc::default();
        let kept = log.clone();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = stderr.read(&mut part) {
                kept.lock().unwrap().extend(&part[..length]);
            }
        });
        let mut server = Self { child, log, address: String::new() };
        eventually("the address in the log", async || server.find_address()).await;
        server
    }

    fn find_address(&mut self) -> bool {
        let log = self.log();
        let address = log.lines().find_map(|line| line.split_once("serving address=").map(|(_, rest)| rest.trim()));
        self.address = address.unwrap_or_default().to_owned();
        !self.address.is_empty()
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock().unwrap()).into_owned()
    }

    async fn send(&self, method: &str, path: &str, key: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let body = body.to_string();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

#[tokio::test]
async fn a_reported_payment_arrives_and_no_secret_is_in_the_log() {
    let receiver = Receiver::scripted(|_, number| Reaction::status(if number == 0 { 400 } else { 200 })).await;
    let folder = tempfile::tempdir().unwrap();
    let (config, ca) = (folder.path().join("api.toml"), folder.path().join("ca.pem"));
    std::fs::write(&ca, &receiver.pem).unwrap();
    let database = TestDatabase::new().await;
    let (state, agent, location) = (folder.path().join("state"), folder.path().join("agent.sock"), &database.location);
    let text = format!(
        "listen = \"127.0.0.1:0\"\nstate_dir = {state:?}\nagent_socket = {agent:?}\ndatabase = {location:?}\n\
         [webhooks]\nallow_addresses = [\"127.0.0.0/8\"]\nca_file = {ca:?}\n"
    );
    std::fs::write(&config, text).unwrap();
    let made = api().args(["operator-key", "create", "--config"]).arg(&config).output().unwrap();
    let operator = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let server = Server::start(&config).await;

    let merchant = server.send("POST", "/operator/v1/merchants", &operator, &json!({"name": "shop"})).await;
    let id = merchant["id"].as_str().unwrap();
    let keys = format!("/operator/v1/merchants/{id}/keys");
    let secret = server.send("POST", &keys, &operator, &json!({"realm": "live", "kind": "secret"})).await;
    let secret = secret["key"].as_str().unwrap();
    let saved = json!({"realm": "live", "url": receiver.url()});
    server.send("PUT", "/merchant/api/v1/webhookConfig", secret, &saved).await;
    let mut payment = json!({
        "merchantId": id, "realm": "live", "status": "COMPLETED", "amount": "1500.00", "actualAmount": "1500.00",
        "currencyCode": "KES", "countryCode": "KE", "paymentMethod": "PAYMENT_METHOD_MOBILE_MONEY",
        "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:01Z",
    });
    let refused = server.send("PUT", "/operator/v1/payments/pay_1", &operator, &payment).await;
    eventually("the first webhook", async || receiver.count() == 1).await;
    payment["actualAmount"] = "1400.00".into();
    payment["updatedAt"] = "2026-01-01T00:00:02Z".into();
    let taken = server.send("PUT", "/operator/v1/payments/pay_1", &operator, &payment).await;
    eventually("the second webhook", async || receiver.count() == 2).await;

    let received = receiver.received();
    assert_eq!(received[0].key(), refused["deliveryId"].as_str().unwrap());
    assert_eq!(received[1].key(), taken["deliveryId"].as_str().unwrap());
    let key = sandpiper_webhook::SigningKey::from_api_key(secret).unwrap();
    for request in &received {
        let headers = request.headers("x-webhook-signature");
        let now = jiff::Timestamp::now().as_second();
        assert_eq!(sandpiper_webhook::verify(&key, headers, &request.body, now, 600), Ok(()));
    }
    eventually("both results in the log", async || {
        let log = server.log();
        log.contains("webhook refused") && log.contains("webhook delivered")
    })
    .await;
    let log = server.log();
    assert!(log.contains("for development only"), "what is allowed is said aloud");
    let line = log.lines().find(|line| line.contains("webhook refused")).unwrap();
    for part in [received[0].key().as_str(), id, "realm=live", "attempt=1", "outcome=\"failed\"", "status=400"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    for secret in [&secret["sk_prod_".len()..], &operator["opk_".len()..]] {
        assert!(!log.contains(secret), "{}", log.lines().find(|line| line.contains(secret)).unwrap_or_default());
    }
}
