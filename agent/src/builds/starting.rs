//! How a builder's machine comes up: like a sandbox, from a warm snapshot of its template where there is one, else by booting.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_images::snapshots::{self, Recipe, WarmSnapshot};
use sandpiper_images::templates::GuestDefaults;
use sandpiper_machine::link::Envs;
use sandpiper_machine::{Machine, MachineEvent, MachinePaths};
use sandpiper_protocol::guest::GuestMessage;
use sandpiper_protocol::template::{BUILDER_TEMPLATE, StartBuild};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Builds;
use super::machine::ended;
use super::run::{Stop, failed, host_failed};
use crate::capacity::Reservation;
use crate::helpers;
use crate::host;
use crate::launch::{self, Attachments, Running, Source};
use crate::sandbox::Context;
use crate::service::WarmOrder;

/// What a builder's guest is called.
const NAME: &str = "builder";

/// A machine whose guest is ready.
pub(super) struct Started {
    pub(super) running: Running,
    /// The builder's version.
    pub(super) builder: String,
    /// The warm snapshot that it would have liked to find.
    pub(super) wanted: Option<WarmOrder>,
}

/// A machine that is to come up.
struct Start<'a> {
    context: &'a Arc<Context>,
    order: &'a StartBuild,
    paths: &'a MachinePaths,
    recipe: Recipe,
    reservation: Reservation,
    unwanted: &'a CancellationToken,
}

impl Builds {
    /// Starts the machine.
    pub(super) async fn start_machine(
        &self,
        order: &StartBuild,
        paths: &MachinePaths,
        reservation: Reservation,
        unwanted: &CancellationToken,
    ) -> Result<Started, Stop> {
        let context = self.inner.sandboxes.context_owned();
        let (recipe, warm) = {
            // More would only wait for each other.
            let (cpu, memory_mb) = (order.limits.cpu.min(host::cpus()), memory_mb(&context, order));
            let context = Arc::clone(&context);
            durable::blocking(move || plan(&context, cpu, memory_mb)).await?
        };
        let start = Start { context: &context, order, paths, recipe, reservation, unwanted };
        let (running, wanted) = match warm {
            Some(Warm::There(warm)) => (start.warm_or_cold(warm).await?, None),
            Some(Warm::Wanted(key)) => {
                let wanted = WarmOrder { key, recipe: start.recipe.clone() };
                (start.boot().await?, Some(wanted))
            }
            None => (start.boot().await?, None),
        };
        Ok(Started { running, builder: start.recipe.template.version.id, wanted })
    }
}

/// Memory of the machine: no more than half of what the host has for machines, or it would wait for all others to go.
pub(super) fn memory_mb(context: &Context, order: &StartBuild) -> u32 {
    let half = u32::try_from(context.capacity.usable_mb() / 2).unwrap_or(u32::MAX);
    order.limits.memory_mb.min(half)
}

/// A warm snapshot on a host that has any.
enum Warm {
    There(WarmSnapshot),
    /// Its key.
    Wanted(String),
}

/// What a machine of this size is made from. Blocks.
fn plan(context: &Context, cpu: u32, memory_mb: u32) -> Result<(Recipe, Option<Warm>), Stop> {
    let template = helpers::newest_own(&context.templates, BUILDER_TEMPLATE);
    let template = template.ok_or_else(|| failed("host_failed", "The host has no builder any more"))?;
    let disk_gib = template.least_disk_gib().map_err(|error| host_failed("read the builder's image", &error))?;
    let recipe = Recipe { template, cpu, memory_mb, disk_gib };
    if !context.config.warm.enabled {
        return Ok((recipe, None));
    }
    // Without a kernel or a monitor there is no key; the boot says what is missing.
    let warm = context.warm.key(&recipe).ok().map(|key| match context.warm.find(&key) {
        Some(warm) => Warm::There(warm),
        None => Warm::Wanted(key),
    });
    Ok((recipe, warm))
}

impl Start<'_> {
    async fn warm_or_cold(&self, warm: WarmSnapshot) -> Result<Running, Stop> {
        let WarmSnapshot { key, folder, snapshot, .. } = warm;
        let source = Source::Snapshot { folder, files: snapshot.files.clone().shared(), _pin: None };
        // A snapshot is restored in a moment or not at all.
        match self.bring_up(source, self.context.config.boot_timeout() / 2).await {
            Ok(running) => {
                self.context.warm.worked(&key);
                Ok(running)
            }
            Err(Stop::Failed(error)) => {
                tracing::warn!(
                    build = self.order.id.as_str(),
                    reason = error.message,
                    "a builder is booted: its warm snapshot did not start"
                );
                let cleared = clear(self.paths).await;
                cleared.map_err(|error| host_failed("remove the files of a start that failed", &error))?;
                let running = self.boot().await?;
                let context = Arc::clone(self.context);
                // Nobody waits for it.
                tokio::task::spawn_blocking(move || context.warm.strike(&key));
                Ok(running)
            }
            Err(stop) => Err(stop),
        }
    }

    async fn boot(&self) -> Result<Running, Stop> {
        let source = Source::Template { template: Box::new(self.recipe.template.clone()), _pin: None };
        self.bring_up(source, self.context.config.boot_timeout()).await
    }

    /// On failure there is no machine, but its files are.
    async fn bring_up(&self, source: Source, timeout: Duration) -> Result<Running, Stop> {
        let launcher = &*self.context.launcher;
        let mut running = self.launch(source).await?;
        let ready = tokio::select! {
            () = self.unwanted.cancelled() => Err(Stop::Cancelled),
            ready = await_ready(&mut running.machine, timeout) => ready,
        };
        match ready {
            Ok(()) => Ok(running),
            Err(stop) => {
                running.end(launcher).await.map_err(|error| host_failed("end the builder", &error))?;
                Err(stop)
            }
        }
    }

    async fn launch(&self, source: Source) -> Result<Running, Stop> {
        let Self { context, order, recipe, .. } = self;
        let launcher = &*context.launcher;
        let start_failed = |error: &dyn std::error::Error| host_failed("start the builder", error);
        let volumes =
            Attachments::new(context.volumes.clone(), Vec::new(), None, Default::default(), launcher.disk_limits());
        let gathered = launcher.gather(launch::Order {
            source,
            paths: self.paths.clone(),
            shape: snapshots::shape(recipe.cpu, recipe.memory_mb),
            disk_gib: recipe.disk_gib,
            name: NAME.to_owned(),
            envs: Envs::new(),
            // Not the one of a snapshot's maker, whose network it would keep.
            generation: 1,
            defaults: GuestDefaults::default(),
            network: Some(order.network.clone()),
            net_limits: context.allowances.network(Some(&order.team), launcher.net_limits()),
            disk_limits: context.allowances.disk(Some(&order.team), launcher.disk_limits()),
            volumes,
            serves_volume: false,
            capture_output: false,
        });
        let gathered = gathered.await.map_err(|error| start_failed(&error))?;
        let settled = gathered.settle(launcher, self.reservation.clone(), || Ok(())).await;
        let (mut running, kit, ()) = settled.map_err(|error| start_failed(&error))?;
        match kit.start(&mut running.machine, &context.config).await {
            Ok(_) => Ok(running),
            Err(error) => {
                let failure = start_failed(&error);
                running.end(launcher).await.map_err(|error| host_failed("end the builder", &error))?;
                Err(failure)
            }
        }
    }
}

/// Removes what a machine that has ended leaves.
pub(super) async fn clear(paths: &MachinePaths) -> io::Result<()> {
    let paths = paths.clone();
    durable::blocking(move || paths.remove()).await
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
