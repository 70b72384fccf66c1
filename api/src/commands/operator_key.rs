//! `sandpiper-api operator-key …`

use anyhow::{bail, ensure};
use jiff::Timestamp;
use sandpiper_accounts::operators::{OperatorKeys, keys};
use sandpiper_db::{AuditLog, Database};
use serde_json::json;

use super::audit;

const MAX_NAME: usize = 200;

/// Makes a key and prints it.
pub async fn create(database: Database, name: &str, as_json: bool) -> anyhow::Result<()> {
    ensure!(name.len() <= MAX_NAME, "A key's name has at most {MAX_NAME} bytes");
    let key = keys::generate();
    let Some(hash) = keys::hash(&key) else { bail!("A new key does not have the form of a key") };
    let id = OperatorKeys::new(database.clone()).add(name, &hash, Timestamp::now()).await?;
    audit::write(&AuditLog::new(database), "operator-key create", Some(&id)).await?;
    if as_json {
        println!("{}", json!({"id": id, "key": *key}));
    } else {
        println!("{}", *key);
        eprintln!("{id}: for /operator. The key is not shown again.");
    }
    Ok(())
}

/// Prints all keys, without the keys themselves, which are not stored.
pub async fn list(database: Database, as_json: bool) -> anyhow::Result<()> {
    let keys = OperatorKeys::new(database).all().await?;
    if as_json {
        println!("{}", json!({ "keys": keys }));
        return Ok(());
    }
    println!("{:<27} {:<24} {:<8} NAME", "ID", "CREATED", "STATE");
    for key in keys {
        let state = if key.revoked_at.is_some() { "revoked" } else { "active" };
        println!("{:<27} {:<24} {state:<8} {}", key.id, key.created_at.to_string(), key.name);
    }
    Ok(())
}

/// Ends a key.
pub async fn revoke(database: Database, id: &str) -> anyhow::Result<()> {
    ensure!(
        OperatorKeys::new(database.clone()).revoke(id, Timestamp::now()).await?,
        "There is no active operator key {id}; `sandpiper-api operator-key ls` lists them"
    );
    audit::write(&AuditLog::new(database), "operator-key revoke", Some(id)).await?;
    eprintln!("{id} is revoked.");
    Ok(())
}
