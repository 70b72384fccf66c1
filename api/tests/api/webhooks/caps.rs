//! How much of the sender one endpoint can hold, whatever it does.

use std::num::NonZeroUsize;
use std::time::Duration;

use futures_util::future::join_all;
use sandpiper_payments::delivery::Dependencies;
use sandpiper_payments::delivery::worker::Worker;
use sandpiper_payments::domain::order::Status;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::deliveries::State;
use sandpiper_payments::store::delivery_claims::{Claimed, Decision, Finished};
use sandpiper_payments::store::webhook_endpoints::EndpointKey;
use serde_json::json;
use tokio::sync::watch;

use super::receiver::{Reaction, Receiver};
use super::stage::{Stage, configure, dependencies, merchant, order, report};
use crate::support::{Host, eventually};

/// Longer than a test: whoever waited for the end of an attempt that hangs would never be served.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// Sends until the answer is dropped, with attempts that end only when they are answered.
fn send(stage: &Stage, receivers: &[&Receiver]) -> watch::Sender<bool> {
    let world = Dependencies { attempt_limit: FOR_EVER, ..dependencies(receivers) };
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(Worker::new(stage.host.payments.webhooks.clone(), world).run(stopped));
    stop
}

async fn pay_many(stage: &Stage, name: &str, count: usize) {
    join_all((0..count).map(async |number| stage.pay(&format!("{name}_{number}")).await)).await;
}

/// How many attempts may begin now at an endpoint for which more than enough is due.
async fn claim(stage: &Stage) -> Vec<Claimed> {
    stage.host.payments.store.delivery_claims.claim(256, stage.now()).await.unwrap().deliveries
}

#[tokio::test]
async fn among_sixteen_slots_a_url_that_turns_to_hang_leaves_the_others_theirs() {
    let (hanging, prompt) = (Receiver::scripted(|_, _| Reaction::Hang).await, Receiver::answering(200).await);
    let host = Host::with(|config| {
        config.webhooks.allow_addresses = vec!["127.0.0.0/8".parse().unwrap()];
        config.webhooks.concurrency = NonZeroUsize::new(16).unwrap();
    })
    .await;
    let stage = Stage::on(host).await;
    stage.configure(Realm::Live, Some(&prompt.url())).await;
    let other = merchant(&stage.host, "other").await;
    let endpoint = EndpointKey { merchant_id: other.clone(), realm: Realm::Live };
    configure(&stage.host, endpoint, Some(&prompt.url())).await;
    let _sending = send(&stage, &[&hanging, &prompt]);
    pay_many(&stage, "prompt", 40).await;
    eventually("the prompt URL has proved itself", async || prompt.count() == 40).await;

    stage.configure(Realm::Live, Some(&hanging.url())).await;
    pay_many(&stage, "hanging", 30).await;
    eventually("the URL hangs", async || hanging.count() >= 4).await;
    report(&stage.host, &other, Realm::Live, &order("beside", Status::Completed, 1)).await.unwrap();

    eventually("the other merchant's webhook", async || prompt.count() == 41).await;
    assert_eq!(hanging.count(), 4);
}

#[tokio::test]
async fn a_new_url_begins_small_whatever_the_one_before_still_answers() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    pay_many(&stage, "first", 60).await;
    stage.worker(&receiver).round().await.unwrap();
    pay_many(&stage, "second", 100).await;
    let under_way = claim(&stage).await;
    assert!(under_way.len() > 20, "the prompt URL has proved itself: {}", under_way.len());

    stage.configure(Realm::Live, Some("https://127.0.0.1:1/elsewhere")).await;
    let prompt = under_way.into_iter().map(|claimed| Finished {
        claimed,
        ended_at: stage.now(),
        duration: Duration::from_millis(1),
        signed_at: Some(1),
        result: Ok(200),
        detail: String::new(),
        decision: Decision::End(State::Delivered),
    });
    stage.host.payments.store.delivery_claims.finish(prompt.collect(), 128).await.unwrap();

    assert_eq!(claim(&stage).await.len(), 4);
}

#[tokio::test]
async fn an_endpoint_loses_its_cap_while_it_hangs_not_only_when_its_attempts_end() {
    let receiver = Receiver::scripted(|_, number| match number {
        0 => Reaction::answer(503, "retry-after: 3600\r\n", ""),
        1..=60 => Reaction::status(200),
        _ => Reaction::Hang,
    })
    .await;
    let stage = Stage::towards(&receiver).await;
    // It stays due in an hour, so that the endpoint has a place in the line for as long as its cap leaves it one.
    stage.pay("later").await;
    stage.worker(&receiver).round().await.unwrap();
    let _sending = send(&stage, &[&receiver]);
    pay_many(&stage, "prompt", 60).await;
    eventually("it has proved itself", async || receiver.count() == 61).await;

    pay_many(&stage, "hanging", 10).await;
    eventually("it hangs", async || receiver.count() == 71).await;

    let endpoints = &stage.host.payments.store.webhook_endpoints;
    eventually("ten attempts are too many", async || endpoints.next_due().await.unwrap().is_none()).await;
}

#[tokio::test]
async fn test_webhooks_are_few_for_each_endpoint() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    stage.configure(Realm::Sandbox, Some(&receiver.url())).await;
    let (live, sandbox) = (stage.rotate(Realm::Live).await, stage.rotate(Realm::Sandbox).await);
    let test = async |key: &str, realm: &str| {
        stage.host.call("POST", "/merchant/api/v1/webhookConfig/test", key, Some(json!({"realm": realm}))).await
    };
    for _ in 0..10 {
        test(&live, "live").await.expect(202);
    }

    let refused = test(&live, "live").await;
    let seconds: i64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=61).contains(&seconds), "{seconds}");
    assert_eq!(refused.expect(429)["error"]["details"][0]["reason"], "TOO_MANY_TESTS");
    test(&sandbox, "sandbox").await.expect(202);
    stage.host.pass(jiff::SignedDuration::from_secs(seconds));
    test(&live, "live").await.expect(202);
}
