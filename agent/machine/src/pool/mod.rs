//! Monitors that wait.
//!
//! Every monitor begins **idle**: a process that is started and jailed, with a user id and a cgroup of its own, that knows
//! nothing of any sandbox yet. A start takes one, so that it need not wait for any of this; the pool keeps a few for
//! each shape (CPU and memory) that was asked for lately, prepared for it, and starts one on the spot where it has none.
//!
//! ```text
//!   spawn ──▶ prepare ──▶ waiting ──take──▶ a sandbox's monitor ──process gone, release──▶ (user id, cgroup free)
//!     └───────────────────────take─────────▶ │
//! ```
//!
//! * New ones are made while no start is going on, one at a time: a start never waits for the one after it.
//! * One that dies while it is idle is replaced, later and later if that goes on.
//! * Idle monitors count as no sandbox and hold no memory to speak of. When a monitor cannot be started, they are ended first.
//! * An idle monitor is found again by nobody: an agent that starts kills those of its predecessor.

mod idle;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_protocol::error_chain;
use sandpiper_protocol::vmm::Shape;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use self::idle::IdleMonitor;
use crate::error::MachineError;
use crate::jail::cgroup::Cgroups;
use crate::paths::MachinePaths;
use crate::process::KnownMonitor;

/// User ids of monitors, from [`Config::uid_base`] on.
pub const UIDS: u32 = 65_536;

/// Shapes for which monitors wait.
const SHAPES: usize = 4;
/// From the end of a start to making another monitor: until then what it needs the processors for goes on.
const QUIET: Duration = Duration::from_millis(500);
/// How often idle monitors are looked at.
const CHECK: Duration = Duration::from_secs(5);
/// Pause after a monitor that could not be made, or died; doubled up to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

const LEFT: &str = "a cgroup cannot be removed; its user id stays taken, and it is tried again";

/// How the pool starts monitors.
#[derive(Debug, Clone)]
pub struct Config {
    /// The `sandpiper-vmm` binary.
    pub program: PathBuf,
    /// How many monitors wait for each shape.
    pub per_shape: usize,
    /// False: monitors run as this process's own user, without limits.
    pub is_jailed: bool,
    /// First of the [`UIDS`] user ids that monitors are given, each to one at a time.
    pub uid_base: u32,
    /// Holds the folders with files of those that wait, named by id.
    pub state: PathBuf,
    /// Holds the folders with their sockets.
    pub runtime: PathBuf,
}

impl Config {
    fn folders(&self, id: &str) -> MachinePaths {
        MachinePaths { state: self.state.join(id), runtime: self.runtime.join(id) }
    }
}

/// The idle monitors of this host, and which user ids and cgroups all of its monitors hold. Cheap to clone; all clones are
/// the same.
#[derive(Clone)]
pub struct MonitorPool {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    boot_id: String,
    cgroups: Cgroups,
    pool: Mutex<Pool>,
    /// Something to do for the task that keeps the pool filled.
    wake: Notify,
}

#[derive(Default)]
struct Pool {
    waiting: Vec<IdleMonitor>,
    /// Shapes that were asked for, the last one first.
    recent: VecDeque<Shape>,
    /// User ids of monitors that may live, as offsets.
    uids: BTreeSet<u32>,
    /// Cgroups that could not be removed, and the user ids in `uids` that stay taken for them.
    left: HashMap<String, Vec<u32>>,
    /// Ids of monitors that may live, idle or taken.
    known: HashSet<String>,
    /// Starts that are going on.
    starts: usize,
    closed: bool,
}

/// A start that is going on: no idle monitor is made meanwhile.
pub struct Start {
    pool: MonitorPool,
}

impl Drop for Start {
    fn drop(&mut self) {
        let mut pool = self.pool.lock();
        pool.starts = pool.starts.saturating_sub(1);
        drop(pool);
        self.pool.inner.wake.notify_one();
    }
}

impl MonitorPool {
    pub fn new(config: Config, boot_id: String, cgroups: Cgroups) -> Self {
        let inner = Inner { config, boot_id, cgroups, pool: Mutex::default(), wake: Notify::new() };
        Self { inner: Arc::new(inner) }
    }

    /// Notes the monitor of a sandbox that an earlier agent started.
    pub fn adopt(&self, monitor: &KnownMonitor) {
        let mut pool = self.lock();
        pool.known.insert(monitor.id.clone());
        pool.uids.extend(monitor.uid.and_then(|uid| uid.checked_sub(self.inner.config.uid_base)));
    }

    /// Whether the monitor `id` is one of this agent's, or of a sandbox that it adopted.
    pub fn knows(&self, id: &str) -> bool {
        self.lock().known.contains(id)
    }

