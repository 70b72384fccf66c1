//! Templates: whose they are, and who sees them. Their versions are in [`versions`], what the agent has of those in [`catalog`].
//!
//! A slug is looked up among the team's own templates first, then among the host's. What another team has made public is
//! found under that team's slug or id alone, so that nobody puts a template of theirs in the way of others.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sandpiper_db::{Database, Statement, StoreError, Tx, decode_enum, from_ms, to_ms};
use sandpiper_protocol::ids::{TeamId, VersionId};
use sandpiper_protocol::typed_id;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::idempotency;
use super::processes::OwnId;
use super::usage::{Usage, usage};
use crate::plan::Quota;

pub mod announced;
mod build_events;
pub mod catalog;
pub mod versions;

use versions::{VersionRow, VersionUse};

typed_id!(
    /// The id of a template: `tpl…`.
    TemplateId,
    "tpl"
);

/// Who may start sandboxes of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// Its team.
    Private,
    /// Everybody.
    Public,
}

impl Visibility {
    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Visibility::Private => "private",
            Visibility::Public => "public",
        }
    }
}

impl FromStr for Visibility {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Visibility::Private, Visibility::Public].into_iter().find(|one| one.as_str() == text).ok_or(())
    }
}

/// The team that a template belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub id: TeamId,
    pub slug: String,
}

/// A template as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateRow {
    pub id: TemplateId,
    /// Without one it is the host's.
    pub owner: Option<Owner>,
    pub slug: String,
    pub visibility: Visibility,
    pub description: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The newest version that can be started.
    pub latest: Option<VersionRow>,
}

impl TemplateRow {
    /// Whether it belongs to this team.
    pub fn is_of(&self, team: &TeamId) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.id == *team)
    }

    /// What a create request of this team names as `template`.
    pub fn name_for(&self, team: &TeamId) -> String {
        match &self.owner {
            Some(owner) if owner.id != *team => format!("{}/{}", owner.slug, self.slug),
            _ => self.slug.clone(),
        }
    }
}

/// A template that a request asks for.
#[derive(Debug, Clone)]
pub struct NewTemplate {
    pub id: TemplateId,
    pub slug: String,
    pub visibility: Visibility,
    pub description: String,
    pub created_at: Timestamp,
}

/// What a request changes of a template; `None` leaves as is.
#[derive(Debug, Clone, Default)]
pub struct Change {
    pub visibility: Option<Visibility>,
    pub description: Option<String>,
}

/// Why a template was not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateTemplateError {
    #[error("Another template of the team has this slug")]
    SlugTaken,
    #[error("Over the team's quota")]
    OverQuota(Usage),
    #[error("Another process took the request over, because this one was not heard of for long")]
    ClaimLost,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for CreateTemplateError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            // Ids are random: the only thing that can be taken is the slug.
            sqlx::Error::Database(refused) if refused.is_unique_violation() => CreateTemplateError::SlugTaken,
            _ => CreateTemplateError::Store(error.into()),
        }
    }
}

/// Why something was not removed.
#[derive(Debug)]
pub enum Removal<T> {
    Removed(T),
    /// This version is still needed.
    InUse(u32, VersionUse),
}

/// One page.
#[derive(Debug)]
pub struct TemplatePage {
    pub templates: Vec<TemplateRow>,
    /// Where the next page begins; `None` at the end.
    pub after: Option<String>,
}

/// With the slug of the team.
const SELECT: &str = "SELECT t.*, o.slug AS owner_slug FROM templates t LEFT JOIN teams o ON o.id = t.team_id \
                      WHERE t.deleted_at_ms IS NULL";

/// The templates.
#[derive(Debug, Clone)]
pub struct Templates {
    database: Database,
    own: OwnId,
}

impl Templates {
    pub(crate) fn new(database: Database, own: OwnId) -> Self {
        Self { database, own }
    }

    /// Makes a template of `team`, if `quota` has room for it. A claim of an idempotency key is told its id in the same
    /// transaction.
    ///
    /// # Errors
    ///
    /// Where the slug is taken, or there is no room.
    pub async fn create(
        &self,
        team: &TeamId,
        new: &NewTemplate,
        quota: &Quota,
        claim: Option<&idempotency::Claim>,
    ) -> Result<(), CreateTemplateError> {
        let mut tx = self.database.write().await?;
        let usage = usage(&mut tx, team, new.created_at).await?;
        sqlx::query(
            "INSERT INTO templates (id, team_id, slug, visibility, description, created_at_ms, updated_at_ms) \
             VALUES ($1, $2, $3, $4, $5, $6, $6)",
        )
        .bind(new.id.as_str())
        .bind(team.as_str())
        .bind(&new.slug)
        .bind(new.visibility.as_str())
        .bind(&new.description)
        .bind(to_ms(new.created_at))
        .execute(&mut *tx)
        .await?;
        // After the slug: who asks again for what is there already is told that.
        if usage.templates >= quota.templates {
            return Err(CreateTemplateError::OverQuota(usage));
        }
        if let Some(claim) = claim
            && !idempotency::name_resource(&mut tx, claim, &new.id).await?
        {
            return Err(CreateTemplateError::ClaimLost);
        }
        tx.commit().await?;
        Ok(())
    }

