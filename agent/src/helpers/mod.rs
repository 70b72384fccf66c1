//! Machines of the agent's own, of the template `volume-helper`, that work with volumes: no host process reads what is on one.
//!
//! ```text
//!   request for a volume ──▶ none yet ──claim, a place among `helpers`──▶ starting ──▶ serving ◀──▶ idle
//!                                                                                        │          │ `helper_keep_seconds`,
//!                              the volume is free ◀── unmounted, ended ◀─────────────────┴──────────┘ or somebody wants the volume
//! ```
//!
//! * One helper has one volume, mounted at `/volume`, and serves it on its data plane; it has no network. Its requests are
//!   passed through ([`crate::server`]), each with a [`Lease`]: while there is one the helper stays.
//! * A sandbox that wants the volume has its helper end once the requests under way are done ([`Helpers::claim`]).
//! * There are few at a time, and each serves few requests at a time; other volumes wait in a queue that is bounded, and an
//!   idle one makes room for them. The memory of each is reserved like a sandbox's.
//! * One that stops to answer is ended, and another one started for the next request.
//! * A helper also makes the **blank layer** that volumes begin with ([`Helpers::blank`]), once for each size. It is one more
//!   than the others, so that none of them waits for a place that it has itself.
//!
//! They are no sandboxes: nothing names them but the claim, and an agent that starts kills those of its predecessor like every
//! monitor that no record names. What they wrote was on stable storage before it was acknowledged.

mod life;
mod machine;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandpiper_images::templates::{Store, Template};
use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::guest::GuestMount;
use sandpiper_protocol::ids::{SandboxId, VolumeId};
use sandpiper_protocol::template::BUILDER_TEMPLATE;
use sandpiper_protocol::vmm::EXTRA_DISKS;
use sandpiper_protocol::volume::{HELPER_TEMPLATE, VolumeMount};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::capacity::Capacity;
use crate::config::Config;
use crate::launch::{Attachments, Launcher};
use crate::paths::Paths;
use crate::volumes::{Claim, Holder, VolumeError, Volumes};

/// How long a sandbox waits for a helper to let go of its volume.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);
/// Most requests that use one helper, or wait for it, at the same time: each may hold some megabytes of a body.
const MAX_USERS: usize = 32;

/// What helpers are made with.
pub(crate) struct Surroundings {
    pub(crate) config: Arc<Config>,
    pub(crate) paths: Paths,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) capacity: Capacity,
    pub(crate) templates: Store,
    pub(crate) volumes: Volumes,
    /// The agent ends.
    pub(crate) leave: CancellationToken,
}

/// The helpers of this host. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(crate) struct Helpers {
    inner: Arc<Inner>,
}

struct Inner {
    host: Surroundings,
    /// One for each machine that may run.
    places: Semaphore,
    /// One for each request that may wait for that.
    queue: Semaphore,
    table: Mutex<HashMap<VolumeId, Arc<Helper>>>,
    /// Of two who need a blank layer one makes it.
    blank: tokio::sync::Mutex<()>,
    tasks: TaskTracker,
}

/// One helper, from the first request for its volume until its volume is free.
struct Helper {
    volume: VolumeId,
    state: watch::Sender<State>,
    /// Requests that use it; changed under the table's lock, where it is looked for too.
    users: Mutex<usize>,
    /// One of them is done.
    done: Notify,
    /// Somebody else wants the volume, or its place: it takes no more requests.
    wanted: CancellationToken,
    gone: CancellationToken,
}

#[derive(Clone)]
enum State {
    Starting,
    /// Its data plane is behind this socket.
    Serving(PathBuf),
    Failed(Arc<VolumeError>),
}

/// Why a request cannot use a volume's helper.
enum NotEntered {
    /// It takes none any more; another one may be started when it has ended.
    Ending(Arc<Helper>),
    /// It has as many as it may.
    Full,
}

/// The helper of a volume stays while this is held.
pub(crate) struct Lease {
    helper: Arc<Helper>,
    vsock: PathBuf,
    helpers: Helpers,
}

impl Lease {
    /// The socket behind which its data plane is.
    pub(crate) fn vsock(&self) -> &std::path::Path {
        &self.vsock
    }

    /// The helper does not do its part: it takes no more requests, and is ended once those that it has are over. The next
    /// request has another one started.
    pub(crate) fn give_up(&self) {
        self.helper.wanted.cancel();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.helpers.leave(&self.helper);
    }
}

