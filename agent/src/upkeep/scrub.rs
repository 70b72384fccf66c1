//! Finds out whether sealed files still hold what was written to them ([`digest`]), and says so where they do not.
//!
//! One file at a time, slowly, and beside everything else: a start never waits for it. What is compared is what is read, as
//! guests do: while the page cache has the file, that hides what the disk has made of it.
//!
//! * A file without a digest gets one as soon as one of its owners is still: all of its files are sealed then. Of a running
//!   sandbox that cannot be told from its record: while it is checkpointed, two of its layers may be written to.
//! * What running sandboxes use is compared soon after their start, and then once a day; everything else once a week.
//! * Damage is noted with the file, and is said for each owner, at each of its starts. Nothing is refused on account of it:
//!   much may still be of use. Only warm snapshots, which are made anew at no loss, are thrown away.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_images::layers::digest::{self, Digest, Note};
use tokio::time::{Instant, sleep};

use super::{Owner, OwnerKind, PACE};
use crate::service::Sandboxes;

/// How often it is looked what there is to do, when nothing has happened, and how long a file is left alone that is being
/// merged.
const ROUND: Duration = Duration::from_secs(10);
/// How often a file is read that a running sandbox uses, and how long one is left alone that could not be read.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How often any other is.
const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What is said of a file.
const DAMAGED: &str =
    "is damaged: it does not hold what was written to it; restore it from a backup, or delete what consists of it";

/// A file of one or several owners.
struct Sealed {
    note: Option<Note>,
    /// One of its owners does not run.
    is_sealed: bool,
    /// One of its owners runs.
    in_use: bool,
    /// Of all owners, added up: another sum means that one of them has been started, or tried to.
    generations: u64,
    names: Vec<Name>,
}

/// What an owner calls a file.
struct Name {
    path: PathBuf,
    kind: OwnerKind,
    id: String,
    generation: u64,
}

/// By the inode's number.
type AllSealed = HashMap<u64, Sealed>;

/// What is remembered from one round to the next; all of it is of files that exist.
#[derive(Default)]
struct Memory {
    /// Files, with the digest that they had, and when they may be read again.
    intervals: HashMap<(u64, Option<Digest>), Interval>,
    /// Which damaged file was reported to which owner, in which life.
    reported: HashSet<(u64, String, u64)>,
    /// It was said that some file cannot have a digest.
    has_warned: bool,
}

/// How long a file is left alone.
struct Interval {
    since: Instant,
    /// The file's at that time.
    generations: u64,
    /// If it is or was in use, or has no digest.
    urgent: Duration,
    otherwise: Duration,
}

impl Sandboxes {
    /// Looks at one file after another until the agent ends.
    pub(super) async fn scrub(self) {
        let leave = self.context().leave.clone();
        let mut changes = self.context().changed.subscribe();
        let mut memory = Memory::default();
        while !leave.is_cancelled() {
            let owners = self.all_owners();
            let Ok(files) = tokio::task::spawn_blocking(move || all_sealed(owners)).await else { return };
            memory.keep_only(&files);
            self.report(&files, &mut memory).await;
            let Some((inode, file)) = memory.next(&files) else {
                tokio::select! {
                    () = leave.cancelled() => return,
                    _ = changes.changed() => continue,
                    () = sleep(ROUND) => continue,
                }
            };
            let interval = match self.read(file).await {
                Ok(true) => (DAY, WEEK),
                Ok(false) => (ROUND, ROUND),
                // Deleted; another owner may have it still.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) => {
                    memory.cannot_keep(file, &error);
                    (DAY, DAY)
                }
                Err(error) => {
                    tracing::error!(path = %file.path().display(), %error, "a file cannot be read, or given a digest");
                    (DAY, DAY)
                }
            };
            memory.leave_alone(inode, file, interval);
        }
    }

    /// Compares a file with its digest, or makes that; false when it came to nothing.
    async fn read(&self, file: &Sealed) -> io::Result<bool> {
        let context = self.context_owned();
        let (path, has_digest) = (file.path().to_owned(), file.note.is_some());
        let work = move || {
            let go_on = || !context.leave.is_cancelled();
            if has_digest {
                digest::check(&path, &context.visits, PACE, go_on).map(|found| found.is_some())
            } else {
                digest::make(&path, &context.visits, PACE, go_on)
            }
        };
        durable::blocking(work).await
    }

    /// Reports damaged files to their owners, once in each life.
    async fn report(&self, files: &AllSealed, memory: &mut Memory) {
        let mut count = 0;
        for (inode, file) in files.iter().filter(|(_, file)| file.is_damaged()) {
            count += 1;
            let news: Vec<&Name> = file.names.iter().filter(|name| memory.is_news(*inode, name)).collect();
            if news.is_empty() {
                continue;
            }
            let paths: Vec<_> = news.iter().map(|name| name.path.display().to_string()).collect();
            tracing::error!(?paths, "this file {DAMAGED}");
            for name in news {
                match name.kind {
                    OwnerKind::Sandbox => {
                        let file = name.path.file_name().unwrap_or_default().display();
                        let log = self.context().logs.find(&name.id);
                        log.inspect(|log| log.host(format!("{file} {DAMAGED}")));
                    }
                    // Another one would have the same damage if it is in the template.
                    OwnerKind::WarmSnapshot if !file.is_of_template() => {
                        let (context, key) = (self.context_owned(), name.id.clone());
                        let _ = tokio::task::spawn_blocking(move || context.warm.discard(&key)).await;
                    }
                    OwnerKind::WarmSnapshot | OwnerKind::Checkpoint | OwnerKind::Template { .. } => {}
                }
            }
        }
        self.context().metrics.damaged(count);
    }

    /// Everything that has sealed files.
    pub(super) fn all_owners(&self) -> Vec<Owner> {
        let context = self.context();
        let warm = context.warm.list().into_iter().map(|warm| Owner {
            kind: OwnerKind::WarmSnapshot,
            id: warm.key,
            generation: 0,
            folder: warm.folder,
            files: warm.snapshot.files.clone(),
            written: 0,
        });
        warm.chain(self.owners()).collect()
    }
}

