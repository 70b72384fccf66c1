//! The task that sends what is due.
//!
//! ```text
//!          wake, or a due time               each on a task of its own
//! ┌────────┐   claims   ┌───────┐  Claimed  ┌─────────┐  Finished  ┌────────┐
//! │ sleep  ├───────────►│ claim ├──────────►│ attempt ├───────────►│ record │
//! └────────┘            └───────┘           └─────────┘            └───┬────┘
//!      ▲                                                               │
//!      └───────────────────────── wake: there is room again ───────────┘
//! ```
//!
//! It is woken right after the commit that made a delivery; otherwise it sleeps until the next due time, and looks once a
//! second at what other processes have made, or less often where it is told that somebody has written to the database. Results
//! are written down as many at a time as have come in.
//!
//! When the process ends, attempts that are under way have a while to end. Those that do not are made again by the next
//! process, after their leases.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sandpiper_db::StoreError;
use sandpiper_protocol::error_chain::chain;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::Attempter;
use crate::capacity::{SLOW, largest_cap, window};
use crate::in_progress::{AttemptGuard, InProgress};
use crate::metrics::outcome;
use crate::sender::Sender;
use crate::store::Endpoint as _;
use crate::store::claims::{Claimed, Decision, Finished};
use crate::store::delivery::State;
use crate::{Dependencies, Source, Webhooks};

/// Longest sleep: other processes do not wake this one.
const POLL: Duration = Duration::from_secs(1);
/// Likewise, where nothing is in progress, and news of what they write wakes it: leases end without any.
const REST: Duration = Duration::from_secs(10);
/// Shortest sleep when nothing could be claimed.
const BREATH: Duration = Duration::from_millis(5);
/// Deliveries of one claim, and results of one record.
const AT_ONCE: usize = 256;
/// How long attempts may go on after the signal to stop.
const DRAIN: Duration = Duration::from_secs(10);
/// How often a result is tried to be written, a second apart. Later, its lease is over.
const RECORD_TRIES: usize = 30;

/// Sends what is due.
#[derive(Debug)]
pub struct Worker<S: Source> {
    attempter: Arc<Attempter<S>>,
    started: Instant,
    in_progress: Arc<InProgress<S::Endpoint>>,
    /// Changes when somebody may have written to the database.
    news: Option<watch::Receiver<()>>,
}

impl<S: Source> Clone for Worker<S> {
    fn clone(&self) -> Self {
        let Self { attempter, started, in_progress, news } = self;
        Self { attempter: attempter.clone(), started: *started, in_progress: in_progress.clone(), news: news.clone() }
    }
}

/// The result of an attempt, which counts as in progress until it is written down.
type Outcome<S> = (Finished<<S as Source>::Endpoint>, AttemptGuard<<S as Source>::Endpoint>);

impl<S: Source> Worker<S> {
    /// A worker that has not begun.
    pub fn new(webhooks: Arc<Webhooks<S>>, dependencies: Dependencies) -> Self {
        let sender = Sender::new(dependencies.connector, dependencies.attempt_limit);
        let attempter = Arc::new(Attempter { webhooks, sender, jitter: dependencies.jitter });
        Self { attempter, started: Instant::now(), in_progress: Arc::default(), news: None }
    }

    /// One that `news`, if any, tells when somebody may have written to the database: then it looks less often by itself.
    #[must_use]
    pub fn with_news(self, news: Option<watch::Receiver<()>>) -> Self {
        Self { news, ..self }
    }

