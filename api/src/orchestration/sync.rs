//! Keeps the store in step with the agent.
//!
//! A round reads the rows first and asks the agent second. So a row that the agent does not list has really lost its
//! sandbox: had it been created after the rows were read, it would not be among them. What follows from each pair:
//!
//! | row | agent | then |
//! |---|---|---|
//! | being started, resumed or removed by a process that lives | anything | left alone |
//! | any but failed | lists it | the row takes over state, deadline, lifecycle, ports, error |
//! | any | says that it cannot read it | left alone, until an operator has seen to it |
//! | any but failed | does not list it | destroyed: its time was over, or it was removed |
//! | failed | lists it failed | stays, for the tenant to see why |
//! | failed | does not list it | stays until its deadline, and for a while at most, then destroyed |
//! | failed, destroyed, none | lists it, twice in a row | an orphan: the agent is told to remove it |
//!
//! Twice in a row, because a row may have been read just before it was written. For the same reason a row takes a report
//! over only if it has not moved on since: the report may be older than that.
//!
//! A network policy is never taken over: what tenants want stands here. What follows from the agent's version of it is in
//! [`crate::store::sandbox_network`], and [`super::network`] sends what is not in force.
//!
//! Before all this the agent is told of API keys that were revoked, whose sessions it ends, and of teams whose [`allowance`]
//! has changed. What it was told it keeps.
//!
//! A stopped sandbox is listed like any other. Checkpoints follow in the same round, by [`checkpoint_sync`], and volumes now
//! and then, by [`super::volume_sync`]; builds of templates' versions by [`super::build_sync`]. What was stopped for long goes by
//! [`retention`]. Which sandbox has a volume follows from the states of sandboxes.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::StoreError;
use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::{self, Allowance, OnTimeout, SandboxList, SandboxState};
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::TeamId;
use tokio::sync::watch;

use super::allowance;
use super::build;
use super::build_sync::BuildSync;
use super::checkpoint_sync::CheckpointSync;
use super::news::{MOST_LEFT_OUT, News};
use super::retention;
use super::sync_error::SyncError;
use super::volume_sync::VolumeSync;
use crate::state::App;
use crate::store::sandbox_events::DeletionReason;
use crate::store::sandbox_row::{SandboxRow, State};

/// How many rounds pass between two looks at the agent's templates.
const CATALOG_EVERY: u32 = 30;

/// How many rounds pass until the agent is told all allowances again: one that was on its way with a start may have come late,
/// or from a process that was started with other plans and is gone.
const ALLOW_EVERY: u32 = 30;
/// How many allowances go in one request: less than 512 KiB.
const ALLOW_AT_ONCE: usize = 1000;

/// How many rounds pass between two counts of what sandboxes hold of the disk: of a busy one it changes all the time, and
/// each change would be a write.
const RETAINED_EVERY: u32 = 10;

/// How many rounds pass between two looks for what was stopped for long.
const RETENTION_EVERY: u32 = 60;

/// The agent's longest life of a session, and a day for clocks that differ.
const SESSIONS_LIVE: SignedDuration = SignedDuration::from_hours(31 * 24);

/// The task's memory from one round to the next.
#[derive(Debug)]
pub struct Synchronizer {
    app: App,
    news: News,
    /// What the last round thought to be orphans.
    suspects: HashSet<String>,
    /// The revoked keys that the agent was told of last.
    revoked: Vec<String>,
    /// The allowances that the agent was told last.
    allowed: Vec<Allowance>,
    checkpoints: CheckpointSync,
    volumes: VolumeSync,
    builds: BuildSync,
    rounds_to_catalog: u32,
    rounds_to_retained: u32,
    rounds_to_allow: u32,
    rounds_to_retention: u32,
    /// Whether the last round went well, to log changes only.
    healthy: Option<bool>,
}

impl Synchronizer {
    /// One that has seen nothing yet.
    pub fn new(app: App) -> Self {
        let checkpoints = CheckpointSync::default();
        Self {
            app,
            news: News::unknown(),
            suspects: HashSet::new(),
            revoked: Vec::new(),
            allowed: Vec::new(),
            checkpoints,
            volumes: VolumeSync::default(),
            builds: BuildSync::default(),
            rounds_to_catalog: 0,
            rounds_to_retained: 0,
            rounds_to_allow: 0,
            rounds_to_retention: 0,
            healthy: None,
        }
    }

    /// The same, told when there is something new.
    pub fn with_news(self, news: News) -> Self {
        Self { news, ..self }
    }

