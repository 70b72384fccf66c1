//! What is checked before a sandbox is created or changed.

use std::path::PathBuf;
use std::sync::Arc;

use sandpiper_images::snapshots::{Manifest, Pin, Recipe};
use sandpiper_images::templates::GuestDefaults;
use sandpiper_machine::link::{self, Envs};
use sandpiper_protocol::agent::{CreateSandbox, ExposedPort, Lifecycle, OnTimeout, Previews};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::ids::{CheckpointId, SandboxId};
use sandpiper_protocol::volume::{MOST_MOUNTS, VolumeMount, check_mount_path};

use crate::bare;
use crate::capacity::Full;
use crate::config::Limits;
use crate::helpers;
use crate::host;
use crate::launch::Source;
use crate::metrics::Outcome;
use crate::sandbox::{Attempt, Context, MAX_PORTS, StartError};
use crate::service::WarmOrder;
use crate::volumes::VolumeError;

/// Longest time-out: a year.
const MAX_TIMEOUT_SECONDS: u64 = 366 * 24 * 3600;
/// Longest host name that guests are told, port included.
const MAX_HOST: usize = 260;
/// Least memory that a monitor gives a machine.
const MIN_MEMORY_MB: u32 = 32;

/// Why no sandbox was created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    #[error("{0}")]
    Invalid(String),
    #[error("There is a sandbox {0} already; choose another id")]
    Exists(SandboxId),
    #[error("{0}")]
    Capacity(String),
    #[error(transparent)]
    Full(#[from] Full),
    #[error(transparent)]
    Start(#[from] StartError),
}

impl CreateError {
    /// For the metrics.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Invalid(_) | Self::Exists(_) | Self::Full(Full::Team(_) | Full::Disabled) => Outcome::Refused,
            Self::Capacity(_) | Self::Full(Full::Host(_)) => Outcome::Capacity,
            Self::Start(StartError::Volume(_)) => Outcome::Refused,
            Self::Start(StartError::Guest(_) | StartError::BadSnapshot(_)) => Outcome::Guest,
            Self::Start(StartError::Host { .. } | StartError::Disk(_)) => Outcome::Host,
            Self::Start(StartError::Deleted(_) | StartError::ShuttingDown) => Outcome::Cancelled,
        }
    }
}

/// What a checked request comes to.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What to start from: the first that works.
    pub(crate) attempts: Vec<Attempt>,
    /// The new sandbox's first.
    pub(crate) generation: u64,
    /// Slots for volumes that programs of the snapshot hold: the new sandbox's do so too.
    pub(crate) held_slots: Vec<u8>,
    /// What its guest is told of its template's version.
    pub(crate) defaults: GuestDefaults,
    /// What it starts from, in words.
    pub(crate) origin: String,
    /// Snapshots that would have been of use.
    pub(crate) wanted: Vec<WarmOrder>,
}

/// Where the files are that a new sandbox goes on from.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) folder: PathBuf,
    pub(crate) manifest: Arc<Manifest>,
    /// Of a checkpoint.
    pub(crate) pin: Option<Arc<Pin>>,
}

/// Checks a request against the protocol and the limits of this host, and finds what it starts from: `origin`, or what it
/// names itself. Sets what is not the request's to choose. Blocks for a moment.
pub(crate) fn check(
    context: &Context,
    request: &mut CreateSandbox,
    origin: Option<Origin>,
) -> Result<Plan, CreateError> {
    let origin = match (origin, &request.checkpoint) {
        (None, Some(id)) => Some(find_checkpoint(context, id)?),
        (origin, _) => origin,
    };
    if let Some(Origin { manifest, .. }) = &origin {
        let snapshot = &manifest.snapshot;
        request.template_version.clone_from(&snapshot.template_version);
        if snapshot.files.has_memory() {
            (request.cpu, request.memory_mb) = (snapshot.cpu, snapshot.memory_mb);
            request.disk_gib = snapshot.disk_gib;
        } else {
            request.disk_gib = request.disk_gib.max(snapshot.disk_gib);
        }
    }
    check_request(request, &context.config.limits).map_err(CreateError::Invalid)?;
    if let Some(mount) = request.volume_mounts.iter().find(|mount| context.volumes.store.find(&mount.volume).is_none())
    {
        return Err(StartError::Volume(VolumeError::Missing(mount.volume.clone())).into());
    }
    if context.paths.sandbox(&request.id).state.exists() {
        return Err(CreateError::Exists(request.id.clone()));
    }
    if let Some(network) = context.network() {
        let checked = network.check(&request.network.policy);
        checked.map_err(|error| CreateError::Invalid(error_chain::chain(&error)))?;
    }
    let plan = match origin {
        Some(origin) => plan_snapshot(&origin),
        None => plan_template(context, request)?,
    };
    check_size(&request.envs, &plan.defaults).map_err(CreateError::Invalid)?;
    check_disk_space(context).map_err(CreateError::from)?;
    Ok(plan)
}

