//! Builds: versions of templates that are made on this host.
//!
//! ```text
//!   queued ──▶ building ──the version is there, pending──▶ warming ──warm snapshot──▶ released ──▶ ready
//!      │           │                                           │
//!      └───────────┴───────────────────────────────────────────┴──▶ failed, with the reason; or cancelled
//! ```
//!
//! * `queued`: the record is on the disk ([`record`]) before whoever asked is told. It has no secrets: they are in this agent's
//!   memory alone.
//! * `building`: the version's disk comes into being. Of a checkpoint or a stopped sandbox its layers are used again, which takes
//!   no time ([`reuse`]). Everything else is made in a machine ([`machine`], [`starting`]), once it has a turn ([`queue`]); a
//!   disk that an earlier version of the same image has is not made again ([`same`]).
//! * `warming`: a first machine of the version is started and written down ([`warming`], [`crate::upkeep::warm`]).
//! * `ready`: everybody may start from the version.
//!
//! A task has each build, and nothing else writes its record. It stops at the limit of time, when the build is cancelled, or when
//! the agent ends; then it takes away what it has made, but for the record and the log ([`log`]), which stay for a while.
//!
//! An agent that starts finds builds in any of these states ([`Builds::open`]): what is released is ready; a version that is
//! pending goes on with `warming`; what is `queued`, or has layers to use again, begins anew; everything else has failed, with
//! `host_restarted`. What nobody builds any more is removed.

mod caches;
mod conversation;
mod disks;
mod log;
mod machine;
mod queue;
mod record;
mod request;
mod reuse;
mod run;
mod same;
mod starting;
mod warming;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sandpiper_durable as durable;
use sandpiper_protocol::ids::{TeamId, VersionId};
use sandpiper_protocol::template::{
    Build, BuildError, BuildList, BuildLogPage, BuildState, MAX_LOG_ENTRIES, StartBuild,
};
use sandpiper_protocol::{error_chain, id};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::caches::Caches;
use self::log::Log;
use self::queue::Queue;
use self::record::{HIDDEN, LOG, Record};
pub(crate) use self::request::StartError;
use crate::host;
use crate::service::Sandboxes;
use crate::uploads::Uploads;

/// How long a build that has ended is in the list of all.
const LISTED: SignedDuration = SignedDuration::from_hours(24);
/// How long one is remembered in any case: the API asks what became of it.
const JUST_ENDED: SignedDuration = SignedDuration::from_mins(10);
/// Most builds of a team that are remembered longer: who has many begun and cancelled fills no memory with them.
const MOST_REMEMBERED: usize = 500;
/// How often it is looked whose time is over, and whether the disk has room.
const SWEEP: Duration = Duration::from_secs(60);

/// The builds of this host. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(crate) struct Builds {
    inner: Arc<Inner>,
}

struct Inner {
    sandboxes: Sandboxes,
    folder: PathBuf,
    table: Mutex<BTreeMap<VersionId, Arc<Entry>>>,
    /// Ids of builds that are being written down.
    beginning: Mutex<HashSet<VersionId>>,
    uploads: Uploads,
    /// Builds that wait for a machine.
    queue: Queue,
    caches: Caches,
    /// Builds whose version waits for its first start.
    warming: Queue,
}

/// One build, as long as it is remembered.
struct Entry {
    record: watch::Sender<Arc<Record>>,
    log: Arc<Mutex<Log>>,
    /// Number of the log's last entry.
    log_end: Arc<AtomicU64>,
    /// Somebody wants it to end.
    cancelled: CancellationToken,
}

/// Why the builds cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("Cannot read the builds in {}", path.display())]
pub(crate) struct OpenError {
    path: PathBuf,
    source: io::Error,
}

