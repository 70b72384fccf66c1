//! Versions that an SDK has announced: it asks for an id first, sends files, and says what the version is made of last.

use std::time::Duration;

use jiff::Timestamp;
use sandpiper_db::{Statement, StoreError, count, to_ms};
use sandpiper_protocol::agent::RuntimeBaseline;
use sandpiper_protocol::ids::VersionId;
use sqlx::Row;

use super::versions::{list_from_json, list_to_json};
use super::{TemplateId, Templates};

/// How long an SDK has to send what the version is made of.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// What was said of a version when it was announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    pub id: VersionId,
    pub template: TemplateId,
    pub baseline: RuntimeBaseline,
    pub tags: Vec<String>,
}

impl Templates {
    /// Writes down what an SDK announces.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn announce(&self, announced: &Announced, now: Timestamp) -> Result<(), StoreError> {
        let expires = to_ms(now).saturating_add(i64::try_from(KEPT_FOR.as_millis()).unwrap_or(i64::MAX));
        let mut query = Statement::new(
            "INSERT INTO announced_versions (id, template_id, cpu, memory_mb, tags, expires_at_ms) VALUES (",
        );
        query.push_bind(announced.id.as_str()).push(", ").push_bind(announced.template.as_str());
        query.push(", ").push_bind(i64::from(announced.baseline.cpu));
        query.push(", ").push_bind(i64::from(announced.baseline.memory_mb));
        query.push(", ").push_bind(list_to_json(&announced.tags)).push(", ").push_bind(expires).push(")");
        self.database.changes_row(query).await.map(drop)
    }

    /// What was announced under this id.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn announced(&self, template: &TemplateId, id: &str) -> Result<Option<Announced>, StoreError> {
        let row = sqlx::query("SELECT * FROM announced_versions WHERE template_id = $1 AND id = $2")
            .bind(template.as_str())
            .bind(id)
            .fetch_optional(self.database.read())
            .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(Announced {
            id: row.try_get::<String, _>("id")?.into(),
            template: template.clone(),
            baseline: RuntimeBaseline {
                cpu: count(row.try_get("cpu")?)?,
                memory_mb: count(row.try_get("memory_mb")?)?,
            },
            tags: list_from_json(row.try_get("tags")?)?,
        }))
    }

    /// Forgets what was announced and not sent in time.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn forget_announced(&self, now: Timestamp) -> Result<(), StoreError> {
        let mut query = Statement::new("DELETE FROM announced_versions WHERE expires_at_ms <= ");
        query.push_bind(to_ms(now));
        self.database.changes_row(query).await.map(drop)
    }
}
