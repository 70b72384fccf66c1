//! The template catalog: what the agent has, remembered, so that a create request is decided on without asking it.

use jiff::Timestamp;
use sandpiper_db::{Database, StoreError, count, from_ms, to_ms};
use sandpiper_protocol::agent;
use sqlx::Row;
use sqlx::any::AnyRow;

/// One immutable version of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateVersion {
    /// `ver…`
    pub id: String,
    pub slug: String,
    /// 1 for the first version of the template, then one more each.
    pub number: u32,
    pub baseline: agent::RuntimeBaseline,
    pub created_at: Timestamp,
}

/// The catalog.
#[derive(Debug, Clone)]
pub struct Templates {
    database: Database,
}

impl Templates {
    pub(crate) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Takes over what the agent has now: new versions are added, versions that it no longer has are no longer runnable.
    pub async fn replace(&self, versions: &[agent::TemplateVersion]) -> Result<(), StoreError> {
        let mut oldest_first: Vec<_> = versions.iter().collect();
        oldest_first.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));

        let mut tx = self.database.write().await?;
        sqlx::query("UPDATE template_versions SET runnable = 0").execute(&mut *tx).await?;
        for version in oldest_first {
            let known = sqlx::query("UPDATE template_versions SET runnable = 1 WHERE id = $1")
                .bind(&version.id)
                .execute(&mut *tx)
                .await?;
            if known.rows_affected() == 1 {
                continue;
            }
            sqlx::query(
                "INSERT INTO template_versions (id, slug, number, digest, cpu, memory_mb, created_at_ms, runnable) \
                 VALUES ($1, $2, (SELECT COALESCE(MAX(number), 0) + 1 FROM template_versions WHERE slug = $2), \
                         $3, $4, $5, $6, 1)",
            )
            .bind(&version.id)
            .bind(&version.slug)
            .bind(&version.digest)
            .bind(i64::from(version.baseline.cpu))
            .bind(i64::from(version.baseline.memory_mb))
            .bind(to_ms(version.created_at))
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// The newest runnable version of `slug`.
    pub async fn latest(&self, slug: &str) -> Result<Option<TemplateVersion>, StoreError> {
        let row = sqlx::query(
            "SELECT * FROM template_versions WHERE slug = $1 AND runnable = 1 ORDER BY created_at_ms DESC, id DESC LIMIT 1",
        )
        .bind(slug)
        .fetch_optional(self.database.read())
        .await?;
        row.as_ref().map(version).transpose()
    }

    /// The runnable version of `slug` that `reference` names: its id or its number.
    pub async fn pinned(&self, slug: &str, reference: &str) -> Result<Option<TemplateVersion>, StoreError> {
        // Numbers start at 1, so 0 finds nothing.
        let number: i64 = reference.parse().unwrap_or(0);
        let row = sqlx::query(
            "SELECT * FROM template_versions WHERE slug = $1 AND (id = $2 OR number = $3) AND runnable = 1 LIMIT 1",
        )
        .bind(slug)
        .bind(reference)
        .bind(number)
        .fetch_optional(self.database.read())
        .await?;
        row.as_ref().map(version).transpose()
    }

    /// The newest runnable version of every template, by slug.
    pub async fn all_latest(&self) -> Result<Vec<TemplateVersion>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM template_versions WHERE runnable = 1 ORDER BY slug, created_at_ms DESC, id DESC",
        )
        .fetch_all(self.database.read())
        .await?;
        let mut versions = rows.iter().map(version).collect::<Result<Vec<_>, _>>()?;
        versions.dedup_by(|later, first| later.slug == first.slug);
        Ok(versions)
    }
}

fn version(row: &AnyRow) -> Result<TemplateVersion, StoreError> {
    Ok(TemplateVersion {
        id: row.try_get("id")?,
        slug: row.try_get("slug")?,
        number: count(row.try_get("number")?)?,
        baseline: agent::RuntimeBaseline {
            cpu: count(row.try_get("cpu")?)?,
            memory_mb: count(row.try_get("memory_mb")?)?,
        },
        created_at: from_ms(row.try_get("created_at_ms")?)?,
    })
}
