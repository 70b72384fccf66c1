//! The record's files, in the folder of its sandbox.
//!
//! | file | |
//! |---|---|
//! | `draft.json` | of what a power cut undoes with the machine: the first of a sandbox that nobody was told of, of a start, of a pause |
//! | `record.json` | from then on: durable with its folder, at every other change |
//! | `record.copy.json` | the same once more, for a disk that gives back something else than was written |
//! | `record.next.json` | the record that is to take its place, written ahead; it does when it is ended, and is renamed then |
//!
//! A draft is not synced. Draft and next record count as long as the record is the one that they follow, or there is none.
//!
//! Each carries a checksum, so that what is torn or changed is never taken for a record. A draft means nothing then; a record is
//! mended from its copy; and where that is of no use either, the sandbox is left as it is, and said to be so until an operator has
//! seen to it.

use std::io;
use std::path::{Path, PathBuf};

use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_images::checked::{self, DamageError};
use sandpiper_machine::MachinePaths;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::record::{FORMAT_VERSION, OLDEST_VERSION, Record};

/// Of a draft, and of a record that was the next: [`digest`] of the record that it follows.
const FOLLOWS: &str = "follows";

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("Cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{} and its copy are damaged; restore one from a backup, or end the agent and remove the folder, and the sandbox \
         with it; then start the agent again",
        path.display()
    )]
    Damaged { path: PathBuf, source: DamageError },
    #[error("{} has format version {version}, of a newer agent; this one reads up to {FORMAT_VERSION}", path.display())]
    Newer { path: PathBuf, version: u32 },
    #[error("{} has format version {version}, of an older agent; delete its sandbox with that one", path.display())]
    Older { path: PathBuf, version: u32 },
    #[error("{} belongs to another sandbox", path.display())]
    Misplaced { path: PathBuf },
}

/// Where the record is.
pub(crate) fn record_path(paths: &MachinePaths) -> PathBuf {
    paths.file("record.json")
}

/// Where the same is once more.
pub(crate) fn copy_path(paths: &MachinePaths) -> PathBuf {
    paths.file("record.copy.json")
}

/// Where the next record is until it takes the place of the record.
pub(crate) fn next_path(paths: &MachinePaths) -> PathBuf {
    paths.file("record.next.json")
}

/// Where the draft of a record is.
pub(crate) fn draft_path(paths: &MachinePaths) -> PathBuf {
    paths.file("draft.json")
}

/// Writes the record durably, in place of a draft. Blocks.
///
/// # Errors
/// Of the file system; then the record is what it was.
pub(crate) fn save(paths: &MachinePaths, record: &Record) -> io::Result<()> {
    let text = checked::encode(record)?;
    durable::write_atomic(&record_path(paths), &text)?;
    copy(paths, &text);
    remove_draft(paths);
    Ok(())
}

/// Writes a record ahead: [`put_in_place`] makes it count, and takes less time than [`save`]. Blocks.
///
/// # Errors
/// Of the file system.
pub(crate) fn prepare(paths: &MachinePaths, record: &Record) -> io::Result<durable::Prepared> {
    durable::prepare(&next_path(paths), &following(paths, record)?)
}

/// Blocks.
///
/// # Errors
/// Of the file system; then the record is what it was, or this one.
pub(crate) fn put_in_place(paths: &MachinePaths, prepared: durable::Prepared) -> io::Result<()> {
    prepared.end()?;
    CrashPoint::RecordEnded.pass();
    // Where a power cut undoes this, it is found under the name that it had.
    std::fs::rename(next_path(paths), record_path(paths))?;
    copy(paths, &std::fs::read(record_path(paths))?);
    remove_draft(paths);
    Ok(())
}

/// It follows a record that is no more.
fn remove_draft(paths: &MachinePaths) {
    let path = draft_path(paths);
    if let Err(error) = durable::remove_file(&path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove the draft of a record");
    }
}

