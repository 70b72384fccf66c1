//! One helper's machine: a small one of the template `volume-helper`, booted without a network.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_images::snapshots;
use sandpiper_images::templates::{GuestDefaults, Template};
use sandpiper_machine::link::Envs;
use sandpiper_machine::{Machine, MachineEvent, MachinePaths, Unanswered, sanitize};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::guest::{DAMAGED_VOLUME, GuestMessage, HostMessage};
use sandpiper_protocol::vmm::{DiskConfig, NetLimits};
use sandpiper_protocol::volume::HELPER_TEMPLATE;
use tokio::time::{Instant, timeout_at};

use super::{Surroundings, host_error};
use crate::launch::{self, Attachments, LaunchError, Running, Source};
use crate::volumes::VolumeError;

/// How long a guest may take to write down and unmount its volume.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to make a file system.
const FORMAT_TIMEOUT: Duration = Duration::from_secs(300);
/// What a helper's guest is called.
const NAME: &str = "helper";
/// Folder of the machine that makes a blank layer.
const FORMATTER: &str = "format";

/// The newest version of the helpers' template.
pub(super) fn template(host: &Surroundings) -> Result<Template, VolumeError> {
    super::newest_own(&host.templates, HELPER_TEMPLATE).ok_or_else(|| {
        VolumeError::Unavailable(format!(
            "This host has no template `{HELPER_TEMPLATE}`, which volumes need; its operator has to import one"
        ))
    })
}

/// Boots a helper with these volumes; ready to serve them when it returns. On failure nothing of it is left.
pub(super) async fn start(
    host: &Surroundings,
    paths: &MachinePaths,
    volumes: Attachments,
) -> Result<Running, VolumeError> {
    let mut running = match launch(host, paths, volumes).await {
        Ok(running) => running,
        Err(error) => {
            clean(paths).await;
            return Err(error);
        }
    };
    let ready = tokio::select! {
        () = host.leave.cancelled() => Err(VolumeError::Unavailable("The agent is ending; try again".into())),
        ready = bring_up(host, &mut running) => ready,
    };
    match ready {
        Ok(()) => Ok(running),
        Err(error) => {
            stop(host, paths, running).await;
            Err(error)
        }
    }
}

async fn bring_up(host: &Surroundings, running: &mut Running) -> Result<(), VolumeError> {
    let Running { machine, volumes, .. } = running;
    volumes.attach(machine).await?;
    await_ready(machine, host.config.boot_timeout()).await
}

async fn launch(host: &Surroundings, paths: &MachinePaths, volumes: Attachments) -> Result<Running, VolumeError> {
    let template = template(host)?;
    let memory_mb = host.config.volumes.helper_memory_mb;
    let reservation = host.capacity.spare(memory_mb).ok_or_else(|| {
        VolumeError::Unavailable(format!(
            "{memory_mb} MiB of memory are needed and not free on this host; pause sandboxes"
        ))
    })?;
    let disk_gib = template.least_disk_gib().map_err(|error| host_error("read the helper template's image", error))?;
    let launcher = &host.launcher;
    let gathered = launcher.gather(launch::Order {
        source: Source::Template { template: Box::new(template), _pin: None },
        paths: paths.clone(),
        shape: snapshots::shape(1, memory_mb),
        disk_gib,
        name: NAME.to_owned(),
        envs: Envs::new(),
        generation: 0,
        defaults: GuestDefaults::default(),
        network: None,
        net_limits: NetLimits::default(),
        disk_limits: launcher.disk_limits(),
        volumes,
        serves_volume: true,
        capture_output: false,
    });
    let gathered = gathered.await.map_err(launch_error)?;
    let settled = gathered.settle(launcher, reservation, || Ok(())).await;
    let (mut running, kit, ()) = settled.map_err(|error| host_error("move a monitor's files", error))?;
    match kit.start(&mut running.machine, &host.config).await {
        Ok(_) => Ok(running),
        Err(error) => {
            stop(host, paths, running).await;
            Err(host_error("start a helper", error_chain::chain(&error)))
        }
    }
}

