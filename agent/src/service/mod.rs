//! What this host is asked for: every sandbox by id and by route token, and the requests that concern several of them or none
//! yet. What concerns one alone is a command to its supervisor ([`crate::sandbox`]).

mod fork;
mod templates;
mod validation;
mod volumes;
mod wake;
mod warm_orders;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use sandpiper_ingress::{Directory, Target, WakeError};
use sandpiper_network::Network;
use sandpiper_protocol::agent::{CreateSandbox, LogPage, LogQuery, Metrics, ResumeSandbox};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::ids::SandboxId;
use sandpiper_trace as trace;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

use self::validation::{Origin, Plan};
use self::wake::Wakes;
use self::warm_orders::WarmOrders;
use crate::capacity::{Full, Reservation};
use crate::metrics::Outcome;
use crate::samples::{self, Window};
use crate::sandbox::reconcile::{self, Found, ReconcileError};
use crate::sandbox::{Answer, ChangeError, Command, Context, Creation, DeleteCause, Record, StartError, Supervisor};
use crate::volumes::VolumeError;

pub(crate) use self::fork::{CheckpointError, ForkError};
pub(crate) use self::validation::{
    CreateError, DiskSpaceError, check_disk_space, check_lifecycle, check_port, check_timeout,
};
pub(crate) use self::volumes::VolumeCreateError;
pub(crate) use self::warm_orders::{Ordered, WarmOrder};

/// Commands that wait for a supervisor which is busy with another.
const COMMANDS: usize = 16;
/// How long after the start monitors that a dying agent was just starting have surely appeared.
const SWEEP_AFTER: Duration = Duration::from_secs(5);

/// How much longer than a boot a request waits for a sandbox that is being woken.
const WAKE_SLACK: Duration = Duration::from_secs(30);

/// The registry. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(crate) struct Sandboxes {
    context: Arc<Context>,
    shelf: Arc<Mutex<Shelf>>,
    /// Supervisors, and what is done beside them.
    tasks: TaskTracker,
    warm: WarmOrders,
}

#[derive(Default)]
struct Shelf {
    by_id: HashMap<SandboxId, Handle>,
    by_route_token: HashMap<String, SandboxId>,
    /// Sandboxes that were left alone, and why.
    unreadable: BTreeMap<String, String>,
    /// The agent ends: nothing new.
    closed: bool,
}

/// A supervisor, as others hold it.
#[derive(Clone)]
struct Handle {
    record: watch::Receiver<Arc<Record>>,
    commands: mpsc::Sender<Command>,
    wakes: Wakes,
}

impl Sandboxes {
    /// Of no sandboxes yet; with the warm snapshots that its creates will order.
    pub(crate) fn new(context: Context) -> (Self, Ordered) {
        let (warm, ordered) = warm_orders::queue();
        let this = Self { context: Arc::new(context), shelf: Arc::default(), tasks: TaskTracker::new(), warm };
        let leave = this.context.leave.clone();
        this.tasks.spawn(this.context.launcher.pool.clone().keep(leave));
        (this, ordered)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn context_owned(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }

    /// Does something that the agent waits for when it ends.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tasks.spawn(work)
    }

    /// Takes over what an earlier agent left: every sandbox has a supervisor then.
    pub(crate) async fn reconcile(&self) -> Result<(), ReconcileError> {
        let context = Arc::clone(&self.context);
        let work = move || reconcile::reconcile(&context);
        let left = tokio::task::spawn_blocking(work).await.map_err(|error| ReconcileError::Read {
            what: "what an earlier agent left",
            source: io::Error::other(error),
        })??;
        self.open_network(&left.sandboxes).await?;
        self.lock().unreadable = left.unreadable;
        for Found { record, pidfd } in left.sandboxes {
            let id = record.id.clone();
            let machine = pidfd.map(|pidfd| (pidfd, self.context.capacity.occupy(&record.demand())));
            let supervisor = self.enter(&mut self.lock(), record);
            let forget = self.forgetter(id);
            match machine {
                Some((pidfd, reservation)) => {
                    let volumes = supervisor.adopt_volumes();
                    self.tasks.spawn(supervisor.adopt(pidfd, reservation, volumes, forget))
                }
                None => self.tasks.spawn(supervisor.keep(forget)),
            };
        }
        self.tasks.spawn(self.context.helpers.clone().prepare());
        let this = self.clone();
        self.tasks.spawn(samples::sample(self.context_owned(), move || this.list()));
        self.tasks.spawn(self.context.intervals.clone().keep(self.context.leave.clone()));
        let late = self.clone();
        tokio::spawn(async move { late.sweep_later().await });
        Ok(())
    }

