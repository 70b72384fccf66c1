//! Teams: who owns keys and sandboxes.

use jiff::Timestamp;
use sandpiper_accounts::UserId;
use sandpiper_db::{Database, Statement, StoreError, Tx, decode_enum, from_ms, to_ms};
use sandpiper_protocol::id;
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::plan::Plan;

const MAX_SLUG: usize = 40;
/// What [`is_slug`] asks for, for people.
pub const SLUG_RULE: &str = "must have 1 to 40 of a-z, 0-9 and -, begin with a letter, and not look like an id";

/// Whether a team may be called so: not like a team's id, for which requests may name either.
pub fn is_slug(text: &str) -> bool {
    text.len() <= MAX_SLUG
        && !id::is_valid(TeamId::PREFIX, text)
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Longest reason for which a team is disabled, in bytes.
const MAX_REASON: usize = 500;
/// What [`is_reason`] asks for, for people.
pub const REASON_RULE: &str = "must have 1 to 500 bytes, not all of them spaces, and no control characters";

/// Whether a team may be disabled for this reason.
pub fn is_reason(text: &str) -> bool {
    text.len() <= MAX_REASON && !text.trim().is_empty() && !text.chars().any(char::is_control)
}

/// That an operator has a team disabled: nothing of it runs or is reached, and nothing of it is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disabled {
    pub at: Timestamp,
    /// For the team.
    pub reason: String,
}

/// One team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    pub id: TeamId,
    pub slug: String,
    pub plan: Plan,
    /// The user whose personal team it is.
    pub personal_of: Option<UserId>,
    /// `None`: it is not.
    pub disabled: Option<Disabled>,
    pub created_at: Timestamp,
}

/// Which teams are looked for; what is `None` is not looked at.
#[derive(Debug, Clone, Default)]
pub struct TeamFilter {
    pub plan: Option<Plan>,
    pub is_personal: Option<bool>,
    pub is_disabled: Option<bool>,
    /// What the slug begins with.
    pub slug_prefix: Option<String>,
}

/// The teams.
#[derive(Debug, Clone)]
pub struct Teams {
    database: Database,
}

impl Teams {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// The team of this slug, made with `plan` if there is none; an existing one keeps its plan.
    pub async fn ensure(&self, slug: &str, plan: Plan, now: Timestamp) -> Result<Team, StoreError> {
        let mut tx = self.database.write_shared().await?;
        sqlx::query(
            "INSERT INTO teams (id, slug, plan, created_at_ms) VALUES ($1, $2, $3, $4) ON CONFLICT (slug) DO NOTHING",
        )
        .bind(TeamId::generate().to_string())
        .bind(slug)
        .bind(plan.as_str())
        .bind(to_ms(now))
        .execute(&mut *tx)
        .await?;
        let row = sqlx::query("SELECT * FROM teams WHERE slug = $1").bind(slug).fetch_one(&mut *tx).await?;
        tx.commit().await?;
        team(&row)
    }

    /// The team of this slug.
    pub async fn by_slug(&self, slug: &str) -> Result<Option<Team>, StoreError> {
        let row =
            sqlx::query("SELECT * FROM teams WHERE slug = $1").bind(slug).fetch_optional(self.database.read()).await?;
        row.as_ref().map(team).transpose()
    }

    /// The team of this slug or id.
    pub async fn named(&self, named: &str) -> Result<Option<Team>, StoreError> {
        let row = sqlx::query("SELECT * FROM teams WHERE slug = $1 OR id = $1")
            .bind(named)
            .fetch_optional(self.database.read())
            .await?;
        row.as_ref().map(team).transpose()
    }

    /// A new team without members; `None` when the slug is taken.
    pub async fn create(&self, slug: &str, plan: Plan, now: Timestamp) -> Result<Option<Team>, StoreError> {
        let mut tx = self.database.write_shared().await?;
        let made = add(&mut tx, slug, plan, None, now).await?;
        tx.commit().await?;
        Ok(made)
    }