    /// Ends the cgroups of monitors that nobody knows, and what is in them. Blocks.
    ///
    /// # Errors
    /// Where cgroups cannot be listed. One that cannot be removed is logged, and kept in mind.
    pub fn sweep_cgroups(&self) -> io::Result<()> {
        for id in self.inner.cgroups.list()? {
            if self.knows(&id) || self.lock().left.contains_key(&id) {
                continue;
            }
            let users = self.inner.cgroups.users(&id);
            tracing::warn!(id, ?users, "removing a cgroup that has no monitor");
            let offsets = users.iter().filter_map(|uid| uid.checked_sub(self.inner.config.uid_base));
            let offsets: Vec<u32> = offsets.filter(|offset| *offset < UIDS).collect();
            {
                let mut pool = self.lock();
                // One that a monitor of this agent has already is freed with that.
                let reserved = offsets.into_iter().filter(|offset| pool.uids.insert(*offset)).collect();
                pool.left.insert(id.clone(), reserved);
            }
            match self.inner.cgroups.remove(&id) {
                Ok(()) => self.forget_left(&id),
                Err(error) => tracing::error!(id, %error, "{LEFT}"),
            }
        }
        Ok(())
    }

    /// Tries again to end the cgroups that could not be. Blocks.
    fn end_left(&self) {
        let left: Vec<String> = self.lock().left.keys().cloned().collect();
        for id in left {
            if self.inner.cgroups.try_remove(&id).is_ok() {
                tracing::info!(id, "removed a cgroup that could not be removed before");
                self.forget_left(&id);
            }
        }
    }

    fn forget_left(&self, id: &str) {
        let mut pool = self.lock();
        for offset in pool.left.remove(id).unwrap_or_default() {
            pool.uids.remove(&offset);
        }
    }

    /// Says that a machine of this shape is about to be started, until the guard is dropped.
    pub fn begin(&self, shape: Shape) -> Start {
        let mut pool = self.lock();
        pool.recent.retain(|other| *other != shape);
        pool.recent.push_front(shape);
        pool.recent.truncate(SHAPES);
        pool.starts += 1;
        Start { pool: self.clone() }
    }

    /// Whether a machine is being started.
    pub fn is_starting(&self) -> bool {
        self.lock().starts > 0
    }

    /// A monitor for a machine of this shape: one that waits, or a new one.
    ///
    /// # Errors
    /// [`MachineError`] where a monitor cannot be started, also without the idle ones.
    pub async fn take(&self, shape: Shape) -> Result<IdleMonitor, MachineError> {
        while let Some(idle) = self.pop(|idle| idle.shape() == shape) {
            if !idle.has_ended() {
                return Ok(idle);
            }
            tracing::warn!(monitor = idle.id(), "an idle monitor died");
            self.end(idle).await;
        }
        match self.spawn(shape).await {
            Err(error) if self.drain().await > 0 => {
                tracing::warn!(error = %error_chain::chain(&error), "a monitor could not be started; trying without idle ones");
                self.spawn(shape).await
            }
            result => result,
        }
    }

    /// Frees what the monitor held that is gone now.
    pub async fn release(&self, monitor: &KnownMonitor) {
        let (this, id) = (self.clone(), monitor.id.clone());
        if let Err(error) = durable::blocking(move || this.inner.cgroups.remove(&id)).await {
            tracing::error!(id = monitor.id, %error, "{LEFT}");
            let mut pool = self.lock();
            pool.known.remove(&monitor.id);
            let offset = monitor.uid.and_then(|uid| uid.checked_sub(self.inner.config.uid_base));
            pool.left.insert(monitor.id.clone(), offset.into_iter().collect());
        } else {
            self.forget(&monitor.id, monitor.uid);
        }
    }

    /// Keeps the pool filled until `end`, and ends all idle monitors then.
    pub async fn keep(self, end: CancellationToken) {
        let mut pause = BACKOFF.0;
        let mut not_before = Instant::now();
        while !end.is_cancelled() {
            tokio::select! {
                () = end.cancelled() => break,
                () = self.inner.wake.notified() => drop(timeout(QUIET, end.cancelled()).await),
                () = sleep(CHECK) => {}
            }
            if !self.lock().left.is_empty() {
                let this = self.clone();
                // A panic in there is none of a cgroup that is left.
                let _ = tokio::task::spawn_blocking(move || this.end_left()).await;
            }
            let mut failed = self.end_dead().await;
            while !failed && Instant::now() >= not_before && !end.is_cancelled() {
                let Some(shape) = self.wanted() else { break };
                match self.prepare(shape).await {
                    Ok(()) => pause = BACKOFF.0,
                    Err(error) => {
                        tracing::warn!(error = %error_chain::chain(&error), "cannot start an idle monitor; retrying");
                        failed = true;
                    }
                }
            }
            if failed {
                not_before = Instant::now() + pause;
                pause = (pause * 2).min(BACKOFF.1);
            }
            self.end_unwanted().await;
        }
        self.lock().closed = true;
        self.drain().await;
    }

