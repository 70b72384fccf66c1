//! A hundred attempts and seven days, by a clock that the test moves.

use jiff::SignedDuration;
use sandpiper_payments::delivery::Dependencies;
use sandpiper_payments::delivery::jitter::Jitter;
use sandpiper_payments::delivery::worker::Worker;
use sandpiper_payments::domain::realm::Realm;
use sandpiper_payments::store::deliveries::State;

use super::receiver::{Reaction, Receiver};
use super::stage::{Stage, dependencies};
use crate::support::eventually;

#[tokio::test]
async fn a_hundred_attempts_are_made_and_no_more() {
    let receiver = Receiver::answering(503).await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.pay("pay_1").await;
    // Every jitter once, the same in every run.
    let draws = std::sync::atomic::AtomicU32::new(0);
    let jitter =
        Jitter::from_fn(move || f64::from(draws.fetch_add(37, std::sync::atomic::Ordering::Relaxed) % 100) / 100.0);
    let worker =
        Worker::new(stage.host.payments.webhooks.clone(), Dependencies { jitter, ..dependencies(&[&receiver]) });
    worker.round().await.unwrap();
    while stage.pass_to_next().await {
        assert_eq!(worker.round().await.unwrap(), 1);
    }

    let row = stage.delivery(&delivery).await;
    assert_eq!((row.state, row.attempts, receiver.count()), (State::Exhausted, 100, 100));
    assert!(receiver.received().iter().all(|request| request.key() == delivery.as_str()));
    let attempts = stage.attempts(&delivery).await;
    let numbers: Vec<_> = attempts.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
    for (index, pair) in attempts.windows(2).enumerate() {
        let gap = pair[1].due_at.duration_since(pair[0].started_at).as_secs_f64();
        let base = f64::from(10 * 2_u32.pow(u32::try_from(index).unwrap().min(20))).min(3600.0);
        assert!(base <= gap && gap <= base * 1.1 + 1.5, "{index}: {gap}");
    }
    let gaps = attempts.windows(2).skip(10).map(|pair| pair[1].due_at.duration_since(pair[0].started_at).as_secs());
    assert!(gaps.clone().max().unwrap() > 3601 && gaps.min().unwrap() >= 3600, "jitter at the cap, and only on top");
    let metrics = stage.host.metrics().await.text;
    assert!(metrics.contains("sandpiper_api_webhook_exhausted_total 1"), "{metrics}");
}

#[tokio::test]
async fn no_attempt_starts_more_than_seven_days_after_the_delivery_was_made() {
    let receiver = Receiver::answering(503).await;
    let stage = Stage::towards(&receiver).await;
    let delivery = stage.pay("pay_1").await;
    let worker = stage.worker(&receiver);
    worker.round().await.unwrap();

    // A long absence, and one attempt just before the end, whose successor would come after it.
    stage.host.pass(SignedDuration::from_hours(7 * 24) - SignedDuration::from_secs(15));
    worker.round().await.unwrap();

    let row = stage.delivery(&delivery).await;
    assert_eq!((row.state, row.attempts, receiver.count()), (State::Exhausted, 2, 2));
}

#[tokio::test]
async fn what_was_not_attempted_for_seven_days_is_exhausted_without_another() {
    let receiver = Receiver::answering(200).await;
    let stage = Stage::towards(&receiver).await;
    let late = stage.pay("pay_1").await;
    for number in 0..20 {
        stage.pay(&format!("late_{number}")).await;
    }
    stage.host.pass(SignedDuration::from_hours(7 * 24) + SignedDuration::from_secs(1));
    let in_time = stage.pay("pay_2").await;

    stage.worker(&receiver).round().await.unwrap();

    let row = stage.delivery(&late).await;
    assert_eq!((row.state, row.attempts), (State::Exhausted, 0));
    assert!(stage.attempts(&late).await.is_empty());
    assert_eq!(stage.delivery(&in_time).await.state, State::Delivered);
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn the_url_is_read_at_every_attempt() {
    let (old, new) = (Receiver::answering(503).await, Receiver::answering(200).await);
    let stage = Stage::towards(&old).await;
    let (moved, cancelled) = (stage.pay("pay_1").await, stage.pay("pay_2").await);
    let worker = stage.worker_for(&[&old, &new]);
    worker.round().await.unwrap();
    stage.host.payments.store.deliveries.cancel(cancelled.to_string(), stage.now()).await.unwrap();

    stage.configure(Realm::Live, Some(&new.url())).await;
    stage.pass_to_next().await;
    worker.round().await.unwrap();

    assert_eq!((old.count(), new.count()), (2, 1));
    assert_eq!(stage.delivery(&moved).await.state, State::Delivered);
    assert_eq!(stage.delivery(&cancelled).await.state, State::Cancelled);
}

#[tokio::test]
async fn a_url_that_is_taken_away_cancels_what_is_pending_also_after_an_attempt_under_way() {
    let receiver = Receiver::answering(503).await;
    let stage = Stage::towards(&receiver).await;
    let (waiting, under_way) = (stage.pay("pay_1").await, stage.pay("pay_2").await);
    let worker = stage.worker(&receiver);
    worker.round().await.unwrap();
    stage.host.pass(SignedDuration::from_secs(60));
    let claims = stage.host.payments.store.delivery_claims.claim(1, stage.now()).await.unwrap();
    assert_eq!(claims.deliveries[0].id, waiting);

    stage.configure(Realm::Live, None).await;
    assert_eq!(stage.delivery(&under_way).await.state, State::Cancelled);
    assert_eq!(stage.delivery(&waiting).await.state, State::InFlight);
    stage.host.pass(SignedDuration::from_secs(120));
    worker.round().await.unwrap();

    assert_eq!(stage.delivery(&waiting).await.state, State::Cancelled);
    assert_eq!(receiver.count(), 2);
    assert!(!stage.pass_to_next().await);
}

#[tokio::test]
async fn a_worker_that_is_woken_sends_at_once() {
    let receiver = Receiver::scripted(|_, _| Reaction::status(200)).await;
    let stage = Stage::towards(&receiver).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let running = tokio::spawn(stage.worker(&receiver).run(stopped));
    stage.pay("warm").await;
    eventually("a first delivery", async || receiver.count() == 1).await;

    let mut times = Vec::new();
    for number in 0..10 {
        let (began, before) = (std::time::Instant::now(), receiver.count());
        stage.pay(&format!("pay_{number}")).await;
        eventually("a delivery", async || receiver.count() > before).await;
        times.push(began.elapsed());
    }

    // One that is not woken delivers when it looks, and looks again a second later: each of these would have taken that long.
    let quickest = times.iter().min().unwrap();
    assert!(*quickest < std::time::Duration::from_millis(500), "{times:?}");
    stop.send(true).unwrap();
    running.await.unwrap();
}