/// How many GiB the disks of all sandboxes may have together. Blocks for a moment.
pub(crate) fn most_promised_gib(context: &Context) -> Result<u64, CreateError> {
    let size = host::disk_size_mb(context.paths.state());
    let size = size.map_err(|source| StartError::Host { what: "read the size of the disk", source })?;
    Ok(size.saturating_mul(context.config.limits.disk_overcommit.into()) / 1024)
}

fn find_checkpoint(context: &Context, id: &CheckpointId) -> Result<Origin, CreateError> {
    let (manifest, pin) = context.checkpoints.pin(id).ok_or_else(|| {
        CreateError::Invalid(format!(
            "checkpoint: {:?} is not on this host; GET /checkpoints lists what is",
            id.as_str()
        ))
    })?;
    Ok(Origin { folder: context.checkpoints.folder(id), manifest, pin: Some(Arc::new(pin)) })
}

/// With its processes if they were kept; from its disk where that cannot be.
fn plan_snapshot(origin: &Origin) -> Plan {
    let manifest = &origin.manifest;
    let source = |files| Source::Snapshot { folder: origin.folder.clone(), files, _pin: origin.pin.clone() };
    let files = &manifest.snapshot.files;
    let mut attempts = vec![Attempt::cold(source(files.disk_only()))];
    if files.has_memory() {
        attempts.insert(0, Attempt::restored(source(files.clone())));
    }
    Plan {
        attempts,
        generation: manifest.generation.saturating_add(1),
        held_slots: manifest.snapshot.held_slots.clone(),
        defaults: manifest.snapshot.defaults.clone(),
        origin: format!("a snapshot of {}", manifest.sandbox),
        wanted: Vec::new(),
    }
}

/// From its warm snapshot where there is one; else by booting it.
fn plan_template(context: &Context, request: &mut CreateSandbox) -> Result<Plan, CreateError> {
    let template = context.templates.find(&request.template_version);
    let pinned = template.filter(|template| !helpers::is_own(&template.version));
    let Some((template, pin)) = pinned.and_then(|template| context.templates.pin(&template.version.id)) else {
        let version = &request.template_version;
        return Err(CreateError::Invalid(format!(
            "template_version: {version:?} is not on this host; GET /templates lists what is"
        )));
    };
    request.disk_gib = request.disk_gib.max(template.version.disk_gib);
    let least = template.least_disk_gib();
    let least = least.map_err(|source| StartError::Host { what: "read the template's image", source })?;
    if least > request.disk_gib {
        return Err(CreateError::Invalid(format!(
            "disk_gib: the template needs {least} GiB, {} were asked for",
            request.disk_gib
        )));
    }
    let CreateSandbox { cpu, memory_mb, disk_gib, .. } = *request;
    let origin = template.version.slug.clone();
    let defaults = template.defaults();
    let pin = Arc::new(pin);
    let source = Source::Template { template: Box::new(template.clone()), _pin: Some(Arc::clone(&pin)) };
    let mut attempts = vec![Attempt::cold(source)];
    let mut wanted = Vec::new();
    // Without a kernel or a monitor there is no key; the boot says what is missing.
    let mut find = |recipe: Recipe| {
        let key = context.warm.key(&recipe).ok()?;
        let found = context.warm.find(&key);
        if found.is_none() {
            wanted.push(WarmOrder { key, recipe });
        }
        found
    };
    let config = context.config.warm;
    let recipe = Recipe { template: template.clone(), cpu, memory_mb, disk_gib };
    let warm = Some(recipe).filter(|_| config.enabled).and_then(&mut find);
    let quicker = warm.map(Attempt::warm).or_else(|| {
        let recipe = bare::recipe(&context.templates, cpu, memory_mb).filter(|_| config.bare);
        recipe.and_then(&mut find).map(|bare| Attempt::bare(bare, template, pin))
    });
    attempts.splice(..0, quicker);
    Ok(Plan { attempts, generation: 1, held_slots: Vec::new(), defaults, origin, wanted })
}

/// Whether there is room on the disk for something new. Blocks for a moment.
pub(crate) fn check_disk_space(context: &Context) -> Result<(), DiskSpaceError> {
    let free = host::free_disk_mb(context.paths.state()).map_err(DiskSpaceError::Read)?;
    let headroom = context.config.limits.disk_headroom_mb;
    if free < headroom { Err(DiskSpaceError::Short { free, headroom }) } else { Ok(()) }
}

