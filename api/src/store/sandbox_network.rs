//! Network policies: what tenants want, and how far the agent has got with it.
//!
//! A policy is *applied* when the agent has said that it is in force, and *pending* before. The agent also reports, with
//! the rest of a sandbox, which version it has on record. That proves less, for it writes a policy down before it enforces
//! it, so of a report follows only:
//!
//! | the report names | then |
//! |---|---|
//! | a version, and nothing was applied yet | it is applied: a sandbox starts with the policy on record |
//! | an older version than was applied | the agent has lost a policy: pending again |
//! | a newer version than there is here | this database is an older copy: its version is raised above that, and sent |
//! | another | nothing |
//!
//! When a policy is sent, [`crate::orchestration::network`] says.

use sandpiper_db::{Statement, StoreError, Tx, count};
use sandpiper_protocol::agent::{Network, NetworkPolicy};
use sqlx::Row;

use super::sandbox_row::NetworkState;
use super::sandboxes::Sandboxes;

/// The newest policy of a sandbox, and how far it has got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedPolicy {
    pub policy: NetworkPolicy,
    pub state: NetworkState,
}

impl WantedPolicy {
    /// As the agent is told of it.
    pub fn network(self) -> Network {
        Network { version: self.state.version, policy: self.policy }
    }
}

impl Sandboxes {
    /// Records a new policy, to be sent; its version, or `None` for a sandbox that has failed or is destroyed.
    pub async fn replace_policy(&self, id: &str, policy: &NetworkPolicy) -> Result<Option<u64>, StoreError> {
        let mut tx = self.database.write_shared().await?;
        let version: Option<i64> = sqlx::query_scalar(
            "UPDATE sandboxes SET network_version = network_version + 1, network_error = NULL \
             WHERE id = $1 AND state NOT IN ('failed', 'destroyed') RETURNING network_version",
        )
        .bind(id)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(version) = version else { return Ok(None) };
        sqlx::query("UPDATE sandbox_policies SET policy = $2 WHERE sandbox_id = $1")
            .bind(id)
            .bind(policy_json(policy))
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        count(version).map(Some)
    }

    /// The newest policy of a sandbox that has neither failed nor is destroyed.
    pub async fn wanted_policy(&self, id: &str) -> Result<Option<WantedPolicy>, StoreError> {
        let row = sqlx::query(
            "SELECT s.network_version, s.network_applied, s.network_error, p.policy FROM sandboxes s \
             JOIN sandbox_policies p ON p.sandbox_id = s.id WHERE s.id = $1 AND s.state NOT IN ('failed', 'destroyed')",
        )
        .bind(id)
        .fetch_optional(self.database.read())
        .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(WantedPolicy { policy: read_policy(row.try_get("policy")?)?, state: NetworkState::read(&row)? }))
    }

    /// Sandboxes whose newest policy is still to be sent, with its version. One that is being made gets its first policy
    /// with the order; until then there is nothing at the agent to send to.
    pub async fn pending_policies(&self) -> Result<Vec<(String, u64)>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, network_version FROM sandboxes \
             WHERE network_applied < network_version AND state NOT IN ('creating', 'failed', 'destroyed') ORDER BY id",
        )
        .fetch_all(self.database.read())
        .await?;
        rows.iter().map(|row| Ok((row.try_get("id")?, count(row.try_get("network_version")?)?))).collect()
    }

    /// The agent has said that this version is in force.
    pub async fn note_policy(&self, id: &str, version: u64) -> Result<(), StoreError> {
        // Names on the right stand for the values before.
        let mut query = Statement::new("UPDATE sandboxes SET network_applied = ");
        query.push_bind(to_stored(version)).push(", network_version = CASE WHEN ").push_bind(to_stored(version));
        query.push(" > network_version THEN ").push_bind(to_stored(version) + 1).push(" ELSE network_version END");
        query.push(", network_error = CASE WHEN ").push_bind(to_stored(version));
        query.push(" < network_version THEN network_error END WHERE id = ").push_bind(id);
        query.push(" AND state NOT IN ('failed', 'destroyed') AND (network_applied = 0 OR ");
        query.push_bind(to_stored(version)).push(" > network_applied)");
        self.database.changes_row(query).await.map(drop)
    }

    /// Why the agent did not take this version; forgotten if there is a newer one by now.
    pub async fn note_policy_error(&self, id: &str, version: u64, error: &str) -> Result<(), StoreError> {
        let mut tx = self.database.write_shared().await?;
        sqlx::query(
            "UPDATE sandboxes SET network_error = $3 \
             WHERE id = $1 AND network_version = $2 AND network_applied < network_version",
        )
        .bind(id)
        .bind(to_stored(version))
        .bind(error)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }
}

