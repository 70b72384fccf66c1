//! The real process, as it is installed.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use sandpiper_db::testing::TestDatabase;
use sandpiper_payments::domain::order::PaymentOrder;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::receiver::Receiver;
use crate::support::eventually;

fn api() -> Command {
    Command::new(env!("CARGO_BIN_EXE_sandpiper-api"))
}

/// Writes a configuration into `folder`: for a free port, and for webhooks to this receiver.
pub(crate) fn write_config(folder: &Path, database: &TestDatabase, receiver: &Receiver) -> PathBuf {
    let (config, ca) = (folder.join("api.toml"), folder.join("ca.pem"));
    std::fs::write(&ca, &receiver.pem).unwrap();
    let (state, agent, location) = (folder.join("state"), folder.join("agent.sock"), &database.location);
    let text = format!(
        "listen = \"127.0.0.1:0\"\nstate_dir = {state:?}\nagent_socket = {agent:?}\ndatabase = {location:?}\n\
         [webhooks]\nallow_addresses = [\"127.0.0.0/8\"]\nca_file = {ca:?}\n"
    );
    std::fs::write(&config, text).unwrap();
    config
}

/// A new operator key, from the command line.
pub(crate) fn operator_key(config: &Path) -> String {
    let made = api().args(["operator-key", "create", "--config"]).arg(config).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

/// The process. Killed when this is dropped.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) metrics: String,
    child: Child,
    log: Arc<Mutex<Vec<u8>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails when the process has ended, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Logs from `level` on. Returns when it serves.
    pub(crate) async fn start(config: &Path, level: &str) -> Self {
        let mut command = api();
        command.args(["serve", "--config"]).arg(config).env("NO_COLOR", "1").env("SANDPIPER_LOG", level);
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
        let mut server = Self { child, log, address: String::new(), metrics: String::new() };
        eventually("the address in the log", async || server.find_address()).await;
        server
    }

    fn find_address(&mut self) -> bool {
        let log = self.log();
        let after = |mark| log.lines().find_map(|line| line.split_once(mark).map(|(_, rest)| rest.trim().to_owned()));
        self.metrics = after("metrics for Prometheus metrics=").unwrap_or_default();
        self.address = after("serving address=").unwrap_or_default();
        !self.address.is_empty()
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock().unwrap()).into_owned()
    }

    /// The JSON that answers a request, which must succeed.
    pub(crate) async fn send(&self, method: &str, path: &str, key: &str, body: &Value) -> Value {
        let answer = send(&self.address, method, path, key, body).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Reports a live payment of a merchant; the answer.
    pub(crate) async fn report(&self, operator: &str, merchant: &str, order: &PaymentOrder) -> Value {
        let (path, body) = report(merchant, order);
        self.send("PUT", &path, operator, &body).await
    }

    /// SIGKILL, and nothing of it is left.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A new merchant whose live webhooks go to `url`: its id, and its live secret key.
    pub(crate) async fn merchant(&self, operator: &str, name: &str, url: &str) -> (String, String) {
        let merchant = self.send("POST", "/operator/v1/merchants", operator, &json!({"name": name})).await;
        let id = merchant["id"].as_str().unwrap().to_owned();
        let wanted = json!({"realm": "live", "kind": "secret"});
        let secret = self.send("POST", &format!("/operator/v1/merchants/{id}/keys"), operator, &wanted).await;
        let secret = secret["key"].as_str().unwrap().to_owned();
        let saved = json!({"realm": "live", "url": url});
        self.send("PUT", "/merchant/api/v1/webhookConfig", &secret, &saved).await;
        (id, secret)
    }
}

/// Path and body of the report of a live payment.
pub(crate) fn report(merchant: &str, order: &PaymentOrder) -> (String, Value) {
    let mut body = serde_json::to_value(order).unwrap();
    body.as_object_mut().unwrap().remove("id").unwrap();
    body["merchantId"] = json!(merchant);
    body["realm"] = json!("live");
    (format!("/operator/v1/payments/{}", order.id), body)
}

/// What comes back for a request on a connection of its own, until the other side ends it.
pub(crate) async fn send(address: &str, method: &str, path: &str, key: &str, body: &Value) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let body = body.to_string();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
