//! Making a backup, while processes serve the database.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use sandpiper_db::DatabaseLocation;
use sandpiper_db::schema::Untouched;
use sandpiper_durable::{self as durable, Access};
use zeroize::Zeroizing;

use super::{BackupError, Entry, FORMAT_VERSION, Kind, MANIFEST, Manifest, Name, key_files};
use crate::config::Config;

/// What the key files hold.
type Keys = Vec<(Name, Zeroizing<Vec<u8>>)>;

/// Writes a backup to `folder`, which does not exist. Of a database of PostgreSQL it has the keys alone. Blocks while it writes.
///
/// # Errors
///
/// Nothing is left behind, then; after a kill a folder beside it whose name ends in `.partial`.
pub async fn write(config: &Config, folder: &Path) -> Result<Manifest, BackupError> {
    if folder.symlink_metadata().is_ok() {
        return Err(BackupError::Exists { path: folder.to_owned() });
    }
    let mut name = OsString::from(folder);
    name.push(format!(".{}.partial", std::process::id()));
    let partial = PathBuf::from(name);
    DirBuilder::new().mode(0o700).create(&partial).map_err(BackupError::io("make the folder", &partial))?;
    let made = match fill(config, &partial).await {
        Ok(manifest) => fs::rename(&partial, folder)
            .and_then(|()| durable::sync_parent(folder))
            .map(|()| manifest)
            .map_err(BackupError::io("make the folder", folder)),
        Err(error) => Err(error),
    };
    if made.is_err() {
        // What it failed of is told; a folder that stays is seen.
        let _ = durable::remove_tree(&partial);
    }
    made
}

async fn fill(config: &Config, folder: &Path) -> Result<Manifest, BackupError> {
    let location = config.database();
    let keys = read_keys(config)?;
    let mut database = Untouched::open(&location).await?;
    let schema = database.version().await?.unwrap_or(0);
    let mut names: Vec<Name> = keys.iter().map(|(name, _)| *name).collect();
    if let DatabaseLocation::Sqlite(_) = location {
        database.copy_to(&folder.join(Name::Database.as_str())).await?;
        names.push(Name::Database);
    }
    database.close().await?;
    if read_keys(config)? != keys {
        return Err(BackupError::KeysChanged);
    }
    for (name, key) in &keys {
        let path = folder.join(name.as_str());
        durable::create_atomic(&path, Access::PRIVATE, key).map_err(BackupError::io("write", &path))?;
    }
    let entry = |name: Name| Entry::of(folder, name).map_err(BackupError::io("read", &folder.join(name.as_str())));
    names.sort();
    let manifest = Manifest {
        format_version: FORMAT_VERSION,
        created_at: Timestamp::now(),
        program: env!("CARGO_PKG_VERSION").to_owned(),
        database: Kind::of(&location),
        schema,
        files: names.into_iter().map(entry).collect::<Result<_, _>>()?,
    };
    let path = folder.join(MANIFEST);
    let text =
        serde_json::to_string_pretty(&manifest).map_err(|error| BackupError::io("write", &path)(error.into()))?;
    durable::create_atomic(&path, Access::PRIVATE, format!("{text}\n").as_bytes())
        .map_err(BackupError::io("write", &path))?;
    Ok(manifest)
}

/// The keys that there are: a side that was never served has none.
fn read_keys(config: &Config) -> Result<Keys, BackupError> {
    let mut keys = Vec::new();
    for (name, path) in key_files(config) {
        match fs::read(&path) {
            Ok(key) => keys.push((name, Zeroizing::new(key))),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(BackupError::io("read the key file", &path)(error)),
        }
    }
    Ok(keys)
}
