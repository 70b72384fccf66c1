//! `sandpiper-api audit`

use serde_json::json;

use crate::store::Store;

/// Prints the newest entries.
pub async fn show(store: &Store, resource: Option<&str>, limit: u32, as_json: bool) -> anyhow::Result<()> {
    let entries = store.audit.newest(resource, limit).await?;
    if as_json {
        println!("{}", json!({ "entries": entries }));
        return Ok(());
    }
    for entry in entries {
        let resource = entry.resource.as_deref().unwrap_or("-");
        println!("{} {} {} {} {} {}", entry.at, entry.status, entry.action, resource, entry.key_id, entry.request_id);
    }
    Ok(())
}