    /// Rounds at the configured interval until `stop` changes; those that would find nothing new are left out.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        loop {
            let started = Instant::now();
            let result = self.round().await;
            self.note(&result, started);
            self.app.rate_limits.prune();
            self.app.team_rate_limits.prune();
            self.app.accounts.limits.prune();
            self.app.operators.prune();
            tokio::select! {
                () = self.rest() => {}
                _ = stop.changed() => return,
            }
        }
    }

    /// Until the next round. Those that would find nothing new are left out, and pass all the same.
    async fn rest(&mut self) {
        let interval = self.app.settings.timing.sync;
        tokio::time::sleep(interval).await;
        if self.healthy != Some(true) || !self.is_settled() {
            return;
        }
        let began = Instant::now();
        self.news.wait(interval * MOST_LEFT_OUT).await;
        // Mostly a start that is under way: its caller, who waits, comes first.
        tokio::time::sleep(interval / 2).await;
        let left_out = began.elapsed().as_micros() / interval.as_micros().max(1);
        self.pass(u32::try_from(left_out).unwrap_or(u32::MAX));
    }

    /// Whether the last round left nothing for the next one to settle.
    fn is_settled(&self) -> bool {
        self.suspects.is_empty() && self.checkpoints.is_settled() && self.builds.is_settled()
    }

    /// Counts rounds that were left out.
    fn pass(&mut self, rounds: u32) {
        for rounds_to in [
            &mut self.rounds_to_catalog,
            &mut self.rounds_to_retained,
            &mut self.rounds_to_allow,
            &mut self.rounds_to_retention,
        ] {
            *rounds_to = rounds_to.saturating_sub(rounds);
        }
        self.volumes.pass(rounds);
        self.builds.pass(rounds);
    }

    /// One round.
    pub async fn round(&mut self) -> Result<(), SyncError> {
        // An agent that cannot write this down can be followed all the same.
        let revoked = self.revoke().await;
        let allowed = self.allow().await;
        self.follow_agent().await?;
        revoked.and(allowed)
    }

    async fn follow_agent(&mut self) -> Result<(), SyncError> {
        // Sandboxes are followed all the same where templates are not.
        let templates = self.follow_templates().await;
        self.follow_sandboxes().await?;
        templates
    }

    async fn follow_templates(&mut self) -> Result<(), SyncError> {
        if self.rounds_to_catalog == 0 {
            catalog(&self.app).await?;
            self.rounds_to_catalog = CATALOG_EVERY;
        }
        self.rounds_to_catalog -= 1;
        Ok(())
    }

    async fn follow_sandboxes(&mut self) -> Result<(), SyncError> {
        // While it does not respond, nothing is read for its sake.
        if self.healthy == Some(false) {
            self.app.agent.host().await?;
        }
        // In this order: a row whose task has ended by now was created at the agent before it is asked.
        let rows = self.app.store.sandboxes.existing().await?;
        let in_flight = self.app.in_flight.snapshot();
        let others = self.app.store.processes.others(self.app.clock.now()).await?;
        let is_others = |row: &SandboxRow| row.process.as_ref().is_some_and(|process| others.contains(process));
        let SandboxList { sandboxes: listed, unreadable } = self.app.agent.list().await?;
        let listed: HashMap<&str, &agent::Sandbox> =
            listed.iter().map(|sandbox| (sandbox.id.as_str(), sandbox)).collect();

        let is_known = |row: &&SandboxRow| !unreadable.contains(&row.id);
        for row in rows.iter().filter(|row| !in_flight.contains(&row.id) && !is_others(row)).filter(is_known) {
            self.settle(row, listed.get(row.id.as_str()).copied()).await?;
        }
        if self.rounds_to_retained == 0 {
            self.count_retained(&rows, &listed).await?;
            self.rounds_to_retained = RETAINED_EVERY;
        }
        self.rounds_to_retained -= 1;
        if self.rounds_to_retention == 0 {
            retention::round(&self.app, &rows).await?;
            self.rounds_to_retention = RETENTION_EVERY;
        }
        self.rounds_to_retention -= 1;
        let owned: HashMap<&str, State> = rows.iter().map(|row| (row.id.as_str(), row.state)).collect();
        self.remove_orphans(&owned, &listed).await?;
        self.checkpoints.round(&self.app, &listed).await?;
        self.volumes.round(&self.app).await?;
        self.builds.round(&self.app).await
    }

    /// Has the agent end the sessions of keys that were revoked, and of people who signed out, since it was told last.
    async fn revoke(&mut self) -> Result<(), SyncError> {
        let now = self.app.clock.now();
        let since = now.saturating_sub(SESSIONS_LIVE).unwrap_or(Timestamp::MIN);
        let mut revoked = self.app.store.keys.revoked_since(since, now).await?;
        revoked.extend(self.app.store.login_sessions.ended_since(since, now).await?);
        if revoked != self.revoked {
            self.app.agent.revoke(revoked.clone()).await?;
            self.revoked = revoked;
        }
        Ok(())
    }

    /// Tells the agent the allowances of teams that have sandboxes, as far as they differ from what it was told, and now and then
    /// also which sizes there are.
    async fn allow(&mut self) -> Result<(), SyncError> {
        let tells_all = self.rounds_to_allow == 0;
        if tells_all {
            self.allowed.clear();
            self.rounds_to_allow = ALLOW_EVERY;
        }
        self.rounds_to_allow -= 1;
        let teams = self.app.store.teams.with_sandboxes().await?;
        let wanted: Vec<Allowance> = teams.iter().map(|team| allowance::of(&self.app, team)).collect();
        let told: HashMap<&TeamId, &Allowance> = self.allowed.iter().map(|one| (&one.team, one)).collect();
        // That a team is disabled is said every time: what was on its way with a start may have come after it.
        let is_news = |one: &&Allowance| one.disabled || told.get(&one.team) != Some(one);
        let changed: Vec<Allowance> = wanted.iter().filter(is_news).cloned().collect();
        for some in changed.chunks(ALLOW_AT_ONCE) {
            self.app.agent.allow(some.to_vec()).await?;
        }
        self.allowed = wanted;
        if tells_all {
            self.app.agent.offer(&self.app.offer.sizes()).await?;
        }
        Ok(())
    }

    /// Takes over how much of the disk each sandbox holds.
    async fn count_retained(
        &self,
        rows: &[SandboxRow],
        listed: &HashMap<&str, &agent::Sandbox>,
    ) -> Result<(), StoreError> {
        let retained = |row: &SandboxRow| listed.get(row.id.as_str()).map_or(0, |report| report.retained_bytes);
        let changed: Vec<_> = rows
            .iter()
            .filter(|row| retained(row) != row.retained_bytes)
            .map(|row| (row.id.as_str(), retained(row)))
            .collect();
        if changed.is_empty() { Ok(()) } else { self.app.store.sandboxes.retain(&changed).await }
    }

    /// One row against what the agent says of it.
    async fn settle(&self, row: &SandboxRow, report: Option<&agent::Sandbox>) -> Result<(), SyncError> {
        let sandboxes = &self.app.store.sandboxes;
        let now = self.app.clock.now();
        match (row.state, report) {
            (State::Failed, None) => {
                let ended = row.stopped_at.unwrap_or(row.created_at);
                let retention = self.app.settings.timing.failed_retention;
                let is_over = row.deadline.is_some_and(|deadline| deadline <= now);
                if is_over || now.duration_since(ended).unsigned_abs() > retention {
                    sandboxes.destroy(&row.id, DeletionReason::Expired, now).await?;
                }
            }
            (State::Failed, Some(_)) => {}
            (_, Some(report)) if row.matches(report) => {}
            (_, Some(report)) => sandboxes.mirror_unless_moved(report, row, now).await?,
            (_, None) => {
                tracing::info!(sandbox = row.id, "sandbox is gone at the agent");
                sandboxes.destroy(&row.id, why_gone(row, now), now).await?;
            }
        }
        Ok(())
    }

    /// Sandboxes of the agent that no row stands for.
    async fn remove_orphans(
        &mut self,
        owned: &HashMap<&str, State>,
        listed: &HashMap<&str, &agent::Sandbox>,
    ) -> Result<(), SyncError> {
        let mut suspects = HashSet::new();
        for (&id, report) in listed {
            let wanted = match owned.get(id) {
                // Its record at the agent is what a failed row is kept for; a live sandbox is not.
                Some(State::Failed) => report.state == SandboxState::Failed,
                Some(_) => true,
                None => false,
            };
            if wanted || self.app.in_flight.contains(id) {
                continue;
            }
            suspects.insert(id.to_owned());
        }
        for id in suspects.intersection(&self.suspects) {
            // It may have got its row between the two readings of this round.
            if !owned.contains_key(id.as_str())
                && !matches!(self.app.store.sandboxes.state(id).await?, None | Some(State::Destroyed))
            {
                continue;
            }
            if let Some(guard) = self.app.in_flight.enter(id) {
                tracing::warn!(sandbox = id, "removing a sandbox that belongs to nobody");
                let (agent, id) = (self.app.agent.clone(), id.clone());
                tokio::spawn(async move {
                    let _in_flight = guard;
                    if let Err(error) = agent.delete(&id).await
                        && !error.is_not_found()
                    {
                        tracing::warn!(sandbox = id, error = chain(&error), "orphan not removed; will be tried again");
                    }
                });
            }
        }
        self.suspects = suspects;
        Ok(())
    }

    /// Logs a change from well to unwell and back, not every round.
    fn note(&mut self, result: &Result<(), SyncError>, started: Instant) {
        let healthy = result.is_ok();
        self.app.metrics.sync(healthy, started.elapsed());
        if self.healthy == Some(healthy) {
            return;
        }
        self.healthy = Some(healthy);
        match result {
            Ok(()) => tracing::info!("synchronized with the agent"),
            Err(error) => tracing::warn!(error = chain(error), "not synchronized with the agent; retrying"),
        }
    }
}

