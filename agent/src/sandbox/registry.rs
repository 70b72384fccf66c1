//! Every sandbox of this host by id and by route token, and what can be asked of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use sandpiper_protocol::agent::{CreateSandbox, LogEntry, SandboxState};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;

use super::create::{self, CreateError};
use super::reconcile::{self, Found, ReconcileError};
use super::record::Record;
use super::supervisor::{Answer, Command, DeleteCause, Supervisor};
use super::{Context, StartError};
use crate::host;
use crate::ingress::{Directory, Target};

/// Commands that wait for a supervisor which is busy with another.
const COMMANDS: usize = 16;
/// How long after the start monitors that a dying agent was just starting have surely appeared.
const SWEEP_AFTER: Duration = Duration::from_secs(5);

/// The registry. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(crate) struct Sandboxes {
    context: Arc<Context>,
    shelf: Arc<Mutex<Shelf>>,
    supervisors: TaskTracker,
}

#[derive(Default)]
struct Shelf {
    by_id: HashMap<String, Handle>,
    by_route_token: HashMap<String, String>,
    /// The agent ends: nothing new.
    closed: bool,
}

/// A supervisor, as others hold it.
#[derive(Clone)]
struct Handle {
    record: watch::Receiver<Arc<Record>>,
    commands: mpsc::Sender<Command>,
}

/// Why a sandbox was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("There is no such sandbox, or no such port")]
    NotFound,
    #[error("The sandbox is {0:?}; this needs a ready one")]
    State(SandboxState),
    #[error("The sandbox has {} exposed ports already; close one first", create::MAX_PORTS)]
    TooManyPorts,
    #[error("Cannot write the sandbox's record")]
    Storage(#[source] std::io::Error),
}

impl Sandboxes {
    pub(crate) fn new(context: Context) -> Self {
        Self { context: Arc::new(context), shelf: Arc::default(), supervisors: TaskTracker::new() }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Takes over what an earlier agent left.
    pub(crate) async fn reconcile(&self) -> Result<(), ReconcileError> {
        let context = Arc::clone(&self.context);
        let work = move || reconcile::reconcile(&context.paths, &context.boot_id);
        let found = tokio::task::spawn_blocking(work).await.map_err(|error| ReconcileError::Read {
            what: "what an earlier agent left",
            source: std::io::Error::other(error),
        })??;
        for Found { record, pidfd } in found {
            let id = record.id.clone();
            let supervisor = self.enter(&mut self.lock(), record);
            let forget = self.forgetter(id);
            match pidfd {
                Some(pidfd) => self.supervisors.spawn(supervisor.adopt(pidfd, forget)),
                None => self.supervisors.spawn(supervisor.keep_failed(forget)),
            };
        }
        let late = self.clone();
        tokio::spawn(async move { late.sweep_later().await });
        Ok(())
    }

    /// An agent killed between fork and exec leaves a monitor that cannot be recognized until it is executed.
    async fn sweep_later(self) {
        tokio::time::sleep(SWEEP_AFTER).await;
        let sweep = move || {
            let is_known = |id: &str| self.lock().by_id.contains_key(id);
            reconcile::sweep(&self.context.paths, &self.context.boot_id, is_known)
        };
        if let Ok(Err(error)) = tokio::task::spawn_blocking(sweep).await {
            tracing::warn!(%error, "cannot look for monitors without a record");
        }
    }

    /// Creates a sandbox; returns when its guest is ready. Dropping the future does not stop the creation.
    pub(crate) async fn create(&self, request: CreateSandbox) -> Result<Arc<Record>, CreateError> {
        let began = tokio::time::Instant::now();
        let id = request.id.clone();
        let result = self.create_unmeasured(request).await;
        self.context.metrics.created(&result, began.elapsed());
        match &result {
            Ok(record) => tracing::info!(
                target: "audit",
                sandbox = id,
                template = record.template_version,
                ready_us = record.timings.data_plane_ready_us,
                "created"
            ),
            Err(error) => tracing::warn!(target: "audit", sandbox = id, error = %crate::chain(error), "not created"),
        }
        result
    }

    async fn create_unmeasured(&self, request: CreateSandbox) -> Result<Arc<Record>, CreateError> {
        let context = Arc::clone(&self.context);
        let check = move || {
            let template = create::check(&context, &request)?;
            let memory =
                host::memory().map_err(|source| StartError::Host { what: "read the host's memory", source })?;
            let envs = context.sealer.seal(&request.id, &request.envs);
            let envs = envs.map_err(|source| StartError::Host { what: "seal the environment variables", source })?;
            let record = Record::new(&request, envs, Timestamp::now());
            Ok::<_, CreateError>((template, memory, record, request.envs))
        };
        let checked = tokio::task::spawn_blocking(check).await;
        let (template, memory, record, envs) = checked
            .map_err(|error| StartError::Host { what: "check the request", source: std::io::Error::other(error) })??;
        let id = record.id.clone();
        let supervisor = self.reserve(record, memory.total_mb)?;
        supervisor.log.host(format!("created from {}", template.version.slug));
        let (started, start) = oneshot::channel();
        self.supervisors.spawn(supervisor.create(template, envs, started, self.forgetter(id)));
        Ok(start.await.map_err(|_| StartError::ShuttingDown)??)
    }

    /// Enters a sandbox that is about to be created, if there is room for it.
    fn reserve(&self, record: Record, memory_total_mb: u64) -> Result<Supervisor, CreateError> {
        let mut shelf = self.lock();
        if shelf.closed {
            return Err(StartError::ShuttingDown.into());
        }
        if shelf.by_id.contains_key(&record.id) {
            return Err(CreateError::Exists(record.id));
        }
        let limits = &self.context.config.limits;
        let (count, memory_mb) = shelf.in_use();
        if count >= limits.max_sandboxes {
            let most = limits.max_sandboxes;
            return Err(CreateError::Capacity(format!("This host runs {most} sandboxes, its maximum; delete some")));
        }
        let usable = memory_total_mb.saturating_sub(limits.memory_headroom_mb);
        if memory_mb + u64::from(record.memory_mb) > usable {
            return Err(CreateError::Capacity(format!(
                "{} MiB of memory were asked for, {} of {usable} MiB are free on this host; delete sandboxes",
                record.memory_mb,
                usable.saturating_sub(memory_mb)
            )));
        }
        Ok(self.enter(&mut shelf, record))
    }

    fn enter(&self, shelf: &mut Shelf, record: Record) -> Supervisor {
        let log = self.context.logs.open(&record.id);
        let (commands, receiver) = mpsc::channel(COMMANDS);
        shelf.by_route_token.insert(record.route_token.clone(), record.id.clone());
        let id = record.id.clone();
        let (published, record) = watch::channel(Arc::new(record));
        shelf.by_id.insert(id, Handle { record, commands });
        let context = Arc::clone(&self.context);
        Supervisor { context, log, published, commands: receiver, waiting: Vec::new(), console: None }
    }

    /// What a supervisor calls when nothing of its sandbox is left.
    fn forgetter(&self, id: String) -> impl FnOnce() + Send + 'static {
        let this = self.clone();
        move || {
            let mut shelf = this.lock();
            if let Some(handle) = shelf.by_id.remove(&id) {
                shelf.by_route_token.remove(&handle.record.borrow().route_token);
            }
            drop(shelf);
            this.context.logs.retire(&id);
        }
    }

