//! The real process, killed again and again while payments are reported and webhooks are sent: what was accepted arrives.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sandpiper_db::testing::TestDatabase;
use sandpiper_payments::domain::order::{PaymentOrder, Status};
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::deliveries::DeliveryId;
use sandpiper_webhook::SigningKey;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::receiver::{Received, Receiver};
use super::server::{Server, operator_key, report as report_of, send, write_config};
use super::stage::order;
use crate::support::eventually_within;

/// Lives of the process that end in SIGKILL.
const KILLS: usize = 50;
/// A life ends within so many milliseconds.
const LONGEST_LIFE: u64 = 400;
/// Who report payments at the same time.
const CLIENTS: usize = 6;
/// A lease, after which the attempts of a dead process are made again, and time to make them on a busy machine.
const ARRIVAL: Duration = Duration::from_secs(150);

/// Which process there is. The last is not killed.
#[derive(Debug, Clone, Default)]
struct Life {
    number: usize,
    address: String,
}

/// Those who are told. Each life has one of its own, so that there is an endpoint at which nothing waits for the dead.
struct Merchants {
    operator: String,
    merchants: Vec<(String, SigningKey)>,
}

/// A report that was answered.
struct Update {
    /// Whose payment it is, in [`Merchants`].
    merchant: usize,
    order: PaymentOrder,
}

impl Update {
    fn delivery(&self) -> String {
        let updated_at_ms = self.order.updated_at.as_millisecond();
        DeliveryId::of_update(Realm::Live, &self.order.id, updated_at_ms).to_string()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_accepted_arrives_whenever_the_process_is_killed() {
    let receiver = Receiver::answering(200).await;
    let folder = tempfile::tempdir().unwrap();
    let database = TestDatabase::new().await;
    let config = write_config(folder.path(), &database, &receiver);
    let operator = operator_key(&config);
    let mut server = Server::start(&config, "info").await;
    let mut merchants = Vec::new();
    for life in 0..KILLS {
        let url = format!("https://{}/{life}", receiver.address);
        let (id, secret) = server.merchant(&operator, &format!("merchant-{life}"), &url).await;
        merchants.push((id, SigningKey::from_api_key(&secret).unwrap()));
    }
    let merchants = Arc::new(Merchants { operator, merchants });
    let (announce, lives) = watch::channel(Life { number: 0, address: server.address.clone() });
    let clients = (0..CLIENTS).map(|client| tokio::spawn(report_payments(client, lives.clone(), merchants.clone())));
    let clients = join_all(clients.collect::<Vec<_>>());

    for number in 1..=KILLS {
        sleep(Duration::from_millis(rand::random_range(0..LONGEST_LIFE))).await;
        server.kill();
        server = Server::start(&config, "info").await;
        announce.send_replace(Life { number, address: server.address.clone() });
    }

    let clients = timeout(ARRIVAL, clients).await.expect("every report is answered");
    let accepted: Vec<Update> = clients.into_iter().flat_map(Result::unwrap).collect();
    let expected: HashMap<String, &Update> = accepted.iter().map(|update| (update.delivery(), update)).collect();
    assert!(expected.len() == accepted.len() && expected.len() > KILLS, "{}", expected.len());
    eventually_within(ARRIVAL, "everything arrives", async || {
        receiver.count() >= expected.len() && keys(&receiver.received()).len() >= expected.len()
    })
    .await;
    let received = receiver.received();
    assert_eq!(keys(&received), expected.keys().cloned().collect(), "nothing else arrives");
    for request in &received {
        let update = expected[&request.key()];
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(body, serde_json::to_value(&update.order).unwrap());
        assert!(request.head.starts_with(&format!("POST /{} HTTP", update.merchant)), "{}", request.head);
        let (headers, now) = (request.headers("x-webhook-signature"), jiff::Timestamp::now().as_second());
        let (_, key) = &merchants.merchants[update.merchant];
        assert_eq!(sandpiper_webhook::verify(key, headers, &request.body, now, 600), Ok(()));
    }
}

fn keys(received: &[Received]) -> BTreeSet<String> {
    received.iter().map(Received::key).collect()
}

/// Reports one payment after the other, each twice, until the last life begins.
async fn report_payments(client: usize, mut lives: watch::Receiver<Life>, merchants: Arc<Merchants>) -> Vec<Update> {
    let mut accepted = Vec::new();
    for payment in 0.. {
        let merchant = lives.borrow_and_update().number;
        if merchant == KILLS {
            break;
        }
        for (status, second) in [(Status::Pending, 1), (Status::Completed, 2)] {
            let update = Update { merchant, order: order(&format!("pay_{client}_{payment}"), status, second) };
            report(&update, &mut lives, &merchants).await;
            accepted.push(update);
        }
    }
    accepted
}

/// Reports until somebody answers: a process that is killed before it answers may have accepted the report, or not.
async fn report(update: &Update, lives: &mut watch::Receiver<Life>, merchants: &Merchants) {
    let (path, body) = report_of(&merchants.merchants[update.merchant].0, &update.order);
    loop {
        let address = lives.borrow_and_update().address.clone();
        let answer = send(&address, "PUT", &path, &merchants.operator, &body).await.unwrap_or_default();
        if answer.starts_with("HTTP/1.1 2") {
            return;
        }
        assert_eq!(answer, "", "refused");
        lives.changed().await.unwrap();
    }
}
