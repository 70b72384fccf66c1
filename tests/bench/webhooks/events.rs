//! When the webhooks of payments that were reported arrived.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use support::Receiver;

use crate::reporter::Accepted;
use crate::schedule::Answer;

/// For the last webhook to arrive.
const TIMEOUT: Duration = Duration::from_secs(120);

/// When an event's webhook came, in milliseconds.
pub(super) struct Times {
    /// From when the payment was to be reported to the webhook's first byte.
    pub(super) since_due: Vec<f64>,
    /// From the report's answer to that byte, which may be the sooner of the two: then nothing.
    pub(super) since_accepted: Vec<f64>,
}

/// Waits until the webhooks of all events have come; when the last came.
pub(super) async fn arrived(events: &[Answer<Accepted>], receiver: &Receiver) -> anyhow::Result<Option<Instant>> {
    let begin = Instant::now();
    let mut last = None;
    for event in events {
        last = last.max(Some(arrival(event, receiver, begin).await?));
    }
    Ok(last)
}

/// How long the webhooks of all events took, once they have come.
pub(super) async fn times(events: &[Answer<Accepted>], receiver: &Receiver) -> anyhow::Result<Times> {
    let (begin, mut times) = (Instant::now(), Times { since_due: Vec::new(), since_accepted: Vec::new() });
    for event in events {
        let arrival = arrival(event, receiver, begin).await?;
        let since = |from| arrival.saturating_duration_since(from).as_secs_f64() * 1000.0;
        times.since_due.push(since(event.due));
        times.since_accepted.push(since(event.received));
    }
    Ok(times)
}

async fn arrival(event: &Answer<Accepted>, receiver: &Receiver, begin: Instant) -> anyhow::Result<Instant> {
    let delivery = event.body.delivery_id.as_deref().context("a report gave rise to no webhook")?;
    loop {
        if let Some(arrival) = receiver.arrival(delivery) {
            return Ok(arrival);
        }
        ensure!(begin.elapsed() < TIMEOUT, "{delivery} did not arrive");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