impl Builds {
    /// Takes over the builds of an earlier agent, whose machines are gone; those that can go on do. Blocks.
    ///
    /// # Errors
    /// The folder cannot be read, or something that was left not be removed. A build that cannot be read is logged, and stays;
    /// so is one that cannot be written down as ended.
    pub(crate) fn open(sandboxes: &Sandboxes, uploads: Uploads) -> Result<Self, OpenError> {
        let context = sandboxes.context();
        let (folder, config) = (context.paths.builds(), &context.config.builds);
        let failed = |source| OpenError { path: folder.clone(), source };
        let inner = Inner {
            sandboxes: sandboxes.clone(),
            folder: folder.clone(),
            table: Mutex::default(),
            beginning: Mutex::default(),
            uploads,
            queue: Queue::new(config.at_once as usize),
            caches: Caches::open(context.paths.caches(), config.cache_gib).map_err(failed)?,
            warming: Queue::new(config.warming as usize),
        };
        let this = Self { inner: Arc::new(inner) };
        let mut unfinished = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.starts_with(HIDDEN) {
                durable::remove_tree(&path).map_err(failed)?;
            } else if id::is_valid(VersionId::PREFIX, name) {
                match open(&path, name) {
                    Ok((record, log)) => {
                        let has_ended = record.state.has_ended();
                        let entry = this.enter(record, log);
                        if !has_ended {
                            unfinished.push(entry);
                        }
                    }
                    Err(error) => {
                        tracing::error!(build = name, error, "a build is left alone until an operator has seen to it");
                    }
                }
            }
        }
        // Their ids say when each was begun.
        unfinished.sort_by_key(|entry| entry.id());
        let wanted = unfinished.iter().map(|entry| entry.id()).collect::<HashSet<_>>();
        context.templates.remove_unwanted(&wanted).map_err(failed)?;
        for entry in unfinished {
            this.go_on(&entry);
        }
        let sweeping = this.clone();
        sandboxes.spawn(async move { sweeping.sweep().await });
        Ok(this)
    }

    /// Goes on with a build of an earlier agent, or lets it end. Blocks.
    fn go_on(&self, entry: &Arc<Entry>) {
        let record = entry.record();
        let templates = &self.inner.sandboxes.context().templates;
        let id = &record.order.id;
        tracing::info!(build = id.as_str(), state = ?record.state, "a build of an earlier agent");
        if templates.find(id).is_some() {
            return self.let_end(entry, BuildState::Ready, None);
        }
        let is_queued = record.state == BuildState::Queued && !record.has_secrets;
        if templates.find_any(id).is_some() || is_queued || !record.needs_machine() {
            let order = record.order.clone();
            return self.begin(Arc::clone(entry), order);
        }
        let message = "The host's agent was restarted while it was built; build it again";
        let error = BuildError { code: "host_restarted".into(), message: message.into(), step: None };
        self.let_end(entry, BuildState::Failed, Some(error));
    }

    /// Ends a build of an earlier agent. One that cannot be written down as ended has ended all the same, for the next agent too.
    fn let_end(&self, entry: &Entry, state: BuildState, error: Option<BuildError>) {
        match self.end(entry, state, error) {
            Ok(record) => drop(entry.record.send_replace(Arc::new(record))),
            Err(error) => {
                tracing::error!(build = entry.id().as_str(), %error, "cannot write down how a build ended");
            }
        }
    }

    /// Begins a build, and says whether there was none of this id before. It goes on whether or not anybody waits.
    ///
    /// # Errors
    /// [`StartError`].
    pub(crate) async fn start(&self, order: StartBuild) -> Result<(Build, bool), StartError> {
        let this = self.clone();
        durable::blocking(move || this.start_blocking(order)).await
    }

    fn start_blocking(&self, order: StartBuild) -> Result<(Build, bool), StartError> {
        request::check_order(self.inner.sandboxes.context(), &order)?;
        let taken = || StartError::Conflict(format!("There is another build {} already; choose another id", order.id));
        // Of two who ask for the same at once, one makes it.
        let Some(_beginning) = Beginning::of(&self.inner, &order.id) else { return Err(StartError::Beginning) };
        if let Some(entry) = self.entry(&order.id) {
            return if entry.record().is_of(&order) { Ok((self.view(&entry), false)) } else { Err(taken()) };
        }
        request::check_source(&self.inner.sandboxes, &self.inner.uploads, &order)?;
        let record = Record::new(&order);
        let write = || {
            record.create(&self.inner.folder)?;
            Log::open(&self.inner.folder.join(order.id.as_str()).join(LOG), order.limits.log_bytes)
        };
        let log = write().map_err(|source| StartError::Storage { what: "write the build down", source })?;
        let entry = self.enter(record, log);
        tracing::info!(
            target: "audit", build = order.id.as_str(), team = order.team.as_str(), template = order.slug, "build begun"
        );
        let view = self.view(&entry);
        self.begin(entry, order);
        Ok((view, true))
    }

    /// Those that go on, and those that ended not long ago, oldest first, without the versions that came of them: there may be
    /// many, with long settings.
    pub(crate) fn list(&self) -> BuildList {
        let since = Timestamp::now() - LISTED;
        let entries: Vec<_> = self.lock().values().cloned().collect();
        let listed = entries.iter().filter(|entry| entry.record().finished_at.is_none_or(|time| time >= since));
        BuildList { builds: listed.map(|entry| Build { version: None, ..self.view(entry) }).collect() }
    }

    pub(crate) fn find(&self, id: &VersionId) -> Option<Build> {
        let entry = self.entry(id)?;
        Some(self.view(&entry))
    }

    fn entry(&self, id: &VersionId) -> Option<Arc<Entry>> {
        self.lock().get(id).cloned()
    }

    /// Entries of a build's log that are numbered above `after`, oldest first; `None` where there is no such build.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) async fn log(&self, id: &VersionId, after: u64, limit: usize) -> io::Result<Option<BuildLogPage>> {
        let Some(entry) = self.entry(id) else { return Ok(None) };
        let read = move || {
            // Before the log is looked at: nothing is added to that of a build that has ended.
            let has_ended = entry.record().state.has_ended();
            let log = lock(&entry.log);
            let entries = log.page(after, limit.clamp(1, MAX_LOG_ENTRIES))?;
            let last = entries.last().map_or(after, |entry| entry.number);
            Ok(Some(BuildLogPage { is_complete: has_ended && last >= log.end(), entries }))
        };
        durable::blocking(read).await
    }

    /// Has a build end, and waits for that; `None` where there is none. One that has ended stays as it is.
    pub(crate) async fn cancel(&self, id: &VersionId) -> Option<Build> {
        let entry = self.entry(id)?;
        entry.cancelled.cancel();
        // The sender is in `entry`, so there is always a next one; the agent's end ends the request.
        let _ = entry.record.subscribe().wait_for(|record| record.state.has_ended()).await;
        Some(self.view(&entry))
    }

    /// A build as it is now.
    fn view(&self, entry: &Entry) -> Build {
        let record = entry.record();
        let context = self.inner.sandboxes.context();
        let is_ready = record.state == BuildState::Ready;
        let version = is_ready.then(|| context.templates.find(&record.order.id)).flatten().map(|template| {
            let retained_bytes = context.usage.of(&template.version.id);
            sandpiper_protocol::agent::TemplateVersion { retained_bytes, ..template.version }
        });
        Build {
            id: record.order.id.clone(),
            state: record.state,
            position: self.inner.queue.position(&record.order.id).filter(|_| record.state == BuildState::Queued),
            error: record.error.clone(),
            version,
            created_at: record.created_at,
            started_at: record.started_at,
            finished_at: record.finished_at,
            log_end: entry.log_end.load(Ordering::Relaxed),
        }
    }

    /// Forgets builds whose time is over, and what is kept for later ones where its room is needed, until the agent ends.
    async fn sweep(self) {
        let context = self.inner.sandboxes.context_owned();
        let keep = i64::try_from(context.config.builds.keep_seconds).unwrap_or(i64::MAX);
        loop {
            let this = self.clone();
            let before = Timestamp::now().saturating_sub(SignedDuration::from_secs(keep)).unwrap_or(Timestamp::MIN);
            if let Err(error) = durable::blocking(move || this.forget(before)).await {
                tracing::warn!(%error, "cannot remove builds that have ended long ago");
            }
            let this = self.clone();
            if let Err(error) = durable::blocking(move || this.keep_uploads()).await {
                tracing::warn!(%error, "cannot note that builds wait for what was sent for them");
            }
            let (caches, state) = (self.inner.caches.clone(), context.paths.state().to_owned());
            let headroom = context.config.limits.disk_headroom_mb;
            let make_room = move || {
                caches.remove_unused()?;
                while host::free_disk_mb(&state)? < headroom && caches.remove_oldest()? {}
                Ok::<_, io::Error>(())
            };
            if let Err(error) = durable::blocking(make_room).await {
                tracing::warn!(%error, "cannot remove build caches that are not used");
            }
            tokio::select! {
                () = context.leave.cancelled() => return,
                () = tokio::time::sleep(SWEEP) => {}
            }
        }
    }

    /// Uploads that builds wait for are in use. Blocks.
    fn keep_uploads(&self) -> io::Result<()> {
        let entries: Vec<_> = self.lock().values().cloned().collect();
        let records = entries.iter().map(|entry| entry.record()).filter(|record| !record.state.has_ended());
        for record in records {
            for upload in record.order.source.uploads() {
                self.inner.uploads.open_data(upload)?;
            }
        }
        Ok(())
    }

    /// Forgets builds that ended before this, and the oldest of teams that have very many. Blocks.
    fn forget(&self, before: Timestamp) -> io::Result<()> {
        let just_ended = Timestamp::now() - JUST_ENDED;
        let mut remembered: HashMap<TeamId, usize> = HashMap::new();
        let mut over = Vec::new();
        let mut table = self.lock();
        // The newest first: their ids say when each was begun.
        for (id, entry) in table.iter().rev() {
            let record = entry.record();
            let Some(finished_at) = record.finished_at else { continue };
            let count = remembered.entry(record.order.team.clone()).or_default();
            *count += 1;
            if finished_at < before || finished_at < just_ended && *count > MOST_REMEMBERED {
                over.push(id.clone());
            }
        }
        table.retain(|id, _| !over.contains(id));
        drop(table);
        for id in over {
            let (folder, hidden) =
                (self.inner.folder.join(id.as_str()), self.inner.folder.join(format!("{HIDDEN}{id}")));
            fs::rename(&folder, &hidden)?;
            durable::sync_parent(&folder)?;
            durable::remove_tree(&hidden)?;
        }
        Ok(())
    }

    fn enter(&self, record: Record, log: Log) -> Arc<Entry> {
        let id = record.order.id.clone();
        let entry = Arc::new(Entry::new(record, log));
        self.lock().insert(id, Arc::clone(&entry));
        entry
    }

    /// Changes a record on the disk; the caller has everybody see what it returns. Blocks.
    fn save(&self, entry: &Entry, change: impl FnOnce(&mut Record)) -> io::Result<Record> {
        let mut record = (*entry.record()).clone();
        change(&mut record);
        record.save(&self.inner.folder.join(record.order.id.as_str()))?;
        Ok(record)
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<VersionId, Arc<Entry>>> {
        lock(&self.inner.table)
    }
}

