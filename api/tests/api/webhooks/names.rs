//! The real resolver, asking a name server on this machine.

use std::time::Duration;

use sandpiper_payments::delivery::addresses::AddressRule;
use sandpiper_payments::delivery::connection::Connector;
use sandpiper_payments::delivery::resolver::Resolver;
use sandpiper_payments::delivery::sender::ATTEMPT_LIMIT;
use sandpiper_payments::delivery::worker::Worker;
use sandpiper_payments::delivery::{Dependencies, trust};
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::deliveries::State;

use super::name_server::{NameServer, a, aaaa, alias};
use super::receiver::Receiver;
use super::stage::{Stage, dependencies};
use crate::support::Host;

const NAME: &str = "merchant.example.test";

fn resolver(names: &NameServer) -> Resolver {
    Resolver::asking(&[names.address]).unwrap()
}

#[tokio::test]
async fn addresses_are_judged_whatever_way_a_name_leads_to_them() {
    let public = ["11.0.0.1", "2a00::1"];
    let cases = [
        (vec![a(NAME, public[0])], true),
        (vec![a(NAME, public[0]), aaaa(NAME, public[1])], true),
        (vec![aaaa(NAME, public[1])], true),
        (
            vec![
                alias(NAME, "a.example.test"),
                alias("a.example.test", "b.example.test"),
                a("b.example.test", public[0]),
            ],
            true,
        ),
        (vec![a(NAME, "10.0.0.1")], false),
        (vec![a(NAME, public[0]), a(NAME, "169.254.169.254")], false),
        (vec![alias(NAME, "inside.example.test"), a("inside.example.test", "192.168.0.1")], false),
        (vec![a(NAME, public[0]), aaaa(NAME, "::ffff:10.0.0.1")], false),
        (vec![aaaa(NAME, "::ffff:10.0.0.1")], false),
        (vec![aaaa(NAME, "64:ff9b::a00:1")], false),
        (vec![a(NAME, public[0]), aaaa(NAME, "fd00::1")], false),
    ];
    for (records, passes) in cases {
        let names = NameServer::knowing(records.clone()).await;

        let addresses = resolver(&names).resolve(NAME).await.unwrap();

        assert_eq!(AddressRule::default().check_all(&addresses).is_ok(), passes, "{records:?} {addresses:?}");
    }
}

#[tokio::test]
async fn a_name_that_stands_for_one_inside_gets_not_one_byte() {
    let receiver = Receiver::answering(200).await;
    let stage = named(&receiver).await;
    let delivery = stage.pay("pay_1").await;
    let inside = "inside.example.test";
    let names = NameServer::knowing(vec![alias(NAME, inside), a(inside, "127.0.0.1")]).await;
    let public_only = world(&receiver, &names, AddressRule::default());
    let with_this_machine = world(&receiver, &names, AddressRule::new(vec!["127.0.0.0/8".parse().unwrap()]));

    Worker::new(stage.host.payments.webhooks.clone(), public_only).round().await.unwrap();
    let blocked = stage.delivery(&delivery).await;
    assert_eq!((blocked.state, blocked.error_class.unwrap().as_str()), (State::Pending, "blocked_address"));
    assert_eq!(receiver.connections(), 0);

    // The same name and answer, where the address may be connected to.
    stage.pass_to_next().await;
    Worker::new(stage.host.payments.webhooks.clone(), with_this_machine).round().await.unwrap();
    assert_eq!(stage.delivery(&delivery).await.state, State::Delivered);
}

#[tokio::test]
async fn a_name_that_does_not_exist_and_a_server_that_does_not_answer_are_failures_of_the_network() {
    let receiver = Receiver::answering(200).await;
    let nothing = NameServer::knowing(vec![a("other.example.test", "11.0.0.1")]).await;
    for names in [nothing, NameServer::silent().await] {
        let stage = named(&receiver).await;
        let delivery = stage.pay("pay_1").await;
        let world = world(&receiver, &names, AddressRule::default());

        Worker::new(stage.host.payments.webhooks.clone(), world).round().await.unwrap();

        let [attempt] = &stage.attempts(&delivery).await[..] else { panic!("one attempt") };
        assert_eq!(attempt.error_class.unwrap().as_str(), "dns", "{attempt:?}");
        assert!(Duration::from_millis(attempt.duration_ms.unwrap()) < ATTEMPT_LIMIT / 2, "{attempt:?}");
        assert!(attempt.next_at.is_some());
        assert_eq!(stage.delivery(&delivery).await.state, State::Pending);
    }
}

/// A stage whose merchant is told by name.
async fn named(receiver: &Receiver) -> Stage {
    let stage = Stage::on(Host::new().await).await;
    let url = format!("https://{NAME}:{}/hooks", receiver.address.port());
    stage.configure(Realm::Live, Some(&url)).await;
    stage
}

/// The world with this name server, and the limit of the real one.
fn world(receiver: &Receiver, names: &NameServer, rule: AddressRule) -> Dependencies {
    let tls = trust::only([receiver.root.clone()]).unwrap();
    let connector = Connector { resolver: resolver(names), rule, tls };
    Dependencies { connector, attempt_limit: ATTEMPT_LIMIT, ..dependencies(&[receiver]) }
}
