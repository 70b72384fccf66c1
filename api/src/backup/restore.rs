//! Putting a backup where a configuration says that database and keys are.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, chown, fchown};
use std::path::{Path, PathBuf};

use sandpiper_db::{DatabaseLocation, private_files, schema, sqlite_log};
use sandpiper_durable as durable;

use super::{BackupError, Entry, FORMAT_VERSION, Kind, MANIFEST, Manifest, Name, key_files};
use crate::config::Config;

/// User and group to whom files are given.
pub type Owner = (u32, u32);

/// A file of the backup, and where it belongs.
struct Placed {
    from: PathBuf,
    to: PathBuf,
    is_key: bool,
}

/// Restores a backup; files and folders that are made belong to `owner`, or to this process. The database comes last: killed at any
/// moment it has not begun to be there, and this can be run again. Blocks while it reads and writes.
///
/// # Errors
///
/// What is wrong with the backup, or in its way. Nothing has been overwritten; keys may have been put in place.
pub fn restore(config: &Config, folder: &Path, owner: Option<Owner>) -> Result<Manifest, BackupError> {
    let manifest = read(folder)?;
    let location = config.database();
    if manifest.database != Kind::of(&location) {
        return Err(BackupError::OtherKind { backup: manifest.database.name() });
    }
    let newest = schema::newest(&location);
    if manifest.schema > newest {
        let made_by = manifest.program;
        return Err(BackupError::Newer { backup: manifest.schema, program: newest, made_by });
    }
    let files = placed(config, &location, folder, &manifest)?;
    for entry in &manifest.files {
        check(folder, entry)?;
    }
    for file in &files {
        if is_in_the_way(file)? {
            return Err(BackupError::Occupied { path: file.to.clone() });
        }
        // SQLite would take it for the end of the database.
        let log = sqlite_log::path_of(&file.to);
        if !file.is_key && log.symlink_metadata().is_ok() {
            return Err(BackupError::Occupied { path: log });
        }
    }
    for Placed { from, to, .. } in files.iter().filter(|file| !file.to.exists()) {
        place(from, to, owner).map_err(|source| match source.kind() {
            ErrorKind::AlreadyExists => BackupError::Occupied { path: to.clone() },
            _ => BackupError::io("write", to)(source),
        })?;
    }
    Ok(manifest)
}

fn read(folder: &Path) -> Result<Manifest, BackupError> {
    let path = folder.join(MANIFEST);
    let no_backup = |reason: String| BackupError::NoBackup { path: folder.to_owned(), reason };
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(no_backup(format!("it has no {MANIFEST}"))),
        Err(error) => return Err(BackupError::io("read", &path)(error)),
    };
    // Before the rest, of which another format may have something else.
    #[derive(serde::Deserialize)]
    struct Format {
        format_version: u32,
    }
    let unreadable = |error: serde_json::Error| no_backup(format!("{MANIFEST}: {error}"));
    let Format { format_version } = serde_json::from_str(&text).map_err(unreadable)?;
    if format_version != FORMAT_VERSION {
        return Err(no_backup(format!("it has the format version {format_version}, and this reads {FORMAT_VERSION}")));
    }
    serde_json::from_str(&text).map_err(unreadable)
}

/// Where each file belongs, keys first.
fn placed(
    config: &Config,
    location: &DatabaseLocation,
    folder: &Path,
    manifest: &Manifest,
) -> Result<Vec<Placed>, BackupError> {
    let has = |name: Name| manifest.files.iter().any(|entry| entry.name == name);
    let configured = key_files(config);
    let keys = manifest.files.iter().filter(|entry| entry.name != Name::Database).count();
    if keys > configured.len() || (keys > 0 && keys < configured.len()) {
        return Err(BackupError::KeyFiles { backup: keys, configured: configured.len() });
    }
    let mut files: Vec<_> = configured.into_iter().filter(|(name, _)| has(*name)).collect();
    if let DatabaseLocation::Sqlite(path) = location {
        if !has(Name::Database) {
            let reason = format!("{MANIFEST} names no database");
            return Err(BackupError::NoBackup { path: folder.to_owned(), reason });
        }
        files.push((Name::Database, path.clone()));
    }
    let place = |(name, to)| Placed { from: folder.join(Name::as_str(name)), to, is_key: name != Name::Database };
    Ok(files.into_iter().map(place).collect())
}

fn check(folder: &Path, entry: &Entry) -> Result<(), BackupError> {
    let path = folder.join(entry.name.as_str());
    let damaged = |reason| BackupError::Damaged { path: path.clone(), reason };
    match Entry::of(folder, entry.name) {
        Ok(found) if found == *entry => Ok(()),
        Ok(found) if found.bytes != entry.bytes => Err(damaged("it is longer or shorter")),
        Ok(_) => Err(damaged("its content is another")),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(damaged("it is not there")),
        Err(error) => Err(BackupError::io("read", &path)(error)),
    }
}

/// Whether something else is where the file belongs. A key that is there already was put there by a restore that was killed.
fn is_in_the_way(file: &Placed) -> Result<bool, BackupError> {
    let is_same = || Ok(file.is_key && fs::read(&file.from)? == fs::read(&file.to)?);
    match file.to.symlink_metadata() {
        Ok(_) => is_same().map(|same: bool| !same).map_err(BackupError::io("read", &file.to)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(BackupError::io("look at", &file.to)(error)),
    }
}

/// Copies a file to where there is none, whole and durable.
fn place(from: &Path, to: &Path, owner: Option<Owner>) -> io::Result<()> {
    if let Some(folder) = to.parent()
        && !folder.exists()
    {
        private_files::folder(folder)?;
        if let Some((uid, gid)) = owner {
            chown(folder, Some(uid), Some(gid))?;
        }
    }
    let mut partial = OsString::from(to);
    partial.push(".restoring");
    let partial = PathBuf::from(partial);
    let copy = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        if let Some((uid, gid)) = owner {
            fchown(&file, Some(uid), Some(gid))?;
        }
        io::copy(&mut File::open(from)?, &mut file)?;
        file.sync_all()?;
        // Not a rename, which would replace what has come to be there meanwhile.
        fs::hard_link(&partial, to)
    };
    let copied = copy();
    durable::remove_file(&partial)?;
    copied?;
    durable::sync_parent(to)
}