/// The files of all these owners that are there. Blocks.
fn all_sealed(owners: Vec<Owner>) -> AllSealed {
    let mut files = AllSealed::new();
    for owner in owners {
        for layer in owner.files.disk.iter().chain(&owner.files.memory) {
            let path = owner.folder.join(&layer.name);
            let Ok((inode, note)) = digest::look(&path) else { continue };
            let new = || Sealed { note, is_sealed: false, in_use: false, generations: 0, names: Vec::new() };
            let file = files.entry(inode).or_insert_with(new);
            file.is_sealed |= !owner.runs();
            file.in_use |= owner.runs();
            file.generations = file.generations.wrapping_add(owner.generation);
            let Owner { kind, generation, .. } = owner;
            file.names.push(Name { path, kind, id: owner.id.clone(), generation });
        }
    }
    files
}

impl Sealed {
    /// One of its names.
    fn path(&self) -> &Path {
        &self.names[0].path
    }

    fn digest(&self) -> Option<Digest> {
        self.note.map(|note| note.digest)
    }

    fn is_damaged(&self) -> bool {
        self.note.is_some_and(|note| note.damaged)
    }

    fn is_of_template(&self) -> bool {
        self.names.iter().any(|name| matches!(name.kind, OwnerKind::Template { .. }))
    }
}

impl Memory {
    /// Forgets what is not there any more, and begins to count the time of what is new.
    fn keep_only(&mut self, files: &AllSealed) {
        self.intervals.retain(|(inode, digest), _| files.get(inode).is_some_and(|file| file.digest() == *digest));
        self.reported.retain(|(inode, ..)| files.get(inode).is_some_and(Sealed::is_damaged));
        for (inode, file) in files {
            if !self.intervals.contains_key(&(*inode, file.digest())) {
                self.leave_alone(*inode, file, (Duration::ZERO, WEEK));
            }
        }
    }

    /// A file that is to be read now: rather one that has no digest yet.
    fn next<'a>(&self, files: &'a AllSealed) -> Option<(u64, &'a Sealed)> {
        let is_due = |inode: u64, file: &Sealed| {
            let Some(interval) = self.intervals.get(&(inode, file.digest())) else { return false };
            let urgent = file.in_use || file.generations != interval.generations || file.note.is_none();
            interval.since.elapsed() >= if urgent { interval.urgent } else { interval.otherwise }
        };
        let due = files.iter().filter(|(inode, file)| (file.is_sealed || file.note.is_some()) && is_due(**inode, file));
        due.min_by_key(|(_, file)| file.note.is_some()).map(|(inode, file)| (*inode, file))
    }

    fn leave_alone(&mut self, inode: u64, file: &Sealed, (urgent, otherwise): (Duration, Duration)) {
        self.intervals.insert(
            (inode, file.digest()),
            Interval { since: Instant::now(), generations: file.generations, urgent, otherwise },
        );
    }

    /// Says so, once: where one file cannot have a digest, others cannot either.
    fn cannot_keep(&mut self, file: &Sealed, error: &io::Error) {
        if !std::mem::replace(&mut self.has_warned, true) {
            let path = file.path().display();
            tracing::warn!(%path, %error, "a file cannot have a digest: flipped bits will not be noticed here");
        }
    }

    /// Whether this file was not reported to this owner yet; it is now.
    fn is_news(&mut self, inode: u64, name: &Name) -> bool {
        self.reported.insert((inode, name.id.clone(), name.generation))
    }
}
