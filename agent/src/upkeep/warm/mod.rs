//! Makes warm snapshots, in the background, one at a time; those of versions with a start command beside them.
//!
//! ```text
//!   a create without one ──order──▶ boot a machine of the template ──ready──▶ rehearse ──▶ freeze ──▶ write down, end
//!                                                                                                         │
//!     publish ◀── working set ◀── rehearse ◀── GET /health ◀── ready ◀── restore it once: a trial ◀───────┘
//! ```
//!
//! The rehearsal is a shell that does nothing, run through the data plane as a client's first command will be: before the
//! snapshot, so that the guest has the shell's files in memory; in the trial, so that what a first command touches is known.
//! A template without a shell is none the worse. The trial also stands still once, as for a pause or a checkpoint.
//!
//! A version with a start command is written down once that is up, as its `ready` command says ([`guest`]): every sandbox begins
//! with it running.
//!
//! A bare snapshot ([`crate::bare`]) is made in the same way, but that its guest leaves the disk, and in the trial enters it.
//!
//! The machines for it are no sandboxes: they have no record and no name, their guest knows no secret, and nothing reaches
//! them. They hold memory of the host, and are not started while that is short. An agent that starts kills those of its
//! predecessor like every monitor that no record names.
//!
//! No sandbox waits for a warm snapshot: a create that comes while one is being made boots. The build of a version does
//! ([`crate::builds`]), so that those that follow it start at once.

pub(super) mod guest;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_images::layers::{self, Files, LayerError, Role};
use sandpiper_images::snapshots::{self, Snapshot};
use sandpiper_machine::control::RequestError;
use sandpiper_machine::link::Envs;
use sandpiper_machine::{Machine, MachinePaths, Termination, Unanswered};
use sandpiper_protocol::agent::{Network, NetworkPolicy};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::guest::{GuestMessage, HostMessage};
use sandpiper_protocol::vmm::Request;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::bare;
use crate::capacity::Reservation;
use crate::host;
use crate::launch::{self, Attachments, LaunchError, Running, Source};
use crate::sandbox::ops::pause;
use crate::sandbox::{ChangeError, Context, OperationError};
use crate::service::{Ordered, WarmOrder};

/// Who a guest is told that it is, before it is anybody's.
#[derive(Debug, Clone, Copy)]
struct Nobody {
    name: &'static str,
    generation: u64,
}

