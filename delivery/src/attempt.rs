//! One attempt of one delivery: sign, send, decide what becomes of it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use sandpiper_protocol::error_chain::chain;
use sandpiper_webhook::{SigningKey, sign};

use crate::endpoint_url::EndpointUrl;
use crate::jitter::Jitter;
use crate::outcome::{Failure, FailureClass, Verdict, WebhookResponse};
use crate::schedule::{Next, next_attempt};
use crate::sender::{Sender, Webhook};
use crate::store::claims::{Claimed, Decision, Finished};
use crate::store::delivery::State;
use crate::{Source, Webhooks};

/// How long a delivery is held whose endpoint has no secret. Nothing of its budget but time is used up.
const HOLD: SignedDuration = SignedDuration::from_secs(60);
/// Likewise while the database does not say whether it has one: that is ours to mend, and seldom lasts.
const SHORT_HOLD: SignedDuration = SignedDuration::from_secs(5);

/// What signs, or why nothing can.
#[derive(Debug)]
pub(super) struct SigningKeys<S: Source>(HashMap<S::Endpoint, Result<SigningKey, Failure>>);

impl<S: Source> SigningKeys<S> {
    /// Of an endpoint.
    pub(super) fn of(&self, endpoint: &S::Endpoint) -> Result<SigningKey, Failure> {
        let none = || Err(Failure::new(FailureClass::NoSigningSecret, S::NO_SECRET));
        self.0.get(endpoint).cloned().unwrap_or_else(none)
    }
}

/// Makes attempts.
#[derive(Debug)]
pub(super) struct Attempter<S: Source> {
    pub(super) webhooks: Arc<Webhooks<S>>,
    pub(super) sender: Sender<S::Endpoint>,
    pub(super) jitter: Jitter,
}

impl<S: Source> Attempter<S> {
    /// The secrets, as they are at this moment, of the endpoints of which deliveries were claimed: after a rotation, no attempt
    /// is signed with the old one.
    pub(super) async fn signing_keys(&self, claimed: &[Claimed<S::Endpoint>]) -> SigningKeys<S> {
        let endpoints: BTreeSet<_> = claimed.iter().map(|claimed| claimed.endpoint.clone()).collect();
        let readable = match self.webhooks.source.signing_keys(&endpoints).await {
            Ok(keys) => {
                let unusable = |reason| Failure::new(FailureClass::NoSigningSecret, reason);
                keys.into_iter().map(|(endpoint, key)| (endpoint, key.map_err(unusable))).collect()
            }
            Err(error) => {
                let unread = Failure::new(FailureClass::SecretUnread, chain(&error));
                endpoints.into_iter().map(|endpoint| (endpoint, Err(unread.clone()))).collect()
            }
        };
        SigningKeys(readable)
    }

    /// Makes the attempt that was claimed. Whatever happens, there is a result.
    pub(super) async fn attempt(
        &self,
        claimed: Claimed<S::Endpoint>,
        key: Result<SigningKey, Failure>,
    ) -> Finished<S::Endpoint> {
        let began = Instant::now();
        let lag = claimed.started_at.duration_since(claimed.due_at);
        self.webhooks.metrics.started(lag.unsigned_abs());
        let key = match key {
            Ok(key) => key,
            Err(unsigned) => return self.held(claimed, unsigned),
        };
        let signed_at = self.webhooks.clock.now().as_second();
        let signature = sign(&key, signed_at, &claimed.body);
        drop(key);
        let sent = self.send(&claimed, &signature).await;
        self.finished(claimed, sent, signed_at, began.elapsed())
    }

    async fn send(&self, claimed: &Claimed<S::Endpoint>, signature: &str) -> Result<WebhookResponse, Failure> {
        // Checked when it was configured; what is allowed may have changed.
        let url = EndpointUrl::parse(&claimed.url, self.webhooks.rule())
            .map_err(|error| Failure::new(FailureClass::BlockedAddress, error))?;
        let webhook = Webhook {
            endpoint: &claimed.endpoint,
            url: &url,
            delivery: &claimed.id,
            signature,
            body: claimed.body.clone(),
        };
        self.sender.send(&webhook, &self.webhooks.clock).await
    }

    fn held(&self, claimed: Claimed<S::Endpoint>, unsigned: Failure) -> Finished<S::Endpoint> {
        let now = self.webhooks.clock.now();
        let hold = if unsigned.class == FailureClass::SecretUnread { SHORT_HOLD } else { HOLD };
        Finished {
            claimed,
            ended_at: now,
            duration: Duration::ZERO,
            signed_at: None,
            result: Err(unsigned.class),
            detail: unsigned.detail,
            decision: Decision::Hold(now.saturating_add(hold).unwrap_or(now)),
        }
    }

    fn finished(
        &self,
        claimed: Claimed<S::Endpoint>,
        sent: Result<WebhookResponse, Failure>,
        signed_at: i64,
        duration: Duration,
    ) -> Finished<S::Endpoint> {
        let ended_at = self.webhooks.clock.now();
        let decision = decide(&claimed, &sent, ended_at, self.jitter.draw());
        let (result, detail) = match sent {
            Ok(response) => (Ok(response.status), response.snippet),
            Err(failure) => (Err(failure.class), failure.detail),
        };
        Finished { claimed, ended_at, duration, signed_at: Some(signed_at), result, detail, decision }
    }
}

/// What becomes of the delivery.
fn decide<E>(claimed: &Claimed<E>, sent: &Result<WebhookResponse, Failure>, now: Timestamp, jitter: f64) -> Decision {
    let (verdict, retry_after) = match sent {
        Ok(response) => (Verdict::of_status(response.status), response.retry_after),
        Err(_) => (Verdict::Again, None),
    };
    match verdict {
        Verdict::Acknowledged => Decision::End(State::Delivered),
        Verdict::Refused => Decision::End(State::Failed),
        Verdict::Again => match next_attempt(claimed.attempt, claimed.created_at, now, retry_after, jitter) {
            Next::At(at) => Decision::Retry(at),
            Next::Exhausted => Decision::End(State::Exhausted),
        },
    }
}
