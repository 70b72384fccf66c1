//! The journal's files.
//!
//! | file | |
//! |---|---|
//! | `id` | names this journal, so that numbers of another one are not taken for its own |
//! | `<sequence>.journal` | a segment: the records from this number on, one a line behind its checksum (CRC-32, hex) |
//! | `acknowledged` | number of the last record that somebody else keeps |
//! | `seen` | when all that ran was last seen to run |
//!
//! Records go to the end of the last segment, and are synced there. A process or a host that dies while it writes leaves a
//! line that is none, which the next one cuts off. Once a segment is long another is begun, and the older ones go when
//! everything in them is acknowledged: see [`Journal::done`].

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sandpiper_durable as durable;
use sandpiper_protocol::id;
use sandpiper_protocol::interval::IntervalRecord;

/// What names of segments end in.
const SEGMENT: &str = ".journal";

/// The files, of which there is one owner.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    id: String,
    /// From which length on another segment is begun.
    long: u64,
    /// Oldest first; there is always one.
    segments: VecDeque<Segment>,
    /// The last segment.
    file: File,
    /// Number of the last record.
    last: u64,
    acknowledged: u64,
}

#[derive(Debug)]
struct Segment {
    /// Number of its first record, or of the one that will be.
    first: u64,
    /// Bytes of whole records, and how many they are.
    length: u64,
    records: usize,
}

/// A segment to which nothing is added, and of which everything is acknowledged.
#[derive(Debug)]
pub(super) struct Done {
    /// Between which numbers its records are.
    pub(super) numbers: Range<u64>,
    /// How many they are.
    pub(super) records: usize,
}

/// What was in the files when they were opened.
#[derive(Debug)]
pub(super) struct Kept {
    /// Every record that is there, in its order.
    pub(super) records: Vec<IntervalRecord>,
    /// What [`Journal::write_seen`] wrote last.
    pub(super) seen_at_ms: Option<i64>,
}

impl Journal {
    /// Opens the journal in `folder`, whose segments are `long` bytes; makes one where there is none. Blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn open(folder: PathBuf, long: u64) -> io::Result<(Self, Kept)> {
        let id = read_text(&folder.join("id"))?;
        let id = match id {
            Some(id) => id,
            None => {
                let id = id::generate("jnl");
                durable::write_atomic(&folder.join("id"), id.as_bytes())?;
                id
            }
        };
        let acknowledged: u64 = read_number(&folder.join("acknowledged"))?.unwrap_or_default();
        let mut firsts = firsts(&folder)?;
        let mut last = acknowledged;
        if firsts.is_empty() {
            begin(&folder, last + 1)?;
            firsts.push(last + 1);
        }
        let (mut segments, mut records) = (VecDeque::new(), Vec::new());
        for first in firsts {
            let path = path(&folder, first);
            let (found, length) = parse(&path, &fs::read(&path)?);
            last = found.last().map_or(last, |record| last.max(record.sequence)).max(first - 1);
            segments.push_back(Segment { first, length, records: found.len() });
            records.extend(found);
        }
        let newest = segments.back().map_or(0, |segment| segment.first);
        let file = OpenOptions::new().append(true).open(path(&folder, newest))?;
        let seen_at_ms = read_number(&folder.join("seen"))?;
        Ok((Self { folder, id, long, segments, file, last, acknowledged }, Kept { records, seen_at_ms }))
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Number of the last record.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Bytes of all records that are kept.
    pub(super) fn length(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    /// Adds records, whose numbers follow on the last, and syncs them. Blocks.
    ///
    /// # Errors
    /// Those of the file system; then none is added, and the same ones may be tried again.
    pub(super) fn append(&mut self, records: &[IntervalRecord]) -> io::Result<()> {
        let Some(last) = records.last() else { return Ok(()) };
        self.rotate()?;
        let mut text = Vec::new();
        for record in records {
            write_line(&mut text, record)?;
        }
        let Some(segment) = self.segments.back_mut() else { return Ok(()) };
        // Of an attempt that failed half of it may be there, or of a process that was killed.
        self.file.set_len(segment.length)?;
        self.file.write_all(&text)?;
        self.file.sync_data()?;
        segment.length += text.len() as u64;
        segment.records += records.len();
        self.last = last.sequence;
        Ok(())
    }

    /// Begins another segment where the last is long.
    fn rotate(&mut self) -> io::Result<()> {
        let first = self.last + 1;
        if self.segments.back().is_none_or(|segment| segment.length < self.long || segment.first == first) {
            return Ok(());
        }
        self.file = begin(&self.folder, first)?;
        self.segments.push_back(Segment { first, length: 0, records: 0 });
        Ok(())
    }

    /// At most `limit` of the oldest records that are not acknowledged, and whether there are more. Blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn unacknowledged(&self, limit: usize) -> io::Result<(Vec<IntervalRecord>, bool)> {
        let mut records: Vec<IntervalRecord> = Vec::new();
        let ends = self.segments.iter().skip(1).map(|next| next.first).chain([u64::MAX]);
        let wanted = self.segments.iter().zip(ends).filter(|(_, end)| *end > self.acknowledged + 1);
        for (segment, _) in wanted {
            let path = path(&self.folder, segment.first);
            let (found, _) = parse(&path, &fs::read(&path)?);
            records.extend(found.into_iter().filter(|record| record.sequence > self.acknowledged));
            if records.len() > limit {
                records.truncate(limit);
                return Ok((records, true));
            }
        }
        Ok((records, false))
    }

