//! Versions of templates: asked for, built, ready, deleted. What the agent says of a build is taken over by [`Templates::mirror`];
//! what has come of it is told by events: [`super::build_events`].
//!
//! ```text
//!   queued ──▶ building ──▶ warming ──▶ ready ──────┐
//!     │           │            │                    ├──DELETE──▶ deleted
//!     └───────────┴────────────┴──▶ failed, cancelled ┘
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sandpiper_db::{Statement, StoreError, Tx, count, decode_bool, decode_enum, from_ms, to_ms};
use sandpiper_protocol::agent::RuntimeBaseline;
use sandpiper_protocol::ids::{TeamId, UploadId, VersionId};
use sandpiper_protocol::template::{Build, BuildError, BuildState, ImageSettings, StartCommand};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::build_events::{self, Locked};
use super::{Removal, TemplateId, TemplateRow, Templates};
use crate::plan::Quota;
use crate::store::events::{self, NewEvent};
use crate::store::idempotency;
use crate::store::usage::{Usage, usage};

/// Versions of a team that may be under way at a time: more would only wait at the agent.
pub const MOST_UNDER_WAY: i64 = 20;

/// Tags of a template, which are listed at once.
pub const MOST_TAGS: i64 = 1000;

/// Where a version is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Queued,
    Building,
    Warming,
    Ready,
    Failed,
    Cancelled,
    Deleted,
}

impl State {
    const ALL: [State; 7] =
        [State::Queued, State::Building, State::Warming, State::Ready, State::Failed, State::Cancelled, State::Deleted];

    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Building => "building",
            State::Warming => "warming",
            State::Ready => "ready",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
            State::Deleted => "deleted",
        }
    }

    /// Whether its build goes on.
    pub fn is_under_way(self) -> bool {
        matches!(self, State::Queued | State::Building | State::Warming)
    }
}

impl From<BuildState> for State {
    fn from(state: BuildState) -> Self {
        match state {
            BuildState::Queued => State::Queued,
            BuildState::Building => State::Building,
            BuildState::Warming => State::Warming,
            BuildState::Ready => State::Ready,
            BuildState::Failed => State::Failed,
            BuildState::Cancelled => State::Cancelled,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for State {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or(())
    }
}

/// What the image of a version says of its processes, and what it was made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    pub settings: ImageSettings,
    /// What the image would start by itself.
    pub command: Option<String>,
    /// Digests by reference.
    pub images: BTreeMap<String, String>,
}

/// One immutable version of a template.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionRow {
    pub id: VersionId,
    pub template: TemplateId,
    /// 1 for the first version of the template, then one more each.
    pub number: u32,
    pub state: State,
    /// Whether the agent has it, so that it can be started.
    pub is_runnable: bool,
    /// What it is made of, in one word.
    pub source: String,
    pub baseline: RuntimeBaseline,
    /// What a sandbox of it has at least; 0 where any size will do.
    pub disk_gib: u32,
    pub start: Option<StartCommand>,
    /// That stand for it; of one that is not ready, those that will.
    pub tags: Vec<String>,
    pub report: Report,
    pub digest: Option<String>,
    /// Builds before it, while it waits.
    pub position: Option<u32>,
    pub error: Option<BuildError>,
    pub retained_bytes: u64,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// When it is to be deleted, as its team was told.
    pub expires_at: Option<Timestamp>,
    /// Number of its log's last entry.
    pub log_end: u64,
    /// Whether the agent is to be told to end it.
    pub cancel_asked: bool,
    /// What the agent is to be asked, sealed, until it has it.
    pub sealed_order: Option<String>,
    /// Who asks the agent, if that process is still alive.
    pub process: Option<String>,
}

/// A version that a request asks for.
#[derive(Debug, Clone)]
pub struct NewVersion {
    pub id: VersionId,
    pub template: TemplateId,
    pub source: &'static str,
    pub baseline: RuntimeBaseline,
    pub disk_gib: u32,
    pub start: Option<StartCommand>,
    pub tags: Vec<String>,
    /// The version that its steps begin with.
    pub base: Option<VersionId>,
    /// Files that it is made of.
    pub uploads: Vec<UploadId>,
    pub sealed_order: String,
    /// How long builds of the team's plan may take.
    pub seconds: u64,
    pub created_at: Timestamp,
}

