//! What happened to each sandbox: entries in its folder, numbered, from its first to its last.
//!
//! ```text
//!   supervisor, console ──push──▶ [intake], in memory ──▶ the one thread that writes ──▶ [file]: two [track]s
//!                                                                                           │
//!                     GET /sandboxes/{id}/logs ◀──── what was pushed is written first ◀─────┘
//! ```
//!
//! * Nobody who pushes waits for the disk: lines wait in memory, so many for each sandbox and no more, until the thread takes
//!   all of one log's at once. Nothing is synced: an agent that is killed loses what waited, and nobody has seen that.
//! * An entry gets its **sequence** when it is written, so that the order of the file is that of the numbers. None is given
//!   twice: an agent that opens a log of an earlier one goes on at a higher number ([`file`]).
//! * Who floods its log is held to so many lines a second. What is dropped is counted, and the log says how much it was. What
//!   the agent itself has to say is not counted.
//! * Lines of the guest and its console are a tenant's: they are cut to [`MAX_TEXT`](sandpiper_machine::MAX_TEXT) bytes and
//!   stripped of control characters, so that no terminal they end up on can be played with.
//! * What processes write, where the sandbox asks for it, is the most hostile of all. It has a source of its own, which nothing else
//!   that the guest says can have, a limit of its own, and files of its own: a flood of it pushes nothing else out.
//! * A log goes with its sandbox. The last entries of those that ended not long ago stay in memory.

mod file;
mod intake;
mod recent;
mod selection;
#[cfg(test)]
mod tests;
mod track;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use sandpiper_protocol::agent::{LogPage, LogQuery, LogSource};
use sandpiper_protocol::guest::OutputLine;

use self::file::LogFile;
use self::intake::Intake;

pub(crate) use self::file::is_segment;

/// Sandboxes that are gone whose last entries are kept.
const ENDED_SANDBOXES: usize = 100;

/// How much each log may be; what processes write may be as much again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Bytes on the disk; the oldest entries give way.
    pub(crate) bytes: u64,
    /// Lines of the guest that are taken within a second.
    pub(crate) lines_per_second: u32,
}

/// The log of one sandbox. Cheap to clone; all clones are the same log.
#[derive(Debug, Clone)]
pub(crate) struct SandboxLog(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    intake: Mutex<Intake>,
    /// Held while the disk is waited for: never on the runtime.
    file: Mutex<LogFile>,
    /// Sequence of the last entry that is written, for who does not want to wait for a disk; 0 before the first is, and while some
    /// are being written.
    last: AtomicU64,
    /// Nothing follows.
    is_closed: AtomicBool,
    /// The thread that writes.
    writer: Sender<SandboxLog>,
}

impl SandboxLog {
    fn new(folder: PathBuf, bounds: Bounds, writer: Sender<SandboxLog>) -> Self {
        Self(Arc::new(Parts {
            intake: Mutex::new(Intake::new(bounds.lines_per_second)),
            file: Mutex::new(LogFile::new(folder, bounds.bytes)),
            last: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            writer,
        }))
    }

    /// Something that the agent did or saw.
    pub(crate) fn host(&self, message: impl AsRef<str>) {
        self.push(LogSource::Host, message.as_ref());
    }

    /// Adds an entry, soon. Does not block.
    pub(crate) fn push(&self, source: LogSource, message: &str) {
        if lock(&self.0.intake).take_in(source, message) {
            // There is a receiver as long as there is a log.
            let _ = self.0.writer.send(self.clone());
        }
    }

    /// Adds what processes wrote, of which the guest itself left so many lines out. Does not block.
    pub(crate) fn output(&self, lines: Vec<OutputLine>, left_out: u64) {
        if lock(&self.0.intake).take_in_output(lines, left_out) {
            let _ = self.0.writer.send(self.clone());
        }
    }

    /// What `query` selects of all that was pushed before. Blocks.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn page(&self, query: &LogQuery) -> io::Result<LogPage> {
        self.flush().page(query)
    }

    /// The page of what follows an entry, where that is nothing yet, and no disk need be asked.
    pub(crate) fn empty_page(&self, query: &LogQuery) -> Option<LogPage> {
        let intake = lock(&self.0.intake);
        let last = self.0.last.load(Ordering::Acquire);
        let is_read = last > 0 && query.after.is_some_and(|after| after >= last);
        let may_follow = !self.0.is_closed.load(Ordering::Acquire);
        (is_read && may_follow && intake.is_empty()).then(|| LogPage { last, ..LogPage::default() })
    }

    /// From now on entries are kept in memory, the last ones: the sandbox's folder is about to be removed. Blocks.
    pub(crate) fn close(&self) {
        self.flush().close();
        self.0.is_closed.store(true, Ordering::Release);
    }

    /// Writes what was pushed. Blocks.
    fn flush(&self) -> MutexGuard<'_, LogFile> {
        // The file first: what is taken out of the intake is written in the order in which it was taken.
        let mut file = lock(&self.0.file);
        let lines = {
            let mut intake = lock(&self.0.intake);
            self.0.last.store(0, Ordering::Release);
            intake.take_out()
        };
        file.append(lines);
        self.0.last.store(file.last(), Ordering::Release);
        file
    }
}

/// The logs of all sandboxes.
#[derive(Debug)]
pub(crate) struct Logs {
    bounds: Bounds,
    writer: Sender<SandboxLog>,
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    live: HashMap<String, SandboxLog>,
    ended: VecDeque<(String, SandboxLog)>,
}

impl Logs {
    /// Of no sandboxes yet; starts the thread that writes, which ends when all logs are dropped.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub(crate) fn new(bounds: Bounds) -> io::Result<Self> {
        let (writer, orders) = channel::<SandboxLog>();
        // Each log is in the channel once at most, so there is an end to it.
        thread::Builder::new().name("logs".to_owned()).spawn(move || {
            for log in orders {
                drop(log.flush());
            }
        })?;
        Ok(Self { bounds, writer, shelf: Mutex::default() })
    }

    /// The log of a sandbox that begins, or that an earlier agent has left, whose files are in `folder` once that is there.
    pub(crate) fn open(&self, id: &str, folder: PathBuf) -> SandboxLog {
        let log = SandboxLog::new(folder, self.bounds, self.writer.clone());
        lock(&self.shelf).live.insert(id.to_owned(), log.clone());
        log
    }

    /// Sets the log aside of a sandbox of which nothing is left; the one set aside longest ago is dropped.
    pub(crate) fn retire(&self, id: &str) {
        let mut shelf = lock(&self.shelf);
        let Some(log) = shelf.live.remove(id) else { return };
        if shelf.ended.len() >= ENDED_SANDBOXES {
            shelf.ended.pop_front();
        }
        shelf.ended.push_back((id.to_owned(), log));
    }

    /// The log of a sandbox that is here or was here not long ago.
    pub(crate) fn find(&self, id: &str) -> Option<SandboxLog> {
        let shelf = lock(&self.shelf);
        let ended = || shelf.ended.iter().rev().find(|(ended, _)| ended == id).map(|(_, log)| log);
        shelf.live.get(id).or_else(ended).cloned()
    }

    /// Writes what was pushed to any log. Blocks.
    pub(crate) fn flush(&self) {
        let live: Vec<_> = lock(&self.shelf).live.values().cloned().collect();
        for log in live {
            drop(log.flush());
        }
    }
}

/// The data under these locks is changed in steps that leave it whole, even after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
