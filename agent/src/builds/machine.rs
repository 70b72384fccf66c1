//! The machine that builds: of the agent's own template [`BUILDER_TEMPLATE`], in a network with the build's policy.
//!
//! ```text
//!   a turn ─▶ memory ─▶ launched ─▶ disks formatted, mounted ─▶ uploads sent ─▶ the program, to its last event
//!                                                                                    │
//!   the version, pending ◀── its layer linked ◀── the machine ended ◀── unmounted ◀──┘
//! ```
//!
//! It is no sandbox: it has no record, and its folder is named after the build. An agent that starts kills it like every monitor
//! that no record names, and removes the folder. What is left then is the team's cache, whose journal the next machine replays.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_images::snapshots;
use sandpiper_images::templates::GuestDefaults;
use sandpiper_machine::link::{self, Envs};
use sandpiper_machine::{Machine, MachineEvent, MachinePaths, sanitize};
use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::guest::GuestMessage;
use sandpiper_protocol::template::{BUILDER_TEMPLATE, StartBuild};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::conversation::{self, Made};
use super::disks::{self, Disks};
use super::run::{Stop, failed, host_failed};
use super::{Builds, Entry};
use crate::helpers;
use crate::launch::{self, Attachments, Running, Source};

/// What a builder's guest is called.
const NAME: &str = "builder";
/// Pause before it is looked again for memory to spare.
const RETRY: Duration = Duration::from_secs(2);

impl Builds {
    /// Makes the version in a machine, which is gone when this returns. Not to be dropped: it gives up once `unwanted` is
    /// cancelled.
    pub(super) async fn build_in_machine(
        &self,
        entry: &Arc<Entry>,
        order: &StartBuild,
        unwanted: &CancellationToken,
    ) -> Result<(), Stop> {
        let context = self.inner.sandboxes.context_owned();
        let paths = context.paths.helper(&order.id);
        let result = self.build_with(entry, order, &paths, unwanted).await;
        let folders = [paths.runtime, paths.state];
        let remove = move || folders.iter().try_for_each(|folder| durable::remove_tree(folder));
        if let Err(error) = durable::blocking(remove).await {
            tracing::warn!(build = order.id.as_str(), %error, "cannot remove a builder's files now; the next start will");
        }
        result
    }

    async fn build_with(
        &self,
        entry: &Arc<Entry>,
        order: &StartBuild,
        paths: &MachinePaths,
        unwanted: &CancellationToken,
    ) -> Result<(), Stop> {
        let context = self.inner.sandboxes.context_owned();
        let mut running = self.launch(entry, order, paths, unwanted).await?;
        CrashPoint::BuilderRunning.pass();
        let opened = {
            let (context, caches, order) = (Arc::clone(&context), self.inner.caches.clone(), order.clone());
            let folder = paths.state.clone();
            durable::blocking(move || Disks::open(&context, &caches, &order, &folder)).await
        };
        let work = async {
            let disks = opened?;
            await_ready(&mut running.machine, context.config.boot_timeout()).await?;
            disks.attach(&mut running.machine, context.launcher.disk_limits()).await?;
            CrashPoint::BuilderMounted.pass();
            let vsock = paths.vsock_socket();
            let conversation = self.converse(entry, order, &disks, &vsock);
            let made = unless_ended(&mut running.machine, conversation).await?;
            disks::unmount(&mut running.machine).await?;
            Ok((made, disks))
        };
        let worked = tokio::select! {
            () = unwanted.cancelled() => Err(Stop::Cancelled),
            worked = work => worked,
        };
        running.end(&context.launcher).await.map_err(|error| host_failed("end the builder", &error))?;
        let (made, disks) = worked?;
        let (order, folder) = (order.clone(), paths.state.clone());
        let publish = move || {
            let storage = |error: &dyn std::error::Error| host_failed("keep the version", error);
            let version = version(&order, made, &disks)?;
            let draft = context.templates.draft(&order.id).map_err(|error| storage(&error))?;
            disks::link_output(&folder, draft.folder()).map_err(|error| storage(&error))?;
            context.templates.publish(draft, version, disks::of_version()).map_err(|error| storage(&error))
        };
        durable::blocking(publish).await
    }