/// Why a version was not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateVersionError {
    #[error("Template is gone")]
    NoTemplate,
    #[error("Over the team's quota")]
    OverQuota(Usage),
    #[error("The team stores all that it may")]
    StorageFull(Usage),
    #[error("Too many builds of the team are under way")]
    TooManyUnderWay,
    /// The template would have more than [`MOST_TAGS`].
    #[error("Template has too many tags")]
    TooManyTags,
    #[error("Another process took the request over, because this one was not heard of for long")]
    ClaimLost,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for CreateVersionError {
    fn from(error: sqlx::Error) -> Self {
        CreateVersionError::Store(error.into())
    }
}

/// What needs a version, by its id; another team's is not named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionUse {
    UnderWay,
    Sandbox(String),
    Checkpoint(String),
    /// A build whose steps begin with it.
    Build(String),
}

impl fmt::Display for VersionUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VersionUse::UnderWay => f.write_str("its build goes on; cancel it first"),
            VersionUse::Sandbox(id) | VersionUse::Checkpoint(id) | VersionUse::Build(id) if id.is_empty() => {
                f.write_str("another team uses it; make the template private, and try again later")
            }
            VersionUse::Sandbox(id) => write!(f, "the sandbox {id} was made from it; delete that first"),
            VersionUse::Checkpoint(id) => write!(f, "the checkpoint {id} was made from it; delete that first"),
            VersionUse::Build(id) => write!(f, "the build {id} begins with it; wait for that, or cancel it"),
        }
    }
}

/// A tag, and what it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRow {
    pub tag: String,
    pub version: VersionId,
    /// Of the version.
    pub created_at: Timestamp,
}

/// What came of tags for a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tagged {
    Done,
    NotReady,
    /// The template would have more than [`MOST_TAGS`].
    TooMany,
}

/// One page.
#[derive(Debug)]
pub struct VersionPage {
    pub versions: Vec<VersionRow>,
    /// Where the next page begins; `None` at the end.
    pub after: Option<String>,
}

const SELECT: &str = "SELECT * FROM template_versions WHERE state <> 'deleted'";

impl Templates {
    /// Inserts a row in `queued`, of a template of `team`, if `quota` has build minutes left beside what builds under way may
    /// take, and room for what is stored. A claim of an idempotency key is told its id in the same transaction.
    ///
    /// # Errors
    ///
    /// Where there is no room, or the template is gone.
    pub async fn create_version(
        &self,
        team: &TeamId,
        new: &NewVersion,
        quota: &Quota,
        claim: Option<&idempotency::Claim>,
    ) -> Result<(), CreateVersionError> {
        let mut tx = self.database.write().await?;
        if !new.tags.is_empty() {
            let mut query = Statement::new("SELECT COUNT(*) AS others FROM template_tags WHERE template_id = ");
            query.push_bind(new.template.as_str()).push(" AND tag NOT IN ").push_list(&new.tags);
            let others: i64 = query.build().fetch_one(&mut *tx).await?.try_get("others")?;
            if others.saturating_add(i64::try_from(new.tags.len()).unwrap_or(i64::MAX)) > MOST_TAGS {
                return Err(CreateVersionError::TooManyTags);
            }
        }
        let usage = usage(&mut tx, team, new.created_at).await?;
        if i64::from(usage.builds) >= MOST_UNDER_WAY {
            return Err(CreateVersionError::TooManyUnderWay);
        }
        if !usage.leaves_minutes(quota, new.seconds) {
            return Err(CreateVersionError::OverQuota(usage));
        }
        if usage.fills_storage(quota) {
            return Err(CreateVersionError::StorageFull(usage));
        }
        let inserted = sqlx::query(
            "INSERT INTO template_versions (id, template_id, number, cpu, memory_mb, created_at_ms, runnable, state, \
                 source, disk_gib, start_cmd, ready_cmd, base_version, tags, sealed_order, process) \
             SELECT $1, t.id, (SELECT COALESCE(MAX(number), 0) + 1 FROM template_versions WHERE template_id = $2), \
                 $3, $4, $5, 0, 'queued', $6, $7, $8, $9, $10, $11, $12, $13 \
             FROM templates t WHERE t.id = $2 AND t.deleted_at_ms IS NULL",
        )
        .bind(new.id.as_str())
        .bind(new.template.as_str())
        .bind(i64::from(new.baseline.cpu))
        .bind(i64::from(new.baseline.memory_mb))
        .bind(to_ms(new.created_at))
        .bind(new.source)
        .bind(i64::from(new.disk_gib))
        .bind(new.start.as_ref().map(|start| start.command.clone()))
        .bind(new.start.as_ref().and_then(|start| start.ready.clone()))
        .bind(new.base.as_ref().map(|base| base.to_string()))
        .bind(list_to_json(&new.tags))
        .bind(&new.sealed_order)
        .bind(self.own.as_str())
        .execute(&mut *tx)
        .await?;
        if inserted.rows_affected() == 0 {
            return Err(CreateVersionError::NoTemplate);
        }
        for upload in &new.uploads {
            sqlx::query(
                "INSERT INTO version_uploads (version_id, upload_id) SELECT $1, u.id FROM uploads u WHERE u.id = $2",
            )
            .bind(new.id.as_str())
            .bind(upload.as_str())
            .execute(&mut *tx)
            .await?;
        }
        if let Some(claim) = claim
            && !idempotency::name_resource(&mut tx, claim, &new.id).await?
        {
            return Err(CreateVersionError::ClaimLost);
        }
        tx.commit().await?;
        Ok(())
    }