    /// Takes over the slots of machines that run, and removes the others that an earlier agent left.
    async fn open_network(&self, found: &[Found]) -> Result<(), ReconcileError> {
        let config = &self.context.config.network;
        if !config.enabled {
            return Ok(());
        }
        let in_use: Vec<u32> =
            found.iter().filter(|found| found.pidfd.is_some()).filter_map(|found| found.record.slot).collect();
        let network = Network::start(config.clone(), &in_use).await?;
        self.context.launcher.open_network(network);
        Ok(())
    }

    /// An agent killed between fork and exec leaves a monitor that cannot be recognized until it is executed.
    async fn sweep_later(self) {
        tokio::time::sleep(SWEEP_AFTER).await;
        let context = Arc::clone(&self.context);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || reconcile::sweep(&context)).await {
            tracing::warn!(%error, "cannot look for monitors without a record");
        }
    }

    /// Creates a sandbox; returns when its guest is ready. Dropping the future does not stop the creation.
    pub(crate) async fn create(&self, request: CreateSandbox) -> Result<Arc<Record>, CreateError> {
        self.create_from(request, None).await
    }

    /// As [`Self::create`], from `origin` instead of what the request names.
    pub(crate) async fn create_from(
        &self,
        request: CreateSandbox,
        origin: Option<Origin>,
    ) -> Result<Arc<Record>, CreateError> {
        let began = tokio::time::Instant::now();
        let id = request.id.clone();
        let result = self.create_unmeasured(request, origin).await;
        let outcome = result.as_ref().map_or_else(CreateError::outcome, |_| Outcome::Created);
        self.context.metrics.created(outcome, began.elapsed());
        match &result {
            Ok(record) => tracing::info!(
                target: "audit",
                sandbox = id.as_str(),
                template = record.template_version,
                start = ?record.start,
                ready_us = record.timings.data_plane_ready_us,
                "created"
            ),
            Err(error) => {
                tracing::warn!(target: "audit", sandbox = id.as_str(), error = %error_chain::chain(error), "not created")
            }
        }
        result
    }

    async fn create_unmeasured(
        &self,
        mut request: CreateSandbox,
        origin: Option<Origin>,
    ) -> Result<Arc<Record>, CreateError> {
        let context = Arc::clone(&self.context);
        trace::about(request.id.as_str());
        let check = move || {
            let plan = validation::check(&context, &mut request, origin)?;
            let most_promised_gib = validation::most_promised_gib(&context)?;
            let envs = context.sealer.seal(&request.id, &request.envs);
            let envs = envs.map_err(|source| StartError::Host { what: "seal the environment variables", source })?;
            let mut record = Record::new(&request, plan.generation, envs, Timestamp::now());
            record.held_slots.clone_from(&plan.held_slots);
            record.defaults.clone_from(&plan.defaults);
            Ok::<_, CreateError>((plan, record, request.envs, most_promised_gib))
        };
        let checked = tokio::task::spawn_blocking(check).instrument(trace::step("check")).await;
        let (plan, record, envs, most_promised_gib) = checked
            .map_err(|error| StartError::Host { what: "check the request", source: io::Error::other(error) })??;
        let Plan { attempts, origin, wanted, .. } = plan;
        let id = record.id.clone();
        let (supervisor, reservation) = self.reserve(record, most_promised_gib)?;
        supervisor.log.host(format!("created from {origin}"));
        let (started, start) = oneshot::channel();
        let creation = Creation { attempts, envs, reservation, started, within: Span::current() };
        self.tasks.spawn(supervisor.create(creation, self.forgetter(id)));
        let record = start.await.map_err(|_| StartError::ShuttingDown)??;
        wanted.into_iter().for_each(|order| self.order_warm(order));
        Ok(record)
    }

    /// Has a warm snapshot made, soon, unless it is being made or was tried in vain not long ago.
    pub(crate) fn order_warm(&self, order: WarmOrder) {
        self.warm.leave(order);
    }

    /// Enters a sandbox that is about to be created, if there is room for it: also for all that it may write to its disk,
    /// as far as that is promised.
    fn reserve(&self, record: Record, most_promised_gib: u64) -> Result<(Supervisor, Reservation), CreateError> {
        let mut shelf = self.lock();
        if shelf.closed {
            return Err(StartError::ShuttingDown.into());
        }
        if shelf.by_id.contains_key(&record.id) {
            return Err(CreateError::Exists(record.id));
        }
        let disks = shelf.by_id.values().map(|handle| u64::from(handle.record.borrow().disk_gib));
        let promised = disks.sum::<u64>() + self.context.volumes.store.promised_gib() + u64::from(record.disk_gib);
        if promised > most_promised_gib {
            return Err(CreateError::Capacity(format!(
                "The disks of this host's sandboxes and volumes would have {promised} GiB, and may have {most_promised_gib}; \
                 delete some, or have the operator add space or raise limits.disk_overcommit"
            )));
        }
        let reservation = self.context.reserve(&record.demand())?;
        Ok((self.enter(&mut shelf, record), reservation))
    }

    fn enter(&self, shelf: &mut Shelf, record: Record) -> Supervisor {
        let folder = self.context.paths.sandbox(&record.id).state;
        let log = self.context.logs.open(&record.id, folder.clone());
        self.context.samples.open(record.id.clone(), folder);
        let (commands, receiver) = mpsc::channel(COMMANDS);
        shelf.by_route_token.insert(record.route_token.clone(), record.id.clone());
        let id = record.id.clone();
        let (published, record) = watch::channel(Arc::new(record));
        shelf.by_id.insert(id, Handle { record, commands, wakes: Wakes::default() });
        self.context.revision.advance();
        Supervisor {
            context: Arc::clone(&self.context),
            log,
            published,
            commands: receiver,
            postponed: VecDeque::new(),
            overdue: false,
            waiting: Vec::new(),
        }
    }

    /// What a supervisor calls when nothing of its sandbox is left.
    fn forgetter(&self, id: SandboxId) -> impl FnOnce() + Send + 'static {
        let this = self.clone();
        move || {
            let mut shelf = this.lock();
            if let Some(handle) = shelf.by_id.remove(&id) {
                shelf.by_route_token.remove(&handle.record.borrow().route_token);
            }
            drop(shelf);
            this.context.revision.advance();
            this.context.logs.retire(&id);
            this.context.samples.forget(&id);
        }
    }

    /// The sandbox `id` as it is now.
    pub(crate) fn find(&self, id: &SandboxId) -> Option<Arc<Record>> {
        Some(self.lock().by_id.get(id)?.record.borrow().clone())
    }

    /// All sandboxes, oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Record>> {
        let mut records: Vec<_> = self.lock().by_id.values().map(|handle| handle.record.borrow().clone()).collect();
        records.sort_by(|a, b| a.id.cmp(&b.id));
        records
    }

    /// Ids of the sandboxes that are here, and of which nothing can be told.
    pub(crate) fn unreadable(&self) -> Vec<String> {
        self.lock().unreadable.keys().cloned().collect()
    }

    /// Why there is no sandbox `id`.
    pub(crate) fn absence(&self, id: &SandboxId) -> ChangeError {
        match self.lock().unreadable.get(id.as_str()) {
            Some(reason) => ChangeError::Unreadable(reason.clone()),
            None => ChangeError::NotFound,
        }
    }

    fn handle(&self, id: &SandboxId) -> Result<Handle, ChangeError> {
        let handle = self.lock().by_id.get(id).cloned();
        handle.ok_or_else(|| self.absence(id))
    }

    /// Why a supervisor did not answer: its sandbox is gone, or it has left it to the next agent.
    fn unheard(&self) -> ChangeError {
        if self.context.leave.is_cancelled() { StartError::ShuttingDown.into() } else { ChangeError::NotFound }
    }

    /// Entries of the log of a sandbox that is here or was not long ago.
    ///
    /// # Errors
    /// There is none, or its files cannot be read.
    pub(crate) async fn log(&self, id: &SandboxId, query: LogQuery) -> Result<LogPage, ChangeError> {
        let log = self.context.logs.find(id).ok_or_else(|| self.absence(id))?;
        if let Some(page) = log.empty_page(&query) {
            return Ok(page);
        }
        let read = tokio::task::spawn_blocking(move || log.page(&query)).await.map_err(io::Error::other).flatten();
        read.map_err(|source| ChangeError::Host { what: "read the sandbox's log", source })
    }

    /// What a sandbox that is here used within a window.
    ///
    /// # Errors
    /// There is none, or its files cannot be read.
    pub(crate) async fn metrics(&self, id: &SandboxId, window: Window) -> Result<Metrics, ChangeError> {
        let series = self.context.samples.find(id).ok_or_else(|| self.absence(id))?;
        let read = tokio::task::spawn_blocking(move || series.read(window)).await.map_err(io::Error::other).flatten();
        let samples = read.map_err(|source| ChangeError::Host { what: "read the sandbox's metrics", source })?;
        Ok(samples::thin(&samples))
    }

    /// Has the supervisor of `id` change its sandbox.
    pub(crate) async fn change<T>(
        &self,
        id: &SandboxId,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Result<T, ChangeError> {
        let handle = self.handle(id)?;
        let (answer, result) = Answer::new();
        handle.commands.send(command(answer)).await.map_err(|_| self.unheard())?;
        result.await.map_err(|_| self.unheard())?
    }

    /// Deletes the sandbox `id`; returns when nothing of it is left. Dropping the future does not stop the deletion.
    pub(crate) async fn delete(&self, id: &SandboxId, cause: DeleteCause) -> Result<(), ChangeError> {
        let handle = self.handle(id)?;
        let (answer, done) = oneshot::channel();
        handle.commands.send(Command::Delete(cause, answer)).await.map_err(|_| self.unheard())?;
        done.await.map_err(|_| self.unheard())
    }

    /// Takes nothing new, deletes all sandboxes if `delete_all`, and ends all supervisors, within `timeout` each.
    pub(crate) async fn close(&self, delete_all: bool, timeout: Duration) {
        self.lock().closed = true;
        if delete_all {
            let records = self.list();
            let deletes = records.iter().map(|record| self.delete(&record.id, DeleteCause::AgentEnds));
            if tokio::time::timeout(timeout, join_all(deletes)).await.is_err() {
                tracing::error!("not every sandbox was deleted in time; the next agent deletes the rest");
            }
        }
        self.context.leave.cancel();
        self.tasks.close();
        let ended = async { tokio::join!(self.tasks.wait(), self.context.helpers.close()) };
        if tokio::time::timeout(timeout, ended).await.is_err() {
            tracing::error!("not every sandbox was settled in time; the next agent settles the rest");
        }
        let context = self.context_owned();
        let _ = tokio::task::spawn_blocking(move || context.logs.flush()).await;
    }

    /// Has a sandbox go on because it is asked for something.
    async fn resume_for_requests(&self, id: &SandboxId) -> Result<(), WakeError> {
        let timeout = self.context.config.boot_timeout() + WAKE_SLACK;
        let resume = self.change(id, |answer| Command::Resume(ResumeSandbox::default(), answer));
        match tokio::time::timeout(timeout, resume).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(ChangeError::Full(Full::Host(_)))) => Err(WakeError::NoRoom),
            Ok(Err(ChangeError::Full(Full::Team(_)))) => Err(WakeError::QuotaExceeded),
            Ok(Err(ChangeError::Full(Full::Disabled))) => Err(WakeError::TeamDisabled),
            Ok(Err(ChangeError::Start(StartError::Volume(VolumeError::Attached(_) | VolumeError::Busy(_))))) => {
                Err(WakeError::VolumeTaken)
            }
            Ok(Err(error)) => {
                tracing::warn!(sandbox = id.as_str(), error = %error_chain::chain(&error), "a request could not wake a sandbox");
                Err(WakeError::Failed)
            }
            Err(_) => Err(WakeError::TimedOut),
        }
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory for Sandboxes {
    async fn find(&self, name: &str) -> Option<Target> {
        let record = {
            let shelf = self.lock();
            let id = shelf.by_route_token.get(name).map_or(name, SandboxId::as_str);
            shelf.by_id.get(id)?.record.borrow().clone()
        };
        Some(Target {
            sandbox_id: record.id.to_string(),
            team_disabled: record.team.as_ref().is_some_and(|team| self.context.allowances.is_disabled(team)),
            state: record.state,
            wakes: record.wakes(),
            vsock: self.context.paths.sandbox(&record.id).vsock_socket(),
            exposed_ports: record.exposed_ports.clone(),
            allow_public_traffic: record.allow_public_traffic,
            previews: record.previews.clone(),
        })
    }

    fn ids(&self) -> Vec<String> {
        self.lock().by_id.keys().map(SandboxId::to_string).collect()
    }

    async fn wake(&self, sandbox_id: &str) -> Result<(), WakeError> {
        let wakes = self.lock().by_id.get(sandbox_id).map(|handle| handle.wakes.clone()).ok_or(WakeError::Failed)?;
        let (this, id) = (self.clone(), SandboxId::from(sandbox_id));
        wakes.join(move || Box::pin(async move { this.resume_for_requests(&id).await })).await
    }
}