    /// Sends until `stop` changes.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut news = self.news.clone();
        if let Err(error) = self.webhooks().store.begin_small(self.largest_cap()).await {
            tracing::error!(
                error = chain(&error),
                "could not reset per-endpoint concurrency caps; using stored values"
            );
        }
        let (finished, results) = mpsc::channel(AT_ONCE);
        let recorder = tokio::spawn(self.clone().record_all(results));
        let mut swept = Instant::now();
        loop {
            if swept.elapsed() >= POLL {
                swept = Instant::now();
                self.sweep().await;
            }
            let pause = match self.begin(&finished).await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::error!(error = chain(&error), "due webhooks not claimed");
                    POLL
                }
            };
            let longest = if news.is_some() && self.in_progress.count() == 0 { REST } else { POLL };
            tokio::select! {
                () = self.webhooks().due.notified() => {}
                () = sleep(pause.min(longest)) => {}
                told = changed(&mut news) => news = news.filter(|_| told),
                _ = stop.changed() => break,
            }
        }
        drop(finished);
        if timeout(DRAIN, recorder).await.is_err() {
            tracing::warn!(
                "webhooks were still being attempted at shutdown; they are attempted again after the next start"
            );
        }
    }

    /// Makes every attempt that is due, once, and writes down how they went; how many were made.
    pub async fn round(&self) -> Result<usize, StoreError> {
        self.sweep().await;
        let mut count = 0;
        loop {
            let claimed = self.claim(AT_ONCE).await?;
            if claimed.is_empty() {
                return Ok(count);
            }
            count += claimed.len();
            let keys = self.attempter.signing_keys(&claimed).await;
            let attempts = claimed.into_iter().map(|claimed| {
                let key = keys.of(&claimed.endpoint);
                self.attempter.attempt(claimed, key)
            });
            let finished = join_all(attempts).await;
            finished.iter().for_each(|one| self.note(one));
            self.webhooks().store.finish(finished, self.largest_cap()).await?;
        }
    }

    fn webhooks(&self) -> &Webhooks<S> {
        &self.attempter.webhooks
    }

    fn limit(&self) -> usize {
        self.webhooks().settings.concurrency.get()
    }

    fn largest_cap(&self) -> u32 {
        largest_cap(self.limit())
    }

    /// Begins attempts for as much as there is room; how long to sleep afterwards, at most.
    async fn begin(&self, finished: &mpsc::Sender<Outcome<S>>) -> Result<Duration, StoreError> {
        let room = window(self.started.elapsed(), self.limit()).saturating_sub(self.in_progress.count());
        let Some(due) = self.webhooks().store.next_due().await? else { return Ok(REST) };
        let wait = due.duration_since(self.webhooks().clock.now());
        if wait.is_positive() {
            return Ok(Duration::try_from(wait).unwrap_or(REST).clamp(BREATH, REST));
        }
        if room == 0 {
            // A result makes room, and wakes.
            return Ok(REST);
        }
        let claimed = self.claim(room.min(AT_ONCE)).await?;
        if claimed.is_empty() {
            return Ok(BREATH);
        }
        let keys = self.attempter.signing_keys(&claimed).await;
        for claimed in claimed {
            let key = keys.of(&claimed.endpoint);
            let guard = self.in_progress.begin(claimed.endpoint.clone());
            let (attempter, finished) = (self.attempter.clone(), finished.clone());
            tokio::spawn(async move {
                let result = attempter.attempt(claimed, key).await;
                // Nobody is there to write it down only when the process ends.
                let _ = finished.send((result, guard)).await;
            });
        }
        Ok(Duration::ZERO)
    }

    /// None only if none is due that may be attempted.
    async fn claim(&self, limit: usize) -> Result<Vec<Claimed<S::Endpoint>>, StoreError> {
        loop {
            let claims = self.webhooks().store.claim(limit, self.webhooks().clock.now()).await?;
            if claims.expired == 0 {
                return Ok(claims.deliveries);
            }
            tracing::warn!(deliveries = claims.expired, "webhooks not attempted for seven days are exhausted");
            self.webhooks().metrics.expired(claims.expired);
            if !claims.deliveries.is_empty() {
                return Ok(claims.deliveries);
            }
        }
    }

    /// Takes back what dead processes had claimed, closes connections that nobody used, and takes their caps from endpoints
    /// that hang: a result comes only when an attempt is over, and until then more would begin.
    async fn sweep(&self) {
        self.attempter.sender.prune();
        let slow = self.in_progress.longer_than(SLOW);
        if let Err(error) = self.webhooks().store.slow_down(slow).await {
            tracing::error!(
                error = chain(&error),
                "cannot lower the concurrency caps of endpoints that do not respond"
            );
        }
        match self.webhooks().store.reclaim(self.webhooks().clock.now()).await {
            Ok(0) => {}
            Ok(deliveries) => {
                tracing::warn!(deliveries, "webhooks whose process died are attempted again");
                self.webhooks().metrics.reclaimed(deliveries);
            }
            Err(error) => tracing::error!(error = chain(&error), "claims of dead processes not released"),
        }
    }

    async fn record_all(self, mut results: mpsc::Receiver<Outcome<S>>) {
        let mut batch = Vec::with_capacity(AT_ONCE);
        while results.recv_many(&mut batch, AT_ONCE).await > 0 {
            let (finished, places): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
            finished.iter().for_each(|one| self.note(one));
            self.record(finished).await;
            drop(places);
            self.webhooks().wake();
        }
    }

    async fn record(&self, finished: Vec<Finished<S::Endpoint>>) {
        for _ in 0..RECORD_TRIES {
            match self.webhooks().store.finish(finished.clone(), self.largest_cap()).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(
                        error = chain(&error),
                        attempts = finished.len(),
                        "results of webhooks not written"
                    );
                    sleep(POLL).await;
                }
            }
        }
    }

    /// Counts an attempt and logs it: never its body, its signature, or the response's.
    fn note(&self, finished: &Finished<S::Endpoint>) {
        self.webhooks().metrics.finished(finished);
        let claimed = &finished.claimed;
        let endpoint = claimed.endpoint.span();
        let span = tracing::info_span!(
            parent: &endpoint,
            "webhook",
            delivery = %claimed.id,
            attempt = claimed.attempt,
            outcome = outcome(&finished.decision),
            status = finished.result.ok(),
            class = finished.result.err().map(|class| class.as_str()),
            ms = u64::try_from(finished.duration.as_millis()).unwrap_or(u64::MAX),
        );
        span.in_scope(|| match finished.decision {
            Decision::Hold(until) => {
                tracing::warn!(%until, reason = finished.detail, "webhook not sent: it cannot be signed");
            }
            Decision::End(State::Delivered) => tracing::debug!("webhook delivered"),
            Decision::End(State::Exhausted) => tracing::warn!("webhook exhausted: it was never acknowledged"),
            Decision::End(_) => tracing::info!("webhook refused"),
            Decision::Retry(at) => tracing::info!(%at, "webhook to be attempted again"),
        });
    }
}

/// Waits for news; false when there will be none. Without anybody who tells of it, for ever.
async fn changed(news: &mut Option<watch::Receiver<()>>) -> bool {
    match news {
        Some(news) => news.changed().await.is_ok(),
        None => std::future::pending().await,
    }
}