    /// The version of a template that `reference` names: its number, its id or a tag.
    pub async fn version(&self, template: &TemplateId, reference: &str) -> Result<Option<VersionRow>, StoreError> {
        // Numbers start at 1, so 0 finds nothing. No tag is a number or an id.
        let number: i64 = reference.parse().unwrap_or(0);
        let mut query = Statement::new(SELECT);
        query.push(" AND template_id = ").push_bind(template.as_str());
        query.push(" AND (id = ").push_bind(reference).push(" OR number = ").push_bind(number);
        query.push(" OR id = (SELECT g.version_id FROM template_tags g WHERE g.tag = ").push_bind(reference);
        query.push(" AND g.template_id = ").push_bind(template.as_str()).push(")) LIMIT 1");
        Ok(self.fetch(query).await?.pop())
    }

    /// Any team's version of this id, whose template is not deleted.
    pub async fn version_by_id(&self, id: &VersionId) -> Result<Option<VersionRow>, StoreError> {
        let mut query = Statement::new(SELECT);
        query.push(" AND id = ").push_bind(id.as_str());
        Ok(self.fetch(query).await?.pop())
    }

    /// Whether a version of this template had this id, and was deleted.
    pub async fn was_deleted(&self, template: &TemplateId, id: &VersionId) -> Result<bool, StoreError> {
        let row =
            sqlx::query("SELECT 1 FROM template_versions WHERE id = $1 AND template_id = $2 AND state = 'deleted'");
        let row = row.bind(id.as_str()).bind(template.as_str()).fetch_optional(self.database.read()).await?;
        Ok(row.is_some())
    }

    /// The `limit` versions of a template, newest first, from the one that follows the number `after`; without `all`, those that
    /// can be started.
    pub async fn versions(
        &self,
        template: &TemplateId,
        all: bool,
        after: Option<&str>,
        limit: u32,
    ) -> Result<VersionPage, StoreError> {
        let mut query = Statement::new(SELECT);
        query.push(" AND template_id = ").push_bind(template.as_str());
        if !all {
            query.push(" AND runnable = 1");
        }
        if let Some(after) = after {
            query.push(" AND number < (SELECT a.number FROM template_versions a WHERE a.id = ");
            query.push_bind(after).push(")");
        }
        // One more than asked for tells whether there is a next page.
        query.push(" ORDER BY number DESC LIMIT ").push_bind(i64::from(limit) + 1);
        let mut versions = self.fetch(query).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let is_last = versions.len() <= limit;
        versions.truncate(limit);
        let after = versions.last().filter(|_| !is_last).map(|last| last.id.to_string());
        Ok(VersionPage { versions, after })
    }

    /// The newest version that can be started of each of these templates.
    pub(super) async fn latest_of(&self, templates: &[&str]) -> Result<Vec<VersionRow>, StoreError> {
        let mut query = Statement::new(SELECT);
        query.push(" AND runnable = 1 AND template_id IN ").push_list(templates.iter().copied()).push(
            " AND number = (SELECT MAX(o.number) FROM template_versions o \
                            WHERE o.template_id = template_versions.template_id AND o.runnable = 1)",
        );
        self.fetch(query).await
    }

