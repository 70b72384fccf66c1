//! Names that change their mind.

use sandpiper_payments::delivery::addresses::AddressRule;
use sandpiper_payments::delivery::resolver::{Resolve, Resolver, Resolving};
use sandpiper_payments::delivery::worker::Worker;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::deliveries::State;
use serde_json::json;

use super::receiver::{Reaction, Receiver};
use super::stage::{LIMIT, Names, Stage, dependencies, dependencies_with};
use crate::support::Host;

/// A worker under the rule for the public, to which only `allowed` is added.
fn worker(stage: &Stage, receiver: &Receiver, names: &Names, allowed: &[&str]) -> Worker {
    let allowed = allowed.iter().map(|net| net.parse().unwrap()).collect();
    Worker::new(
        stage.host.payments.webhooks.clone(),
        dependencies_with(&[receiver], names.clone(), AddressRule::new(allowed)),
    )
}

fn url(receiver: &Receiver) -> String {
    format!("https://merchant.example.test:{}/hooks", receiver.address.port())
}

#[tokio::test]
async fn a_name_that_points_inside_after_it_was_saved_gets_not_one_byte() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::on(Host::new().await).await;
    stage.configure(Realm::Live, Some(&url(&receiver))).await;
    let names = Names::default();
    let worker = worker(&stage, &receiver, &names, &[]);
    let delivery = stage.pay("pay_1").await;
    for addresses in [&["127.0.0.1"][..], &["1.1.1.1", "127.0.0.1"], &["::1"], &["::ffff:127.0.0.1"]] {
        names.say(addresses);
        stage.pass_to_next().await;
        assert_eq!(worker.round().await.unwrap(), 1);
        let last = stage.attempts(&delivery).await.pop().unwrap();
        assert_eq!(last.error_class.unwrap().as_str(), "blocked_address", "{addresses:?}");
        assert!(last.next_at.is_some());
    }
    assert_eq!(receiver.connections(), 0);
    let metrics = stage.host.metrics().await.text;
    assert!(metrics.contains("sandpiper_api_webhook_blocked_total 4"), "{metrics}");
}

#[tokio::test]
async fn a_name_that_points_inside_between_two_attempts_gets_not_one_byte_more() {
    // 127.0.0.2 stands for the Internet here, and 127.0.0.1 for what is inside.
    let inside = Receiver::answering(200).await;
    let stage = Stage::on(Host::new().await).await;
    stage.configure(Realm::Live, Some(&url(&inside))).await;
    let names = Names::default();
    let worker = worker(&stage, &inside, &names, &["127.0.0.2/32"]);
    let delivery = stage.pay("pay_1").await;

    names.say(&["127.0.0.2"]);
    worker.round().await.unwrap();
    names.say(&["127.0.0.1"]);
    stage.pass_to_next().await;
    worker.round().await.unwrap();
    names.say(&["127.0.0.2"]);
    stage.pass_to_next().await;
    worker.round().await.unwrap();

    let classes: Vec<_> =
        stage.attempts(&delivery).await.iter().map(|attempt| attempt.error_class.unwrap().as_str()).collect();
    assert_eq!(classes, ["refused", "blocked_address", "refused"]);
    assert_eq!(inside.connections(), 0);
}

#[tokio::test]
async fn the_name_is_verified_although_the_address_is_connected_to() {
    let receiver = Receiver::scripted(|request, _| {
        let named = request.header("host").starts_with("merchant.example.test:");
        Reaction::status(if named { 200 } else { 400 })
    })
    .await;
    let stage = Stage::new().await;
    stage.configure(Realm::Live, Some(&url(&receiver))).await;
    let names = Names::default();
    names.say(&["127.0.0.1"]);
    let delivery = stage.pay("pay_1").await;
    worker(&stage, &receiver, &names, &["127.0.0.0/8"]).round().await.unwrap();
    assert_eq!(stage.delivery(&delivery).await.state, State::Delivered);

    // The same receiver under a name that its certificate does not have.
    let other = format!("https://other.example.test:{}/", receiver.address.port());
    stage.configure(Realm::Live, Some(&other)).await;
    let delivery = stage.pay("pay_2").await;
    worker(&stage, &receiver, &names, &["127.0.0.0/8"]).round().await.unwrap();
    assert_eq!(stage.delivery(&delivery).await.error_class.unwrap().as_str(), "tls");
    assert_eq!(receiver.count(), 1);
}

/// Asks, and never gets an answer.
struct Silence;

impl Resolve for Silence {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_name_service_that_hangs_costs_the_limit_and_no_more() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    stage.configure(Realm::Live, Some(&url(&receiver))).await;
    let delivery = stage.pay("pay_1").await;
    let mut world = dependencies(&[&receiver]);
    world.connector.resolver = Resolver::new(Silence);
    Worker::new(stage.host.payments.webhooks.clone(), world).round().await.unwrap();
    let milliseconds = stage.attempts(&delivery).await[0].duration_ms.unwrap();
    assert!(u128::from(milliseconds) >= LIMIT.as_millis() && milliseconds < 1600, "{milliseconds}");
    assert_eq!(stage.delivery(&delivery).await.error_class.unwrap().as_str(), "timeout");
}

#[tokio::test]
async fn a_name_without_an_address_is_a_failure_of_the_network() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::new().await;
    stage.configure(Realm::Live, Some(&url(&receiver))).await;
    let delivery = stage.pay("pay_1").await;
    worker(&stage, &receiver, &Names::default(), &[]).round().await.unwrap();
    let row = stage.delivery(&delivery).await;
    assert_eq!((row.state, row.error_class.unwrap().as_str()), (State::Pending, "dns"));
}

#[tokio::test]
async fn an_address_that_was_allowed_when_it_was_saved_is_looked_at_again() {
    let receiver = Receiver::answering(200).await;
    // As if the operator had allowed this machine, and then not any more.
    let stage = Stage::on(Host::new().await).await;
    stage.configure(Realm::Live, Some(&receiver.url())).await;
    let delivery = stage.pay("pay_1").await;
    stage.worker(&receiver).round().await.unwrap();
    assert_eq!(stage.delivery(&delivery).await.error_class.unwrap().as_str(), "blocked_address");
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn urls_inside_are_refused_when_they_are_saved() {
    let stage = Stage::on(Host::new().await).await;
    let key = stage.rotate(Realm::Live).await;
    for url in [
        "https://127.0.0.1/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://[::ffff:127.0.0.1]/",
        "https://10.0.0.1/",
        "https://169.254.169.254/",
        "https://[::1]/",
        "http://merchant.example.test/",
        "ftp://merchant.example.test/",
        "/hooks",
        "https://user@merchant.example.test/",
    ] {
        let body = json!({"realm": "live", "url": url});
        let answer = stage.host.call("PUT", "/merchant/api/v1/webhookConfig", &key, Some(body)).await.expect(400);
        assert_eq!(answer["error"]["status"], "INVALID_ARGUMENT", "{url}");
    }
}