    async fn prepare(&self, shape: Shape) -> Result<(), MachineError> {
        let mut idle = self.spawn(shape).await?;
        if let Err(source) = idle.prepare().await {
            self.end(idle).await;
            return Err(MachineError::Host { what: "prepare a monitor", source: io::Error::other(source) });
        }
        let surplus = {
            let mut pool = self.lock();
            if pool.closed {
                Some(idle)
            } else {
                pool.waiting.push(idle);
                None
            }
        };
        if let Some(idle) = surplus {
            self.end(idle).await;
        }
        Ok(())
    }

    /// The shape that most needs an idle monitor, while no start is going on.
    fn wanted(&self) -> Option<Shape> {
        let pool = self.lock();
        if pool.closed || pool.starts > 0 {
            return None;
        }
        let waiting = |shape: &Shape| pool.waiting.iter().filter(|idle| idle.shape() == *shape).count();
        let enough = self.inner.config.per_shape;
        pool.recent.iter().find(|shape| waiting(shape) < enough).copied()
    }

    /// Ends idle monitors that died; true when there were some.
    async fn end_dead(&self) -> bool {
        let mut found = false;
        while let Some(idle) = self.pop(IdleMonitor::has_ended) {
            found = true;
            tracing::warn!(monitor = idle.id(), "an idle monitor died");
            self.end(idle).await;
        }
        found
    }

    /// Ends idle monitors of a shape that was not asked for lately.
    async fn end_unwanted(&self) {
        let recent = self.lock().recent.clone();
        while let Some(idle) = self.pop(|idle| !recent.contains(&idle.shape())) {
            self.end(idle).await;
        }
    }

    /// Ends all idle monitors; how many there were.
    async fn drain(&self) -> usize {
        let mut count = 0;
        while let Some(idle) = self.pop(|_| true) {
            count += 1;
            self.end(idle).await;
        }
        count
    }

    fn pop(&self, which: impl Fn(&IdleMonitor) -> bool) -> Option<IdleMonitor> {
        let mut pool = self.lock();
        let position = pool.waiting.iter().position(which)?;
        Some(pool.waiting.swap_remove(position))
    }

    /// Ends a monitor that was not taken, or not used.
    pub async fn end(&self, idle: IdleMonitor) {
        let monitor = idle.known();
        match idle.end().await {
            Ok(()) => self.release(&monitor).await,
            // Its user id and cgroup stay as they are: it may live.
            Err(error) => tracing::error!(monitor = monitor.id, %error, "cannot end an idle monitor; kill it by hand"),
        }
    }

    /// Starts a monitor that waits for its first request.
    async fn spawn(&self, shape: Shape) -> Result<IdleMonitor, MachineError> {
        let (id, uid) = self.claim()?;
        let (this, spawn_id) = (self.clone(), id.clone());
        let spawned = tokio::task::spawn_blocking(move || {
            let inner = &this.inner;
            idle::spawn(&inner.config, &inner.boot_id, &inner.cgroups, &spawn_id, uid, shape)
        });
        let failed = |error| MachineError::Host { what: "start a monitor", source: io::Error::other(error) };
        match spawned.await.map_err(failed).flatten() {
            Ok(spawned) => match IdleMonitor::watch(spawned) {
                Ok(idle) => Ok(idle),
                Err(error) => {
                    self.forget(&id, uid);
                    Err(MachineError::Host { what: "watch a monitor", source: error })
                }
            },
            Err(error) => {
                self.forget(&id, uid);
                Err(error)
            }
        }
    }

    /// The id and user of a new monitor.
    fn claim(&self) -> Result<(String, Option<u32>), MachineError> {
        let id = sandpiper_protocol::id::generate(idle::ID_PREFIX);
        let mut pool = self.lock();
        if pool.closed {
            return Err(MachineError::Closed);
        }
        let config = &self.inner.config;
        let uid = if config.is_jailed {
            let free = (0..UIDS).find(|offset| !pool.uids.contains(offset));
            let none = || io::Error::other("All user ids for monitors are taken");
            let offset = free.ok_or_else(|| MachineError::Host { what: "start a monitor", source: none() })?;
            pool.uids.insert(offset);
            Some(config.uid_base + offset)
        } else {
            None
        };
        pool.known.insert(id.clone());
        Ok((id, uid))
    }

    fn forget(&self, id: &str, uid: Option<u32>) {
        let mut pool = self.lock();
        pool.known.remove(id);
        if let Some(offset) = uid.and_then(|uid| uid.checked_sub(self.inner.config.uid_base)) {
            pool.uids.remove(&offset);
        }
    }

    /// How many monitors are idle now.
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.inner.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