    /// Every team's versions whose builds go on.
    pub async fn under_way(&self) -> Result<Vec<VersionRow>, StoreError> {
        self.fetch(Statement::new(
            "SELECT * FROM template_versions WHERE state IN ('queued', 'building', 'warming') ORDER BY id",
        ))
        .await
    }

    /// Versions of teams that are disabled whose builds go on, and which nobody has cancelled; each with its team.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn under_way_of_disabled_teams(&self) -> Result<Vec<(TeamId, VersionRow)>, StoreError> {
        let rows = sqlx::query(
            "SELECT v.*, p.team_id FROM template_versions v JOIN templates p ON p.id = v.template_id \
             WHERE v.state IN ('queued', 'building', 'warming') AND v.cancel_asked = 0 \
                 AND p.team_id IN (SELECT id FROM teams WHERE disabled_at_ms IS NOT NULL) ORDER BY v.id",
        );
        let rows = rows.fetch_all(self.database.read()).await?;
        rows.iter().map(|row| Ok((row.try_get::<String, _>("team_id")?.into(), version(row)?))).collect()
    }

    /// Tags of a template, each with the id of the version that it stands for and when that was asked for.
    pub async fn tags(&self, template: &TemplateId) -> Result<Vec<TagRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT g.tag, g.version_id, v.created_at_ms FROM template_tags g \
             JOIN template_versions v ON v.id = g.version_id \
             WHERE g.template_id = $1 AND v.state <> 'deleted' ORDER BY g.tag",
        )
        .bind(template.as_str())
        .fetch_all(self.database.read())
        .await?;
        let tag = |row: &AnyRow| -> Result<TagRow, StoreError> {
            Ok(TagRow {
                tag: row.try_get("tag")?,
                version: row.try_get::<String, _>("version_id")?.into(),
                created_at: from_ms(row.try_get("created_at_ms")?)?,
            })
        };
        rows.iter().map(tag).collect()
    }

    /// Has tags stand for a version of a template.
    pub async fn set_tags(
        &self,
        template: &TemplateId,
        version: &VersionId,
        tags: &[String],
    ) -> Result<Tagged, StoreError> {
        let mut tx = self.database.write().await?;
        let is_ready = sqlx::query("SELECT 1 FROM template_versions WHERE id = $1 AND state = 'ready'");
        if is_ready.bind(version.as_str()).fetch_optional(&mut *tx).await?.is_none() {
            return Ok(Tagged::NotReady);
        }
        for tag in tags {
            set_tag(&mut tx, template, version, tag).await?;
        }
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM template_tags WHERE template_id = $1")
            .bind(template.as_str())
            .fetch_one(&mut *tx)
            .await?;
        if count > MOST_TAGS {
            return Ok(Tagged::TooMany);
        }
        tx.commit().await?;
        Ok(Tagged::Done)
    }

    /// Removes tags; whether one of them was there.
    pub async fn remove_tags(&self, template: &TemplateId, tags: &[String]) -> Result<bool, StoreError> {
        let mut query = Statement::new("DELETE FROM template_tags WHERE template_id = ");
        query.push_bind(template.as_str()).push(" AND tag IN ").push_list(tags);
        self.database.changes_row(query).await
    }

    /// Takes over what the agent says of builds, all at once. From then on the agent has what it is to build, and a version that
    /// is ready has its tags, unless a newer version has got them before.
    pub async fn mirror(&self, builds: &[&Build], now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.database.write().await?;
        let mut news = Vec::new();
        for build in builds {
            news.extend(mirror(&mut tx, build, now).await?);
        }
        events::write(&mut tx, news).await?;
        tx.commit().await?;
        Ok(())
    }

    /// This process asks the agent no more, and the next round of synchronisation does.
    pub async fn leave(&self, id: &VersionId) -> Result<(), StoreError> {
        let mut query = Statement::new("UPDATE template_versions SET process = NULL WHERE id = ");
        query.push_bind(id.as_str());
        self.database.changes_row(query).await.map(drop)
    }

    /// A version that the agent refused to build was never there. Its number is the next one's.
    pub async fn forget(&self, id: &VersionId) -> Result<(), StoreError> {
        let mut query = Statement::new("DELETE FROM template_versions WHERE sealed_order IS NOT NULL AND id = ");
        query.push_bind(id.as_str());
        self.database.changes_row(query).await.map(drop)
    }

    /// The build ended without the agent saying so.
    pub async fn fail(&self, id: &VersionId, error: &BuildError, now: Timestamp) -> Result<(), StoreError> {
        let mut query = Statement::new("UPDATE template_versions SET state = 'failed', error_code = ");
        query.push_bind(&error.code).push(", error_message = ").push_bind(&error.message);
        self.end(id, query, |locked| locked.ended(State::Failed, Some(error), now), now).await
    }

    /// The agent is to be told to end the build; false where it has ended.
    pub async fn ask_cancel(&self, id: &VersionId) -> Result<bool, StoreError> {
        let mut query = Statement::new(
            "UPDATE template_versions SET cancel_asked = 1 WHERE state IN ('queued', 'building', 'warming') AND id = ",
        );
        query.push_bind(id.as_str());
        self.database.changes_row(query).await
    }

    /// The build was cancelled before the agent had it.
    pub async fn cancel(&self, id: &VersionId, now: Timestamp) -> Result<(), StoreError> {
        let query = Statement::new("UPDATE template_versions SET state = 'cancelled'");
        self.end(id, query, |locked| locked.ended(State::Cancelled, None, now), now).await
    }

    /// Ends a build that has not ended, with a statement to be completed.
    async fn end(
        &self,
        id: &VersionId,
        mut query: Statement,
        event: impl FnOnce(&Locked) -> Option<NewEvent>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        let Some(locked) = build_events::lock(&mut tx, id).await? else { return Ok(()) };
        query.push(", finished_at_ms = ").push_bind(to_ms(now));
        query.push(", sealed_order = NULL, process = NULL, position = NULL WHERE id = ").push_bind(id.as_str());
        query.build().execute(&mut *tx).await?;
        events::write(&mut tx, event(&locked).into_iter().collect()).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Removes a version, unless something needs it.
    pub async fn delete_version(&self, id: &VersionId, number: u32, now: Timestamp) -> Result<Removal<()>, StoreError> {
        let mut tx = self.database.write().await?;
        if let Some(used) = remove(&mut tx, id, now).await? {
            return Ok(Removal::InUse(number, used));
        }
        tx.commit().await?;
        Ok(Removal::Removed(()))
    }

    /// The versions that a statement selects, with their tags.
    async fn fetch(&self, query: Statement) -> Result<Vec<VersionRow>, StoreError> {
        let rows = query.build().fetch_all(self.database.read()).await?;
        let mut versions = rows.iter().map(version).collect::<Result<Vec<_>, _>>()?;
        let ready = versions.iter().filter(|one| one.state == State::Ready).map(|one| one.id.as_str());
        let ready: Vec<&str> = ready.collect();
        if ready.is_empty() {
            return Ok(versions);
        }
        let mut query = Statement::new("SELECT tag, version_id FROM template_tags WHERE version_id IN ");
        query.push_list(ready).push(" ORDER BY tag");
        let mut tags: HashMap<String, Vec<String>> = HashMap::new();
        for row in query.build().fetch_all(self.database.read()).await? {
            tags.entry(row.try_get("version_id")?).or_default().push(row.try_get("tag")?);
        }
        for one in versions.iter_mut().filter(|one| one.state == State::Ready) {
            one.tags = tags.remove(one.id.as_str()).unwrap_or_default();
        }
        Ok(versions)
    }
}