    /// Notes that somebody else keeps the records up to this one. Blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn acknowledge(&mut self, through: u64) -> io::Result<()> {
        if through > self.acknowledged {
            durable::write_atomic(&self.folder.join("acknowledged"), through.to_string().as_bytes())?;
            self.acknowledged = through;
        }
        // The last segment goes too, if it is long: nothing may come that would begin another.
        if self.acknowledged == self.last { self.rotate() } else { Ok(()) }
    }

    /// The segments that may go. What is still needed of one has to be [appended](Self::append) again first.
    pub(super) fn done(&self) -> Vec<Done> {
        let ends = self.segments.iter().skip(1).map(|next| next.first);
        let older = self.segments.iter().zip(ends).filter(|(_, end)| *end <= self.acknowledged + 1);
        older.map(|(segment, end)| Done { numbers: segment.first..end, records: segment.records }).collect()
    }

    /// Removes a segment. Blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn remove(&mut self, done: &Done) -> io::Result<()> {
        let first = done.numbers.start;
        durable::remove_file(&path(&self.folder, first))?;
        self.segments.retain(|segment| segment.first != first);
        Ok(())
    }

    /// Writes down when all that ran was seen to run. Blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn write_seen(&self, at_ms: i64) -> io::Result<()> {
        durable::write_atomic(&self.folder.join("seen"), at_ms.to_string().as_bytes())
    }
}

/// The first numbers of the segments in a folder, in their order.
fn firsts(folder: &Path) -> io::Result<Vec<u64>> {
    let mut firsts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(SEGMENT)?.parse::<u64>().ok());
        firsts.extend(number.filter(|number| *number > 0));
    }
    firsts.sort_unstable();
    Ok(firsts)
}

fn path(folder: &Path, first: u64) -> PathBuf {
    // So that names sort as numbers do.
    folder.join(format!("{first:020}{SEGMENT}"))
}

/// An empty segment.
fn begin(folder: &Path, first: u64) -> io::Result<File> {
    let path = path(folder, first);
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
    durable::sync_parent(&path)?;
    Ok(file)
}

fn write_line(text: &mut Vec<u8>, record: &IntervalRecord) -> io::Result<()> {
    let json = serde_json::to_vec(record)?;
    write!(text, "{:08x} ", crc32fast::hash(&json))?;
    text.extend(json);
    text.push(b'\n');
    Ok(())
}

/// The records in the text of a segment, and how many of its bytes end with the last of them.
fn parse(path: &Path, text: &[u8]) -> (Vec<IntervalRecord>, u64) {
    let (mut records, mut end, mut at, mut bad) = (Vec::new(), 0, 0, 0);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        at += line.len() as u64;
        match read_line(line) {
            Some(record) => {
                records.push(record);
                // What was no record and stands before one is no torn end.
                if bad > 0 {
                    tracing::error!(path = %path.display(), lines = bad, "damaged records in the journal of intervals are passed over");
                    bad = 0;
                }
                end = at;
            }
            None => bad += 1,
        }
    }
    (records, end)
}

fn read_line(line: &[u8]) -> Option<IntervalRecord> {
    let line = line.strip_suffix(b"\n")?;
    let (checksum, json) = line.split_at_checked(9)?;
    let checksum = u32::from_str_radix(str::from_utf8(checksum).ok()?.strip_suffix(' ')?, 16).ok()?;
    if crc32fast::hash(json) != checksum {
        return None;
    }
    serde_json::from_slice(json).ok()
}

fn read_text(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_number<T: std::str::FromStr>(path: &Path) -> io::Result<Option<T>> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("{} does not hold a number", path.display()));
    text.trim().parse().map(Some).map_err(|_| wrong())
}