/// Has a guest make the empty file system of volumes of `size_gib`, as the blank layer `path`.
pub(super) async fn format(host: &Surroundings, size_gib: u32, path: &Path) -> Result<(), VolumeError> {
    let store = host.volumes.store.clone();
    let draft = durable::blocking(move || store.draft_blank(size_gib).map_err(io::Error::other)).await;
    let draft = draft.map_err(|error| host_error("make a blank layer", error))?;
    let limits = host.launcher.disk_limits();
    let none = Attachments::new(host.volumes.clone(), Vec::new(), None, path.to_owned(), limits);
    let paths = host.paths.helper(FORMATTER);
    let mut running = start(host, &paths, none).await?;
    let size = draft.metadata().map(|metadata| metadata.len()).unwrap_or_default();
    let disk = DiskConfig { serial: "blank".to_owned(), size, layers: 1, read_only: false };
    let work = async {
        let machine = &mut running.machine;
        machine.attach_disk(0, disk, limits, &[draft.as_fd()]).await.map_err(VolumeError::Monitor)?;
        let is_answer =
            |message: &GuestMessage| matches!(message, GuestMessage::Formatted | GuestMessage::NotFormatted { .. });
        match machine.ask(HostMessage::Format { slot: 0 }, is_answer, FORMAT_TIMEOUT, drop).await {
            Ok(GuestMessage::NotFormatted { message }) => {
                return Err(host_error("make a file system for volumes", sanitize(&message)));
            }
            Ok(_) => {}
            Err(error) => return Err(host_error("make a file system for volumes", error_chain::chain(&error))),
        }
        machine.detach_disk(0).await.map_err(VolumeError::Monitor)
    };
    let made = tokio::select! {
        () = host.leave.cancelled() => Err(VolumeError::Unavailable("The agent is ending; try again".into())),
        made = work => made,
    };
    stop(host, &paths, running).await;
    made?;
    let (store, path) = (host.volumes.store.clone(), path.to_owned());
    let published = durable::blocking(move || store.publish_blank(&draft, &path)).await;
    published.map_err(|error| host_error("keep a blank layer", error))
}

async fn await_ready(machine: &mut Machine, timeout: Duration) -> Result<(), VolumeError> {
    let give_up_at = Instant::now() + timeout;
    loop {
        let Ok(event) = timeout_at(give_up_at, machine.next()).await else {
            return Err(host_error("start a helper", format!("It was not ready within {} seconds", timeout.as_secs())));
        };
        match event {
            MachineEvent::Guest(GuestMessage::Ready { .. }) => return Ok(()),
            MachineEvent::Guest(GuestMessage::Failed { message }) => return Err(failed(&message)),
            MachineEvent::Ended(ended) => {
                return Err(host_error("start a helper", format!("Its monitor ended: {ended:?}")));
            }
            MachineEvent::OutOfControl => return Err(host_error("start a helper", "Its monitor does not answer")),
            MachineEvent::Guest(_) | MachineEvent::LinkOpened | MachineEvent::Disk(_) => {}
        }
    }
}

/// What a guest that could not begin says of it.
fn failed(message: &str) -> VolumeError {
    match sanitize(message) {
        message if message.starts_with(DAMAGED_VOLUME) => VolumeError::Damaged(message),
        message => host_error("use the volume in a helper", message),
    }
}

/// Waits until a helper that serves does so no more; why.
pub(super) async fn ended(machine: &mut Machine) -> String {
    loop {
        match machine.next().await {
            MachineEvent::Ended(ended) => return format!("{ended:?}"),
            MachineEvent::OutOfControl => return "its monitor does not answer".to_owned(),
            MachineEvent::Guest(GuestMessage::Failed { message }) => return sanitize(&message),
            MachineEvent::Guest(_) | MachineEvent::LinkOpened | MachineEvent::Disk(_) => {}
        }
    }
}

/// Has the guest unmount its volume, and ends it.
pub(super) async fn end(host: &Surroundings, paths: &MachinePaths, mut running: Running) {
    let is_answer =
        |message: &GuestMessage| matches!(message, GuestMessage::Unmounted { .. } | GuestMessage::NotUnmounted { .. });
    let asked = running.machine.ask(HostMessage::Unmount { force: true }, is_answer, UNMOUNT_TIMEOUT, drop).await;
    if let Err(error @ (Unanswered::TimedOut(_) | Unanswered::NoRoom)) = asked {
        // What was acknowledged is in the journal.
        tracing::warn!(%error, "a helper did not unmount its volume");
    }
    stop(host, paths, running).await;
}

async fn stop(host: &Surroundings, paths: &MachinePaths, running: Running) {
    if let Err(error) = running.end(&host.launcher).await {
        tracing::error!(%error, "cannot end a helper");
    }
    clean(paths).await;
}

async fn clean(paths: &MachinePaths) {
    let paths = paths.clone();
    if let Err(error) = durable::blocking(move || paths.remove()).await {
        tracing::warn!(%error, "cannot remove a helper's files now; the next start will");
    }
}

fn launch_error(error: LaunchError) -> VolumeError {
    match error {
        LaunchError::ShuttingDown => VolumeError::Unavailable(error.to_string()),
        error => host_error("start a helper", error_chain::chain(&error)),
    }
}
