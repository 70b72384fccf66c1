//! Makes warm snapshots, in the background, one at a time.
//!
//! ```text
//!   a create without one ──order──▶ boot a machine of the template ──ready──▶ rehearse ──▶ freeze ──▶ write down, end
//!                                                                                                         │
//!     publish ◀── working set ◀── rehearse ◀── GET /health ◀── ready ◀── restore it once: a trial ◀───────┘
//! ```
//!
//! The rehearsal is a shell that does nothing, run through the data plane as a client's first command will be: before the
//! snapshot, so that the guest has the shell's files in memory; in the trial, so that what a first command touches is known.
//! A template without a shell is none the worse.
//!
//! The machines for it are no sandboxes: they have no record and no name, their guest knows no secret, and nothing reaches
//! them. They hold memory of the host, and are not started while that is short. An agent that starts kills those of its
//! predecessor like every monitor that no record names.
//!
//! Nobody waits for a warm snapshot. A create that comes while one is being made boots.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_images::layers::{self, Files, LayerError, Role};
use sandpiper_images::snapshots::{self, Recipe, Snapshot};
use sandpiper_ingress::vsock;
use sandpiper_machine::control::RequestError;
use sandpiper_machine::link::Envs;
use sandpiper_machine::{Machine, MachineEvent, MachinePaths, Termination, Unanswered};
use sandpiper_protocol::agent::{Network, NetworkPolicy};
use sandpiper_protocol::connect::{self, STREAM_CONTENT_TYPE};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::guest::{DATA_PLANE_PORT, GuestMessage, HostMessage};
use sandpiper_protocol::process::{ProcessConfig, SERVICE, StartRequest};
use sandpiper_protocol::vmm::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use crate::capacity::Reservation;
use crate::host;
use crate::launch::{self, Attachments, LaunchError, Running, Source};
use crate::sandbox::ops::pause;
use crate::sandbox::{ChangeError, Context, OperationError};
use crate::service::{Ordered, WarmOrder};

/// What a guest is called before it is anybody's.
const NAME: &str = "sandpiper";
/// How long a guest that has just booted may take to quiesce.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a monitor may take to write it down: this, and a second for so many MiB of memory. Another can be made.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30);
const MIB_PER_SECOND: u32 = 16;
/// How long the data plane of the trial may take to answer.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);
/// Most that a rehearsal listens to.
const MAX_ANSWER: u64 = 64 * 1024;
/// How long a rehearsal may take; what it has not touched by then is not missed.
const REHEARSAL_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the monitor may take to say what was touched.
const WORKING_SET_TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no warm snapshot.
#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error("The host has no memory or disk to spare for it")]
    Short,
    #[error("The agent is ending")]
    Ending,
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
    #[error("The guest's data plane does not respond after a restore")]
    Unhealthy,
}

/// Makes what is ordered, until the agent ends.
pub(super) async fn make_all(context: Arc<Context>, mut ordered: Ordered) {
    loop {
        let order = tokio::select! {
            () = context.leave.cancelled() => return,
            order = ordered.recv() => order,
        };
        let Some(order) = order else { return };
        if !context.warm.begin(&order.key) {
            continue;
        }
        let began = Instant::now();
        match make(&context, &order).await {
            Ok(()) => {
                let took_ms = pause::millis(began);
                tracing::info!(
                    key = order.key,
                    template = order.recipe.template.version.id,
                    took_ms,
                    "warm snapshot made"
                );
            }
            Err(error) => {
                let failed = !matches!(error, MakeError::Short | MakeError::Ending);
                context.warm.gave_up(&order.key, failed);
                tracing::warn!(key = order.key, error = %error_chain::chain(&error), "no warm snapshot was made");
            }
        }
        // Whatever became of it.
        let folders = [context.warm.draft_folder(&order.key), context.warm.trial_folder(&order.key)];
        let folders = folders.into_iter().chain([runtime(&context, &order.key)]).collect::<Vec<_>>();
        let remove = move || folders.iter().try_for_each(|folder| durable::remove_tree(folder));
        if let Err(error) = durable::blocking(remove).await {
            tracing::warn!(%error, "cannot remove what was needed for a warm snapshot; the next start will");
        }
    }
}

/// Where the sockets of a machine are that is not a sandbox.
fn runtime(context: &Context, key: &str) -> PathBuf {
    context.paths.runtime_warm().join(key)
}

