//! The machine that builds: of the agent's own template [`BUILDER_TEMPLATE`], in a network with the build's policy.
//!
//! ```text
//!   a turn ─▶ memory ─▶ started  ─▶ disks formatted, mounted ─▶ uploads sent ─▶ the program, to its last event
//!                                                                                    │
//!   the version, pending ◀── its layer linked ◀── the machine ended ◀── unmounted ◀──┘
//! ```
//!
//! It is no sandbox: it has no record, and its folder is named after the build. An agent that starts kills it like every monitor
//! that no record names, and removes the folder. What is left then is the team's cache, whose journal the next machine replays.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_machine::link::{self, Envs};
use sandpiper_machine::{Machine, MachineEvent, MachinePaths, sanitize};
use sandpiper_protocol::agent::TemplateVersion;
use sandpiper_protocol::builder::{self, Registries};
use sandpiper_protocol::guest::GuestMessage;
use sandpiper_protocol::ids::UploadId;
use sandpiper_protocol::template::{BuildSource, StartBuild, StepsBase};
use sandpiper_protocol::vmm::DiskEvent;
use sandpiper_trace as trace;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::conversation::{self, MAX_IMAGES, Made};
use super::disks::{self, Disks};
use super::run::{Stop, failed, host_failed};
use super::starting::{self, Started};
use super::{Builds, Entry, same};
use crate::capacity::Reservation;
use crate::sandbox::ending;

