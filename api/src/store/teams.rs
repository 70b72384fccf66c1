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

/// One team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    pub id: TeamId,
    pub slug: String,
    pub plan: Plan,
    /// The user whose personal team it is.
    pub personal_of: Option<UserId>,
    pub created_at: Timestamp,
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
        created_at: from_ms(row.try_get("created_at_ms")?)?,
    })
}