    /// The template that `name`, an id or a slug, stands for when this team says it; with `owner`, of that team.
    pub async fn find(
        &self,
        team: &TeamId,
        owner: Option<&str>,
        name: &str,
    ) -> Result<Option<TemplateRow>, StoreError> {
        let mut query = Statement::new(SELECT);
        query.push(" AND (t.visibility = 'public' OR t.team_id = ").push_bind(team.as_str()).push(")");
        match owner {
            None => {
                query.push(" AND (t.id = ").push_bind(name).push(" OR t.slug = ").push_bind(name);
                query.push(" AND (t.team_id IS NULL OR t.team_id = ").push_bind(team.as_str()).push("))");
            }
            Some(owner) => {
                query.push(" AND t.slug = ").push_bind(name).push(" AND (o.id = ").push_bind(owner);
                query.push(" OR o.slug = ").push_bind(owner).push(")");
            }
        }
        query.push(" ORDER BY CASE WHEN t.id = ").push_bind(name);
        query.push(" THEN 0 WHEN t.team_id = ").push_bind(team.as_str()).push(" THEN 1 ELSE 2 END LIMIT 1");
        let row = query.build().fetch_optional(self.database.read()).await?;
        let found = row.as_ref().map(template).transpose()?;
        Ok(self.with_latest(found.into_iter().collect()).await?.pop())
    }

    /// The `limit` templates that this team may use, by slug, from the one that follows `after`: its own, the host's, and what
    /// others have made public as far as it can be started.
    pub async fn list(&self, team: &TeamId, after: Option<&str>, limit: u32) -> Result<TemplatePage, StoreError> {
        let mut query = Statement::new(SELECT);
        query.push(" AND (t.team_id = ").push_bind(team.as_str()).push(
            " OR t.visibility = 'public' AND EXISTS \
                 (SELECT 1 FROM template_versions v WHERE v.template_id = t.id AND v.runnable = 1))",
        );
        if let Some(after) = after {
            query.push(" AND (t.slug, t.id) > (SELECT a.slug, a.id FROM templates a WHERE a.id = ");
            query.push_bind(after).push(")");
        }
        // One more than asked for tells whether there is a next page.
        query.push(" ORDER BY t.slug, t.id LIMIT ").push_bind(i64::from(limit) + 1);

        let rows = query.build().fetch_all(self.database.read()).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let templates = rows.iter().take(limit).map(template).collect::<Result<Vec<_>, _>>()?;
        let after = templates.last().filter(|_| rows.len() > limit).map(|last| last.id.to_string());
        Ok(TemplatePage { templates: self.with_latest(templates).await?, after })
    }

    /// Changes a template.
    pub async fn change(&self, id: &TemplateId, change: &Change, now: Timestamp) -> Result<(), StoreError> {
        let mut query = Statement::new("UPDATE templates SET updated_at_ms = ");
        query.push_bind(to_ms(now));
        if let Some(visibility) = change.visibility {
            query.push(", visibility = ").push_bind(visibility.as_str());
        }
        if let Some(description) = &change.description {
            query.push(", description = ").push_bind(description);
        }
        query.push(" WHERE deleted_at_ms IS NULL AND id = ").push_bind(id.as_str());
        self.database.changes_row(query).await.map(drop)
    }

    /// Removes a template with all its versions, those announced among them, unless one is needed; the ids of those that the
    /// agent may have.
    pub async fn delete(&self, id: &TemplateId, now: Timestamp) -> Result<Removal<Vec<VersionId>>, StoreError> {
        let mut tx = self.database.write().await?;
        let rows =
            sqlx::query("SELECT id, number FROM template_versions WHERE template_id = $1 AND state <> 'deleted'")
                .bind(id.as_str())
                .fetch_all(&mut *tx)
                .await?;
        let mut removed = Vec::new();
        for row in rows {
            let version: VersionId = row.try_get::<String, _>("id")?.into();
            match versions::remove(&mut tx, &version, now).await? {
                Some(used) => return Ok(Removal::InUse(sandpiper_db::count(row.try_get("number")?)?, used)),
                None => removed.push(version),
            }
        }
        sqlx::query("DELETE FROM announced_versions WHERE template_id = $1")
            .bind(id.as_str())
            .execute(&mut *tx)
            .await?;
        sqlx::query("UPDATE templates SET deleted_at_ms = $2, updated_at_ms = $2 WHERE id = $1")
            .bind(id.as_str())
            .bind(to_ms(now))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Removal::Removed(removed))
    }

    /// The same, with the newest version of each that can be started.
    async fn with_latest(&self, mut templates: Vec<TemplateRow>) -> Result<Vec<TemplateRow>, StoreError> {
        if templates.is_empty() {
            return Ok(templates);
        }
        let ids: Vec<&str> = templates.iter().map(|one| one.id.as_str()).collect();
        let latest = self.latest_of(&ids).await?;
        let mut latest: HashMap<TemplateId, VersionRow> =
            latest.into_iter().map(|version| (version.template.clone(), version)).collect();
        for one in &mut templates {
            one.latest = latest.remove(&one.id);
        }
        Ok(templates)
    }
}

