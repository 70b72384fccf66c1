//! `sandpiper-api backup` and `sandpiper-api restore`
//!
//! As the user who asked, unlike other commands: root's backups are where the API's user may not look. What SQLite makes beside
//! its file while root reads it belongs to the file's owner.

use std::path::Path;

use sandpiper_db::DatabaseLocation;

use super::block_on;
use crate::backup;
use crate::config::Config;
use crate::privileges::configured_user;

/// Makes a backup, and says what is in it.
pub fn write(config: &Config, folder: &Path, json: bool) -> anyhow::Result<()> {
    let location = config.database();
    eprintln!("copying {location} and its keys to {}", folder.display());
    let manifest = block_on(async { Ok(backup::write(config, folder).await?) })?;
    if json {
        println!("{}", serde_json::to_string(&manifest)?);
    } else {
        let bytes: u64 = manifest.files.iter().map(|entry| entry.bytes).sum();
        println!("{} files, {bytes} bytes, version {} of the tables", manifest.files.len(), manifest.schema);
    }
    eprintln!("warning: whoever has {} can open all secrets in it; keep it as safe as this host", folder.display());
    if let DatabaseLocation::Postgres(_) = location {
        eprintln!(
            "warning: it has the keys and no records. Copy those with: pg_dump --format=custom --file=FILE DATABASE"
        );
    }
    Ok(())
}

/// Restores a backup for the user who serves.
pub fn restore(config: &Config, folder: &Path) -> anyhow::Result<()> {
    let user = if nix::unistd::geteuid().is_root() { configured_user(config)? } else { None };
    let manifest = backup::restore(config, folder, user.map(|(uid, gid)| (uid.as_raw(), gid.as_raw())))?;
    println!("{} files of {} restored", manifest.files.len(), manifest.created_at);
    if let DatabaseLocation::Postgres(_) = config.database() {
        eprintln!("warning: these are the keys. Restore the records with: pg_restore --dbname=DATABASE FILE");
    }
    Ok(())
}