/// Who it is when it is written down.
const FIRST: Nobody = Nobody { name: "sandpiper", generation: 0 };
/// Another, as it will be in each sandbox: a guest that is still the same has nothing to do, and what that takes would not be noted.
const OTHER: Nobody = Nobody { name: "trial", generation: 1 };
/// How long a guest that has just booted may take to quiesce.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(30);
/// Within this a guest gives back the memory that has become free (`PAGE_REPORTING_DELAY` of Linux is two seconds). Otherwise each
/// clone does, as it starts, and notes of each block that it did so.
const REPORTED_WITHIN: Duration = Duration::from_millis(2500);
/// How long a monitor may take to write it down: this, and a second for so many MiB of memory. Another can be made.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30);
const MIB_PER_SECOND: u32 = 16;
/// How long the monitor may take to say what was touched.
const WORKING_SET_TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no warm snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MakeError {
    #[error("The host has no memory or disk to spare for it")]
    Short,
    /// The agent ends, or nobody wants it any more.
    #[error("It is not wanted any more")]
    Ending,
    #[error("The template's version is gone")]
    Gone,
    #[error("The start command was not up after {seconds} seconds: of the command that says so, {status}")]
    NotUp {
        seconds: u64,
        /// What became of that one's last run, and what it printed then.
        status: String,
        output: String,
    },
    /// The guest's own words.
    #[error("{0}")]
    StartEnded(String),
    #[error("Cannot {what}")]
    Host { what: &'static str, source: io::Error },
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Monitor(#[from] RequestError),
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
    #[error("Cannot write the machine down")]
    Snapshot(#[source] ChangeError),
    #[error("The guest was not ready within {} seconds", .0.as_secs())]
    NotReady(Duration),
    #[error(
        "The guest does not leave its disk: its init is older than this agent; import the template `volume-helper` of this version"
    )]
    OnItsDisk,
    #[error("The guest does not enter the disk that it was given")]
    OnNoDisk,
    #[error("The guest's data plane does not respond after a restore")]
    Unhealthy,
}

/// Makes what is ordered, until the agent ends. One with a start command may take minutes, and is made beside others; a second
/// one meanwhile is left out, and ordered again by the next create.
pub(super) async fn make_all(context: Arc<Context>, mut ordered: Ordered) {
    let mut slow = JoinSet::new();
    loop {
        let order = tokio::select! {
            () = context.leave.cancelled() => break,
            Some(_) = slow.join_next() => continue,
            order = ordered.recv() => order,
        };
        let Some(order) = order else { break };
        if order.recipe.template.version.start.is_none() {
            make_one(&context, &order).await;
        } else if slow.is_empty() {
            let context = Arc::clone(&context);
            slow.spawn(async move { make_one(&context, &order).await });
        }
    }
    while slow.join_next().await.is_some() {}
}

async fn make_one(context: &Arc<Context>, order: &WarmOrder) {
    if let Err(error) = make_for_anybody(context, order).await {
        tell_of(order, &error);
    }
}

/// Says that there is none.
pub(super) fn tell_of(order: &WarmOrder, error: &MakeError) {
    tracing::warn!(key = order.key, error = %error_chain::chain(error), "no warm snapshot was made");
}

/// As [`make`], of what no build is of.
pub(super) async fn make_for_anybody(context: &Arc<Context>, order: &WarmOrder) -> Result<bool, MakeError> {
    // It reaches nothing; with a start command, which may need to, what a sandbox reaches where nothing else is said.
    let allow_internet_access = order.recipe.template.version.start.is_some();
    let policy = NetworkPolicy { allow_internet_access, ..NetworkPolicy::default() };
    make(context, order, Network { version: 0, policy }, &context.leave).await
}

/// Makes the snapshot that is ordered, unless it is there, or being made, or was tried in vain not long ago: then false. Its
/// machine has this network while it is made. Not to be dropped: it gives up once `unwanted` is cancelled.
pub(crate) async fn make(
    context: &Arc<Context>,
    order: &WarmOrder,
    network: Network,
    unwanted: &CancellationToken,
) -> Result<bool, MakeError> {
    let version = &order.recipe.template.version;
    if !context.warm.begin(&order.key, version) {
        return Ok(false);
    }
    let began = Instant::now();
    let made = Maker { context, order, network, unwanted }.make().await;
    match &made {
        Ok(()) => {
            let took_ms = pause::millis(began);
            tracing::info!(key = order.key, template = version.id, took_ms, "warm snapshot made");
        }
        Err(error) => {
            let failed = !matches!(error, MakeError::Short | MakeError::Ending | MakeError::Gone);
            context.warm.gave_up(&order.key, failed);
        }
    }
    // Whatever became of it.
    let folders = [context.warm.draft_folder(&order.key), context.warm.trial_folder(&order.key)];
    let folders = folders.into_iter().chain([runtime(context, &order.key)]).collect::<Vec<_>>();
    let remove = move || folders.iter().try_for_each(|folder| durable::remove_tree(folder));
    if let Err(error) = durable::blocking(remove).await {
        tracing::warn!(%error, "cannot remove what was needed for a warm snapshot; the next start will");
    }
    made.map(|()| true)
}

/// Where the sockets of a machine are that is not a sandbox.
fn runtime(context: &Context, key: &str) -> PathBuf {
    context.paths.runtime_warm().join(key)
}

/// One snapshot that is being made.
struct Maker<'a> {
    context: &'a Arc<Context>,
    order: &'a WarmOrder,
    network: Network,
    unwanted: &'a CancellationToken,
}