/// Takes over the agent's templates, and what it gives one sandbox.
pub async fn catalog(app: &App) -> Result<(), SyncError> {
    app.offer.cap(app.agent.host().await?.vcpus_max);
    // In this order: what became runnable since is not taken for lost.
    let known = app.store.templates.runnable().await?;
    let templates = app.agent.templates().await?;
    let deleted = app.store.templates.replace(&known, &templates).await?;
    build::remove(app, deleted);
    Ok(())
}

/// When requests had the agent asked for its templates, to ask no more often than one of them needs.
#[derive(Debug, Default)]
pub struct CatalogRequests(tokio::sync::Mutex<Option<(Instant, Result<(), ApiError>)>>);

/// How often requests have the agent asked for its templates, at most.
const CATALOG_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Takes over what the agent has, as it is after this call began. Whoever calls at the same time shares one look, and the next
/// look waits until the last is a while ago: names that lead nowhere cost no more than that.
///
/// # Errors
///
/// Those of the database and the agent.
pub async fn fresh_catalog(app: &App) -> Result<(), ApiError> {
    let called = Instant::now();
    let mut last = app.catalog_requests.0.lock().await;
    if let Some((began, result)) = &*last {
        if *began >= called {
            return result.clone();
        }
        tokio::time::sleep(CATALOG_AT_MOST_EVERY.saturating_sub(began.elapsed())).await;
    }
    let began = Instant::now();
    let result = catalog(app).await.map_err(ApiError::from);
    *last = Some((began, result.clone()));
    result
}

