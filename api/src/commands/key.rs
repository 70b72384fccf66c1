//! `sandpiper-api key …`

use anyhow::{bail, ensure};
use jiff::Timestamp;
use serde_json::json;

use super::audit;
use crate::auth::keys;
use crate::plan::Plan;
use crate::store::Store;
use crate::store::keys::{Capability, MAX_NAME, NewKey};
use crate::store::teams::{SLUG_RULE, is_slug};

/// A key to make.
#[derive(Debug)]
pub struct Wanted {
    pub team: String,
    pub capability: Capability,
    pub name: String,
    pub plan: Plan,
}

/// Makes a key and prints it.
pub async fn create(store: &Store, wanted: &Wanted, as_json: bool) -> anyhow::Result<()> {
    let slug = wanted.team.as_str();
    ensure!(is_slug(slug), "A team's slug {SLUG_RULE}: not {slug:?}");
    ensure!(wanted.name.len() <= MAX_NAME, "A key's name has at most {MAX_NAME} bytes");
    let now = Timestamp::now();
    let team = store.teams.ensure(slug, wanted.plan, now).await?;
    let key = keys::generate();
    let Some(hash) = keys::hash(&key) else { bail!("A new key does not have the form of a key") };
    let new =
        NewKey { name: &wanted.name, hash: &hash, capability: wanted.capability, created_by: None, expires_at: None };
    let id = store.keys.add(&team, &new, now).await?;
    audit::write(&store.audit, "key create", Some(&id)).await?;
    if as_json {
        let capability = wanted.capability.as_str();
        println!("{}", json!({"id": id, "key": *key, "team": slug, "plan": team.plan, "capability": capability}));
    } else {
        println!("{}", *key);
        eprintln!(
            "{id}: {} access for team {slug} (plan {}). The key is not shown again.",
            wanted.capability.as_str(),
            team.plan
        );
    }
    Ok(())
}

/// Prints all keys, without the keys themselves, which are not stored.
pub async fn list(store: &Store, as_json: bool) -> anyhow::Result<()> {
    let keys = store.keys.all().await?;
    if as_json {
        println!("{}", json!({ "keys": keys }));
        return Ok(());
    }
    println!("{:<27} {:<20} {:<10} {:<24} {:<8} NAME", "ID", "TEAM", "CAPABILITY", "CREATED", "STATE");
    let now = Timestamp::now();
    for key in keys {
        let is_over = key.expires_at.is_some_and(|end| end <= now);
        let state = if key.revoked_at.is_some() {
            "revoked"
        } else if is_over {
            "expired"
        } else {
            "active"
        };
        let created = key.created_at.to_string();
        println!(
            "{:<27} {:<20} {:<10} {created:<24} {state:<8} {}",
            key.id,
            key.team,
            key.capability.as_str(),
            key.name
        );
    }
    Ok(())
}

/// Ends a key.
pub async fn revoke(store: &Store, id: &str) -> anyhow::Result<()> {
    ensure!(
        store.keys.revoke(id, None, Timestamp::now()).await?,
        "There is no active key {id}; `sandpiper-api key ls` lists them"
    );
    audit::write(&store.audit, "key revoke", Some(id)).await?;
    eprintln!("{id} is revoked.");
    Ok(())
}
