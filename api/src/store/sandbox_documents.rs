//! What belongs to a sandbox and stands in tables of its own: read for those that are shown, not for all of them every
//! second.

use std::collections::BTreeMap;

use sandpiper_db::{Statement, StoreError, Tx};
use sandpiper_protocol::agent::NetworkPolicy;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::sandbox_network::read_policy;
use super::sandbox_row::SandboxRow;
use super::sandboxes::Sandboxes;
use super::volumes::{MountRow, read_mount};

/// A sandbox's documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Documents {
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) policy: NetworkPolicy,
    /// By path.
    pub(crate) volume_mounts: Vec<MountRow>,
}

impl Sandboxes {
    /// Rows with their documents, in the order given.
    pub(super) async fn with_documents(&self, rows: &[AnyRow]) -> Result<Vec<SandboxRow>, StoreError> {
        let ids = rows.iter().map(|row| row.try_get("id")).collect::<Result<Vec<String>, _>>()?;
        let mut documents = self.documents(&ids).await?;
        rows.iter().zip(&ids).map(|(row, id)| SandboxRow::read(row, documents.remove(id).unwrap_or_default())).collect()
    }

    /// The documents of each of these sandboxes that has any.
    async fn documents(&self, ids: &[String]) -> Result<BTreeMap<String, Documents>, StoreError> {
        let mut by_sandbox: BTreeMap<String, Documents> = BTreeMap::new();
        if ids.is_empty() {
            return Ok(by_sandbox);
        }
        let of_these = |select| {
            let mut query = Statement::new(select);
            query.push(" WHERE sandbox_id IN ").push_list(ids);
            query.build()
        };
        let metadata = of_these("SELECT sandbox_id, key, value FROM sandbox_metadata");
        for row in metadata.fetch_all(self.database.read()).await? {
            let documents = by_sandbox.entry(row.try_get("sandbox_id")?).or_default();
            documents.metadata.insert(row.try_get("key")?, row.try_get("value")?);
        }
        let policies = of_these("SELECT sandbox_id, policy FROM sandbox_policies");
        for row in policies.fetch_all(self.database.read()).await? {
            by_sandbox.entry(row.try_get("sandbox_id")?).or_default().policy = read_policy(row.try_get("policy")?)?;
        }
        let mounts = of_these(
            "SELECT m.sandbox_id, m.path, m.volume_id, v.name FROM sandbox_volumes m JOIN volumes v ON v.id = m.volume_id",
        );
        for row in mounts.fetch_all(self.database.read()).await? {
            by_sandbox.entry(row.try_get("sandbox_id")?).or_default().volume_mounts.push(read_mount(&row)?);
        }
        for documents in by_sandbox.values_mut() {
            documents.volume_mounts.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        }
        Ok(by_sandbox)
    }
}

/// Adds metadata to a sandbox that has none.
pub(super) async fn insert_metadata(
    tx: &mut Tx,
    id: &str,
    metadata: &BTreeMap<String, String>,
) -> Result<(), StoreError> {
    for (key, value) in metadata {
        sqlx::query("INSERT INTO sandbox_metadata (sandbox_id, key, value) VALUES ($1, $2, $3)")
            .bind(id)
            .bind(key)
            .bind(value)
            .execute(&mut **tx)
            .await?;
    }
    Ok(())
}