/// Why a machine has not made the version.
enum Failure {
    Stop(Stop),
    /// It ended by itself, for this reason: another may do better.
    BrokeDown(String),
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl Builds {
    /// Makes the version in a machine, which is gone when this returns, or in a second one should that break down. Not to be
    /// dropped: it gives up once `unwanted` is cancelled.
    pub(super) async fn build_in_machine(
        &self,
        entry: &Arc<Entry>,
        order: &StartBuild,
        reservation: Reservation,
        unwanted: &CancellationToken,
    ) -> Result<(), Stop> {
        let mut result = self.build_once(entry, order, reservation.clone(), unwanted).await;
        if let Err(Failure::BrokeDown(why)) = &result {
            self.say(entry, format!("the builder's machine broke down ({why}); building in another one")).await;
            result = self.build_once(entry, order, reservation, unwanted).await;
        }
        result.map_err(|failure| match failure {
            Failure::Stop(stop) => stop,
            Failure::BrokeDown(why) => broke_down(&why),
        })
    }

    async fn build_once(
        &self,
        entry: &Arc<Entry>,
        order: &StartBuild,
        reservation: Reservation,
        unwanted: &CancellationToken,
    ) -> Result<(), Failure> {
        let paths = self.inner.sandboxes.context().paths.helper(&order.id);
        let result = self.build_with(entry, order, &paths, reservation, unwanted).await;
        if let Err(Failure::BrokeDown(why)) = &result {
            tracing::warn!(build = order.id.as_str(), reason = why, "a builder's machine broke down");
        }
        if let Err(error) = starting::clear(&paths).await {
            tracing::warn!(build = order.id.as_str(), %error, "cannot remove a builder's files now; the next start will");
        }
        result
    }

    async fn build_with(
        &self,
        entry: &Arc<Entry>,
        order: &StartBuild,
        paths: &MachinePaths,
        reservation: Reservation,
        unwanted: &CancellationToken,
    ) -> Result<(), Failure> {
        let context = self.inner.sandboxes.context_owned();
        let started = self.start_machine(order, paths, reservation, unwanted).instrument(trace::step("machine"));
        let Started { mut running, builder, wanted } = started.await?;
        CrashPoint::BuilderRunning.pass();
        let opened = {
            let (context, caches, order) = (Arc::clone(&context), self.inner.caches.clone(), order.clone());
            let folder = paths.state.clone();
            durable::blocking(move || Disks::open(&context, &caches, &order, &folder)).await
        };
        let work = async {
            let disks = opened?;
            let limits = context.allowances.disk(Some(&order.team), context.launcher.disk_limits());
            let machine = &mut running.machine;
            disks.attach_cache(machine, limits).instrument(trace::step("cache")).await?;
            let vsock = paths.vsock_socket();
            let ordered = self.order(order, &disks, &builder);
            let asked = self.ask(entry, &ordered, &disks, &vsock).instrument(trace::step("ask"));
            let made = match unless_ended(machine, asked).await? {
                Some(made) => made,
                None => {
                    disks.attach_others(machine, limits).instrument(trace::step("disks")).await?;
                    CrashPoint::BuilderMounted.pass();
                    unless_ended(machine, self.converse(entry, &ordered, &vsock)).await?
                }
            };
            disks::unmount(&mut running.machine).instrument(trace::step("unmount")).await?;
            Ok((made, disks))
        };
        let worked = tokio::select! {
            () = unwanted.cancelled() => Err(Stop::Cancelled),
            worked = work => worked,
        };
        if let Err(error) = running.end(&context.launcher).instrument(trace::step("end the machine")).await {
            // Its monitor may live, and write to the cache: the next build begins another.
            let (caches, team) = (self.inner.caches.clone(), order.team.clone());
            if let Err(error) = durable::blocking(move || caches.discard(&team)).await {
                tracing::error!(team = order.team.as_str(), %error, "cannot remove a build cache that may be in use");
            }
            return Err(host_failed("end the builder", &error).into());
        }
        if let Some(wanted) = wanted {
            self.inner.sandboxes.order_warm(wanted);
        }
        let (made, disks) = match worked {
            Err(Stop::Failed(error)) if error.code == "host_failed" => {
                let paths = paths.clone();
                // Whatever it was that failed first, because of it.
                let ended = durable::blocking(move || Ok::<_, Stop>(ending::by_itself(&paths))).await?;
                return Err(ended.map_or_else(|| Stop::Failed(error).into(), |ended| Failure::BrokeDown(ended.message)));
            }
            worked => worked?,
        };
        let (order, folder) = (order.clone(), paths.state.clone());
        let publish = move || {
            let storage = |error: &dyn std::error::Error| host_failed("keep the version", error);
            let draft = context.templates.draft(&order.id).map_err(|error| storage(&error))?;
            let key = same::prefix(&order, &builder) + &made.image;
            let disk = if made.is_known {
                let gone =
                    || failed("host_failed", "The version of the same image was deleted meanwhile; build it again");
                let (template, _pin) = same::find(&context, &order, &key).ok_or_else(gone)?;
                same::link(&template, draft.folder()).map_err(|error| storage(&error))?
            } else {
                disks::link_output(&folder, draft.folder()).map_err(|error| storage(&error))?;
                disks::of_version()
            };
            let version = version(&order, key, made, &disks)?;
            context.templates.publish(draft, version, disk).map_err(|error| storage(&error))
        };
        Ok(durable::blocking(publish).instrument(trace::step("publish")).await?)
    }

    /// What the program is to do.
    fn order(&self, order: &StartBuild, disks: &Disks, builder: &str) -> builder::Order {
        let context = self.inner.sandboxes.context();
        let upload = |id: &UploadId| Some((id.clone(), self.inner.uploads.find(id)?.sha256.clone()));
        builder::Order {
            source: order.source.clone(),
            registries: registries_for(&order.source, context.config.builds.registries.clone()),
            base_settings: disks.base_defaults().settings,
            known: same::known(context, order, &same::prefix(order, builder)),
            contents: order.source.uploads().into_iter().filter_map(upload).collect(),
            is_question: false,
            cache_bytes: disks.cache_bytes(),
        }
    }

    /// Asks whether the same was built before, and is still here. Nothing need be sent for that, and there need be no new root.
    async fn ask(
        &self,
        entry: &Arc<Entry>,
        order: &builder::Order,
        disks: &Disks,
        vsock: &Path,
    ) -> Result<Option<Made>, Stop> {
        if order.known.is_empty() || !disks.has_cache() {
            return Ok(None);
        }
        let question = builder::Order { is_question: true, ..order.clone() };
        match conversation::build(&entry.log, &question, vsock).await {
            // Whatever is wrong is found again, and told, where it is in the way of the build.
            Err(Stop::Failed(error)) => {
                tracing::debug!(
                    build = entry.id().as_str(),
                    reason = error.message,
                    "a builder did not answer a question"
                );
                Ok(None)
            }
            answered => Ok(answered?.filter(|made| made.is_known)),
        }
    }

    /// Sends what was uploaded, and has the program build.
    async fn converse(&self, entry: &Arc<Entry>, order: &builder::Order, vsock: &Path) -> Result<Made, Stop> {
        let sent = conversation::send_uploads(&self.inner.uploads, &order.source, vsock);
        sent.instrument(trace::step("send uploads")).await?;
        let made = conversation::build(&entry.log, order, vsock).instrument(trace::step("builder")).await?;
        made.ok_or_else(|| failed("host_failed", "The builder has built nothing; build it again"))
    }
}

/// What a source's builder is told of registries: the operator's credentials only where one may have to be asked.
fn registries_for(source: &BuildSource, mut registries: Registries) -> Registries {
    let asks = match source {
        BuildSource::Image { .. } | BuildSource::Dockerfile(_) => true,
        BuildSource::Steps(steps) => matches!(steps.from, StepsBase::Image { .. }),
        BuildSource::Archive { .. } | BuildSource::Checkpoint { .. } | BuildSource::Sandbox { .. } => false,
    };
    if !asks {
        registries.credentials.clear();
    }
    registries
}

/// The version that was made, if guests can be told what its image says.
fn version(order: &StartBuild, key: String, made: Made, disks: &Disks) -> Result<TemplateVersion, Stop> {
    let start = order.start.clone().or_else(|| disks.base_defaults().start);
    if !link::envs_fit(&Envs::new(), &made.settings, start.as_ref()) {
        return Err(failed("source_refused", "The image's variables and the start command have more than 60 KiB"));
    }
    let mut images = disks.base().map(|base| base.version.images.clone()).unwrap_or_default();
    images.extend(made.images);
    // However many versions were made of each other.
    let images = images.into_iter().take(MAX_IMAGES).collect();
    Ok(TemplateVersion {
        id: order.id.to_string(),
        slug: order.slug.clone(),
        digest: String::new(),
        key: Some(key),
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
pub(super) fn ended(event: MachineEvent) -> Result<(), Stop> {
    let reason = match event {
        MachineEvent::Ended(ended) => format!("its monitor ended: {ended:?}"),
        MachineEvent::OutOfControl => "its monitor does not answer".to_owned(),
        MachineEvent::Guest(GuestMessage::Failed { message }) => sanitize(&message),
        // The machine stands still, as all that write do until there is room: what it has written is room.
        MachineEvent::Disk(DiskEvent::Full(_)) => {
            return Err(failed("host_failed", "The host has no room for what the build writes; try again later"));
        }
        MachineEvent::Guest(_) | MachineEvent::LinkOpened | MachineEvent::Disk(_) => return Ok(()),
    };
    Err(broke_down(&reason))
}

fn broke_down(why: &str) -> Stop {
    failed("host_failed", format!("The builder's machine broke down ({why}); build it again"))
}