impl VersionRow {
    /// Whether the agent's report holds nothing that this row does not say already.
    pub(crate) fn matches(&self, build: &Build) -> bool {
        // Times are kept to the millisecond.
        let started_at = build.started_at.map(to_ms);
        self.sealed_order.is_none()
            && self.state == State::from(build.state)
            && (self.position, self.log_end, self.started_at.map(to_ms)) == (build.position, build.log_end, started_at)
    }
}

impl TemplateRow {
    /// Whether this team sees the version: of what others have made public, what can be started.
    pub fn shows(&self, version: &VersionRow, team: &TeamId) -> bool {
        self.is_of(team) || version.is_runnable
    }
}

/// Takes over what the agent says of one build; what there is to tell of it.
async fn mirror(tx: &mut Tx, build: &Build, now: Timestamp) -> Result<Vec<NewEvent>, StoreError> {
    let Some(locked) = build_events::lock(tx, &build.id).await? else { return Ok(Vec::new()) };
    let state = State::from(build.state);
    let error = match (state, &build.error) {
        (State::Failed, None) => Some(BuildError {
            code: "host_failed".to_owned(),
            message: "The host gave no reason; build it again".to_owned(),
            step: None,
        }),
        (_, error) => error.clone(),
    };
    let ready = build.version.as_ref().filter(|_| state == State::Ready);
    let start = ready.and_then(|version| version.start.as_ref());
    let report = ready.map(|version| Report {
        settings: version.settings.clone(),
        command: version.command.clone(),
        images: version.images.clone(),
    });
    let row = sqlx::query(
        "UPDATE template_versions SET state = $2, position = $3, error_code = $4, error_message = $5, error_step = $6, \
             started_at_ms = COALESCE($7, started_at_ms), finished_at_ms = $8, log_end = $9, sealed_order = NULL, \
             process = NULL, runnable = $10, digest = COALESCE($11, digest), disk_gib = COALESCE($12, disk_gib), \
             report = COALESCE($13, report), retained_bytes = COALESCE($14, retained_bytes), \
             start_cmd = COALESCE($15, start_cmd), ready_cmd = COALESCE($16, ready_cmd) \
         WHERE id = $1 RETURNING template_id, number, tags",
    )
    .bind(build.id.as_str())
    .bind(state.as_str())
    .bind(build.position.map(i64::from))
    .bind(error.as_ref().map(|error| error.code.clone()))
    .bind(error.as_ref().map(|error| error.message.clone()))
    .bind(error.as_ref().and_then(|error| error.step).map(i64::from))
    .bind(build.started_at.map(to_ms))
    .bind(build.finished_at.map(to_ms))
    .bind(i64::try_from(build.log_end).unwrap_or(i64::MAX))
    .bind(i64::from(ready.is_some()))
    .bind(ready.map(|version| version.digest.clone()))
    .bind(ready.map(|version| i64::from(version.disk_gib)))
    .bind(report.map(|report| to_json(&report)))
    .bind(ready.map(|version| i64::try_from(version.retained_bytes).unwrap_or(i64::MAX)))
    // Of what it was made of, where nothing else was asked for.
    .bind(start.map(|start| start.command.clone()))
    .bind(start.and_then(|start| start.ready.clone()))
    .fetch_optional(&mut **tx)
    .await?;
    let news = locked.reported(state, build.started_at.is_some(), error.as_ref(), now);
    let Some(row) = row.filter(|_| state == State::Ready) else { return Ok(news) };
    let template: TemplateId = row.try_get::<String, _>("template_id")?.into();
    let number: i64 = row.try_get("number")?;
    for tag in list_from_json(row.try_get("tags")?)? {
        let newer = sqlx::query(
            "SELECT 1 FROM template_tags g JOIN template_versions v ON v.id = g.version_id \
             WHERE g.template_id = $1 AND g.tag = $2 AND v.number > $3",
        )
        .bind(template.as_str())
        .bind(&tag)
        .bind(number)
        .fetch_optional(&mut **tx)
        .await?;
        if newer.is_none() {
            set_tag(tx, &template, &build.id, &tag).await?;
        }
    }
    Ok(news)
}

