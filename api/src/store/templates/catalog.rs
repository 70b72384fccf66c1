//! What the agent has of template versions, remembered, so that a create request is decided on without asking it.

use std::collections::{HashMap, HashSet};

use sandpiper_db::{Statement, StoreError, Tx, decode_bool, decode_enum, to_ms};
use sandpiper_protocol::agent;
use sandpiper_protocol::ids::VersionId;
use sqlx::Row;

use super::versions::State;
use super::{Templates, of_host};

/// How many rows are read with one statement.
const READ_AT_ONCE: usize = 1000;

impl Templates {
    /// Versions that can be started, as far as is known: to be read before the agent is asked what it has.
    pub async fn runnable(&self) -> Result<HashSet<String>, StoreError> {
        let rows = sqlx::query("SELECT id FROM template_versions WHERE runnable = 1");
        let rows = rows.fetch_all(self.database.read()).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    /// Takes over what the agent has now. New versions of the host's templates are added; of those that were `known` to be
    /// runnable, what it no longer has is not. Versions that were deleted, and that the agent still has, are returned: it is to
    /// remove them. Where nothing has changed, nothing is written.
    pub async fn replace(
        &self,
        known: &HashSet<String>,
        versions: &[agent::TemplateVersion],
    ) -> Result<Vec<VersionId>, StoreError> {
        let rows = self.catalog_rows(versions).await?;
        let listed: HashSet<&str> = versions.iter().map(|version| version.id.as_str()).collect();
        let lost: Vec<&String> = known.iter().filter(|id| !listed.contains(id.as_str())).collect();
        let (mut deleted, mut changed, mut new) = (Vec::new(), Vec::new(), Vec::new());
        for version in versions {
            match rows.get(version.id.as_str()) {
                Some(row) if row.says(version) => {}
                Some(row) if row.state == State::Ready => changed.push(version),
                // What was given up here came to its end at the agent all the same: nobody can start from it.
                Some(row) if !row.state.is_under_way() => deleted.push(version.id.as_str().into()),
                // The synchronisation of builds settles it.
                Some(_) => {}
                None if version.team.is_none() => new.push(version),
                // A team's version without a row is one of a database that was put back from a copy: nobody's, and left alone.
                None => {}
            }
        }
        if lost.is_empty() && changed.is_empty() && new.is_empty() {
            return Ok(deleted);
        }

        // Numbers follow the age.
        new.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        let mut tx = self.database.write().await?;
        for lost in lost {
            sqlx::query("UPDATE template_versions SET runnable = 0 WHERE id = $1").bind(lost).execute(&mut *tx).await?;
        }
        for version in changed {
            // Unless it was deleted meanwhile.
            sqlx::query(
                "UPDATE template_versions SET runnable = 1, retained_bytes = $2 WHERE id = $1 AND state = 'ready'",
            )
            .bind(&version.id)
            .bind(retained(version))
            .execute(&mut *tx)
            .await?;
        }
        for version in new {
            insert(&mut tx, version).await?;
        }
        tx.commit().await?;
        Ok(deleted)
    }

    /// The rows of these versions, by their ids.
    async fn catalog_rows(
        &self,
        versions: &[agent::TemplateVersion],
    ) -> Result<HashMap<String, CatalogRow>, StoreError> {
        let mut rows = HashMap::new();
        for some in versions.chunks(READ_AT_ONCE) {
            let mut query =
                Statement::new("SELECT id, state, runnable, retained_bytes FROM template_versions WHERE id IN ");
            query.push_list(some.iter().map(|version| version.id.as_str()));
            for row in query.build().fetch_all(self.database.read()).await? {
                let known = CatalogRow {
                    state: decode_enum(row.try_get("state")?)?,
                    is_runnable: decode_bool(row.try_get("runnable")?)?,
                    retained_bytes: row.try_get("retained_bytes")?,
                };
                rows.insert(row.try_get("id")?, known);
            }
        }
        Ok(rows)
    }
}

/// What of a version's row the agent's list decides on.
struct CatalogRow {
    state: State,
    is_runnable: bool,
    retained_bytes: i64,
}

impl CatalogRow {
    /// Whether the list holds nothing of the version that this row does not say already.
    fn says(&self, version: &agent::TemplateVersion) -> bool {
        self.state == State::Ready && self.is_runnable && self.retained_bytes == retained(version)
    }
}

fn retained(version: &agent::TemplateVersion) -> i64 {
    i64::try_from(version.retained_bytes).unwrap_or(i64::MAX)
}

/// A new version of a template of the host's, unless another process has inserted it in this moment.
async fn insert(tx: &mut Tx, version: &agent::TemplateVersion) -> Result<(), StoreError> {
    let template = of_host(tx, &version.slug, version.created_at).await?;
    sqlx::query(
        "INSERT INTO template_versions \
             (id, template_id, number, digest, cpu, memory_mb, disk_gib, created_at_ms, runnable, retained_bytes) \
         VALUES ($1, $2, (SELECT COALESCE(MAX(number), 0) + 1 FROM template_versions WHERE template_id = $2), \
                 $3, $4, $5, $6, $7, 1, $8) \
         ON CONFLICT (id) DO NOTHING",
    )
    .bind(&version.id)
    .bind(template.as_str())
    .bind(&version.digest)
    .bind(i64::from(version.baseline.cpu))
    .bind(i64::from(version.baseline.memory_mb))
    .bind(i64::from(version.disk_gib))
    .bind(to_ms(version.created_at))
    .bind(retained(version))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use sandpiper_protocol::agent::{RuntimeBaseline, TemplateVersion};
    use sandpiper_protocol::template::ImageSettings;

    use super::super::super::testing::test_store;
    use super::*;

    fn version(id: &str) -> TemplateVersion {
        TemplateVersion {
            id: id.to_owned(),
            slug: "base".to_owned(),
            digest: "00".repeat(32),
            key: None,
            created_at: Timestamp::UNIX_EPOCH,
            baseline: RuntimeBaseline { cpu: 1, memory_mb: 256 },
            team: None,
            disk_gib: 0,
            settings: ImageSettings::default(),
            start: None,
            command: None,
            images: std::collections::BTreeMap::new(),
            retained_bytes: 7,
        }
    }

    #[tokio::test]
    async fn a_list_without_news_needs_no_turn_to_write() {
        let store = test_store().await;
        let listed = [version("ver1"), version("ver2")];
        store.templates.replace(&HashSet::new(), &listed).await.unwrap();
        let known = store.templates.runnable().await.unwrap();
        let _writer = store.database.write().await.unwrap();

        let replaced = tokio::time::timeout(Duration::from_secs(10), store.templates.replace(&known, &listed)).await;

        assert_eq!(replaced.expect("it waits for the writer").unwrap(), []);
    }

    #[tokio::test]
    async fn what_the_agent_no_longer_has_cannot_be_started_until_it_is_back() {
        let store = test_store().await;
        let (first, second) = (version("ver1"), version("ver2"));
        store.templates.replace(&HashSet::new(), &[first.clone(), second.clone()]).await.unwrap();
        let runnable = async || store.templates.runnable().await.unwrap();

        store.templates.replace(&runnable().await, std::slice::from_ref(&second)).await.unwrap();
        assert_eq!(runnable().await, HashSet::from(["ver2".to_owned()]));

        store.templates.replace(&runnable().await, &[first, second]).await.unwrap();
        assert_eq!(runnable().await.len(), 2);
    }
}
