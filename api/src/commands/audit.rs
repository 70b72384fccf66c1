//! `sandpiper-api audit`

use jiff::Timestamp;
use sandpiper_db::AuditLog;
use sandpiper_db::audit::{Entry, OPERATOR};
use serde_json::json;

/// Prints the newest entries.
pub async fn show(audit: &AuditLog, resource: Option<&str>, limit: u32, as_json: bool) -> anyhow::Result<()> {
    let entries = audit.newest(resource, limit).await?;
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

/// Writes down what was done by a command here.
pub async fn write(audit: &AuditLog, command: &str, resource: Option<&str>) -> anyhow::Result<()> {
    Ok(audit.add(&[entry(command, resource)]).await?)
}

/// The entry of a command here, where there is no key and no request.
pub fn entry(command: &str, resource: Option<&str>) -> Entry {
    Entry {
        at: Timestamp::now(),
        team_id: OPERATOR.to_owned(),
        key_id: "-".to_owned(),
        user_id: None,
        request_id: "-".to_owned(),
        action: format!("sandpiper-api {command}"),
        resource: resource.map(str::to_owned),
        status: 200,
    }
}
