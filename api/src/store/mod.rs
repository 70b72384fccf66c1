//! What must survive: teams, keys, the template catalog, sandboxes, checkpoints, idempotency keys, the audit; merchants, what
//! they may discover, payments, webhook deliveries.
//!
//! One file per resource, each a handle over the same [`Database`]. The SQL is written once for SQLite and PostgreSQL:
//! `$1` placeholders, `ON CONFLICT`, `RETURNING`, text ids, integer times and truth values. What differs is in two places
//! only: the migrations, a folder per database, each the other's twin, and [`database`].

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

pub mod audit;
pub(crate) mod batch;
pub mod checkpoints;
pub(crate) mod database;
pub mod deliveries;
pub mod delivery_claims;
pub mod delivery_list;
pub mod delivery_retention;
pub mod discovery;
pub mod idempotency;
mod imports;
pub mod keys;
pub mod location;
pub mod merchant_keys;
pub mod merchants;
pub mod operator_keys;
mod payment_updates;
pub mod payments;
pub mod processes;
pub mod sandbox_documents;
pub mod sandbox_list;
pub mod sandbox_network;
pub mod sandbox_row;
pub mod sandboxes;
pub mod sole;
mod statement;
pub mod teams;
pub mod templates;
#[cfg(test)]
pub(crate) mod testing;
pub mod webhook_endpoints;

pub use audit::AuditLog;
pub(crate) use batch::Batch;
pub use checkpoints::Checkpoints;
pub(crate) use database::{Database, Tx};
pub use deliveries::Deliveries;
pub use delivery_claims::DeliveryClaims;
pub use discovery::Discovery;
pub use idempotency::IdempotencyKeys;
pub use keys::ApiKeys;
pub use location::DatabaseLocation;
pub use merchant_keys::MerchantKeys;
pub use merchants::Merchants;
pub use operator_keys::OperatorKeys;
pub use payments::Payments;
use processes::OwnId;
pub use processes::Processes;
pub use sandboxes::Sandboxes;
pub(crate) use statement::Statement;
pub use teams::Teams;
pub use templates::Templates;
pub use webhook_endpoints::WebhookEndpoints;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("Database")]
    Database(#[source] sqlx::Error),
    /// PostgreSQL keeps no text with one; SQLite does.
    #[error("A text has the character NUL")]
    NulCharacter,
    #[error("Database migration")]
    Migration(#[from] sqlx::migrate::MigrateError),
    #[error("Folder {path:?} of the database cannot be made")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("A stored value cannot be read: {what}")]
    Corrupt { what: String },
    /// Shared by all writes of the batch.
    #[error("Database, at the commit of a batch")]
    Commit(#[source] Arc<sqlx::Error>),
    #[error("The write was given up; what it was to change is as before")]
    Unwritten,
    #[error("Another process took the request over, because this one was not heard of for long")]
    ClaimLost,
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        // `character_not_in_repertoire`: what is bound is UTF-8, so it can be nothing else.
        match error.as_database_error().and_then(|refused| refused.code()) {
            Some(code) if code == "22021" => StoreError::NulCharacter,
            _ => StoreError::Database(error),
        }
    }
}

/// All handles.
#[derive(Debug, Clone)]
pub struct Store {
    pub teams: Teams,
    pub keys: ApiKeys,
    pub templates: Templates,
    pub sandboxes: Sandboxes,
    pub checkpoints: Checkpoints,
    pub idempotency: IdempotencyKeys,
    pub processes: Processes,
    pub audit: AuditLog,
    pub operator_keys: OperatorKeys,
    pub merchants: Merchants,
    pub merchant_keys: MerchantKeys,
    pub discovery: Discovery,
    pub payments: Payments,
    pub webhook_endpoints: WebhookEndpoints,
    pub deliveries: Deliveries,
    pub delivery_claims: DeliveryClaims,
    database: Database,
}

impl Store {
    /// Opens the database and brings its schema up to date.
    pub async fn open(location: &DatabaseLocation) -> Result<Self, StoreError> {
        let database = Database::open(location).await?;
        let batch = Batch::start(database.clone());
        let own = OwnId::new();
        Ok(Self {
            teams: Teams::new(database.clone()),
            keys: ApiKeys::new(database.clone()),
            templates: Templates::new(database.clone()),
            sandboxes: Sandboxes::new(database.clone(), own.clone()),
            checkpoints: Checkpoints::new(database.clone(), own.clone()),
            idempotency: IdempotencyKeys::new(database.clone(), own.clone()),
            processes: Processes::new(database.clone(), own),
            audit: AuditLog::new(database.clone()),
            operator_keys: OperatorKeys::new(database.clone()),
            merchants: Merchants::new(database.clone()),
            merchant_keys: MerchantKeys::new(database.clone()),
            discovery: Discovery::new(database.clone()),
            payments: Payments::new(database.clone(), batch.clone()),
            webhook_endpoints: WebhookEndpoints::new(database.clone(), batch.clone()),
            deliveries: Deliveries::new(database.clone(), batch.clone()),
            delivery_claims: DeliveryClaims::new(database.clone(), batch),
            database,
        })
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(self.database.read()).await?;
        Ok(())
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.database.close().await;
    }
}

/// A time as it is stored.
pub(crate) fn to_ms(time: Timestamp) -> i64 {
    time.as_millisecond()
}

/// A stored time.
pub(crate) fn from_ms(ms: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_millisecond(ms).map_err(|_| StoreError::Corrupt { what: format!("time {ms}") })
}

/// A stored count.
pub(crate) fn count<T: TryFrom<i64>>(value: i64) -> Result<T, StoreError> {
    T::try_from(value).map_err(|_| StoreError::Corrupt { what: format!("number {value}") })
}

/// A stored truth value.
pub(crate) fn truth(value: i64) -> Result<bool, StoreError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(StoreError::Corrupt { what: format!("truth value {value}") }),
    }
}