/// Writes a record that need not outlive the host: it counts until the next one is saved. Blocks.
///
/// # Errors
/// Of the file system; then the record is what it was.
pub(crate) fn save_draft(paths: &MachinePaths, record: &Record) -> io::Result<()> {
    durable::write_unsynced(&draft_path(paths), &following(paths, record)?)
}

/// The text of a record that follows the one that is there.
fn following(paths: &MachinePaths, record: &Record) -> io::Result<Vec<u8>> {
    let mut value = serde_json::to_value(record)?;
    match std::fs::read(record_path(paths)) {
        Ok(text) => value[FOLLOWS] = digest(&text).into(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(checked::encode(&value)?)
}

/// The record of the sandbox `id`, mended if need be; none where there is at most a draft that came to nothing. Blocks.
pub(crate) fn load(paths: &MachinePaths, id: &str) -> Result<Option<Record>, LoadError> {
    let saved = load_saved(paths, id)?;
    let drafted = load_draft(paths, id, saved.as_ref().map(|(_, text)| text.as_slice()))?;
    Ok(drafted.or(saved.map(|(record, _)| record)))
}

/// The record that was saved last, and its text.
fn load_saved(paths: &MachinePaths, id: &str) -> Result<Option<(Record, Vec<u8>)>, LoadError> {
    let path = record_path(paths);
    let before = read(&path)?;
    let Some(text) = put_next_in_place(paths, before.as_deref())?.or(before) else { return Ok(None) };
    let copied = read(&copy_path(paths))?;
    match decode(&path, &text, id) {
        Err(damaged @ LoadError::Damaged { .. }) => {
            let mended = copied.and_then(|text| Some((decode(&path, &text, id).ok()?, text)));
            let (record, text) = mended.ok_or(damaged)?;
            tracing::error!(sandbox = id, path = %path.display(), "a damaged record is mended from its copy");
            durable::write_atomic(&path, &text).map_err(|source| LoadError::Read { path, source })?;
            Ok(Some((record, text)))
        }
        result => {
            // The agent may have ended between the two.
            if result.is_ok() && copied.as_ref() != Some(&text) {
                copy(paths, &text);
            }
            result.map(|record| Some((record, text)))
        }
    }
}

/// The text of the next record, if it has been ended and follows the one of this text; it is the record then.
fn put_next_in_place(paths: &MachinePaths, before: Option<&[u8]>) -> Result<Option<Vec<u8>>, LoadError> {
    let (path, record) = (next_path(paths), record_path(paths));
    let Some(text) = read(&path)?.filter(|text| follows(text, before).is_some()) else { return Ok(None) };
    let renamed = std::fs::rename(&path, &record).and_then(|()| durable::sync_parent(&record));
    renamed.map_err(|source| LoadError::Read { path, source })?;
    Ok(Some(text))
}

/// The draft that follows the record of this text, or none.
fn load_draft(paths: &MachinePaths, id: &str, saved: Option<&[u8]>) -> Result<Option<Record>, LoadError> {
    let path = draft_path(paths);
    let draft = read(&path)?.and_then(|text| follows(&text, saved));
    Ok(draft.and_then(|draft| decode_value(&path, draft, id).ok()))
}

/// What a text says, if it is as it was written and follows the record of this text, or none.
fn follows(text: &[u8], record: Option<&[u8]>) -> Option<Value> {
    let mut value = checked::verify(text).ok()?;
    let followed = value.as_object_mut().and_then(|fields| fields.remove(FOLLOWS));
    (followed == record.map(|text| digest(text).into())).then_some(value)
}

/// Writes the copy. Without one the record is as good as before; an old one might take its place, and must not.
fn copy(paths: &MachinePaths, text: &[u8]) {
    let path = copy_path(paths);
    if let Err(error) = durable::write_unsynced(&path, text).or_else(|_| durable::remove_file(&path)) {
        tracing::warn!(path = %path.display(), %error, "cannot write a record's copy");
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    match std::fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoadError::Read { path: path.to_owned(), source }),
    }
}

/// SHA-256 of a record's text, in hex.
fn digest(text: &[u8]) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The record in a text, which must be that of the sandbox `id`.
fn decode(path: &Path, text: &[u8], id: &str) -> Result<Record, LoadError> {
    let value = checked::verify(text).map_err(|source| LoadError::Damaged { path: path.to_owned(), source })?;
    decode_value(path, value, id)
}

/// The same of a text that is as it was written.
fn decode_value(path: &Path, value: Value, id: &str) -> Result<Record, LoadError> {
    #[derive(Deserialize)]
    struct FormatOnly {
        #[serde(rename = "form")]
        version: u32,
    }

    let path = || path.to_owned();
    let damaged = |error: serde_json::Error| LoadError::Damaged { path: path(), source: error.into() };
    let FormatOnly { version } = FormatOnly::deserialize(&value).map_err(damaged)?;
    if version > FORMAT_VERSION {
        return Err(LoadError::Newer { path: path(), version });
    }
    if version < OLDEST_VERSION {
        return Err(LoadError::Older { path: path(), version });
    }
    let mut record: Record = serde_json::from_value(value).map_err(damaged)?;
    record.format_version = FORMAT_VERSION;
    if *record.id == *id { Ok(record) } else { Err(LoadError::Misplaced { path: path() }) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sandpiper_protocol::id;

    use super::super::record::tests::example;
    use super::*;
    use sandpiper_machine::process::{Identity, KnownMonitor};

    /// A sandbox's folder, and its record.
    fn sandbox() -> (tempfile::TempDir, MachinePaths, Record) {
        let folder = tempfile::tempdir().unwrap();
        let paths = MachinePaths { state: folder.path().to_owned(), runtime: folder.path().join("run") };
        let mut record = example(&id::generate("sbx"));
        let identity = Identity { pid: 7, start_time: 99, boot_id: "b".into() };
        record.process = Some(KnownMonitor { identity, id: "mon1".into(), uid: Some(1000) });
        (folder, paths, record)
    }

    /// Saves a record and a draft that follows it, which is returned.
    fn begin(paths: &MachinePaths, record: &Record) -> Record {
        let mut begun = record.clone();
        begun.memory_mb += 1;
        save(paths, record).unwrap();
        save_draft(paths, &begun).unwrap();
        begun
    }

    #[test]
    fn a_record_is_loaded_as_it_was_saved_and_takes_the_place_of_its_draft() {
        let (_folder, paths, mut record) = sandbox();
        assert_eq!(load(&paths, &record.id).unwrap(), None);

        save_draft(&paths, &record).unwrap();
        assert_eq!(load(&paths, &record.id).unwrap().as_ref(), Some(&record));

        record.memory_mb += 1;
        save(&paths, &record).unwrap();
        assert_eq!(load(&paths, &record.id).unwrap().as_ref(), Some(&record));
        assert!(!draft_path(&paths).exists());
    }

    #[test]
    fn a_record_that_is_prepared_counts_once_it_is_in_its_place() {
        let (_folder, paths, mut record) = sandbox();
        save_draft(&paths, &record).unwrap();
        let draft = record.clone();
        record.memory_mb += 1;

        drop(prepare(&paths, &record).unwrap());
        assert_eq!(load(&paths, &record.id).unwrap().as_ref(), Some(&draft));
        let prepared = prepare(&paths, &record).unwrap();
        assert_eq!(load(&paths, &record.id).unwrap(), Some(draft));

        put_in_place(&paths, prepared).unwrap();
        assert_eq!(load(&paths, &record.id).unwrap().as_ref(), Some(&record));
        assert_eq!(fs::read(copy_path(&paths)).unwrap(), fs::read(record_path(&paths)).unwrap());
        assert!(!draft_path(&paths).exists() && !next_path(&paths).exists());
    }

    #[test]
    fn a_record_that_was_put_in_its_place_counts_also_where_a_power_cut_undoes_its_new_name() {
        let (_folder, paths, mut record) = sandbox();
        for is_first in [true, false] {
            let before = fs::read(record_path(&paths)).ok();
            assert_eq!(before.is_none(), is_first);
            record.memory_mb += 1;
            save_draft(&paths, &record).unwrap();
            record.memory_mb += 1;
            let prepared = prepare(&paths, &record).unwrap();
            put_in_place(&paths, prepared).unwrap();

            fs::rename(record_path(&paths), next_path(&paths)).unwrap();
            if let Some(before) = &before {
                fs::write(record_path(&paths), before).unwrap();
            }
            assert_eq!(load(&paths, &record.id).unwrap().as_ref(), Some(&record));
            assert!(record_path(&paths).exists() && !next_path(&paths).exists());
        }
    }

    #[test]
    fn the_next_record_counts_for_nothing_once_there_is_another() {
        let (_folder, paths, mut record) = sandbox();
        save(&paths, &record).unwrap();
        let prepared = prepare(&paths, &record).unwrap();
        record.memory_mb += 1;
        save(&paths, &record).unwrap();
        prepared.end().unwrap();
        assert_eq!(load(&paths, &record.id).unwrap(), Some(record));
    }

    #[test]
    fn whatever_is_torn_or_changed_of_a_draft_there_is_none() {
        let (_folder, paths, record) = sandbox();
        save_draft(&paths, &record).unwrap();
        let whole = fs::read(draft_path(&paths)).unwrap();
        for damaged in damages(&whole) {
            fs::write(draft_path(&paths), damaged).unwrap();
            assert_eq!(load(&paths, &record.id).unwrap(), None);
        }
    }

    #[test]
    fn a_draft_counts_until_the_record_that_it_follows_is_another() {
        let (_folder, paths, record) = sandbox();
        let begun = begin(&paths, &record);
        let mut done = record.clone();
        done.memory_mb += 2;

        assert_eq!(load(&paths, &record.id).unwrap().as_ref(), Some(&begun));
        let draft = fs::read(draft_path(&paths)).unwrap();
        let prepared = prepare(&paths, &done).unwrap();
        assert_eq!(load(&paths, &record.id).unwrap().as_ref(), Some(&begun));

        put_in_place(&paths, prepared).unwrap();
        assert!(!draft_path(&paths).exists());
        // As a power cut leaves it that undoes the removal alone.
        fs::write(draft_path(&paths), &draft).unwrap();
        assert_eq!(load(&paths, &record.id).unwrap().as_ref(), Some(&done));
        fs::remove_file(record_path(&paths)).unwrap();
        assert_eq!(load(&paths, &record.id).unwrap(), None);
    }

    #[test]
    fn beside_a_draft_that_is_torn_or_changed_the_record_counts() {
        let (_folder, paths, record) = sandbox();
        begin(&paths, &record);
        let whole = fs::read(draft_path(&paths)).unwrap();
        for damaged in damages(&whole) {
            fs::write(draft_path(&paths), damaged).unwrap();
            assert_eq!(load(&paths, &record.id).unwrap().as_ref(), Some(&record));
        }
    }

    #[test]
    fn a_draft_counts_also_where_its_record_is_mended() {
        let (_folder, paths, record) = sandbox();
        let begun = begin(&paths, &record);
        fs::write(record_path(&paths), b"{").unwrap();
        assert_eq!(load(&paths, &record.id).unwrap(), Some(begun));
    }

    #[test]
    fn a_torn_or_changed_record_is_mended_from_its_copy_for_good() {
        let (_folder, paths, record) = sandbox();
        save(&paths, &record).unwrap();
        let whole = fs::read(record_path(&paths)).unwrap();
        for damaged in damages(&whole) {
            fs::write(record_path(&paths), damaged).unwrap();
            assert_eq!(load(&paths, &record.id).unwrap().as_ref(), Some(&record));
            assert_eq!(fs::read(record_path(&paths)).unwrap(), whole);
        }
    }

    #[test]
    fn where_the_copy_is_damaged_too_or_missing_the_record_is_refused_by_name() {
        let (_folder, paths, record) = sandbox();
        save(&paths, &record).unwrap();
        fs::write(record_path(&paths), b"{").unwrap();
        for copy in [Some(b"{"), None] {
            match copy {
                Some(text) => fs::write(copy_path(&paths), text).unwrap(),
                None => fs::remove_file(copy_path(&paths)).unwrap(),
            }
            let error = load(&paths, &record.id).unwrap_err().to_string();
            assert!(error.contains("record.json") && error.contains("backup"), "{error}");
        }
    }

    #[test]
    fn a_copy_that_is_older_than_its_record_is_made_anew() {
        let (_folder, paths, mut record) = sandbox();
        save(&paths, &record).unwrap();
        let older = fs::read(copy_path(&paths)).unwrap();
        record.memory_mb += 1;
        save(&paths, &record).unwrap();
        fs::write(copy_path(&paths), older).unwrap();

        load(&paths, &record.id).unwrap();

        assert_eq!(fs::read(copy_path(&paths)).unwrap(), fs::read(record_path(&paths)).unwrap());
    }

    #[test]
    fn a_record_of_another_sandbox_or_another_form_is_refused() {
        let (_folder, paths, mut record) = sandbox();
        let id = record.id.clone();
        save(&paths, &record).unwrap();
        assert!(matches!(load(&paths, "sbxb"), Err(LoadError::Misplaced { .. })));

        record.format_version = FORMAT_VERSION + 1;
        save(&paths, &record).unwrap();
        assert!(matches!(load(&paths, &id), Err(LoadError::Newer { .. })));
        record.format_version = OLDEST_VERSION - 1;
        save(&paths, &record).unwrap();
        assert!(matches!(load(&paths, &id), Err(LoadError::Older { .. })));
    }

    #[test]
    fn a_record_from_before_checksums_is_taken() {
        let (_folder, paths, record) = sandbox();
        fs::write(record_path(&paths), serde_json::to_vec_pretty(&record).unwrap()).unwrap();
        assert_eq!(load(&paths, &record.id).unwrap(), Some(record));
    }

    #[test]
    fn a_record_of_the_format_before_is_read_and_written_in_this_one() {
        let (_folder, paths, record) = sandbox();
        let mut older = serde_json::to_value(&record).unwrap();
        older["form"] = 2.into();
        let monitor = older["process"].as_object_mut().unwrap();
        let id = monitor.remove("id").unwrap();
        monitor.insert("shell".into(), id);
        fs::write(record_path(&paths), checked::encode(&older).unwrap()).unwrap();

        let read = load(&paths, &record.id).unwrap();
        assert_eq!(read.as_ref(), Some(&record));

        save(&paths, &read.unwrap()).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&fs::read(record_path(&paths)).unwrap()).unwrap();
        assert_eq!((&written["form"], &written["process"]["id"]), (&3.into(), &"mon1".into()));
    }

    /// A text cut off, with a byte of zero, with another digit, empty.
    fn damages(whole: &[u8]) -> Vec<Vec<u8>> {
        let mut all = vec![Vec::new()];
        for at in (1..whole.len() - 1).step_by(16) {
            let mut zeroed = whole.to_vec();
            zeroed[at] = 0;
            all.extend([whole[..at].to_vec(), zeroed]);
        }
        let digits = (0..whole.len()).filter(|at| whole[*at].is_ascii_digit());
        all.extend(digits.map(|at| {
            let mut changed = whole.to_vec();
            changed[at] = if changed[at] == b'9' { b'8' } else { changed[at] + 1 };
            changed
        }));
        all
    }
}