async fn set_tag(tx: &mut Tx, template: &TemplateId, version: &VersionId, tag: &str) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO template_tags (template_id, tag, version_id) VALUES ($1, $2, $3) \
         ON CONFLICT (template_id, tag) DO UPDATE SET version_id = excluded.version_id",
    )
    .bind(template.as_str())
    .bind(tag)
    .bind(version.as_str())
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Marks a version as deleted; or says what needs it.
pub(super) async fn remove(tx: &mut Tx, id: &VersionId, now: Timestamp) -> Result<Option<VersionUse>, StoreError> {
    type Named = fn(String) -> VersionUse;
    // Of other teams' things it is not said which they are; those of its own come first.
    let uses: [(&'static str, Named); 4] = [
        ("SELECT id FROM template_versions WHERE id = $1 AND state IN ('queued', 'building', 'warming')", |_| {
            VersionUse::UnderWay
        }),
        (
            "SELECT CASE WHEN u.team_id = t.team_id THEN u.id ELSE '' END AS id FROM sandboxes u \
             JOIN template_versions v ON v.id = u.template_version JOIN templates t ON t.id = v.template_id \
             WHERE v.id = $1 AND u.state <> 'destroyed' ORDER BY id DESC LIMIT 1",
            VersionUse::Sandbox,
        ),
        (
            "SELECT CASE WHEN u.team_id = t.team_id THEN u.id ELSE '' END AS id FROM checkpoints u \
             JOIN template_versions v ON v.id = u.template_version JOIN templates t ON t.id = v.template_id \
             WHERE v.id = $1 AND u.state <> 'deleted' ORDER BY id DESC LIMIT 1",
            VersionUse::Checkpoint,
        ),
        (
            "SELECT CASE WHEN o.team_id = t.team_id THEN u.id ELSE '' END AS id FROM template_versions u \
             JOIN templates o ON o.id = u.template_id \
             JOIN template_versions v ON v.id = u.base_version JOIN templates t ON t.id = v.template_id \
             WHERE v.id = $1 AND u.state IN ('queued', 'building', 'warming') ORDER BY id DESC LIMIT 1",
            VersionUse::Build,
        ),
    ];
    for (statement, named) in uses {
        let row = sqlx::query(statement).bind(id.as_str()).fetch_optional(&mut **tx).await?;
        if let Some(row) = row {
            return Ok(Some(named(row.try_get("id")?)));
        }
    }
    sqlx::query("DELETE FROM template_tags WHERE version_id = $1").bind(id.as_str()).execute(&mut **tx).await?;
    sqlx::query(
        "UPDATE template_versions SET state = 'deleted', deleted_at_ms = $2, runnable = 0, retained_bytes = 0 \
         WHERE id = $1 AND state <> 'deleted'",
    )
    .bind(id.as_str())
    .bind(to_ms(now))
    .execute(&mut **tx)
    .await?;
    Ok(None)
}

fn to_json(value: &impl Serialize) -> String {
    // Maps with keys of text, lists and texts always have a JSON form.
    serde_json::to_string(value).unwrap_or_default()
}

pub(super) fn list_to_json(list: &[String]) -> String {
    to_json(&list)
}

pub(super) fn list_from_json(text: &str) -> Result<Vec<String>, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Corrupt { what: format!("list {text:?}") })
}

