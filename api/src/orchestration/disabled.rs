//! Stops what runs of teams that operators have disabled: sandboxes are paused, builds cancelled. Nothing is deleted.
//!
//! That a team is disabled stands in its row, and whatever follows is done again until it is so:
//!
//! | what happens | what follows |
//! |---|---|
//! | a sandbox runs | it is paused, with its memory, as at a deadline: whatever the quota, and whatever is open on its volumes |
//! | it is still starting, or being resumed | it is paused once it runs |
//! | the agent refuses, or is away | it is tried again, ever later, up to a minute |
//! | this process dies meanwhile | the row becomes what the agent says, and the next process goes on |
//! | a build is under way, or waits | it is cancelled; it can be asked for again |
//! | the team is enabled meanwhile | nothing more is stopped; what is stopped is resumed when its team asks for that |
//!
//! Until then nobody gets through to it: the agent is told so with the team's [`super::allowance`], and keeps what starts of
//! itself from starting.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use sandpiper_db::StoreError;
use sandpiper_db::audit::Entry;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::TeamId;
use tokio::sync::watch;

use super::news::News;
use super::{Progress, build, pause};
use crate::state::App;
use crate::store::sandbox_row::SandboxRow;
use crate::store::templates::versions::VersionRow;

/// From one round to the next.
const PERIOD: Duration = Duration::from_secs(1);
/// While nothing is left to stop, and there is no news.
const LONGEST_REST: Duration = Duration::from_secs(10);
/// Sandboxes that are paused at the same time: each is written to the host's disk.
const AT_ONCE: usize = 4;
/// After the first failure with one thing; each further one doubles it.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(1);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(60);
/// What is in the audit in place of a key.
const ACTOR: &str = "disabled";

/// When something is tried again that failed.
#[derive(Debug, Clone, Copy)]
struct Retry {
    at: Timestamp,
    pause: SignedDuration,
}

/// The task's memory from one round to the next.
#[derive(Debug)]
pub struct Stopper {
    app: App,
    /// By ids of sandboxes and versions.
    retries: HashMap<String, Retry>,
}

impl Stopper {
    /// One that has seen nothing yet.
    pub fn new(app: App) -> Self {
        Self { app, retries: HashMap::new() }
    }

    /// Rounds until `stop` changes; while there is nothing to stop, only when there is `news`.
    pub async fn run(mut self, mut news: News, mut stop: watch::Receiver<bool>) {
        loop {
            let rounds = async {
                let is_done = self.round().await.unwrap_or_else(|error| {
                    tracing::error!(error = chain(&error), "what runs of disabled teams is not stopped yet");
                    false
                });
                tokio::time::sleep(PERIOD).await;
                if is_done {
                    news.wait(LONGEST_REST).await;
                }
            };
            tokio::select! {
                () = rounds => {}
                _ = stop.changed() => return,
            }
        }
    }

    /// Stops what can be stopped now; whether nothing of a disabled team is left that runs.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn round(&mut self) -> Result<bool, StoreError> {
        let live = self.app.store.sandboxes.live_of_disabled_teams().await?;
        let builds = self.app.store.templates.under_way_of_disabled_teams().await?;
        let is_done = live.is_empty() && builds.is_empty();
        let ids = live.iter().map(|row| row.id.as_str()).chain(builds.iter().map(|(_, row)| row.id.as_str()));
        let ids: Vec<&str> = ids.collect();
        self.retries.retain(|id, _| ids.contains(&id.as_str()));

        let now = self.app.clock.now();
        let is_due = |id: &str| self.retries.get(id).is_none_or(|retry| retry.at <= now);
        let live: Vec<_> = live.iter().filter(|row| is_due(&row.id)).collect();
        let builds: Vec<_> = builds.iter().filter(|(_, row)| is_due(&row.id)).collect();
        let mut failed = Vec::new();
        for some in live.chunks(AT_ONCE) {
            let paused: Vec<_> = some.iter().map(|row| pause_one(&self.app, row)).collect();
            let paused = some.iter().zip(join_all(paused).await);
            failed.extend(paused.filter_map(|(row, paused)| Some((row.id.as_str(), paused.err()?))));
        }
        for (team, row) in builds {
            if let Err(error) = cancel_one(&self.app, team, row).await {
                failed.push((row.id.as_str(), error));
            }
        }
        for (id, error) in failed {
            let pause = self.retries.get(id).map_or(FIRST_PAUSE, |retry| (retry.pause * 2).min(LONGEST_PAUSE));
            tracing::warn!(id, reason = error.message(), "of a disabled team, and not stopped; trying again");
            let at = now.saturating_add(pause).unwrap_or(Timestamp::MAX);
            self.retries.insert(id.to_owned(), Retry { at, pause });
        }
        Ok(is_done)
    }
}

async fn pause_one(app: &App, row: &SandboxRow) -> Result<(), ApiError> {
    let Some(progress) = pause::unless_under_way(app, row).await? else { return Ok(()) };
    let status = match progress {
        Progress::Done => 200,
        Progress::UnderWay => 202,
    };
    tracing::info!(sandbox = row.id, team = %row.team_id, "paused, because its team is disabled");
    write_down(app, &row.team_id, "POST /v1/sandboxes/{id}/pause", &row.id, status).await;
    Ok(())
}

async fn cancel_one(app: &App, team: &TeamId, row: &VersionRow) -> Result<(), ApiError> {
    build::cancel(app, row).await?;
    tracing::info!(version = row.id.as_str(), %team, "build cancelled, because its team is disabled");
    write_down(app, team, "POST /v1/templates/{slug}/versions/{version}/cancel", &row.id, 202).await;
    Ok(())
}

async fn write_down(app: &App, team_id: &TeamId, action: &str, resource: &str, status: u16) {
    let entry = Entry {
        at: app.clock.now(),
        team_id: team_id.to_string(),
        key_id: ACTOR.to_owned(),
        user_id: None,
        request_id: "-".to_owned(),
        action: action.to_owned(),
        resource: Some(resource.to_owned()),
        status,
    };
    app.store.audit.keep(vec![entry]).await;
}
