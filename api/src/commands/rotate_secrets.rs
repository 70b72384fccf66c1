//! `sandpiper-api key rotate-secrets`
//!
//! ```text
//!   a new key on top of the file ──▶ every row sealed anew ──▶ the older keys dropped
//! ```
//!
//! Killed at any moment, all that is sealed opens with what is in the file, and the command can be run again. A process that serves
//! would go on sealing under the key that it has read, so there must be none.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use jiff::Timestamp;
use sandpiper_db::reseal::{SealedColumn, reseal};
use sandpiper_db::secrets::{self, Vault};
use sandpiper_db::sole::Sole;
use sandpiper_db::{Database, DatabaseLocation};

use super::audit;
use crate::config::Config;
use crate::store::{self, Store};

/// Seals everything under a new key, and drops the older ones.
pub async fn run(config: &Config, database: Database) -> anyhow::Result<()> {
    let store = Store::new(database.clone());
    let _sole = match config.database() {
        DatabaseLocation::Sqlite(path) => Some(Sole::take(&path)?),
        DatabaseLocation::Postgres(_) => {
            let others = store.processes.others(Timestamp::now()).await?.len();
            ensure!(others == 0, "{others} processes of sandpiper-api serve this database; end all of them first");
            None
        }
    };
    let mut files: BTreeMap<PathBuf, Vec<SealedColumn>> = BTreeMap::new();
    files.entry(config.secrets_key_file()).or_default().extend(store::SEALED);
    files.entry(config.merchant_secrets_key_file()).or_default().extend(sandpiper_payments::store::SEALED);
    for (file, columns) in files {
        if !file.exists() {
            eprintln!("{}: there is no such file, so nothing is sealed under it.", file.display());
            continue;
        }
        secrets::add_key(&file)?;
        let vault = Vault::open(&file)?;
        let mut unreadable = Vec::new();
        for column in columns {
            let done = reseal(&database, &vault, &column).await?;
            eprintln!("{}: {} rows are sealed under the new key.", column.name, done.rows);
            unreadable.extend(done.unreadable.into_iter().map(|id| format!("{id} ({})", column.name)));
        }
        if !unreadable.is_empty() {
            bail!(
                "These open under no key of {}: {}. Put the key that they were sealed under back into it, as its last line, and \
                 run this again. No key was dropped",
                file.display(),
                unreadable.join(", ")
            );
        }
        secrets::drop_older_keys(&file)?;
        eprintln!("{}: the older keys are gone from it, and a copy of them opens nothing any more.", file.display());
    }
    audit::write(&store.audit, "key rotate-secrets", None).await
}
