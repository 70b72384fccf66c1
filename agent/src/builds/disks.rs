//! The disks of a builder's machine beside its own: the new root, the team's cache, and the version that steps begin with.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use sandpiper_durable as durable;
use sandpiper_images::layers::{self, Layer};
use sandpiper_images::templates::{GuestDefaults, Template};
use sandpiper_machine::control::RequestError;
use sandpiper_machine::{Machine, sanitize};
use sandpiper_protocol::builder::{BASE, CACHE, OUTPUT};
use sandpiper_protocol::guest::{DAMAGED_VOLUME, GuestMessage, GuestMount, HostMessage};
use sandpiper_protocol::ids::VersionId;
use sandpiper_protocol::template::{BuildSource, StartBuild, StepsBase};
use sandpiper_protocol::vmm::{DiskConfig, DiskLimits};

use super::caches::{self, Cache, Caches};
use super::run::{Stop, failed, host_failed};
use crate::sandbox::Context;

/// How long a guest may take to make a file system, or to mount or unmount them: there may be a long journal, or much to write.
const GUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// The new root, in the machine's folder.
pub(super) const OUTPUT_LAYER: &str = "output.layer";
/// What is written to the disk of [`BASE`], by the kernel that mounts it: thrown away.
const SCRATCH_LAYER: &str = "base.layer";

const OUTPUT_SLOT: u8 = 0;
const CACHE_SLOT: u8 = 1;
const BASE_SLOT: u8 = 2;

/// The disks, each with its files, bottom first.
pub(super) struct Disks {
    output: File,
    cache: Cache,
    base: Option<Base>,
}

/// The version that steps begin with.
struct Base {
    version: Template,
    layers: Vec<File>,
    size: u64,
}

impl Disks {
    /// Makes and opens the files of the disks for a machine whose folder is there. Blocks.
    pub(super) fn open(context: &Context, caches: &Caches, order: &StartBuild, folder: &Path) -> Result<Self, Stop> {
        let size = layers::disk_size(order.disk_gib);
        let output = layers::create(&folder.join(OUTPUT_LAYER), size);
        let output = output.map_err(|error| host_failed("make the new disk", &error))?;
        let cache = caches.of(&order.team).map_err(|error| host_failed("open the team's build cache", &error))?;
        let base = match &order.source {
            BuildSource::Steps(steps) => match &steps.from {
                StepsBase::Version { version } => Some(Base::open(context, version, folder)?),
                StepsBase::Image { .. } => None,
            },
            _ => None,
        };
        Ok(Self { output, cache, base })
    }

    /// How much of the cache is to be used: its file system needs room for itself, and a build for what it adds.
    pub(super) fn cache_bytes(&self) -> u64 {
        self.cache.size / 4 * 3
    }

    /// The version that steps begin with.
    pub(super) fn base(&self) -> Option<&Template> {
        self.base.as_ref().map(|base| &base.version)
    }

    pub(super) fn base_defaults(&self) -> GuestDefaults {
        self.base().map(Template::defaults).unwrap_or_default()
    }

    /// Whether earlier builds of the team have left anything.
    pub(super) fn has_cache(&self) -> bool {
        !self.cache.is_new
    }

    /// Gives the cache to a machine whose guest is ready, and has it mounted.
    pub(super) async fn attach_cache(&self, machine: &mut Machine, limits: DiskLimits) -> Result<(), Stop> {
        let cache = &self.cache;
        attach(machine, CACHE_SLOT, "cache", cache.size, std::slice::from_ref(&cache.file), limits).await?;
        let paths = cache.paths();
        if cache.is_new {
            format(machine, CACHE_SLOT).await?;
            let kept = paths.clone();
            let kept = durable::blocking(move || caches::keep(&kept)).await;
            kept.map_err(|error| host_failed("keep the team's build cache", &error))?;
        }
        match mount(machine, vec![(CACHE_SLOT, CACHE)]).await {
            Err(NotMounted::Refused(message)) if message.starts_with(DAMAGED_VOLUME) && !cache.is_new => {
                let discarded = durable::blocking(move || caches::discard(&paths.1)).await;
                discarded.map_err(|error| host_failed("remove a damaged build cache", &error))?;
                Err(failed("host_failed", "The team's build cache could not be used and was removed; build it again"))
            }
            mounted => Ok(mounted?),
        }
    }

    /// Gives the machine what a build is made of and written to, and has it mounted.
    pub(super) async fn attach_others(&self, machine: &mut Machine, limits: DiskLimits) -> Result<(), Stop> {
        let output = self.output.metadata().map(|metadata| metadata.len()).unwrap_or_default();
        attach(machine, OUTPUT_SLOT, "output", output, std::slice::from_ref(&self.output), limits).await?;
        format(machine, OUTPUT_SLOT).await?;
        let mut mounts = vec![(OUTPUT_SLOT, OUTPUT)];
        if let Some(base) = &self.base {
            attach(machine, BASE_SLOT, "base", base.size, &base.layers, limits).await?;
            mounts.push((BASE_SLOT, BASE));
        }
        Ok(mount(machine, mounts).await?)
    }
}