/// The newest state of one sandbox: `row` brought up to date with the agent, `None` when it is gone. Without a response from
/// the agent, what was last known.
pub async fn refresh(app: &App, row: SandboxRow) -> Result<Option<SandboxRow>, StoreError> {
    // A failed sandbox changes no more, and one in flight belongs to its task.
    if row.state == State::Failed || is_in_flight(app, &row).await? {
        return Ok(Some(row));
    }
    match app.agent.show(&row.id).await {
        Ok(report) if row.matches(&report) => Ok(Some(row)),
        Ok(report) => {
            app.store.sandboxes.mirror_unless_moved(&report, &row, app.clock.now()).await?;
            app.store.sandboxes.get(&row.team_id, &row.id).await
        }
        Err(error) if error.is_not_found() => {
            let now = app.clock.now();
            app.store.sandboxes.destroy(&row.id, why_gone(&row, now), now).await?;
            Ok(None)
        }
        Err(error) => {
            tracing::debug!(sandbox = row.id, error = chain(&error), "responding with what the database has");
            Ok(Some(row))
        }
    }
}

/// Why the agent does not have a sandbox any more.
fn why_gone(row: &SandboxRow, now: Timestamp) -> DeletionReason {
    let is_over = row.lifecycle.on_timeout == OnTimeout::Kill && row.effective_deadline().is_some_and(|end| end <= now);
    if is_over { DeletionReason::TimedOut } else { DeletionReason::Gone }
}

/// Whether a task, of this process or another that lives, is at work on the sandbox.
pub async fn is_in_flight(app: &App, row: &SandboxRow) -> Result<bool, StoreError> {
    if app.in_flight.contains(&row.id) {
        return Ok(true);
    }
    match &row.process {
        Some(process) => Ok(app.store.processes.others(app.clock.now()).await?.contains(process)),
        None => Ok(false),
    }
}

/// Takes over at once what the agent says of a team's sandboxes, and not only in the next round: of those that started or
/// ended of themselves.
pub async fn follow_team(app: &App, team_id: &TeamId) -> Result<(), SyncError> {
    let rows = app.store.sandboxes.existing().await?;
    let listed = app.agent.list().await?.sandboxes;
    for row in rows.iter().filter(|row| row.team_id == *team_id && row.state != State::Failed) {
        let Some(report) = listed.iter().find(|report| *report.id == *row.id && !row.matches(report)) else { continue };
        if !is_in_flight(app, row).await? {
            app.store.sandboxes.mirror_unless_moved(report, row, app.clock.now()).await?;
        }
    }
    Ok(())
}

/// After work on a sandbox that went wrong: has its row say again what the agent says.
pub async fn follow(app: &App, team_id: &TeamId, id: &str) -> Result<Option<SandboxRow>, StoreError> {
    match app.store.sandboxes.get(team_id, id).await? {
        Some(row) => refresh(app, row).await,
        None => Ok(None),
    }
}