    /// The sandbox `id` as it is now.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Record>> {
        Some(self.lock().by_id.get(id)?.record.borrow().clone())
    }

    /// All sandboxes, oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Record>> {
        let mut records: Vec<_> = self.lock().by_id.values().map(|handle| handle.record.borrow().clone()).collect();
        records.sort_by(|a, b| a.id.cmp(&b.id));
        records
    }

    /// Sandboxes that hold resources.
    pub(crate) fn live(&self) -> u32 {
        self.lock().in_use().0
    }

    /// The log of a sandbox that is here or was not long ago.
    pub(crate) fn log(&self, id: &str) -> Option<Vec<LogEntry>> {
        Some(self.context.logs.find(id)?.entries())
    }

    /// Has the supervisor of `id` change its sandbox.
    pub(crate) async fn change(
        &self,
        id: &str,
        command: impl FnOnce(Answer<Arc<Record>>) -> Command,
    ) -> Result<Arc<Record>, ChangeError> {
        let handle = self.lock().by_id.get(id).cloned().ok_or(ChangeError::NotFound)?;
        let (answer, result) = oneshot::channel();
        handle.commands.send(command(answer)).await.map_err(|_| ChangeError::NotFound)?;
        result.await.map_err(|_| ChangeError::NotFound)?
    }

    /// Deletes the sandbox `id`; returns when nothing of it is left. Dropping the future does not stop the deletion.
    pub(crate) async fn delete(&self, id: &str, cause: DeleteCause) -> Result<(), ChangeError> {
        let handle = self.lock().by_id.get(id).cloned().ok_or(ChangeError::NotFound)?;
        let (answer, done) = oneshot::channel();
        handle.commands.send(Command::Delete(cause, answer)).await.map_err(|_| ChangeError::NotFound)?;
        done.await.map_err(|_| ChangeError::NotFound)
    }

    /// Takes nothing new, deletes all sandboxes if `delete_all`, and ends all supervisors, within `patience` each.
    pub(crate) async fn close(&self, delete_all: bool, patience: Duration) {
        self.lock().closed = true;
        if delete_all {
            let records = self.list();
            let deletes = records.iter().map(|record| self.delete(&record.id, DeleteCause::AgentEnds));
            if tokio::time::timeout(patience, join_all(deletes)).await.is_err() {
                tracing::error!("not every sandbox is gone; the next agent removes the rest");
            }
        }
        self.context.leave.cancel();
        self.supervisors.close();
        if tokio::time::timeout(patience, self.supervisors.wait()).await.is_err() {
            tracing::error!("not every sandbox could be put in order; the next agent does it");
        }
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    /// Sandboxes that hold resources, and the MiB of memory that they may use.
    fn in_use(&self) -> (u32, u64) {
        let mut count: u32 = 0;
        let mut memory_mb: u64 = 0;
        for handle in self.by_id.values() {
            let record = handle.record.borrow();
            if record.holds_resources() {
                count = count.saturating_add(1);
                memory_mb = memory_mb.saturating_add(u64::from(record.memory_mb));
            }
        }
        (count, memory_mb)
    }
}

impl Directory for Sandboxes {
    async fn find(&self, route_token: &str) -> Option<Target> {
        let record = {
            let shelf = self.lock();
            let id = shelf.by_route_token.get(route_token)?;
            shelf.by_id.get(id)?.record.borrow().clone()
        };
        Some(Target {
            sandbox_id: record.id.clone(),
            state: record.state,
            vsock: self.context.paths.sandbox(&record.id).vsock_socket(),
            exposed_ports: record.exposed_ports.clone(),
            allow_public_traffic: record.allow_public_traffic,
        })
    }
}
