//! One version of a template built, cancelled or removed at the agent.
//!
//! The row is there before the agent is asked, and holds what it is asked, sealed, until it has it:
//!
//! | what happens | what follows |
//! |---|---|
//! | the agent takes the build | the row says what the agent says, from round to round: [`super::build_sync`] |
//! | the agent refuses it | the row goes, and the request is refused |
//! | the agent is away, the call breaks, or this process dies meanwhile | the row stays `queued`, and the agent is asked again |
//! | a build is to be cancelled, and the agent is away | it is told again until it has ended it |
//! | a version is removed | the row is `deleted` at once, and the agent is told until it does not list it any more |

use sandpiper_http::error::ApiError;
use sandpiper_protocol::agent::{Network, NetworkPolicy, RuntimeBaseline};
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::ids::VersionId;
use sandpiper_protocol::template::{BuildError, BuildSource, StartBuild, StartCommand};

use crate::agent_client::AgentError;
use crate::auth::Caller;
use crate::errors;
use crate::state::App;
use crate::store::idempotency::Claim;
use crate::store::templates::TemplateRow;
use crate::store::templates::versions::{NewVersion, VersionRow};

/// A version to build.
#[derive(Debug)]
pub struct Wanted {
    pub id: VersionId,
    pub source: BuildSource,
    /// The version that its steps begin with.
    pub base: Option<VersionId>,
    pub baseline: RuntimeBaseline,
    pub disk_gib: u32,
    pub start: Option<StartCommand>,
    pub tags: Vec<String>,
    pub policy: NetworkPolicy,
}

/// Begins to build a version of `template`.
///
/// # Errors
///
/// 422 over the quota, 429 with too many under way, and the agent's.
pub async fn start(
    app: &App,
    caller: &Caller,
    template: &TemplateRow,
    wanted: Wanted,
    claim: Option<&Claim>,
) -> Result<VersionRow, ApiError> {
    let limits = &app.offer.of(caller.team.plan);
    let order = StartBuild {
        id: wanted.id,
        team: caller.team.id.clone(),
        slug: template.slug.clone(),
        source: wanted.source,
        baseline: wanted.baseline,
        disk_gib: wanted.disk_gib,
        sandbox_disk_gib: limits.root_disk_gib,
        start: wanted.start,
        network: Network { version: 1, policy: wanted.policy },
        limits: limits.build.limits(),
    };
    let new = NewVersion {
        id: order.id.clone(),
        template: template.id.clone(),
        source: kind(&order.source),
        baseline: order.baseline,
        disk_gib: order.disk_gib,
        start: order.start.clone(),
        tags: wanted.tags,
        base: wanted.base,
        uploads: order.source.uploads().into_iter().cloned().collect(),
        sealed_order: seal(app, &order)?,
        seconds: limits.build.seconds,
        created_at: app.clock.now(),
    };
    // Before the row is there, so that the synchronisation never sees it without.
    let _in_flight = app.in_flight.enter(&new.id).ok_or_else(|| ApiError::internal("version id made twice"))?;
    let created = app.store.templates.create_version(&caller.team.id, &new, &limits.quota, claim).await;
    created.map_err(|error| errors::not_queued(error, template, limits))?;

    let started = app.agent.start_build(&order).await;
    app.metrics.agent_call("start_build", started.is_ok());
    match started {
        Ok(build) => app.store.templates.mirror(&[&build], app.clock.now()).await?,
        Err(error @ AgentError::Refused { .. }) => {
            app.store.templates.forget(&new.id).await?;
            return Err(error.into());
        }
        Err(error) => {
            tracing::warn!(
                version = new.id.as_str(),
                error = chain(&error),
                "build not begun; the agent is asked again"
            );
            app.store.templates.leave(&new.id).await?;
        }
    }
    find(app, &new.id).await
}

