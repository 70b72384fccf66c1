//! Teams: who owns keys and sandboxes.

use jiff::Timestamp;
use sandpiper_db::{Database, StoreError, decode_enum, from_ms, to_ms};
use sandpiper_protocol::ids::TeamId;
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::plan::Plan;

/// One team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    pub id: TeamId,
    pub slug: String,
    pub plan: Plan,
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

    /// Every team, by slug.
    pub async fn all(&self) -> Result<Vec<Team>, StoreError> {
        let rows = sqlx::query("SELECT * FROM teams ORDER BY slug").fetch_all(self.database.read()).await?;
        rows.iter().map(team).collect()
    }
}

/// A team from a row that has its columns under their own names.
fn team(row: &AnyRow) -> Result<Team, StoreError> {
    Ok(Team {
        id: row.try_get::<String, _>("id")?.into(),
        slug: row.try_get("slug")?,
        plan: decode_enum(row.try_get("plan")?)?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
    })
}
