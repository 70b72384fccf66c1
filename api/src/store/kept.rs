//! What a team has stored and a plan may keep for some days only: checkpoints, volumes, versions of templates. Whether each is in use,
//! and since when it is not.

use jiff::{SignedDuration, Timestamp};
use sandpiper_db::{Database, Statement, StoreError, decode_bool, decode_enum, from_ms, to_ms};
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::plan::Plan;

/// What is in use is noted so often.
const NOTED_EVERY: SignedDuration = SignedDuration::from_hours(1);

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Checkpoint,
    Volume,
    TemplateVersion,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Checkpoint, Self::Volume, Self::TemplateVersion];

    /// What there is of the kind that might be deleted: `is_used` is 1 of what somebody needs.
    fn select(self) -> &'static str {
        match self {
            // Of what a build under way is made of only that is known, that it is one of the team's.
            Kind::Checkpoint => {
                "SELECT k.id, k.team_id, t.plan, t.disabled_at_ms, k.created_at_ms, k.last_used_at_ms, k.expires_at_ms, \
                     CAST(CASE WHEN EXISTS (SELECT 1 FROM sandboxes s WHERE s.snapshot_id = k.id AND s.state <> 'destroyed') \
                         OR EXISTS (SELECT 1 FROM template_versions v JOIN templates p ON p.id = v.template_id \
                             WHERE p.team_id = k.team_id AND v.source = 'checkpoint' \
                             AND v.state IN ('queued', 'building', 'warming')) \
                     THEN 1 ELSE 0 END AS BIGINT) AS is_used \
                 FROM checkpoints k JOIN teams t ON t.id = k.team_id WHERE k.state IN ('ready', 'failed')"
            }
            // A stopped sandbox that mounts one could not go on without it.
            Kind::Volume => {
                "SELECT k.id, k.team_id, t.plan, t.disabled_at_ms, k.created_at_ms, k.last_used_at_ms, k.expires_at_ms, \
                     CAST(CASE WHEN EXISTS (SELECT 1 FROM sandbox_volumes m JOIN sandboxes s ON s.id = m.sandbox_id \
                         WHERE m.volume_id = k.id AND s.state <> 'destroyed') \
                     THEN 1 ELSE 0 END AS BIGINT) AS is_used \
                 FROM volumes k JOIN teams t ON t.id = k.team_id WHERE k.state IN ('ready', 'failed')"
            }
            // The newest of a template, and its newest that is ready, are what its name stands for.
            Kind::TemplateVersion => {
                "SELECT k.id, p.team_id, t.plan, t.disabled_at_ms, COALESCE(k.finished_at_ms, k.created_at_ms) AS created_at_ms, \
                     k.last_used_at_ms, k.expires_at_ms, \
                     CAST(CASE WHEN EXISTS (SELECT 1 FROM sandboxes s WHERE s.template_version = k.id AND s.state <> 'destroyed') \
                         OR EXISTS (SELECT 1 FROM checkpoints c WHERE c.template_version = k.id AND c.state <> 'deleted') \
                         OR EXISTS (SELECT 1 FROM template_versions b WHERE b.base_version = k.id \
                             AND b.state IN ('queued', 'building', 'warming')) \
                         OR EXISTS (SELECT 1 FROM template_tags g WHERE g.version_id = k.id) \
                         OR NOT EXISTS (SELECT 1 FROM template_versions n WHERE n.template_id = k.template_id \
                             AND n.number > k.number AND n.state = 'ready') \
                     THEN 1 ELSE 0 END AS BIGINT) AS is_used \
                 FROM template_versions k JOIN templates p ON p.id = k.template_id JOIN teams t ON t.id = p.team_id \
                 WHERE p.deleted_at_ms IS NULL AND k.state IN ('ready', 'failed', 'cancelled')"
            }
        }
    }

    fn note(self) -> &'static str {
        match self {
            Kind::Checkpoint => "UPDATE checkpoints SET last_used_at_ms = ",
            Kind::Volume => "UPDATE volumes SET last_used_at_ms = ",
            Kind::TemplateVersion => "UPDATE template_versions SET last_used_at_ms = ",
        }
    }

    fn announce(self) -> &'static str {
        match self {
            Kind::Checkpoint => "UPDATE checkpoints SET expires_at_ms = $2 WHERE id = $1",
            Kind::Volume => "UPDATE volumes SET expires_at_ms = $2 WHERE id = $1",
            Kind::TemplateVersion => "UPDATE template_versions SET expires_at_ms = $2 WHERE id = $1",
        }
    }
}

