//! What must survive of sandboxes: users and their identities, teams, keys, templates and their versions, files for builds, sandboxes, checkpoints, volumes,
//! what they are billed by, events and webhooks, idempotency keys, and which processes are alive.
//!
//! One file per resource, each a handle over the same [`Database`].

use sandpiper_accounts::oidc::Identities;
use sandpiper_accounts::operators::OperatorKeys;
use sandpiper_accounts::{LoginSessions, Users};
use sandpiper_db::reseal::SealedColumn;
use sandpiper_db::{AuditLog, Database};

mod checkpoint_events;
pub mod checkpoints;
pub mod events;
pub mod idempotency;
pub mod intervals;
pub mod kept;
pub mod keys;
pub mod members;
pub mod processes;
pub mod sandbox_documents;
pub mod sandbox_events;
pub mod sandbox_list;
pub mod sandbox_network;
pub mod sandbox_row;
pub mod sandboxes;
pub mod storage;
pub mod teams;
pub mod templates;
#[cfg(test)]
pub(crate) mod testing;
pub mod traffic;
pub mod uploads;
pub mod usage;
mod volume_events;
pub mod volumes;
pub mod webhooks;

pub use checkpoints::Checkpoints;
pub use events::Events;
pub use idempotency::IdempotencyKeys;
pub use intervals::Intervals;
pub use kept::Kept;
pub use keys::ApiKeys;
pub use members::Members;
use processes::OwnId;
pub use processes::Processes;
pub use sandboxes::Sandboxes;
pub use storage::Storage;
pub use teams::Teams;
pub use templates::Templates;
pub use traffic::Traffic;
pub use uploads::Uploads;
pub use volumes::Volumes;
pub use webhooks::Webhooks;

/// What is sealed under the secrets key, each for the id of its row.
pub const SEALED: [SealedColumn; 3] = [
    SealedColumn {
        name: "variables of sandboxes",
        select: "SELECT id, envs AS sealed FROM sandboxes WHERE envs IS NOT NULL AND id > $1 ORDER BY id LIMIT $2",
        update: "UPDATE sandboxes SET envs = $1 WHERE id = $2 AND envs = $3",
    },
    SealedColumn {
        name: "builds that wait",
        select: "SELECT id, sealed_order AS sealed FROM template_versions \
                 WHERE sealed_order IS NOT NULL AND id > $1 ORDER BY id LIMIT $2",
        update: "UPDATE template_versions SET sealed_order = $1 WHERE id = $2 AND sealed_order = $3",
    },
    SealedColumn {
        name: "secrets of webhooks",
        select: "SELECT webhook_id AS id, sealed FROM team_webhooks \
                 WHERE sealed IS NOT NULL AND webhook_id > $1 ORDER BY webhook_id LIMIT $2",
        update: "UPDATE team_webhooks SET sealed = $1 WHERE webhook_id = $2 AND sealed = $3",
    },
];

/// All handles.
#[derive(Debug, Clone)]
pub struct Store {
    pub users: Users,
    pub identities: Identities,
    pub login_sessions: LoginSessions,
    pub teams: Teams,
    pub members: Members,
    pub keys: ApiKeys,
    pub templates: Templates,
    pub sandboxes: Sandboxes,
    pub checkpoints: Checkpoints,
    pub volumes: Volumes,
    pub events: Events,
    pub webhooks: Webhooks,
    pub uploads: Uploads,
    pub intervals: Intervals,
    pub kept: Kept,
    pub storage: Storage,
    pub traffic: Traffic,
    pub idempotency: IdempotencyKeys,
    pub processes: Processes,
    pub audit: AuditLog,
    pub operator_keys: OperatorKeys,
}

impl Store {
    /// Over a database that is open. Starts a task that writes what webhooks need.
    pub fn new(database: Database) -> Self {
        let own = OwnId::new();
        Self {
            users: Users::new(database.clone()),
            identities: Identities::new(database.clone()),
            login_sessions: LoginSessions::new(database.clone()),
            members: Members::new(database.clone()),
            teams: Teams::new(database.clone()),
            keys: ApiKeys::new(database.clone()),
            templates: Templates::new(database.clone(), own.clone()),
            sandboxes: Sandboxes::new(database.clone(), own.clone()),
            checkpoints: Checkpoints::new(database.clone(), own.clone()),
            volumes: Volumes::new(database.clone(), own.clone()),
            events: Events::new(database.clone()),
            webhooks: Webhooks::new(database.clone()),
            uploads: Uploads::new(database.clone(), own.clone()),
            intervals: Intervals::new(database.clone()),
            kept: Kept::new(database.clone()),
            storage: Storage::new(database.clone()),
            traffic: Traffic::new(database.clone()),
            idempotency: IdempotencyKeys::new(database.clone(), own.clone()),
            processes: Processes::new(database.clone(), own),
            audit: AuditLog::new(database.clone()),
            operator_keys: OperatorKeys::new(database),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use sandpiper_db::testing::refusal;

    use super::testing::test_store;
    use super::*;

    #[tokio::test]
    async fn what_was_committed_is_there_after_the_database_is_opened_again() {
        let store = test_store().await;
        let made = store.teams.ensure("acme", crate::plan::Plan::Pro, Timestamp::UNIX_EPOCH).await.unwrap();

        // As after a kill: the first one is not closed, its log is not merged.
        let reopened = Store::new(Database::open(&store.location()).await.unwrap());

        assert_eq!(reopened.teams.by_slug("acme").await.unwrap().map(|team| team.id), Some(made.id));
    }

    #[tokio::test]
    async fn the_schema_itself_keeps_the_dead_dead() {
        let store = test_store().await;
        let mut tx = store.database.write().await.unwrap();
        sqlx::raw_sql(
            "INSERT INTO teams (id, slug, plan, created_at_ms) VALUES ('t', 't', 'pro', 0); \
             INSERT INTO templates VALUES ('p', NULL, 'base', 'public', '', 0, 0, NULL); \
             INSERT INTO template_versions (id, template_id, number, cpu, memory_mb, created_at_ms, runnable) \
             VALUES ('v', 'p', 1, 1, 1, 0, 1); \
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