/// Why nothing new is begun on the disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskSpaceError {
    #[error("Cannot read the free disk space")]
    Read(#[source] std::io::Error),
    #[error(
        "Only {free} MiB are free on this host's disk, {headroom} are kept free; delete sandboxes or checkpoints, or add \
         space"
    )]
    Short { free: u64, headroom: u64 },
}

impl From<DiskSpaceError> for CreateError {
    fn from(error: DiskSpaceError) -> Self {
        match error {
            DiskSpaceError::Read(source) => StartError::Host { what: "read the free disk space", source }.into(),
            DiskSpaceError::Short { .. } => Self::Capacity(error.to_string()),
        }
    }
}

fn check_request(request: &CreateSandbox, limits: &Limits) -> Result<(), String> {
    if !request.id.is_valid() {
        return Err(format!("id: must be `{}` and 22 characters of base32", SandboxId::PREFIX));
    }
    let ranges = [
        ("cpu", request.cpu, 1, limits.max_vcpus),
        ("memory_mb", request.memory_mb, MIN_MEMORY_MB, limits.max_memory_mb),
        ("disk_gib", request.disk_gib, 1, limits.max_disk_gib),
    ];
    for (field, value, least, most) in ranges {
        if !(least..=most).contains(&value) {
            return Err(format!("{field}: must be between {least} and {most} on this host, not {value}"));
        }
    }
    check_timeout(request.timeout_seconds)?;
    check_lifecycle(request.lifecycle)?;
    check_envs(request)?;
    check_previews(&request.previews)?;
    check_mounts(&request.volume_mounts)?;
    if request.exposed_ports.len() > MAX_PORTS {
        return Err(format!("exposed_ports: at most {MAX_PORTS}"));
    }
    for (index, port) in request.exposed_ports.iter().enumerate() {
        check_port(port)?;
        if request.exposed_ports[..index].iter().any(|other| other.port == port.port) {
            return Err(format!("exposed_ports: {} is named twice", port.port));
        }
    }
    Ok(())
}

/// Names go into an environment block, so they hold neither `=` nor NUL; values are secrets and not repeated in errors.
fn check_envs(request: &CreateSandbox) -> Result<(), String> {
    for (name, value) in &request.envs {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err("envs: names must not be empty or hold `=`, and nothing may hold a NUL".into());
        }
    }
    Ok(())
}

/// A guest is told all of it with one message.
fn check_size(envs: &Envs, defaults: &GuestDefaults) -> Result<(), String> {
    if link::envs_fit(envs, &defaults.settings, defaults.start.as_ref()) {
        return Ok(());
    }
    Err("envs: all together, with what the template says, must be less than 60 KiB".into())
}

fn check_mounts(mounts: &[VolumeMount]) -> Result<(), String> {
    if mounts.len() > MOST_MOUNTS {
        return Err(format!("volume_mounts: at most {MOST_MOUNTS}"));
    }
    for (index, mount) in mounts.iter().enumerate() {
        check_mount_path(&mount.path).map_err(|error| format!("volume_mounts: the path {:?} {error}", mount.path))?;
        if let Some(other) =
            mounts[..index].iter().find(|other| other.path == mount.path || other.volume == mount.volume)
        {
            return Err(format!("volume_mounts: {:?} and {:?} are the same path or volume", other.path, mount.path));
        }
    }
    Ok(())
}

/// The mask becomes a header field, so it has only what host names and their ports are made of.
fn check_previews(previews: &Previews) -> Result<(), String> {
    let Some(mask) = &previews.mask_host else { return Ok(()) };
    let host = mask.replace("${PORT}", "65535");
    let is_host = (1..=MAX_HOST).contains(&host.len())
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte));
    if is_host {
        return Ok(());
    }
    Err(format!("previews.mask_host: must be a host name of at most {MAX_HOST} characters, `${{PORT}}` in it or not"))
}

/// Whether a sandbox may have this time-out.
pub(crate) fn check_timeout(seconds: u64) -> Result<(), String> {
    if (1..=MAX_TIMEOUT_SECONDS).contains(&seconds) {
        return Ok(());
    }
    Err(format!("timeout_seconds: must be between 1 and {MAX_TIMEOUT_SECONDS}, not {seconds}"))
}

/// Whether it makes sense.
pub(crate) fn check_lifecycle(lifecycle: Lifecycle) -> Result<(), String> {
    if lifecycle.auto_resume && lifecycle.on_timeout == OnTimeout::Kill {
        return Err("lifecycle.auto_resume: needs `on_timeout` to be `pause`: a killed sandbox cannot go on".into());
    }
    if !lifecycle.pause_memory && lifecycle.on_timeout == OnTimeout::Kill {
        return Err("lifecycle.pause_memory: needs `on_timeout` to be `pause`: a killed sandbox keeps nothing".into());
    }
    Ok(())
}