fn version(row: &AnyRow) -> Result<VersionRow, StoreError> {
    let number = |column: &str| -> Result<Option<i64>, StoreError> { Ok(row.try_get(column)?) };
    let time = |column: &str| -> Result<Option<Timestamp>, StoreError> { number(column)?.map(from_ms).transpose() };
    let ready: Option<String> = row.try_get("ready_cmd")?;
    let start: Option<String> = row.try_get("start_cmd")?;
    let code: Option<String> = row.try_get("error_code")?;
    let error = match code {
        Some(code) => Some(BuildError {
            code,
            message: row.try_get::<Option<String>, _>("error_message")?.unwrap_or_default(),
            step: number("error_step")?.map(count).transpose()?,
        }),
        None => None,
    };
    let report = match row.try_get::<Option<String>, _>("report")? {
        Some(text) => {
            serde_json::from_str(&text).map_err(|_| StoreError::Corrupt { what: "report of a version".to_owned() })?
        }
        None => Report::default(),
    };
    Ok(VersionRow {
        id: row.try_get::<String, _>("id")?.into(),
        template: row.try_get::<String, _>("template_id")?.into(),
        number: count(row.try_get("number")?)?,
        state: decode_enum(row.try_get("state")?)?,
        is_runnable: decode_bool(row.try_get("runnable")?)?,
        source: row.try_get("source")?,
        baseline: RuntimeBaseline { cpu: count(row.try_get("cpu")?)?, memory_mb: count(row.try_get("memory_mb")?)? },
        disk_gib: count(row.try_get("disk_gib")?)?,
        start: start.map(|command| StartCommand { command, ready }),
        tags: list_from_json(row.try_get("tags")?)?,
        report,
        digest: row.try_get("digest")?,
        position: number("position")?.map(count).transpose()?,
        error,
        retained_bytes: count(row.try_get("retained_bytes")?)?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        started_at: time("started_at_ms")?,
        finished_at: time("finished_at_ms")?,
        expires_at: time("expires_at_ms")?,
        log_end: count(row.try_get("log_end")?)?,
        cancel_asked: decode_bool(row.try_get("cancel_asked")?)?,
        sealed_order: row.try_get("sealed_order")?,
        process: row.try_get("process")?,
    })
}
