//! SQLite's write-ahead log, which gets its full length before it is used.
//!
//! A commit waits until its pages are in the log on the disk. Where the log has grown by them, the file system has to write down
//! its new length as well, in a journal of its own, which takes several times as long as the pages. When all of the log is in the
//! database, SQLite begins again at its front and does not shorten it: so one that is long enough from the beginning never grows.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use sqlx::AnyPool;

use super::StoreError;

/// Bytes; SQLite begins again after 1,000 pages (`wal_autocheckpoint`) of 4,096 bytes and a header, or with the transaction
/// that is the first to pass them.
const LENGTH: u64 = 5 << 20;

/// Where the log of the database at `path` is.
pub fn path_of(path: &Path) -> PathBuf {
    let mut log = OsString::from(path);
    log.push("-wal");
    PathBuf::from(log)
}

/// Gives the log of the database at `path` its full length, where it is shorter. `writer` is connected to it.
///
/// # Errors
///
/// Where the database does not let this process write. That the log cannot be made longer is only told: commits take longer.
pub(crate) async fn lengthen(writer: &AnyPool, path: &Path) -> Result<(), StoreError> {
    // Meanwhile nobody else writes to the log, in whatever process.
    let turn = writer.begin_with("BEGIN IMMEDIATE").await?;
    let log = path_of(path);
    let lengthened = tokio::task::spawn_blocking(move || fill_up(&log)).await.map_err(io::Error::other);
    if let Err(error) = lengthened.flatten() {
        tracing::warn!(%error, database = %path.display(), "the database's log stays short, and commits slow: is its disk full?");
    }
    Ok(turn.rollback().await?)
}

/// Zeros are no page to SQLite: to it the log ends before them.
fn fill_up(log: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(log)?;
    let end = file.seek(SeekFrom::End(0))?;
    io::copy(&mut io::repeat(0).take(LENGTH.saturating_sub(end)), &mut file)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Database, DatabaseLocation};

    async fn insert(database: &Database, slug: &str) {
        let mut tx = database.write().await.unwrap();
        let team = sqlx::query("INSERT INTO teams (id, slug, plan, created_at_ms) VALUES ($1, $1, 'pro', 0)");
        team.bind(slug).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn teams(database: &Database) -> i64 {
        sqlx::query_scalar("SELECT COUNT(*) FROM teams").fetch_one(database.read()).await.unwrap()
    }

    #[tokio::test]
    async fn a_log_does_not_grow_by_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.db");
        let database = Database::open(&DatabaseLocation::Sqlite(path.clone())).await.unwrap();
        let length = || fs::metadata(path_of(&path)).unwrap().len();
        assert_eq!(length(), LENGTH);
        // More than it holds: each is a page at least.
        for count in 0..1500 {
            insert(&database, &count.to_string()).await;
        }
        assert_eq!(length(), LENGTH);
    }

    #[tokio::test]
    async fn what_is_in_a_log_stays_when_it_is_made_longer_and_is_found_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let (path, copy) = (folder.path().join("api.db"), folder.path().join("copy.db"));
        let database = Database::open(&DatabaseLocation::Sqlite(path.clone())).await.unwrap();
        insert(&database, "first").await;
        insert(&database, "second").await;
        // What a process that is killed leaves, its log as long as what was written to it.
        fs::copy(&path, &copy).unwrap();
        let log = fs::read(path_of(&path)).unwrap();
        let end = log.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        fs::write(path_of(&copy), &log[..end]).unwrap();

        let found = Database::open(&DatabaseLocation::Sqlite(copy)).await.unwrap();
        assert_eq!(teams(&found).await, 2);
        insert(&found, "third").await;
        assert_eq!(teams(&found).await, 3);
    }
}