/// Whether a port can be exposed.
pub(crate) fn check_port(port: &ExposedPort) -> Result<(), String> {
    if port.port == 0 { Err("port: must be between 1 and 65535".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::agent::{Network, PortProtocol};
    use sandpiper_protocol::ids::VolumeId;
    use sandpiper_protocol::template::ImageSettings;
    use std::collections::BTreeMap;

    fn request() -> CreateSandbox {
        CreateSandbox {
            id: SandboxId::generate(),
            template_version: "ver1".into(),
            checkpoint: None,
            cpu: 1,
            memory_mb: 256,
            disk_gib: 2,
            timeout_seconds: 300,
            lifecycle: Lifecycle::default(),
            envs: BTreeMap::new(),
            exposed_ports: Vec::new(),
            allow_public_traffic: true,
            previews: Previews::default(),
            network: Network::default(),
            volume_mounts: Vec::new(),
            capture_output: false,
            allowance: None,
        }
    }

    fn refusal(change: impl FnOnce(&mut CreateSandbox)) -> String {
        let mut request = request();
        change(&mut request);
        check_request(&request, &Limits::default()).unwrap_err()
    }

    #[test]
    fn an_ordinary_request_passes() {
        check_request(&request(), &Limits::default()).unwrap();
        let previews = Previews { all_ports: true, mask_host: Some("localhost:${PORT}".into()) };
        check_request(&CreateSandbox { previews, ..request() }, &Limits::default()).unwrap();
    }

    #[test]
    fn a_sandbox_that_is_paused_at_its_deadline_may_resume_by_itself() {
        for auto_resume in [false, true] {
            check_lifecycle(Lifecycle { on_timeout: OnTimeout::Pause, auto_resume, ..Lifecycle::default() }).unwrap();
        }
    }

    #[test]
    fn each_refusal_names_its_field() {
        let port = ExposedPort { port: 8000, protocol: PortProtocol::Http, public: true };
        assert!(refusal(|r| r.id = "sbx../../etc".into()).starts_with("id:"));
        assert!(refusal(|r| r.cpu = 0).starts_with("cpu:"));
        assert!(refusal(|r| r.memory_mb = 8).starts_with("memory_mb:"));
        assert!(refusal(|r| r.disk_gib = 100_000).starts_with("disk_gib:"));
        assert!(refusal(|r| r.timeout_seconds = 0).starts_with("timeout_seconds:"));
        assert!(refusal(|r| r.lifecycle.auto_resume = true).starts_with("lifecycle.auto_resume:"));
        assert!(refusal(|r| r.lifecycle.pause_memory = false).starts_with("lifecycle.pause_memory:"));
        assert!(refusal(|r| r.previews.mask_host = Some("a b".into())).starts_with("previews.mask_host:"));
        let mount = |path: &str| VolumeMount { volume: VolumeId::generate(), path: path.into() };
        assert!(refusal(|r| r.volume_mounts = vec![mount("/data/../etc")]).starts_with("volume_mounts:"));
        assert!(refusal(|r| r.volume_mounts = vec![mount("/a"), mount("/a")]).contains("the same path"));
        let twice = VolumeMount { path: "/b".into(), ..mount("/a") };
        assert!(
            refusal(|r| r.volume_mounts = vec![twice.clone(), VolumeMount { path: "/c".into(), ..twice }])
                .contains("the same")
        );
        assert!(
            refusal(|r| r.volume_mounts = ["/a", "/b", "/c", "/d", "/e"].map(mount).to_vec()).contains("at most 4")
        );
        assert!(refusal(|r| r.exposed_ports = vec![port, port]).contains("named twice"));
        assert!(refusal(|r| r.exposed_ports = vec![ExposedPort { port: 0, ..port }]).starts_with("port:"));
    }

    #[test]
    fn a_refused_variable_is_not_repeated() {
        let message = refusal(|r| drop(r.envs.insert("SECRET=x".into(), "hunter2".into())));
        assert!(message.starts_with("envs:") && !message.contains("hunter2") && !message.contains("SECRET"));
        let long = |bytes: usize| BTreeMap::from([("A".to_owned(), "x".repeat(bytes))]);
        let defaults =
            GuestDefaults { settings: ImageSettings { env: long(40_000), ..Default::default() }, start: None };
        check_size(&long(20_000), &defaults).unwrap();
        assert!(check_size(&long(21_500), &defaults).unwrap_err().contains("60 KiB"));
    }
}
