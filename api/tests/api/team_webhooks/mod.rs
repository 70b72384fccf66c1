//! Webhooks of teams, from an event to a receiver and back: the real store, worker, TLS and sockets, as for merchants'
//! ([`crate::webhooks`]).

use jiff::SignedDuration;
use sandpiper_accounts::Role;
use sandpiper_api::webhooks::enqueuer;
use sandpiper_api::webhooks::source::Teams;
use sandpiper_delivery::worker::Worker;
use sandpiper_webhook::SigningKey;
use serde_json::{Value, json};

use crate::support::{Answer, Host, request, with_header};
use crate::webhooks::receiver::{Received, Receiver};
use crate::webhooks::stage::dependencies;

mod addresses;
mod crash;
mod deliveries;
mod endpoints;
mod secrets;

/// A host with an admin of the team `acme`.
pub(crate) struct Stage {
    pub(crate) host: Host,
    pub(crate) admin: String,
}

/// A webhook that was just made.
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) secret: String,
}

impl Made {
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/v1/webhooks/{}{rest}", self.id)
    }

    /// Whether a request was signed by this webhook's secret, now.
    pub(crate) fn has_signed(&self, request: &Received, now: i64) -> bool {
        let key = SigningKey::from_secret(&self.secret).unwrap();
        sandpiper_webhook::verify(&key, request.headers("x-webhook-signature"), &request.body, now, 600).is_ok()
    }
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let host = Host::with(|config| {
            config.team_webhooks.allow_addresses = vec!["127.0.0.0/8".parse().unwrap()];
        })
        .await;
        let admin = host.user("ada@example.com", "acme", Role::Admin).await.token;
        Self { host, admin }
    }

    pub(crate) async fn call_for(
        &self,
        team: &str,
        token: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Answer {
        self.host.send(with_header(request(method, path, token, body), "sandpiper-team", team)).await
    }

    /// A request of the admin.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.call_for("acme", &self.admin, method, path, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.call("GET", path, None).await.expect(200)
    }

    /// A webhook to this URL, of these types.
    pub(crate) async fn webhook(&self, url: &str, types: &[&str]) -> Made {
        let made = self.call("POST", "/v1/webhooks", Some(json!({"url": url, "types": types}))).await.expect(201);
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        Made { id: text("id"), secret: text("secret") }
    }

    pub(crate) fn worker(&self, receivers: &[&Receiver]) -> Worker<Teams> {
        Worker::new(self.host.app.webhooks.clone(), dependencies(receivers))
    }

    /// Makes the deliveries of all events, and sends what is due; how many attempts that were.
    pub(crate) async fn round(&self, receiver: &Receiver) -> usize {
        enqueuer::round(&self.host.app).await.unwrap();
        self.worker(&[receiver]).round().await.unwrap()
    }

    /// The team's deliveries to a webhook, newest first.
    pub(crate) async fn deliveries(&self, webhook: &Made) -> Vec<Value> {
        self.get(&webhook.path("/deliveries")).await["deliveries"].as_array().unwrap().clone()
    }

    pub(crate) fn now(&self) -> i64 {
        self.host.app.clock.now().as_second()
    }

    /// A volume of the team, of which an event tells.
    pub(crate) async fn volume(&self, name: &str) -> String {
        let made = self.host.post("/v1/volumes", json!({"name": name})).await.expect(201);
        made["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn pass(&self, seconds: i64) {
        self.host.pass(SignedDuration::from_secs(seconds));
    }
}
