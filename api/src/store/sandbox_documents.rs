//! What belongs to a sandbox and stands in tables of its own: read for those that are shown, not for all of them every
//! second.

use std::collections::BTreeMap;

use sandpiper_db::{Statement, StoreError, Tx};
use sandpiper_protocol::agent::NetworkPolicy;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::sandbox_network::read_policy;
use super::volumes::MountRow;

/// A sandbox's documents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Documents {
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) policy: NetworkPolicy,
    /// By path.
    pub(crate) volume_mounts: Vec<MountRow>,
}

/// Rows of `sandboxes`, as `s`, with their documents: what [`SandboxRow::read_with_documents`](super::sandbox_row::SandboxRow::read_with_documents) takes, and no more, for every column
/// costs time.
pub(super) const WITH_DOCUMENTS: &str = "SELECT s.id, s.team_id, s.state, s.template, s.template_version, s.cpu, s.memory_mb, \
         s.disk_gib, s.timeout_seconds, s.deadline_ms, s.on_timeout, s.auto_resume, s.pause_memory, s.exposed_ports, \
         s.allow_public_traffic, s.network_version, s.network_applied, s.network_error, s.data_plane_url, s.created_at_ms, \
         s.started_at_ms, s.stopped_at_ms, s.expires_at_ms, s.error_code, s.error_message, s.snapshot_id, s.retained_bytes, \
         s.process, s.capture_output, d.metadata, d.policy, d.volume_mounts \
     FROM sandboxes s JOIN sandbox_documents d ON d.sandbox_id = s.id ";

impl Documents {
    /// Those of a row of the view `sandbox_documents`.
    pub(super) fn read(row: &AnyRow) -> Result<Self, StoreError> {
        let policy: Option<&str> = row.try_get("policy")?;
        let mut volume_mounts: Vec<MountRow> = json(row, "volume_mounts")?;
        volume_mounts.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Ok(Self {
            metadata: json(row, "metadata")?,
            policy: policy.map(read_policy).transpose()?.unwrap_or_default(),
            volume_mounts,
        })
    }
}

/// What a column has as JSON; nothing where it has nothing.
fn json<T: Default + DeserializeOwned>(row: &AnyRow, column: &str) -> Result<T, StoreError> {
    let text: Option<&str> = row.try_get(column)?;
    let read = |text| serde_json::from_str(text).map_err(|_| StoreError::Corrupt { what: column.into() });
    text.map_or_else(|| Ok(T::default()), read)
}

/// Adds metadata to a sandbox that has none.
pub(super) async fn insert_metadata(
    tx: &mut Tx,
    id: &str,
    metadata: &BTreeMap<String, String>,
) -> Result<(), StoreError> {
    if metadata.is_empty() {
        return Ok(());
    }
    let mut entries = Statement::new(
        "INSERT INTO sandbox_metadata (sandbox_id, team_id, key, value) SELECT s.id, s.team_id, column1, column2 FROM (",
    );
    entries.push_rows(metadata.iter().map(|(key, value)| [key.into(), value.into()]));
    entries.push(") entries, sandboxes s WHERE column1 IS NOT NULL AND s.id = ").push_bind(id);
    entries.build().execute(&mut **tx).await?;
    Ok(())
}