    /// Starts the machine, as soon as the host has memory to spare.
    async fn launch(
        &self,
        entry: &Arc<Entry>,
        order: &StartBuild,
        paths: &MachinePaths,
        unwanted: &CancellationToken,
    ) -> Result<Running, Stop> {
        let context = self.inner.sandboxes.context();
        let launcher = &*context.launcher;
        let template = helpers::newest_own(&context.templates, BUILDER_TEMPLATE);
        let template = template.ok_or_else(|| failed("host_failed", "The host has no builder any more"))?;
        let disk_gib = template.least_disk_gib().map_err(|error| host_failed("read the builder's image", &error))?;
        let mut is_waiting = false;
        let reservation = loop {
            if let Some(reservation) = context.capacity.spare(order.limits.memory_mb) {
                break reservation;
            }
            if !std::mem::replace(&mut is_waiting, true) {
                self.say(entry, "waiting for the host to have memory to spare").await;
            }
            tokio::select! {
                () = unwanted.cancelled() => return Err(Stop::Cancelled),
                () = tokio::time::sleep(RETRY) => {}
            }
        };
        let gathered = launcher.gather(launch::Order {
            source: Source::Template { template: Box::new(template), _pin: None },
            paths: paths.clone(),
            shape: snapshots::shape(order.limits.cpu, order.limits.memory_mb),
            disk_gib,
            name: NAME.to_owned(),
            envs: Envs::new(),
            generation: 0,
            defaults: GuestDefaults::default(),
            network: Some(order.network.clone()),
            net_limits: launcher.net_limits(),
            disk_limits: launcher.disk_limits(),
            volumes: Attachments::new(
                context.volumes.clone(),
                Vec::new(),
                None,
                Default::default(),
                launcher.disk_limits(),
            ),
            serves_volume: false,
        });
        let gathered = gathered.await.map_err(|error| host_failed("start the builder", &error))?;
        let settled = gathered.settle(launcher, reservation, || Ok(())).await;
        let (mut running, kit, ()) = settled.map_err(|error| host_failed("start the builder", &error))?;
        match kit.start(&mut running.machine, &context.config).await {
            Ok(_) => Ok(running),
            Err(error) => {
                let failure = host_failed("start the builder", &error);
                running.end(launcher).await.map_err(|error| host_failed("end the builder", &error))?;
                Err(failure)
            }
        }
    }

    /// Sends what was uploaded, and has the program build.
    async fn converse(
        &self,
        entry: &Arc<Entry>,
        order: &StartBuild,
        disks: &Disks,
        vsock: &Path,
    ) -> Result<Made, Stop> {
        conversation::send_uploads(&self.inner.uploads, &order.source, vsock).await?;
        let config = &self.inner.sandboxes.context().config.builds;
        let order = sandpiper_protocol::builder::Order {
            source: order.source.clone(),
            registries: config.registries.clone(),
            base_settings: disks.base_defaults().settings,
            cache_bytes: disks.cache_bytes(),
        };
        conversation::build(&entry.log, &order, vsock).await
    }
}

/// The version that was made, if guests can be told what its image says.
fn version(order: &StartBuild, made: Made, disks: &Disks) -> Result<TemplateVersion, Stop> {
    let start = order.start.clone().or_else(|| disks.base_defaults().start);
    if !link::envs_fit(&Envs::new(), &made.settings, start.as_ref()) {
        return Err(failed("source_refused", "The image's variables and the start command have more than 60 KiB"));
    }
    let mut images = disks.base().map(|base| base.version.images.clone()).unwrap_or_default();
    images.extend(made.images);
    Ok(TemplateVersion {
        id: order.id.to_string(),
        slug: order.slug.clone(),
        digest: String::new(),
        key: None,
        created_at: Timestamp::now(),
        baseline: order.baseline,
        team: Some(order.team.clone()),
        disk_gib: order.disk_gib,
        settings: made.settings,
        start,
        command: made.command,
        images,
        retained_bytes: 0,
    })
}

async fn await_ready(machine: &mut Machine, timeout: Duration) -> Result<(), Stop> {
    let give_up_at = Instant::now() + timeout;
    loop {
        let Ok(event) = timeout_at(give_up_at, machine.next()).await else {
            let seconds = timeout.as_secs();
            return Err(failed(
                "host_failed",
                format!("The builder was not ready within {seconds} seconds; try again"),
            ));
        };
        match event {
            MachineEvent::Guest(GuestMessage::Ready { .. }) => return Ok(()),
            event => ended(event)?,
        }
    }
}

/// Does `work` with a machine that must not end meanwhile.
async fn unless_ended<T>(machine: &mut Machine, work: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            result = &mut work => return result,
            event = machine.next() => ended(event)?,
        }
    }
}

/// An error if this ended the machine.
fn ended(event: MachineEvent) -> Result<(), Stop> {
    let reason = match event {
        MachineEvent::Ended(ended) => format!("its monitor ended: {ended:?}"),
        MachineEvent::OutOfControl => "its monitor does not answer".to_owned(),
        MachineEvent::Guest(GuestMessage::Failed { message }) => sanitize(&message),
        MachineEvent::Guest(_) | MachineEvent::LinkOpened | MachineEvent::Disk(_) => return Ok(()),
    };
    Err(failed("host_failed", format!("The builder's machine broke down ({reason}); build it again")))
}