/// One thing that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thing {
    pub id: String,
    pub team_id: TeamId,
    pub plan: Plan,
    /// Its team is disabled.
    pub is_of_disabled: bool,
    pub is_used: bool,
    created_at: Timestamp,
    last_used_at: Option<Timestamp>,
    /// As its team was told.
    pub expires_at: Option<Timestamp>,
}

impl Thing {
    /// Since when nobody uses it, as far as was noted; `None` while somebody does.
    pub fn unused_since(&self) -> Option<Timestamp> {
        let since = self.last_used_at.map_or(self.created_at, |last| last.max(self.created_at));
        (!self.is_used).then_some(since)
    }
}

/// What is kept of all teams.
#[derive(Debug, Clone)]
pub struct Kept {
    database: Database,
}

impl Kept {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// What there is of a kind of teams on these plans, and what was announced of others.
    pub async fn things(&self, kind: Kind, plans: &[Plan]) -> Result<Vec<Thing>, StoreError> {
        let mut query = Statement::new(kind.select());
        query.push(" AND (k.expires_at_ms IS NOT NULL OR t.plan IN ");
        query.push_list(plans.iter().map(|plan| plan.as_str())).push(") ORDER BY k.id");
        query.build().fetch_all(self.database.read()).await?.iter().map(thing).collect()
    }

    /// One of them, as it is now; `None` where it is gone.
    pub async fn thing(&self, kind: Kind, id: &str) -> Result<Option<Thing>, StoreError> {
        let mut query = Statement::new(kind.select());
        query.push(" AND k.id = ").push_bind(id);
        let row = query.build().fetch_optional(self.database.read()).await?;
        row.as_ref().map(thing).transpose()
    }

    /// Notes that these are in use, of which that was not noted for long.
    pub async fn note_use(&self, kind: Kind, things: &[Thing], now: Timestamp) -> Result<(), StoreError> {
        let is_old = |last: Timestamp| now.duration_since(last) >= NOTED_EVERY;
        let used = things.iter().filter(|thing| thing.is_used && thing.last_used_at.is_none_or(is_old));
        let ids: Vec<_> = used.map(|thing| thing.id.as_str()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let mut tx = self.database.write_shared().await?;
        // A list of any length is no statement.
        for ids in ids.chunks(200) {
            let mut note = Statement::new(kind.note());
            note.push_bind(to_ms(now)).push(" WHERE id IN ").push_list(ids.iter().copied());
            note.build().execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// Notes when things are to be deleted, or that they are not, by their ids.
    pub async fn announce(&self, kind: Kind, expiries: &[(&str, Option<Timestamp>)]) -> Result<(), StoreError> {
        if expiries.is_empty() {
            return Ok(());
        }
        let mut tx = self.database.write_shared().await?;
        for (id, expires_at) in expiries {
            sqlx::query(kind.announce()).bind(*id).bind(expires_at.map(to_ms)).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(())
    }
}

fn thing(row: &AnyRow) -> Result<Thing, StoreError> {
    let time = |name: &str| row.try_get::<Option<i64>, _>(name)?.map(from_ms).transpose();
    Ok(Thing {
        id: row.try_get("id")?,
        team_id: row.try_get::<String, _>("team_id")?.into(),
        plan: decode_enum(row.try_get("plan")?)?,
        is_of_disabled: row.try_get::<Option<i64>, _>("disabled_at_ms")?.is_some(),
        is_used: decode_bool(row.try_get("is_used")?)?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        last_used_at: time("last_used_at_ms")?,
        expires_at: time("expires_at_ms")?,
    })
}
