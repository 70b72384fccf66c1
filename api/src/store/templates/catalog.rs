//! What the agent has of template versions, remembered, so that a create request is decided on without asking it.

use std::collections::HashSet;

use sandpiper_db::{StoreError, to_ms};
use sandpiper_protocol::agent;
use sandpiper_protocol::ids::VersionId;
use sqlx::Row;

use super::{Templates, of_host};

impl Templates {
    /// Versions that can be started, as far as is known: to be read before the agent is asked what it has.
    pub async fn runnable(&self) -> Result<HashSet<String>, StoreError> {
        let rows = sqlx::query("SELECT id FROM template_versions WHERE runnable = 1");
        let rows = rows.fetch_all(self.database.read()).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    /// Takes over what the agent has now. New versions of the host's templates are added; of those that were `known` to be
    /// runnable, what it no longer has is not. Versions that were deleted, and that the agent still has, are returned: it is to
    /// remove them.
    pub async fn replace(
        &self,
        known: &HashSet<String>,
        versions: &[agent::TemplateVersion],
    ) -> Result<Vec<VersionId>, StoreError> {
        let mut oldest_first: Vec<_> = versions.iter().collect();
        oldest_first.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        let listed: HashSet<&str> = versions.iter().map(|version| version.id.as_str()).collect();
        let mut deleted = Vec::new();

        let mut tx = self.database.write().await?;
        for lost in known.iter().filter(|id| !listed.contains(id.as_str())) {
            sqlx::query("UPDATE template_versions SET runnable = 0 WHERE id = $1").bind(lost).execute(&mut *tx).await?;
        }
        for version in oldest_first {
            let retained = i64::try_from(version.retained_bytes).unwrap_or(i64::MAX);
            let row = sqlx::query("SELECT state FROM template_versions WHERE id = $1")
                .bind(&version.id)
                .fetch_optional(&mut *tx)
                .await?;
            if let Some(row) = row {
                match row.try_get::<String, _>("state")?.as_str() {
                    "ready" => {
                        sqlx::query("UPDATE template_versions SET runnable = 1, retained_bytes = $2 WHERE id = $1")
                            .bind(&version.id)
                            .bind(retained)
                            .execute(&mut *tx)
                            .await?;
                    }
                    "deleted" => deleted.push(version.id.as_str().into()),
                    // The synchronisation of builds settles it.
                    _ => {}
                }
                continue;
            }
            // A team's version without a row is one of a database that was put back from a copy: nobody's, and left alone.
            if version.team.is_some() {
                continue;
            }
            let template = of_host(&mut tx, &version.slug, version.created_at).await?;
            sqlx::query(
                "INSERT INTO template_versions \
                     (id, template_id, number, digest, cpu, memory_mb, disk_gib, created_at_ms, runnable, retained_bytes) \
                 VALUES ($1, $2, (SELECT COALESCE(MAX(number), 0) + 1 FROM template_versions WHERE template_id = $2), \
                         $3, $4, $5, $6, $7, 1, $8)",
            )
            .bind(&version.id)
            .bind(template.as_str())
            .bind(&version.digest)
            .bind(i64::from(version.baseline.cpu))
            .bind(i64::from(version.baseline.memory_mb))
            .bind(i64::from(version.disk_gib))
            .bind(to_ms(version.created_at))
            .bind(retained)
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(deleted)
    }
}