/// A stored word of a known few.
pub(crate) fn word<T: std::str::FromStr>(value: &str) -> Result<T, StoreError> {
    value.parse().map_err(|_| StoreError::Corrupt { what: format!("word {value:?}") })
}

#[cfg(test)]
mod tests {
    use super::testing::{refusal, test_store};
    use super::*;

    #[tokio::test]
    async fn what_was_committed_is_there_after_the_database_is_opened_again() {
        let store = test_store().await;
        let made = store.teams.ensure("acme", crate::plan::Plan::Pro, Timestamp::UNIX_EPOCH).await.unwrap();

        // As after a kill: the first one is not closed, its log is not merged.
        let reopened = Store::open(&store.location()).await.unwrap();

        assert_eq!(reopened.teams.by_slug("acme").await.unwrap().map(|team| team.id), Some(made.id));
    }

    #[tokio::test]
    async fn the_schema_itself_keeps_the_dead_dead() {
        let store = test_store().await;
        let mut tx = store.database.write().await.unwrap();
        sqlx::raw_sql(
            "INSERT INTO teams VALUES ('t', 't', 'pro', 0); \
             INSERT INTO template_versions VALUES ('v', 'base', 1, 'd', 1, 1, 0, 1); \
             INSERT INTO sandboxes (id, team_id, state, template, template_version, cpu, memory_mb, disk_gib, \
                 timeout_seconds, on_timeout, auto_resume, exposed_ports, allow_public_traffic, created_at_ms, \
                 error_code, error_message) \
             VALUES ('s', 't', 'failed', 'base', 'v', 1, 1, 1, 1, 'kill', 0, '[]', 1, 0, 'c', 'm'); \
             INSERT INTO checkpoints (id, team_id, name, state, sandbox_id, template, template_version, memory, cpu, \
                 memory_mb, disk_gib, created_at_ms) \
             VALUES ('c', 't', 'n', 'ready', 's', 'base', 'v', 0, 1, 1, 1, 0)",
        )
        .execute(&mut *tx)
        .await
        .unwrap();
        let mut refused = async |statement| refusal(&mut tx, statement).await;

        assert!(refused("UPDATE sandboxes SET state = 'stopped'").await.contains("ended stays ended"));
        assert!(refused("UPDATE checkpoints SET state = 'creating'").await.contains("cannot change its state"));
        assert!(refused("UPDATE checkpoints SET state = 'deleted'").await.to_lowercase().contains("check"));
        assert_eq!(refused("UPDATE checkpoints SET state = 'deleted', deleted_at_ms = 1").await, "");
        assert!(
            refused("UPDATE checkpoints SET state = 'ready', deleted_at_ms = NULL").await.contains("cannot change")
        );
        assert_eq!(refused("UPDATE sandboxes SET state = 'destroyed', destroyed_at_ms = 1").await, "");
        assert!(refused("UPDATE sandboxes SET state = 'failed', destroyed_at_ms = NULL").await.contains("stays ended"));
    }

    #[tokio::test]
    async fn writers_wait_for_each_other_and_none_fails() {
        let store = test_store().await;

        let writers = (0..32).map(|n| {
            let teams = store.teams.clone();
            tokio::spawn(async move {
                teams.ensure(&format!("team-{n}"), crate::plan::Plan::Basic, Timestamp::UNIX_EPOCH).await
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap().unwrap();
        }

        assert_eq!(store.teams.all().await.unwrap().len(), 32);
    }
}