impl Maker<'_> {
    async fn make(&self) -> Result<(), MakeError> {
        let (context, WarmOrder { key, recipe }) = (self.context, self.order);
        let memory_mb = recipe.memory_mb;
        let reservation = context.capacity.spare(memory_mb).ok_or(MakeError::Short)?;
        let headroom = context.config.limits.disk_headroom_mb + u64::from(memory_mb);
        let free = host::free_disk_mb(context.paths.state());
        if free.map_err(|source| MakeError::Host { what: "read the free disk space", source })? < headroom {
            return Err(MakeError::Short);
        }
        let draft = context.warm.draft_folder(key);
        let paths = MachinePaths { state: draft.clone(), runtime: runtime(context, key) };
        let (template, pin) = context.templates.pin(&recipe.template.version.id).ok_or(MakeError::Gone)?;
        let (template, pin) = (Box::new(template), Some(Arc::new(pin)));
        let is_bare = bare::is_made_from(&template.version);
        let source = if is_bare {
            Source::Leaving { template: template.clone(), _pin: pin.clone() }
        } else {
            Source::Template { template: template.clone(), _pin: pin.clone() }
        };
        let (files, mut running) = self.launch(&paths, source, FIRST, &reservation).await?;
        let written = self.unless_unwanted(self.write_down(&mut running.machine, &paths, files)).await;
        end(context, running).await?;
        let (files, can_wait) = written?;
        let synced = {
            let draft = draft.clone();
            durable::blocking(move || files.sync(&draft).map(|()| files)).await
        };
        let files = synced.map_err(|source| MakeError::Host { what: "sync the snapshot", source })?;

        let trial = MachinePaths { state: context.warm.trial_folder(key), runtime: paths.runtime.clone() };
        let source = if is_bare {
            Source::Entering { template, _pin: pin, folder: draft.clone(), bare: files.clone() }
        } else {
            Source::Snapshot { folder: draft.clone(), files: files.clone(), _pin: None }
        };
        let (_, mut running) = self.launch(&trial, source, OTHER, &reservation).await?;
        let tried = self.unless_unwanted(self.try_out(&mut running.machine, &trial, &draft, files)).await;
        end(context, running).await?;
        let files = tried?;

        let snapshot = Snapshot {
            template_version: recipe.template.version.id.clone(),
            cpu: recipe.cpu,
            memory_mb,
            disk_gib: recipe.disk_gib,
            files,
            held_slots: Vec::new(),
            defaults: recipe.template.defaults(),
            can_wait,
        };
        let (context, key) = (Arc::clone(context), key.clone());
        let published = durable::blocking(move || {
            for process_file in [paths.exit_record(), paths.monitor_log(), paths.console_log()] {
                durable::remove_file(&process_file)?;
            }
            snapshot.files.sync(&draft)?;
            context.warm.publish(&draft, &key, snapshot)
        });
        published.await.map_err(|source| MakeError::Host { what: "publish the snapshot", source })
    }

    /// Starts a machine that is no sandbox's.
    async fn launch(
        &self,
        paths: &MachinePaths,
        source: Source,
        Nobody { name, generation }: Nobody,
        reservation: &Reservation,
    ) -> Result<(Files, Running), MakeError> {
        let (context, recipe) = (self.context, &self.order.recipe);
        let team = recipe.template.version.team.as_ref();
        let launcher = &*context.launcher;
        let gathered = launcher.gather(launch::Order {
            source,
            paths: paths.clone(),
            shape: snapshots::shape(recipe.cpu, recipe.memory_mb),
            disk_gib: recipe.disk_gib,
            name: name.to_owned(),
            envs: Envs::new(),
            generation,
            defaults: recipe.template.defaults(),
            network: Some(self.network.clone()),
            net_limits: context.allowances.network(team, launcher.net_limits()),
            disk_limits: context.allowances.disk(team, launcher.disk_limits()),
            volumes: Attachments::new(
                context.volumes.clone(),
                Vec::new(),
                None,
                PathBuf::new(),
                launcher.disk_limits(),
            ),
            serves_volume: false,
            capture_output: false,
        });
        let gathered = gathered.await?;
        let files = gathered.files().clone();
        let settled = gathered.settle(launcher, reservation.clone(), || Ok(())).await;
        let (mut running, mut kit, ()) =
            settled.map_err(|source| MakeError::Host { what: "move a monitor's files", source })?;
        // What is restored here is there to be tried out.
        kit.tell_touched();
        let start = async { Ok(kit.start(&mut running.machine, &context.config).await?) };
        match self.unless_unwanted(start).await {
            Ok(_) => Ok((files, running)),
            Err(error) => {
                end(context, running).await?;
                Err(error)
            }
        }
    }

    /// Waits for a booted guest and what it starts, quiesces it, and writes it down. With whether it waits, restored, for as
    /// long as need be: older guests thaw their disks after a while, and go on.
    async fn write_down(
        &self,
        machine: &mut Machine,
        paths: &MachinePaths,
        mut files: Files,
    ) -> Result<(Files, bool), MakeError> {
        let recipe = &self.order.recipe;
        let is_bare = guest::await_ready(machine, self.context.config.boot_timeout()).await?;
        if is_bare != bare::is_made_from(&recipe.template.version) {
            return Err(MakeError::OnItsDisk);
        }
        if let Some(start) = &recipe.template.version.start {
            let timeout = Duration::from_secs(self.context.config.builds.start_seconds);
            guest::await_start(machine, &paths.vsock_socket(), start, timeout).await?;
        }
        guest::rehearse(&paths.vsock_socket()).await;
        sleep(REPORTED_WITHIN).await;
        let is_answer =
            |message: &GuestMessage| matches!(message, GuestMessage::Frozen { .. } | GuestMessage::NotFrozen { .. });
        // Disk and memory are only ever used together, so what is in memory need not be on the disk.
        let question = HostMessage::Freeze { processes: true, disks: false, stays: true };
        let can_wait = match machine.ask(question, is_answer, FREEZE_TIMEOUT, drop).await? {
            GuestMessage::NotFrozen { message } => {
                return Err(Unanswered::Terminated(Termination::Failed(message)).into());
            }
            answer => matches!(answer, GuestMessage::Frozen { disks: false }),
        };
        let limit = SNAPSHOT_TIMEOUT + Duration::from_secs(u64::from(recipe.memory_mb / MIB_PER_SECOND));
        let written = timeout(limit, pause::snapshot(machine, &paths.state, &mut files, false)).await;
        let silent = |_| Err(OperationError::Refused(ChangeError::Monitor(RequestError::TimedOut(limit))));
        match written.unwrap_or_else(silent) {
            Ok(_) => Ok((files, can_wait)),
            Err(OperationError::Refused(error)) => Err(MakeError::Snapshot(error)),
            Err(OperationError::Ended(_) | OperationError::Delete(_)) => Err(MakeError::Ending),
        }
    }

    /// Waits for a restored guest, uses it as its first client will, and notes what of its memory that took.
    async fn try_out(
        &self,
        machine: &mut Machine,
        paths: &MachinePaths,
        folder: &Path,
        mut files: Files,
    ) -> Result<Files, MakeError> {
        if guest::await_ready(machine, self.context.config.boot_timeout()).await? {
            return Err(MakeError::OnNoDisk);
        }
        let health = timeout(guest::HEALTH_TIMEOUT, guest::is_healthy(&paths.vsock_socket())).await;
        if !health.is_ok_and(|healthy| healthy.unwrap_or(false)) {
            return Err(MakeError::Unhealthy);
        }
        machine.request(Request::NoteTouched, &[], WORKING_SET_TIMEOUT).await?;
        guest::rehearse(&paths.vsock_socket()).await;
        guest::rehearse_freeze(machine).await;
        let name = files.new_name(Role::WorkingSet);
        let path = folder.join(&name);
        let created = durable::blocking(move || layers::create(&path, 0).map_err(io::Error::other)).await;
        let file: File = created.map_err(|source| MakeError::Host { what: "create a file", source })?;
        machine.request(Request::SaveWorkingSet, &[file.as_fd()], WORKING_SET_TIMEOUT).await?;
        files.working_set = Some(name);
        Ok(files)
    }

    /// Gives up once nobody wants it.
    async fn unless_unwanted<T>(&self, work: impl Future<Output = Result<T, MakeError>>) -> Result<T, MakeError> {
        tokio::select! {
            () = self.unwanted.cancelled() => Err(MakeError::Ending),
            result = work => result,
        }
    }
}

async fn end(context: &Context, running: Running) -> Result<(), MakeError> {
    running.end(&context.launcher).await.map_err(|source| MakeError::Host { what: "end a machine", source })
}