/// The versions of a sandbox's policy that a row has, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Versions {
    pub(super) newest: i64,
    pub(super) applied: i64,
}

impl Versions {
    /// What follows from a report that names a version, as the table above has it, of which only what is newer than the row may say
    /// that a policy was lost.
    pub(super) fn reported(self, version: u64, is_fresh: bool) -> Self {
        let version = to_stored(version);
        if self.applied == 0 || version > self.newest || (is_fresh && version < self.applied) {
            let newest = if version > self.newest { version + 1 } else { self.newest };
            return Self { newest, applied: version };
        }
        self
    }
}

/// The first policy of a sandbox whose row was just inserted.
pub(super) async fn insert_policy(tx: &mut Tx, id: &str, policy: &NetworkPolicy) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO sandbox_policies (sandbox_id, policy) VALUES ($1, $2)")
        .bind(id)
        .bind(policy_json(policy))
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Room for one more is left, so that a version can be raised above any other.
pub(super) fn to_stored(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX).min(i64::MAX - 1)
}

/// A policy as it is stored.
pub(super) fn read_policy(json: &str) -> Result<NetworkPolicy, StoreError> {
    serde_json::from_str(json).map_err(|_| StoreError::Corrupt { what: "network policy".into() })
}

/// Booleans and lists of text always have a JSON form; the other policy is the one that opens nothing.
fn policy_json(policy: &NetworkPolicy) -> String {
    serde_json::to_string(policy).unwrap_or_else(|_| r#"{"allow_internet_access":false}"#.to_owned())
}

#[cfg(test)]
mod tests {
    use sandpiper_db::Database;
    use sandpiper_db::DatabaseLocation;
    use sandpiper_db::database::connect;
    use sandpiper_db::testing::{database_without_tables, refusal};

    use super::super::Store;
    use super::super::testing::test_store;

    /// As it was once.
    const OLD_VERSION: &str = "INSERT INTO template_versions VALUES ('v', 'base', 1, 'd', 1, 1, 0, 1)";
    const VERSION: &str = "INSERT INTO templates VALUES ('p', NULL, 'base', 'public', '', 0, 0, NULL); \
        INSERT INTO template_versions (id, template_id, number, cpu, memory_mb, created_at_ms, runnable) \
        VALUES ('v', 'p', 1, 1, 1, 0, 1)";
    const STOPPED_SANDBOX: &str = "INSERT INTO teams (id, slug, plan, created_at_ms) VALUES ('t', 't', 'pro', 0); \
        INSERT INTO sandboxes (id, team_id, state, template, template_version, cpu, memory_mb, disk_gib, \
            timeout_seconds, on_timeout, auto_resume, exposed_ports, allow_public_traffic, created_at_ms) \
        VALUES ('s', 't', 'stopped', 'base', 'v', 1, 1, 1, 1, 'kill', 0, '[]', 1, 0)";

    #[tokio::test]
    async fn sandboxes_from_before_networks_get_none_by_the_migration() {
        let database = database_without_tables().await;
        let location: DatabaseLocation = database.location.parse().unwrap();
        let (mut connection, migrations) = connect(&location).await.unwrap();
        migrations.run_to(2, &mut connection).await.unwrap();
        for statements in [OLD_VERSION, STOPPED_SANDBOX] {
            sqlx::raw_sql(statements).execute(&mut connection).await.unwrap();
        }

        let store = Store::new(Database::open(&location).await.unwrap());

        let wanted = store.sandboxes.wanted_policy("s").await.unwrap().unwrap();
        assert!(!wanted.policy.allow_internet_access);
        assert!(wanted.state.is_pending());
        let sandbox = store.sandboxes.get(&"t".into(), "s").await.unwrap().unwrap();
        assert!(sandbox.allow_public_traffic && !sandbox.lifecycle.auto_resume, "truth values from before PostgreSQL");
    }

    #[tokio::test]
    async fn the_schema_itself_keeps_versions_in_order() {
        let store = test_store().await;
        let mut tx = store.database.write().await.unwrap();
        for statements in [VERSION, STOPPED_SANDBOX] {
            sqlx::raw_sql(statements).execute(&mut *tx).await.unwrap();
        }
        let mut refused = async |statement| refusal(&mut tx, statement).await;

        assert_eq!(refused("UPDATE sandboxes SET network_version = 3, network_applied = 2").await, "");
        assert!(refused("UPDATE sandboxes SET network_applied = 4").await.to_lowercase().contains("check"));
        assert!(refused("UPDATE sandboxes SET network_version = 2").await.contains("only grows"));
    }
}
