//! One of the tracks of a log: a run of files.
//!
//! `<prefix><sequence>`, with twenty digits, is a **segment**: entries of the protocol in JSON, one a line, none before this sequence.
//! The last segment grows; when it is a fourth of what the track may have, another begins and the oldest goes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sandpiper_durable as durable;
use sandpiper_protocol::agent::{LogEntry, LogQuery};

/// Segments of a track.
const SEGMENTS: usize = 4;

/// Where a segment of this name begins.
pub(super) fn first_of(prefix: &str, name: &str) -> Option<u64> {
    name.strip_prefix(prefix).filter(|digits| digits.len() == 20)?.parse().ok()
}

/// A track. All that is done with it blocks.
#[derive(Debug)]
pub(super) struct Track {
    prefix: &'static str,
    /// Bytes of a segment at most.
    most: u64,
    /// Where each segment begins, oldest first.
    segments: Vec<u64>,
    /// Bytes of the last segment.
    length: u64,
}

/// A track as an earlier agent has left it.
pub(super) struct Found {
    pub(super) track: Track,
    /// Of its last segment.
    pub(super) entries: Vec<LogEntry>,
    /// Bytes that were cut off from its end.
    pub(super) torn: usize,
}

impl Track {
    /// Takes over what is in `folder`, of at most so many bytes.
    ///
    /// # Errors
    /// A file cannot be read, or cut.
    pub(super) fn open(folder: &Path, prefix: &'static str, bytes: u64) -> io::Result<Found> {
        let mut segments = Vec::new();
        for entry in fs::read_dir(folder)? {
            segments.extend(entry?.file_name().to_str().and_then(|name| first_of(prefix, name)));
        }
        segments.sort_unstable();
        let mut track = Self { prefix, most: bytes / SEGMENTS as u64, segments, length: 0 };
        let (mut entries, mut torn) = (Vec::new(), 0);
        if let Some(last) = track.segments.last() {
            let path = track.segment(folder, *last);
            let bytes = fs::read(&path)?;
            let mut length = 0;
            for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                let Some(entry) = decode(line) else { break };
                length += line.len();
                entries.push(entry);
            }
            torn = bytes.len() - length;
            track.length = length as u64;
            if torn > 0 {
                OpenOptions::new().write(true).open(&path)?.set_len(track.length)?;
            }
        }
        Ok(Found { track, entries, torn })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// What is before this sequence is gone, if there was any.
    pub(super) fn first(&self) -> u64 {
        self.segments.first().copied().unwrap_or_default()
    }

    /// Where the last segment begins.
    pub(super) fn last_begins(&self) -> u64 {
        self.segments.last().copied().unwrap_or_default()
    }

    /// Writes entries: how many, and why not all. Those are whole, and nothing else is there.
    pub(super) fn write(&mut self, folder: &Path, entries: &[LogEntry]) -> (usize, io::Result<()>) {
        let mut count = 0;
        while count < entries.len() {
            match self.write_some(folder, &entries[count..]) {
                Ok(written) => count += written,
                Err(error) => return (count, Err(error)),
            }
        }
        (count, Ok(()))
    }

    /// Writes as many entries as the last segment has room for; where that is none, to a new one.
    fn write_some(&mut self, folder: &Path, entries: &[LogEntry]) -> io::Result<usize> {
        let (mut text, mut count) = (Vec::new(), 0);
        for entry in entries {
            let line = encode(entry)?;
            let before = self.length + text.len() as u64;
            if before > 0 && before + line.len() as u64 > self.most {
                break;
            }
            text.extend(line);
            count += 1;
        }
        if self.segments.is_empty() {
            // Nothing of this track was before.
            self.begin_segment(folder, 1)?;
        } else if let (0, Some(entry)) = (count, entries.first()) {
            self.begin_segment(folder, entry.sequence)?;
        }
        self.write_text(folder, &text)?;
        Ok(count)
    }

    /// Has entries from `first` on go to a segment of their own; the oldest gives way.
    fn begin_segment(&mut self, folder: &Path, first: u64) -> io::Result<()> {
        while self.segments.len() >= SEGMENTS {
            durable::remove_file(&self.segment(folder, self.segments[0]))?;
            self.segments.remove(0);
        }
        let path = self.segment(folder, first);
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        self.segments.push(first);
        self.length = 0;
        Ok(())
    }

    fn write_text(&mut self, folder: &Path, text: &[u8]) -> io::Result<()> {
        let Some(last) = self.segments.last().filter(|_| !text.is_empty()) else { return Ok(()) };
        let mut file = OpenOptions::new().append(true).open(self.segment(folder, *last))?;
        if let Err(error) = file.write_all(text) {
            // Half of a line must not stand before the next.
            file.set_len(self.length)?;
            return Err(error);
        }
        self.length += text.len() as u64;
        Ok(())
    }

    /// The entries among which those are that `query` selects, in its direction. A segment is read when it is reached.
    pub(super) fn entries<'t>(
        &'t self,
        folder: &'t Path,
        query: &LogQuery,
    ) -> impl Iterator<Item = io::Result<LogEntry>> + use<'t> {
        let after = query.after.unwrap_or_default();
        // Of segments that end before what is asked for, or begin behind it, nothing is wanted.
        let ends = self.segments.iter().skip(1).copied().map(Some).chain([None]);
        let wanted = self.segments.iter().zip(ends).filter(|(first, next)| {
            next.is_none_or(|next| next > after.saturating_add(1)) && query.before.is_none_or(|before| **first < before)
        });
        let mut wanted: Vec<u64> = wanted.map(|(first, _)| *first).collect();
        let newest_first = query.newest_first;
        if newest_first {
            wanted.reverse();
        }
        wanted.into_iter().flat_map(move |first| match self.read(folder, first) {
            Ok(mut entries) => {
                if newest_first {
                    entries.reverse();
                }
                entries.into_iter().map(Ok).collect()
            }
            Err(error) => vec![Err(error)],
        })
    }

    fn read(&self, folder: &Path, first: u64) -> io::Result<Vec<LogEntry>> {
        let mut bytes = Vec::new();
        let file = File::open(self.segment(folder, first))?;
        let length = if self.segments.last() == Some(&first) { self.length } else { u64::MAX };
        file.take(length).read_to_end(&mut bytes)?;
        // What a disk has made of a line is nothing that anybody could read.
        Ok(bytes.split_inclusive(|byte| *byte == b'\n').filter_map(decode).collect())
    }

    fn segment(&self, folder: &Path, first: u64) -> PathBuf {
        folder.join(format!("{}{first:020}", self.prefix))
    }
}

fn encode(entry: &LogEntry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

/// The entry in a line that is whole.
fn decode(line: &[u8]) -> Option<LogEntry> {
    serde_json::from_slice(line.strip_suffix(b"\n")?).ok()
}
