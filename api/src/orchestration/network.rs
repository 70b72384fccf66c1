//! Network policies at the agent.
//!
//! A new policy is in the store, under a version, before the agent hears of it. From there on nothing can lose it:
//!
//! | what happens | what follows |
//! |---|---|
//! | the agent responds | the row says `applied` |
//! | the agent is away, too slow, or refuses | the row says `pending`; [`PolicyWorker`] tries on |
//! | this process dies | the row says `pending`; the worker of the next process sends it |
//! | the sandbox is stopped | the agent writes the policy down for its next start |
//! | a stopped sandbox is resumed or forked while its policy is pending | it is sent first, see [`before_start`] |
//!
//! Never does an older policy take the place of a newer one. What is sent is always the newest, read from the store in the
//! sandbox's turn, of which there is one at a time; and should a call of an earlier process still be on its way, the agent
//! ignores versions older than the one it has.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_db::StoreError;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::error_chain::chain;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::news::{MOST_LEFT_OUT, News};
use crate::agent_client::AgentError;
use crate::state::App;
use crate::store::sandbox_row::{SandboxRow, State};

/// Policies that the worker sends at the same time: one slow sandbox must not hold up all others.
const AT_ONCE: usize = 8;
/// The worker's pause after the first failure with a sandbox; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Why the newest policy of a sandbox is not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<ApplyError> for ApiError {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Agent(error) => error.into(),
            ApplyError::Store(error) => error.into(),
        }
    }
}

/// Sends the newest policy of a sandbox, unless the agent has it. Returns once it is applied; may be dropped at any moment.
pub async fn apply(app: &App, id: &str) -> Result<(), ApplyError> {
    let _lock = app.policy_locks.lock(id).await;
    // Again where the agent turns out to have a newer version than any that was made here: the store has then raised its own
    // above it. Also where another change came in meanwhile.
    while let Some(wanted) = app.store.sandboxes.wanted_policy(id).await?.filter(|wanted| wanted.state.is_pending()) {
        let (version, known_error) = (wanted.state.version, wanted.state.error.clone());
        let result = app.agent.set_network(id, &wanted.network()).await;
        app.metrics.agent_call("network", result.is_ok());
        match result {
            Ok(held) if held.version >= version => app.store.sandboxes.note_policy(id, held.version).await?,
            Ok(held) => {
                let problem = format!("network: version {} was sent, {} is held", version, held.version);
                return Err(AgentError::Malformed(problem).into());
            }
            Err(error) => {
                let reason = reason(&error);
                // A write each time would be one every second for every sandbox, while the agent is away.
                if known_error.as_deref() != Some(reason) {
                    app.store.sandboxes.note_policy_error(id, version, reason).await?;
                }
                return Err(error.into());
            }
        }
    }
    Ok(())
}

/// Before a sandbox starts to run: what is stopped must not run under an older policy than its newest, not for a moment. Of
/// one that runs already the worker goes on trying, so a failure is no reason to refuse what was asked for.
pub async fn before_start(app: &App, row: &SandboxRow) -> Result<(), ApplyError> {
    if !row.network.is_pending() {
        return Ok(());
    }
    match apply(app, &row.id).await {
        Err(error) if matches!(row.state, State::Ready | State::Checkpointing) => {
            tracing::debug!(sandbox = row.id, error = chain(&error), "network policy not applied; it stays pending");
            Ok(())
        }
        result => result,
    }
}

/// What the tenant is told of a failure.
fn reason(error: &AgentError) -> &str {
    match error {
        AgentError::Refused { body, .. } => &body.message,
        _ => "The host that runs the sandbox does not respond; it is tried again until it does",
    }
}

/// Sends what is pending, until it is applied.
///
/// While the agent is away each round finds that out with one attempt. What fails although the agent is there is tried
/// again after pauses that grow, each sandbox by itself, and from the beginning when its policy changes.
#[derive(Debug)]
pub struct PolicyWorker {
    app: App,
    news: News,
    failures: HashMap<String, Failures>,
}

/// Of one version of one sandbox's policy.
#[derive(Debug, Clone, Copy)]
struct Failures {
    version: u64,
    count: u32,
    not_before: Timestamp,
}

impl PolicyWorker {
    /// One that has seen nothing fail.
    pub fn new(app: App) -> Self {
        Self { app, news: News::unknown(), failures: HashMap::new() }
    }

    /// The same, told when there is something new.
    pub fn with_news(self, news: News) -> Self {
        Self { news, ..self }
    }

    /// Rounds at the interval of the synchronisation until `stop` changes; those that would find nothing new are left out.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let interval = self.app.settings.timing.sync;
        loop {
            let round = async {
                if let Err(error) = self.round().await {
                    tracing::error!(error = chain(&error), "pending network policies not read");
                }
                tokio::time::sleep(interval).await;
                if self.failures.is_empty() {
                    self.news.wait(interval * MOST_LEFT_OUT).await;
                }
            };
            tokio::select! {
                () = round => {}
                _ = stop.changed() => return,
            }
        }
    }

    /// Tries each pending policy whose pause is over, once.
    pub async fn round(&mut self) -> Result<(), StoreError> {
        let pending = self.app.store.sandboxes.pending_policies().await?;
        let current: HashSet<(&str, u64)> = pending.iter().map(|(id, version)| (id.as_str(), *version)).collect();
        self.failures.retain(|id, failures| current.contains(&(id.as_str(), failures.version)));
        let now = self.app.clock.now();
        let failures = &self.failures;
        let mut due: Vec<(String, u64)> = pending
            .iter()
            .filter(|(id, _)| failures.get(id).is_none_or(|failures| failures.not_before <= now))
            .cloned()
            .collect();

        let mut running = JoinSet::new();
        loop {
            while running.len() < AT_ONCE
                && let Some((id, version)) = due.pop()
            {
                let app = self.app.clone();
                running.spawn(async move { (apply(&app, &id).await, id, version) });
            }
            match running.join_next().await {
                None => return Ok(()),
                Some(Ok((Ok(()), id, version))) => tracing::info!(sandbox = id, version, "pending policy applied"),
                // The agent is away: so it is for the rest.
                Some(Ok((Err(ApplyError::Agent(AgentError::Unreachable { .. })), ..))) => due.clear(),
                Some(Ok((Err(error), id, version))) => self.note_failure(id, version, &error),
                Some(Err(panic)) => tracing::error!(%panic, "an attempt to apply a policy ended early"),
            }
        }
    }

    fn note_failure(&mut self, id: String, version: u64, error: &ApplyError) {
        let count = self.failures.get(&id).map_or(0, |failures| failures.count).saturating_add(1);
        let pause = FIRST_PAUSE.saturating_mul(1 << (count - 1).min(6)).min(LONGEST_PAUSE);
        tracing::warn!(sandbox = id, version, ?pause, error = chain(error), "network policy not applied yet");
        let not_before = self.app.clock.now().saturating_add(pause).unwrap_or(Timestamp::MAX);
        self.failures.insert(id, Failures { version, count, not_before });
    }
}