impl Base {
    /// With a layer of its own on top: a disk that was written down while its machine ran has a journal to be replayed.
    fn open(context: &Context, version: &VersionId, folder: &Path) -> Result<Self, Stop> {
        let gone = || failed("source_refused", format!("The version {version} is not on this host"));
        context.templates.find(version).ok_or_else(gone)?;
        // While its files are opened: then it may be deleted, and is read on.
        let (template, _pin) = context.templates.pin(version).ok_or_else(gone)?;
        let unreadable = |error: &dyn std::error::Error| host_failed("open the version's disk", error);
        let gib = template.least_disk_gib().map_err(|error| unreadable(&error))?;
        let open = || {
            let mut files = layers::open_disk(&template.disk, &template.folder, gib)?;
            files.push(layers::create(&folder.join(SCRATCH_LAYER), layers::disk_size(gib))?);
            Ok::<_, layers::LayerError>(files)
        };
        let layers = open().map_err(|error| unreadable(&error))?;
        Ok(Self { version: template, layers, size: layers::disk_size(gib) })
    }
}

/// Why a guest has not mounted a disk.
enum NotMounted {
    /// In its own words.
    Refused(String),
    Stop(Stop),
}

impl From<NotMounted> for Stop {
    fn from(reason: NotMounted) -> Self {
        match reason {
            NotMounted::Refused(message) => {
                failed("host_failed", format!("The builder cannot mount its disks: {}", sanitize(&message)))
            }
            NotMounted::Stop(stop) => stop,
        }
    }
}

/// Has the guest mount disks, each by its slot and where it is to be.
async fn mount(machine: &mut Machine, disks: Vec<(u8, &str)>) -> Result<(), NotMounted> {
    let mounts = disks.into_iter().map(|(slot, path)| GuestMount { slot, path: path.to_owned() }).collect();
    let is_answer = |message: &GuestMessage| matches!(message, GuestMessage::Mounted | GuestMessage::NotMounted { .. });
    match machine.ask(HostMessage::Mount { mounts }, is_answer, GUEST_TIMEOUT, drop).await {
        Ok(GuestMessage::NotMounted { message }) => Err(NotMounted::Refused(message)),
        Ok(_) => Ok(()),
        Err(error) => Err(NotMounted::Stop(host_failed("have the builder mount its disks", &error))),
    }
}

/// Has the guest write down and unmount everything.
pub(super) async fn unmount(machine: &mut Machine) -> Result<(), Stop> {
    let is_answer =
        |message: &GuestMessage| matches!(message, GuestMessage::Unmounted { .. } | GuestMessage::NotUnmounted { .. });
    match machine.ask(HostMessage::Unmount { force: true }, is_answer, GUEST_TIMEOUT, drop).await {
        Ok(GuestMessage::NotUnmounted { message }) => {
            Err(failed("host_failed", format!("The builder cannot unmount its disks: {}", sanitize(&message))))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(host_failed("have the builder unmount its disks", &error)),
    }
}

async fn attach(
    machine: &mut Machine,
    slot: u8,
    serial: &str,
    size: u64,
    layers: &[File],
    limits: DiskLimits,
) -> Result<(), Stop> {
    let count = u32::try_from(layers.len()).unwrap_or(u32::MAX);
    let config = DiskConfig { serial: serial.to_owned(), size, layers: count, read_only: false };
    let fds: Vec<_> = layers.iter().map(AsFd::as_fd).collect();
    let attached: Result<(), RequestError> = machine.attach_disk(slot, config, limits, &fds).await;
    attached.map_err(|error| host_failed("attach a disk to the builder", &error))
}

async fn format(machine: &mut Machine, slot: u8) -> Result<(), Stop> {
    let is_answer =
        |message: &GuestMessage| matches!(message, GuestMessage::Formatted | GuestMessage::NotFormatted { .. });
    match machine.ask(HostMessage::Format { slot }, is_answer, GUEST_TIMEOUT, drop).await {
        Ok(GuestMessage::NotFormatted { message }) => {
            Err(failed("host_failed", format!("The builder cannot make a file system: {}", sanitize(&message))))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(host_failed("have the builder make a file system", &error)),
    }
}

/// The layers of the version that was made, for a folder into which its file was linked.
pub(super) fn of_version() -> Vec<Layer> {
    vec![Layer::own("disk-0.layer".to_owned())]
}

/// Links what was made into the folder of the version's draft. Blocks.
pub(super) fn link_output(from: &Path, draft: &Path) -> Result<(), layers::LayerError> {
    of_version().iter().try_for_each(|layer| layers::link(&from.join(OUTPUT_LAYER), &draft.join(&layer.name)))
}
