//! An endpoint that hangs, and the others.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use sandpiper_payments::delivery::Dependencies;
use sandpiper_payments::delivery::worker::Worker;
use sandpiper_payments::domain::order::Status;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::webhook_endpoints::EndpointKey;

use super::receiver::{Reaction, Receiver};
use super::stage::{Stage, configure, dependencies, merchant, order, report};
use crate::support::eventually;

/// Deliveries that wait at the endpoint that hangs.
const HELD_UP: usize = 10_000;

#[tokio::test]
async fn whoever_has_waited_longest_is_next_not_whoever_has_most() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    for number in 0..50 {
        stage.pay(&format!("hog_{number}")).await;
    }
    let mut others = Vec::new();
    for number in 0..5 {
        let other = merchant(&stage.host, &format!("other-{number}")).await;
        let endpoint = EndpointKey { merchant_id: other.clone(), realm: Realm::Live };
        configure(&stage.host, endpoint, Some(&receiver.url())).await;
        for payment in ["a", "b"] {
            let order = order(&format!("pay_{number}_{payment}"), Status::Completed, 1);
            report(&stage.host, &other, Realm::Live, &order).await.unwrap();
        }
        others.push(other);
    }

    let claims = &stage.host.payments.store.delivery_claims;
    let claimed = claims.claim(6, stage.now()).await.unwrap().deliveries;

    let mut of: HashMap<&str, usize> = HashMap::new();
    for one in &claimed {
        *of.entry(&one.endpoint.merchant_id).or_default() += 1;
    }
    assert!(of.len() == 6 && of.values().all(|count| *count == 1), "{of:?}");
    // One that comes anew is before all that have just been served.
    let late = merchant(&stage.host, "late").await;
    let endpoint = EndpointKey { merchant_id: late.clone(), realm: Realm::Live };
    configure(&stage.host, endpoint, Some(&receiver.url())).await;
    stage.host.pass(jiff::SignedDuration::from_millis(1));
    let at = claimed.iter().map(|claimed| claimed.started_at).max().unwrap();
    report(&stage.host, &late, Realm::Live, &order("pay_late", Status::Completed, 1)).await.unwrap();
    let next = claims.claim(2, stage.now()).await.unwrap().deliveries;
    assert!(next.iter().all(|claimed| claimed.endpoint.merchant_id != late), "served before it came");
    assert!(next.iter().all(|claimed| claimed.started_at >= at));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_hangs_does_not_hold_up_the_others() {
    let (hanging, prompt) = (Receiver::scripted(|_, _| Reaction::Hang).await, Receiver::answering(200).await);
    let stage = Stage::towards(&hanging).await;
    let mut others = Vec::new();
    for number in 0..9 {
        let other = merchant(&stage.host, &format!("other-{number}")).await;
        let endpoint = EndpointKey { merchant_id: other.clone(), realm: Realm::Live };
        configure(&stage.host, endpoint, Some(&prompt.url())).await;
        others.push(other);
    }
    // So long that no attempt at the endpoint that hangs ends here: whoever waited for one would not be served at all.
    let world = Dependencies { attempt_limit: Duration::from_secs(3600), ..dependencies(&[&hanging, &prompt]) };
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    tokio::spawn(Worker::new(stage.host.payments.webhooks.clone(), world).run(stopped));

    for chunk in 0..HELD_UP / 500 {
        let reports = (0..500).map(|number| {
            let order = order(&format!("hog_{chunk}_{number}"), Status::Completed, 1);
            async { report(&stage.host, &stage.merchant_id, Realm::Live, &{ order }).await }
        });
        join_all(reports).await;
    }
    eventually("the endpoint hangs", async || hanging.count() >= 4).await;

    for number in 0..100 {
        let before = prompt.count();
        let order = order(&format!("beside_{number}"), Status::Completed, 1);
        report(&stage.host, &others[number % others.len()], Realm::Live, &order).await.unwrap();
        eventually("a delivery beside it", async || prompt.count() > before).await;
    }

    let loads = stage.host.payments.store.webhook_endpoints.loads().await.unwrap();
    let hog = loads.iter().find(|load| load.endpoint.merchant_id == stage.merchant_id).unwrap();
    assert_eq!((hog.in_flight, hog.pending), (4, HELD_UP as u64 - 4));
}