    /// Teams that `filter` selects, newest first: at most `limit`, those before the one of id `before`.
    pub async fn page(&self, filter: &TeamFilter, before: Option<&str>, limit: u32) -> Result<Vec<Team>, StoreError> {
        let TeamFilter { plan, is_personal, is_disabled, slug_prefix } = filter;
        let mut query = Statement::new("SELECT * FROM teams WHERE 1 = 1");
        if let Some(plan) = plan {
            query.push(" AND plan = ").push_bind(plan.as_str());
        }
        if let Some(is_personal) = is_personal {
            query.push(if *is_personal { " AND personal_of IS NOT NULL" } else { " AND personal_of IS NULL" });
        }
        if let Some(is_disabled) = is_disabled {
            query.push(if *is_disabled { " AND disabled_at_ms IS NOT NULL" } else { " AND disabled_at_ms IS NULL" });
        }
        if let Some(prefix) = slug_prefix {
            let length = i64::try_from(prefix.chars().count()).unwrap_or(i64::MAX);
            query.push(" AND SUBSTR(slug, 1, CAST(").push_bind(length).push(" AS INTEGER)) = ").push_bind(prefix);
        }
        if let Some(before) = before {
            query.push(" AND id < ").push_bind(before);
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(limit));
        query.build().fetch_all(self.database.read()).await?.iter().map(team).collect()
    }

    /// Every team that has a sandbox, live or not.
    pub async fn with_sandboxes(&self) -> Result<Vec<Team>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM teams WHERE id IN (SELECT team_id FROM sandboxes WHERE state <> 'destroyed') ORDER BY id",
        )
        .fetch_all(self.database.read())
        .await?;
        rows.iter().map(team).collect()
    }

    /// Gives a team another plan; false when there is no such team.
    pub async fn set_plan(&self, slug: &str, plan: Plan) -> Result<bool, StoreError> {
        let mut change = Statement::new("UPDATE teams SET plan = ");
        change.push_bind(plan.as_str()).push(" WHERE slug = ").push_bind(slug);
        self.database.changes_row(change).await
    }

    /// Disables the team of this slug, since `now` unless it is already, for this reason; false when there is no such team. What
    /// runs of it is stopped by [`crate::orchestration::disabled`].
    pub async fn disable(&self, slug: &str, reason: &str, now: Timestamp) -> Result<bool, StoreError> {
        let mut change = Statement::new("UPDATE teams SET disabled_at_ms = COALESCE(disabled_at_ms, ");
        change.push_bind(to_ms(now)).push("), disabled_reason = ").push_bind(reason);
        change.push(" WHERE slug = ").push_bind(slug);
        self.database.changes_row(change).await
    }

    /// Enables the team of this slug; false when there is no such team.
    pub async fn enable(&self, slug: &str) -> Result<bool, StoreError> {
        let mut change = Statement::new("UPDATE teams SET disabled_at_ms = NULL, disabled_reason = NULL WHERE slug = ");
        change.push_bind(slug);
        self.database.changes_row(change).await
    }

    /// Every team, by slug.
    pub async fn all(&self) -> Result<Vec<Team>, StoreError> {
        let rows = sqlx::query("SELECT * FROM teams ORDER BY slug").fetch_all(self.database.read()).await?;
        rows.iter().map(team).collect()
    }
}

/// Adds a team in the transaction of what comes with it; `None` when the slug is taken.
pub(super) async fn add(
    tx: &mut Tx,
    slug: &str,
    plan: Plan,
    personal_of: Option<&UserId>,
    now: Timestamp,
) -> Result<Option<Team>, StoreError> {
    let row = sqlx::query(
        "INSERT INTO teams (id, slug, plan, personal_of, created_at_ms) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (slug) DO NOTHING RETURNING *",
    )
    .bind(TeamId::generate().to_string())
    .bind(slug.to_owned())
    .bind(plan.as_str())
    .bind(personal_of.map(UserId::to_string))
    .bind(to_ms(now))
    .fetch_optional(&mut **tx)
    .await?;
    row.as_ref().map(team).transpose()
}

/// A team from a row that has its columns under their own names.
pub(super) fn team(row: &AnyRow) -> Result<Team, StoreError> {
    Ok(Team {
        id: row.try_get::<String, _>("id")?.into(),
        slug: row.try_get("slug")?,
        plan: decode_enum(row.try_get("plan")?)?,
        personal_of: row.try_get::<Option<String>, _>("personal_of")?.map(UserId::from),
        disabled: match (row.try_get::<Option<i64>, _>("disabled_at_ms")?, row.try_get("disabled_reason")?) {
            (Some(at_ms), Some(reason)) => Some(Disabled { at: from_ms(at_ms)?, reason }),
            _ => None,
        },
        created_at: from_ms(row.try_get("created_at_ms")?)?,
    })
}