async fn make(context: &Arc<Context>, order: &WarmOrder) -> Result<(), MakeError> {
    let WarmOrder { key, recipe } = order;
    let memory_mb = recipe.memory_mb;
    let reservation = context.capacity.spare(memory_mb).ok_or(MakeError::Short)?;
    let headroom = context.config.limits.disk_headroom_mb + u64::from(memory_mb);
    let free = host::free_disk_mb(context.paths.state());
    if free.map_err(|source| MakeError::Host { what: "read the free disk space", source })? < headroom {
        return Err(MakeError::Short);
    }
    let draft = context.warm.draft_folder(key);
    let paths = MachinePaths { state: draft.clone(), runtime: runtime(context, key) };
    let (files, mut running) =
        launch(context, &paths, Source::Template(recipe.template.clone()), recipe, &reservation).await?;
    let written = unless_ending(context, write_down(context, &mut running.machine, &paths, files, memory_mb)).await;
    end(context, running).await?;
    let files = written?;
    let synced = {
        let draft = draft.clone();
        durable::blocking(move || files.sync(&draft).map(|()| files)).await
    };
    let files = synced.map_err(|source| MakeError::Host { what: "sync the snapshot", source })?;

    let trial = MachinePaths { state: context.warm.trial_folder(key), runtime: paths.runtime.clone() };
    let source = Source::Snapshot { folder: draft.clone(), files: files.clone(), _pin: None };
    let (_, mut running) = launch(context, &trial, source, recipe, &reservation).await?;
    let tried = unless_ending(context, try_out(context, &mut running.machine, &trial, &draft, files)).await;
    end(context, running).await?;
    let files = tried?;

    let snapshot = Snapshot {
        template_version: recipe.template.version.id.clone(),
        cpu: recipe.cpu,
        memory_mb,
        disk_gib: recipe.disk_gib,
        files,
        held_slots: Vec::new(),
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

/// Starts a machine that is no sandbox's, with a network in which it reaches nothing.
async fn launch(
    context: &Context,
    paths: &MachinePaths,
    source: Source,
    recipe: &Recipe,
    reservation: &Reservation,
) -> Result<(Files, Running), MakeError> {
    let launcher = &*context.launcher;
    let policy = NetworkPolicy { allow_internet_access: false, ..NetworkPolicy::default() };
    let gathered = launcher.gather(launch::Order {
        source,
        paths: paths.clone(),
        shape: snapshots::shape(recipe.cpu, recipe.memory_mb),
        disk_gib: recipe.disk_gib,
        name: NAME.to_owned(),
        envs: Envs::new(),
        generation: 0,
        network: Some(Network { version: 0, policy }),
        net_limits: launcher.net_limits(),
        disk_limits: launcher.disk_limits(),
        volumes: Attachments::new(context.volumes.clone(), Vec::new(), None, PathBuf::new(), launcher.disk_limits()),
        serves_volume: false,
    });
    let gathered = gathered.await?;
    let files = gathered.files().clone();
    let settled = gathered.settle(launcher, reservation.clone(), || Ok(())).await;
    let (mut running, kit, ()) =
        settled.map_err(|source| MakeError::Host { what: "move a monitor's files", source })?;
    let start = async { Ok(kit.start(&mut running.machine, &context.config).await?) };
    match unless_ending(context, start).await {
        Ok(_) => Ok((files, running)),
        Err(error) => {
            end(context, running).await?;
            Err(error)
        }
    }
}

/// Waits for a booted guest, quiesces it, and writes it down.
async fn write_down(
    context: &Context,
    machine: &mut Machine,
    paths: &MachinePaths,
    mut files: Files,
    memory_mb: u32,
) -> Result<Files, MakeError> {
    await_ready(machine, context.config.boot_timeout()).await?;
    rehearse(&paths.vsock_socket()).await;
    let is_answer = |message: &GuestMessage| matches!(message, GuestMessage::Frozen | GuestMessage::NotFrozen { .. });
    let question = HostMessage::Freeze { processes: true };
    if let GuestMessage::NotFrozen { message } = machine.ask(question, is_answer, FREEZE_TIMEOUT, drop).await? {
        return Err(Unanswered::Terminated(Termination::Failed(message)).into());
    }
    let limit = SNAPSHOT_TIMEOUT + Duration::from_secs(u64::from(memory_mb / MIB_PER_SECOND));
    let written = timeout(limit, pause::snapshot(machine, &paths.state, &mut files)).await;
    let silent = |_| Err(OperationError::Refused(ChangeError::Monitor(RequestError::TimedOut(limit))));
    match written.unwrap_or_else(silent) {
        Ok(_) => Ok(files),
        Err(OperationError::Refused(error)) => Err(MakeError::Snapshot(error)),
        Err(OperationError::Ended(_) | OperationError::Delete(_)) => Err(MakeError::Ending),
    }
}

/// Waits for a restored guest, uses it as its first client will, and notes what of its memory that took.
async fn try_out(
    context: &Context,
    machine: &mut Machine,
    paths: &MachinePaths,
    folder: &Path,
    mut files: Files,
) -> Result<Files, MakeError> {
    await_ready(machine, context.config.boot_timeout()).await?;
    let health = timeout(HEALTH_TIMEOUT, is_healthy(&paths.vsock_socket())).await;
    if !health.is_ok_and(|healthy| healthy.unwrap_or(false)) {
        return Err(MakeError::Unhealthy);
    }
    rehearse(&paths.vsock_socket()).await;
    let name = files.new_name(Role::WorkingSet);
    let path = folder.join(&name);
    let created = durable::blocking(move || layers::create(&path, 0).map_err(io::Error::other)).await;
    let file: File = created.map_err(|source| MakeError::Host { what: "create a file", source })?;
    machine.request(Request::SaveWorkingSet, &[file.as_fd()], WORKING_SET_TIMEOUT).await?;
    files.working_set = Some(name);
    Ok(files)
}

async fn await_ready(machine: &mut Machine, timeout: Duration) -> Result<(), MakeError> {
    let give_up_at = Instant::now() + timeout;
    loop {
        let termination =
            match timeout_at(give_up_at, machine.next()).await.map_err(|_| MakeError::NotReady(timeout))? {
                MachineEvent::Guest(GuestMessage::Ready { .. }) => return Ok(()),
                MachineEvent::Guest(GuestMessage::Failed { message }) => Termination::Failed(message),
                MachineEvent::Ended(ended) => Termination::Ended(ended),
                MachineEvent::OutOfControl => Termination::OutOfControl,
                MachineEvent::Guest(_) | MachineEvent::LinkOpened | MachineEvent::Disk(_) => continue,
            };
        return Err(Unanswered::Terminated(termination).into());
    }
}

/// Whether the data plane behind this socket says that it is well.
async fn is_healthy(vsock: &Path) -> io::Result<bool> {
    let mut stream = vsock::connect(vsock, DATA_PLANE_PORT, HEALTH_TIMEOUT).await.map_err(io::Error::other)?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n").await?;
    let mut status = [0; b"HTTP/1.1 2".len()];
    stream.read_exact(&mut status).await?;
    Ok(&status == b"HTTP/1.1 2")
}

/// Runs a first command, as far as that goes.
async fn rehearse(vsock: &Path) {
    match timeout(REHEARSAL_TIMEOUT, run_shell(vsock)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the first command in a warm snapshot failed"),
        Err(_) => tracing::debug!("the first command in a warm snapshot took too long"),
    }
}

/// Has the data plane behind this socket run a shell to its end; what it answers.
async fn run_shell(vsock: &Path) -> io::Result<Vec<u8>> {
    let process = ProcessConfig {
        cmd: "/bin/sh".into(),
        args: vec!["-c".into(), "[ ! -x /bin/bash ] || exec /bin/bash -l -c :".into()],
        ..ProcessConfig::default()
    };
    let message = serde_json::to_vec(&StartRequest { process, stdin: Some(false), ..StartRequest::default() })?;
    let body = connect::envelope(0, &message);
    let head = format!(
        "POST /{SERVICE}/Start HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\nConnect-Protocol-Version: 1\r\n\
         Content-Type: {STREAM_CONTENT_TYPE}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = vsock::connect(vsock, DATA_PLANE_PORT, HEALTH_TIMEOUT).await.map_err(io::Error::other)?;
    stream.write_all(&[head.as_bytes(), &body].concat()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(answer)
}

async fn end(context: &Context, running: Running) -> Result<(), MakeError> {
    running.end(&context.launcher).await.map_err(|source| MakeError::Host { what: "end a machine", source })
}

/// Gives up when the agent ends.
async fn unless_ending<T>(context: &Context, work: impl Future<Output = Result<T, MakeError>>) -> Result<T, MakeError> {
    tokio::select! {
        () = context.leave.cancelled() => Err(MakeError::Ending),
        result = work => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    /// A data plane that answers every request with these bytes.
    async fn data_plane(folder: &Path, answer: &'static [u8]) -> PathBuf {
        let path = folder.join("vsock");
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; "CONNECT 49983\n".len()];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_all(b"OK 1\n").await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            assert!(head.starts_with(b"GET /health HTTP/1.1\r\n"));
            stream.write_all(answer).await.unwrap();
        });
        path
    }

    #[tokio::test]
    async fn a_trial_asks_the_data_plane_how_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let well = data_plane(folder.path(), b"HTTP/1.1 204 No Content\r\n\r\n").await;
        assert!(is_healthy(&well).await.unwrap());
        let folder = tempfile::tempdir().unwrap();
        let ill = data_plane(folder.path(), b"HTTP/1.1 500 Internal Server Error\r\n\r\n").await;
        assert!(!is_healthy(&ill).await.unwrap());
        assert!(is_healthy(&folder.path().join("nobody")).await.is_err());
    }
}