/// Has a build ended; the version as it is then. What the agent cannot be told now it is told later.
///
/// # Errors
///
/// 409 on one that has ended.
pub async fn cancel(app: &App, row: &VersionRow) -> Result<VersionRow, ApiError> {
    if !app.store.templates.ask_cancel(&row.id).await? {
        let row = find(app, &row.id).await?;
        return Err(ApiError::invalid_state(format!("The build has ended; the version {} is {}", row.id, row.state)));
    }
    // While the agent is being asked to begin, by whichever process, it is told in a later round.
    let now = find(app, &row.id).await?;
    let others = app.store.processes.others(app.clock.now()).await?;
    let is_others = now.process.as_ref().is_some_and(|process| others.contains(process));
    if !is_others && let Some(_in_flight) = app.in_flight.enter(&row.id) {
        let row = find(app, &row.id).await?;
        if let Err(error) = settle_cancelled(app, &row).await? {
            tracing::warn!(
                version = row.id.as_str(),
                error = chain(&error),
                "build not cancelled; will be tried again"
            );
        }
    }
    find(app, &row.id).await
}

/// The newest state of a version whose build goes on: `row` brought up to date with the agent. Without a response from the
/// agent, what was last known.
///
/// # Errors
///
/// Those of the database.
pub async fn refresh(app: &App, row: VersionRow) -> Result<VersionRow, ApiError> {
    let is_at_agent = row.state.is_under_way() && row.sealed_order.is_none() && !row.cancel_asked;
    if !is_at_agent || app.in_flight.contains(&row.id) {
        return Ok(row);
    }
    let Ok(build) = app.agent.show_build(&row.id).await else { return Ok(row) };
    if !row.matches(&build) {
        app.store.templates.mirror(&[&build], app.clock.now()).await?;
    }
    find(app, &row.id).await
}

/// Tells the agent to end a build, and takes over what it says; or why it cannot be told.
///
/// # Errors
///
/// Those of the database.
pub async fn settle_cancelled(app: &App, row: &VersionRow) -> Result<Result<(), AgentError>, sandpiper_db::StoreError> {
    let cancelled = app.agent.cancel_build(&row.id).await;
    app.metrics.agent_call("cancel_build", cancelled.is_ok());
    match cancelled {
        Ok(build) => app.store.templates.mirror(&[&build], app.clock.now()).await?,
        // The agent never had it, or has lost it: either way nothing goes on.
        Err(error) if error.is_not_found() => app.store.templates.cancel(&row.id, app.clock.now()).await?,
        Err(error) => return Ok(Err(error)),
    }
    Ok(Ok(()))
}

/// Has the agent remove versions whose rows are `deleted`. What fails now is done later.
pub fn remove(app: &App, versions: impl IntoIterator<Item = VersionId>) {
    for id in versions {
        let Some(guard) = app.in_flight.enter(&id) else { continue };
        let agent = app.agent.clone();
        tokio::spawn(async move {
            let _in_flight = guard;
            if let Err(error) = agent.delete_template(&id).await
                && !error.is_not_found()
            {
                tracing::warn!(
                    version = id.as_str(),
                    error = chain(&error),
                    "version not removed; will be tried again"
                );
            }
        });
    }
}

/// What the agent is asked, as it is kept until it has it.
fn seal(app: &App, order: &StartBuild) -> Result<String, ApiError> {
    let plain =
        zeroize::Zeroizing::new(serde_json::to_vec(order).map_err(|error| ApiError::internal(error.to_string()))?);
    app.vault.seal(&order.id, &plain).map_err(|error| ApiError::internal(error.to_string()))
}

/// What the agent is to be asked for `row`; or why it cannot be read.
pub fn unseal(app: &App, row: &VersionRow, sealed: &str) -> Result<StartBuild, BuildError> {
    let unreadable = || BuildError {
        code: "host_failed".to_owned(),
        message: "What was asked for cannot be read any more; build it again".to_owned(),
        step: None,
    };
    let plain = app.vault.unseal(&row.id, sealed).map_err(|_| unreadable())?;
    serde_json::from_slice(&plain).map_err(|_| unreadable())
}

async fn find(app: &App, id: &VersionId) -> Result<VersionRow, ApiError> {
    let row = app.store.templates.version_by_id(id).await?;
    row.ok_or_else(|| ApiError::conflict(format!("The version {id} was deleted a moment ago")))
}

/// What a version is made of, in one word.
fn kind(source: &BuildSource) -> &'static str {
    match source {
        BuildSource::Checkpoint { .. } => "checkpoint",
        BuildSource::Sandbox { .. } => "sandbox",
        BuildSource::Image { .. } => "image",
        BuildSource::Archive { .. } => "archive",
        BuildSource::Dockerfile(_) => "dockerfile",
        BuildSource::Steps(_) => "steps",
    }
}