impl Helpers {
    pub(crate) fn new(host: Surroundings) -> Self {
        let limits = &host.config.volumes;
        let (places, queue) = (Semaphore::new(limits.helpers as usize), Semaphore::new(limits.helper_queue as usize));
        let inner = Inner {
            places,
            queue,
            host,
            table: Mutex::default(),
            blank: tokio::sync::Mutex::default(),
            tasks: TaskTracker::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Takes these volumes for a sandbox, which mounts them in the lowest slots that are not `held`, once no helper has them.
    ///
    /// # Errors
    /// [`VolumeError`]; it has none of them then.
    pub(crate) async fn attachments(
        &self,
        sandbox: &SandboxId,
        mounts: &[VolumeMount],
        held: &[u8],
        limits: sandpiper_protocol::vmm::DiskLimits,
    ) -> Result<Attachments, VolumeError> {
        let volumes = &self.inner.host.volumes;
        let mut slots = (0..EXTRA_DISKS).filter(|slot| !held.contains(slot));
        let mut claims = Vec::new();
        for mount in mounts {
            let slot = slots.next().ok_or(VolumeError::NoSlot)?;
            let claim = self.claim(&mount.volume, Holder::Sandbox(sandbox.clone())).await?;
            claims.push((claim, GuestMount { slot, path: mount.path.clone() }));
        }
        let blank = if claims.is_empty() { PathBuf::new() } else { self.blank_for(&claims).await? };
        Ok(Attachments::new(volumes.clone(), claims, Some(sandbox.clone()), blank, limits))
    }

    /// Takes a volume, from its helper if that has it.
    ///
    /// # Errors
    /// A sandbox has it, or the helper does not let go of it in time; or there is none.
    pub(crate) async fn claim(&self, volume: &VolumeId, holder: Holder) -> Result<Claim, VolumeError> {
        let give_up_at = Instant::now() + RELEASE_TIMEOUT;
        loop {
            if self.inner.host.volumes.store.find(volume).is_none() {
                return Err(VolumeError::Missing(volume.clone()));
            }
            match self.take(volume, holder.clone())? {
                Ok(claim) => return Ok(claim),
                Err(Holder::Sandbox(_)) => return Err(VolumeError::Attached(volume.clone())),
                Err(Holder::Deletion) => return Err(VolumeError::Missing(volume.clone())),
                Err(Holder::Stuck) => return Err(stuck()),
                Err(Holder::Helper) => {}
            }
            let helper = self.lock().get(volume).cloned();
            // Without one it has let go of the volume since.
            if let Some(helper) = helper {
                helper.wanted.cancel();
                timeout_at(give_up_at, helper.gone.cancelled()).await.map_err(|_| in_use(volume))?;
            }
        }
    }

    /// Takes a volume, or says who has it; nobody's any more once the agent ends, when supervisors leave sandboxes to the next
    /// one that have their volumes still.
    fn take(&self, volume: &VolumeId, holder: Holder) -> Result<Result<Claim, Holder>, VolumeError> {
        let taken = self.inner.host.volumes.claims.take(volume, holder);
        // Afterwards: whoever left did so after this was set.
        if self.inner.host.leave.is_cancelled() {
            return Err(VolumeError::Unavailable("The agent is ending; try again".into()));
        }
        Ok(taken)
    }

    /// The helper of a volume, ready to be asked; started if there is none.
    ///
    /// # Errors
    /// [`VolumeError`]: a sandbox has the volume, there is no room for a helper, or it cannot mount the volume.
    pub(crate) async fn lease(&self, volume: &VolumeId) -> Result<Lease, Arc<VolumeError>> {
        loop {
            if self.inner.host.leave.is_cancelled() {
                return Err(Arc::new(VolumeError::Unavailable("The agent is ending; try again".into())));
            }
            if let Some(Holder::Sandbox(_)) = self.inner.host.volumes.claims.holder(volume) {
                return Err(Arc::new(VolumeError::Attached(volume.clone())));
            }
            let helper = match self.enter(volume) {
                Ok(helper) => helper,
                // Somebody else wants the volume; whoever gets it decides.
                Err(NotEntered::Ending(helper)) => {
                    let gone = timeout(RELEASE_TIMEOUT, helper.gone.cancelled()).await;
                    gone.map_err(|_| Arc::new(in_use(volume)))?;
                    continue;
                }
                Err(NotEntered::Full) => return Err(Arc::new(in_use(volume))),
            };
            let mut lease = Lease { helper: Arc::clone(&helper), vsock: PathBuf::new(), helpers: self.clone() };
            let mut states = helper.state.subscribe();
            let state = states.wait_for(|state| !matches!(state, State::Starting)).await.map(|state| state.clone());
            match state {
                Ok(State::Serving(vsock)) => {
                    lease.vsock = vsock;
                    return Ok(lease);
                }
                Ok(State::Failed(error)) => return Err(error),
                Ok(State::Starting) | Err(_) => {}
            }
        }
    }

    /// The helper of a volume, counting one more user.
    fn enter(&self, volume: &VolumeId) -> Result<Arc<Helper>, NotEntered> {
        let mut table = self.lock();
        if let Some(helper) = table.get(volume) {
            if helper.wanted.is_cancelled() {
                return Err(NotEntered::Ending(Arc::clone(helper)));
            }
            let mut users = helper.users();
            if *users >= MAX_USERS {
                return Err(NotEntered::Full);
            }
            *users += 1;
            return Ok(Arc::clone(helper));
        }
        let helper = Arc::new(Helper {
            volume: volume.clone(),
            state: watch::Sender::new(State::Starting),
            users: Mutex::new(1),
            done: Notify::new(),
            wanted: CancellationToken::new(),
            gone: CancellationToken::new(),
        });
        table.insert(volume.clone(), Arc::clone(&helper));
        let this = self.clone();
        self.inner.tasks.spawn(this.keep(Arc::clone(&helper)));
        Ok(helper)
    }

    fn leave(&self, helper: &Helper) {
        let _table = self.lock();
        let mut users = helper.users();
        *users = users.saturating_sub(1);
        helper.done.notify_one();
    }

    /// What those of these volumes stand on that were never attached: made if need be.
    async fn blank_for(&self, claims: &[(Claim, GuestMount)]) -> Result<PathBuf, VolumeError> {
        let mut sizes = Vec::new();
        for (claim, _) in claims {
            let record = self.inner.host.volumes.store.find(claim.volume());
            let record = record.ok_or_else(|| VolumeError::Missing(claim.volume().clone()))?;
            if record.blank.is_none() {
                sizes.push(u32::try_from(record.size_bytes >> 30).unwrap_or(u32::MAX));
            }
        }
        match sizes.as_slice() {
            [] => Ok(PathBuf::new()),
            [size, rest @ ..] if rest.iter().all(|other| other == size) => self.blank(*size).await,
            _ => Err(VolumeError::Unavailable(
                "New volumes of two sizes cannot be mounted for the first time together; mount one first".into(),
            )),
        }
    }

    /// The blank layer of volumes of `size_gib`, made by a helper if there is none.
    ///
    /// # Errors
    /// [`VolumeError`]: there is no helper template, or the helper failed.
    pub(crate) async fn blank(&self, size_gib: u32) -> Result<PathBuf, VolumeError> {
        // Whoever waits may go away; the machine ends in order all the same.
        let this = self.clone();
        let made = self.inner.tasks.spawn(async move { this.make_blank(size_gib).await }).await;
        made.map_err(|error| host_error("make a blank layer", error))?
    }

    async fn make_blank(&self, size_gib: u32) -> Result<PathBuf, VolumeError> {
        let host = &self.inner.host;
        let helper = machine::template(host)?;
        let path = host.volumes.store.blank(size_gib, &helper.version.id);
        let _turn = self.inner.blank.lock().await;
        let exists = tokio::fs::try_exists(&path).await;
        if exists.map_err(|error| host_error("look for the empty file system of volumes", error))? {
            return Ok(path);
        }
        machine::format(host, size_gib, &path).await?;
        tracing::info!(size_gib, helper = helper.version.id, "made the empty file system that volumes begin with");
        Ok(path)
    }

    /// Makes the blank layer of the configured size ahead, where there is a helper template.
    pub(crate) async fn prepare(self) {
        let host = &self.inner.host;
        if machine::template(host).is_err() {
            return;
        }
        tokio::select! {
            () = host.leave.cancelled() => {}
            made = self.blank(host.config.volumes.size_gib) => if let Err(error) = made {
                let error = sandpiper_protocol::error_chain::chain(&error);
                tracing::warn!(error, "no empty file system for volumes was made ahead; their first use does it");
            },
        }
    }

    /// Waits until all have ended; the agent is leaving.
    pub(crate) async fn close(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    /// How many helpers there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeId, Arc<Helper>>> {
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Helper {
    fn users(&self) -> MutexGuard<'_, usize> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this version is of a template of the agent's own, which is nobody's to start sandboxes from. What a team calls its
/// templates is its own affair.
pub(crate) fn is_own(version: &TemplateVersion) -> bool {
    version.team.is_none() && matches!(version.slug.as_str(), HELPER_TEMPLATE | BUILDER_TEMPLATE)
}

/// The newest version of the agent's own template `slug`.
pub(crate) fn newest_own(templates: &Store, slug: &str) -> Option<Template> {
    let versions = templates.list();
    let newest = versions.iter().rfind(|version| version.slug == slug && is_own(version))?;
    templates.find(&newest.id)
}

fn in_use(volume: &VolumeId) -> VolumeError {
    VolumeError::Busy(format!("Files of the volume {volume} are being read or written; try again"))
}

fn stuck() -> VolumeError {
    host_error("use the volume", "A machine that had it cannot be ended; the host's operator has to end its monitor")
}

fn host_error(what: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> VolumeError {
    VolumeError::Host { what, source: io::Error::other(source) }
}