/// What an earlier agent has left of the build `name`; or why it cannot be read. Blocks.
fn open(folder: &Path, name: &str) -> Result<(Record, Log), String> {
    let record = Record::load(folder, name).map_err(|error| error_chain::chain(&error))?;
    let log = Log::open(&folder.join(LOG), record.order.limits.log_bytes);
    Ok((record, log.map_err(|error| format!("Cannot read its log: {error}"))?))
}

/// The right to write a build of this id down, until dropped.
struct Beginning<'a> {
    inner: &'a Inner,
    id: VersionId,
}

impl<'a> Beginning<'a> {
    fn of(inner: &'a Inner, id: &VersionId) -> Option<Self> {
        lock(&inner.beginning).insert(id.clone()).then(|| Self { inner, id: id.clone() })
    }
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        lock(&self.inner.beginning).remove(&self.id);
    }
}

impl Entry {
    fn new(record: Record, log: Log) -> Self {
        let record = watch::Sender::new(Arc::new(record));
        let log_end = log.end_counter();
        Self { record, log: Arc::new(Mutex::new(log)), log_end, cancelled: CancellationToken::new() }
    }

    fn record(&self) -> Arc<Record> {
        self.record.borrow().clone()
    }

    fn id(&self) -> VersionId {
        self.record.borrow().order.id.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