/// The host's template of this slug, made where missing.
async fn of_host(tx: &mut Tx, slug: &str, at: Timestamp) -> Result<TemplateId, StoreError> {
    let known = sqlx::query("SELECT id FROM templates WHERE team_id IS NULL AND slug = $1 AND deleted_at_ms IS NULL")
        .bind(slug)
        .fetch_optional(&mut **tx)
        .await?;
    if let Some(row) = known {
        return Ok(row.try_get::<String, _>("id")?.into());
    }
    let id = TemplateId::generate();
    sqlx::query(
        "INSERT INTO templates (id, slug, visibility, created_at_ms, updated_at_ms) VALUES ($1, $2, 'public', $3, $3)",
    )
    .bind(id.as_str())
    .bind(slug)
    .bind(to_ms(at))
    .execute(&mut **tx)
    .await?;
    Ok(id)
}

impl fmt::Display for Visibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn template(row: &AnyRow) -> Result<TemplateRow, StoreError> {
    let team: Option<String> = row.try_get("team_id")?;
    let owner = match team {
        Some(id) => Some(Owner { id: id.into(), slug: row.try_get("owner_slug")? }),
        None => None,
    };
    Ok(TemplateRow {
        id: row.try_get::<String, _>("id")?.into(),
        owner,
        slug: row.try_get("slug")?,
        visibility: decode_enum(row.try_get("visibility")?)?,
        description: row.try_get("description")?,
        created_at: from_ms(row.try_get("created_at_ms")?)?,
        updated_at: from_ms(row.try_get("updated_at_ms")?)?,
        latest: None,
    })
}

#[cfg(test)]
mod tests {
    use sandpiper_db::DatabaseLocation;
    use sandpiper_db::database::connect;
    use sandpiper_db::testing::{database_without_tables, refusal};

    use super::super::Store;
    use super::super::testing::test_store;
    use super::*;

    #[tokio::test]
    async fn what_was_imported_before_is_the_hosts_and_keeps_its_numbers() {
        let database = database_without_tables().await;
        let location: DatabaseLocation = database.location.parse().unwrap();
        let (mut connection, migrations) = connect(&location).await.unwrap();
        migrations.run_to(15, &mut connection).await.unwrap();
        let imported = "INSERT INTO template_versions VALUES ('ver2', 'base', 2, 'd', 1, 256, 5, 1), \
                        ('ver1', 'base', 1, 'd', 1, 128, 0, 0), ('ver3', 'node', 1, 'd', 1, 512, 7, 1)";
        sqlx::raw_sql(imported).execute(&mut connection).await.unwrap();

        let store = Store::new(Database::open(&location).await.unwrap());

        let team = TeamId::from("any");
        let base = store.templates.find(&team, None, "base").await.unwrap().unwrap();
        assert_eq!((&base.owner, base.visibility, base.id.as_str()), (&None, Visibility::Public, "tpl1"));
        let latest = base.latest.unwrap();
        assert_eq!((latest.id.as_str(), latest.number, latest.baseline.memory_mb), ("ver2", 2, 256));
        let first = store.templates.version(&base.id, "1").await.unwrap().unwrap();
        assert_eq!((first.id.as_str(), first.is_runnable, first.source.as_str()), ("ver1", false, "import"));
        assert_eq!(store.templates.list(&team, None, 10).await.unwrap().templates.len(), 2);
    }

    #[tokio::test]
    async fn the_schema_itself_keeps_what_has_ended() {
        let store = test_store().await;
        let mut tx = store.database.write().await.unwrap();
        sqlx::raw_sql(
            "INSERT INTO templates VALUES ('p', NULL, 'base', 'public', '', 0, 0, NULL); \
             INSERT INTO template_versions (id, template_id, number, cpu, memory_mb, created_at_ms, runnable, state) \
             VALUES ('v', 'p', 1, 1, 1, 0, 0, 'queued')",
        )
        .execute(&mut *tx)
        .await
        .unwrap();
        let mut refused = async |statement| refusal(&mut tx, statement).await;

        assert!(refused("UPDATE template_versions SET state = 'failed'").await.to_lowercase().contains("check"));
        assert_eq!(refused("UPDATE template_versions SET state = 'ready'").await, "");
        assert!(refused("UPDATE template_versions SET state = 'building'").await.contains("stays as it is"));
        assert!(refused("UPDATE template_versions SET state = 'deleted'").await.to_lowercase().contains("check"));
        assert_eq!(refused("UPDATE template_versions SET state = 'deleted', deleted_at_ms = 1").await, "");
        let revived = "UPDATE template_versions SET state = 'ready', deleted_at_ms = NULL";
        assert!(refused(revived).await.contains("stays as it is"));
        let twin = "INSERT INTO templates VALUES ('q', NULL, 'base', 'public', '', 0, 0, NULL)";
        assert!(refused(twin).await.to_lowercase().contains("unique"));
        assert!(refused("UPDATE templates SET visibility = 'private'").await.to_lowercase().contains("check"));
    }
}
