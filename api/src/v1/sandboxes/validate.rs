//! What a create or update request may say.
//!
//! Fields of capabilities that this host does not have yet are part of the schema and are accepted when they ask for what
//! holds anyway. Anything else of them is refused: to ignore what was asked for would be a lie.

use std::collections::{BTreeMap, BTreeSet};

use sandpiper_http::error::{ApiError, Detail};
use sandpiper_protocol::agent::{self, ExposedPort, Lifecycle};
use sandpiper_protocol::volume::{MOST_MOUNTS, check_mount_path};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::body::{OnTimeout, PortProtocol};
use crate::plan::PlanLimits;
use crate::v1::network::{NetworkRequest, NetworkWish};

/// Seconds, when a request names none.
pub const DEFAULT_TIMEOUT: u64 = 300;
const MAX_METADATA: usize = 64;
const MAX_METADATA_KEY: usize = 128;
const MAX_METADATA_VALUE: usize = 4096;
const MAX_ENVS: usize = 256;
/// Names and values together, bytes: the guest gets them in one message of 64 KiB.
const MAX_ENVS_SIZE: usize = 32 * 1024;
const MAX_PORTS: usize = 64;
const MAX_TEMPLATE: usize = 256;

/// The sandbox to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateSandbox)]
pub struct CreateRequest {
    /// Slug or id of the key's own team, which is also the default.
    pub team: Option<String>,
    /// A slug, for its latest version, or `<slug>:<version id or number>`; what matches no template is taken as a
    /// `snapshot_id`.
    #[schema(example = "base")]
    pub template: Option<String>,
    /// A checkpoint to start from, instead of a template: `ckp…`.
    pub snapshot_id: Option<String>,
    /// Seconds until the lifecycle policy applies; at most the plan's `max_timeout`.
    #[schema(minimum = 1, default = 300)]
    pub timeout: Option<u64>,
    pub lifecycle: Option<LifecycleRequest>,
    /// Shorthand: true is `lifecycle.on_timeout = pause`.
    pub auto_pause: Option<bool>,
    /// Labels to find the sandbox by. Values that are no text are turned into their JSON text.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    pub metadata: Option<BTreeMap<String, Value>>,
    /// Environment of the sandbox's processes; encrypted at rest, never shown.
    pub envs: Option<BTreeMap<String, String>>,
    /// Absolute path in the guest to name of a volume of the team: at most 4, each once, and none that another live sandbox has.
    /// They are mounted before anything runs, over what the template has there.
    #[schema(example = json!({"/data": "models"}))]
    pub volume_mounts: Option<BTreeMap<String, String>>,
    /// Whether what nothing else of the network policy decides may be reached.
    #[schema(default = true)]
    pub allow_internet_access: Option<bool>,
    /// The same as the egress profile `package-registries`; but where the operator has none of this name, it opens nothing and
    /// is no error.
    #[schema(default = false)]
    pub allow_package_registry_access: Option<bool>,
    /// False closes every public preview.
    #[schema(default = true)]
    pub allow_public_traffic: Option<bool>,
    /// What may be reached, unless it is protected: `host`, `*.host`, an address or a CIDR, each with an optional `:port`.
    /// `ReplaceNetwork` says what a policy means.
    pub allow_out: Option<Vec<String>>,
    /// What may not be reached, also where a profile has it, unless `allow_out` names it; entries as there.
    pub deny_out: Option<Vec<String>>,
    /// One profile; the same as `egress_profiles` with it.
    pub egress_profile: Option<String>,
    /// The operator's lists of what may be reached; `GET /v1/egress_profiles` names them.
    pub egress_profiles: Option<Vec<String>>,
    /// Ports that get a preview URL.
    pub exposed_ports: Option<Vec<ExposedPortRequest>>,
    /// Whether what processes write to stdout and stderr also goes into the sandbox's log: `GET /v1/sandboxes/{id}/logs`, entries of
    /// the source `process`. It may hold secrets, which everybody then can read who can read the log.
    #[schema(default = false)]
    pub capture_output: Option<bool>,
    /// One of the plan's `cpu_values`; Pro and Enterprise. A checkpoint with memory has its own.
    pub cpu: Option<u32>,
    /// MiB, within the plan's limits; Pro and Enterprise. A checkpoint with memory has its own.
    pub memory_mb: Option<u32>,
}

/// What happens at the deadline.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LifecycleRequest {
    /// `kill` by default; `pause` keeps the sandbox, stopped.
    pub on_timeout: Option<OnTimeout>,
    /// Whether a request to the data plane or a preview resumes the sandbox; only with `pause`. False by default.
    pub auto_resume: Option<bool>,
    /// Whether the pause keeps the memory; only with `pause`. True by default; false keeps the disk alone, from which the
    /// sandbox boots when it goes on.
    pub pause_memory: Option<bool>,
}

/// A port to expose.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExposedPortRequest {
    #[schema(minimum = 1)]
    pub port: u16,
    #[serde(default)]
    pub protocol: PortProtocol,
    /// Whether anybody who knows the URL may open it; otherwise requests need the sandbox's access token.
    #[serde(default)]
    pub public: bool,
}

/// What a new sandbox starts from, as the request names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// A template, or else a snapshot.
    Template(String),
    Snapshot(String),
}

/// A create request that makes sense.
#[derive(Clone)]
pub struct Create {
    pub start: Start,
    pub timeout: u64,
    pub lifecycle: Lifecycle,
    pub metadata: BTreeMap<String, String>,
    pub envs: BTreeMap<String, String>,
    pub exposed_ports: Vec<ExposedPort>,
    pub allow_public_traffic: bool,
    pub capture_output: bool,
    /// How ports are reached that it does not expose one by one.
    pub previews: agent::Previews,
    pub network: NetworkWish,
    /// Path to name of a volume, which may not be there.
    pub volume_mounts: BTreeMap<String, String>,
}

/// Checks all that can be checked without looking anything up, but CPU and memory: [`size`].
pub fn create(request: CreateRequest, limits: &PlanLimits) -> Result<Create, ApiError> {
    let mut problems = Problems::default();

    let start = problems.start(request.template, request.snapshot_id);
    let lifecycle = request.lifecycle.unwrap_or_default();
    let lifecycle = problems.lifecycle(lifecycle, request.auto_pause == Some(true), Lifecycle::default());
    let timeout = request.timeout.unwrap_or(DEFAULT_TIMEOUT.min(limits.max_timeout));
    problems.timeout(timeout, limits);
    let metadata = problems.metadata(request.metadata.unwrap_or_default());
    let envs = request.envs.unwrap_or_default();
    problems.envs(&envs);
    let exposed_ports = problems.exposed_ports(&request.exposed_ports.unwrap_or_default());

    let volume_mounts = request.volume_mounts.unwrap_or_default();
    problems.volume_mounts("volume_mounts", volume_mounts.iter().map(|(path, name)| (path.as_str(), name.as_str())));
    let network = NetworkRequest {
        allow_internet_access: request.allow_internet_access,
        allow_package_registry_access: request.allow_package_registry_access,
        allow_out: request.allow_out,
        deny_out: request.deny_out,
        egress_profile: request.egress_profile,
        egress_profiles: request.egress_profiles,
    };
    let network = network.check(&mut problems);
    problems.into_result()?;
    Ok(Create {
        start,
        timeout,
        lifecycle,
        metadata,
        envs,
        exposed_ports,
        allow_public_traffic: request.allow_public_traffic.unwrap_or(true),
        capture_output: request.capture_output.unwrap_or(false),
        previews: agent::Previews::default(),
        network,
        volume_mounts,
    })
}

/// CPU and memory: as asked where the plan allows it, else the template's.
pub fn size(
    (cpu, memory_mb): (Option<u32>, Option<u32>),
    baseline: agent::RuntimeBaseline,
    limits: &PlanLimits,
) -> Result<(u32, u32), ApiError> {
    let mut problems = Problems::default();
    if let Some(cpu) = cpu
        && !limits.cpu_values.contains(&cpu)
    {
        problems.add("cpu", format!("must be one of {:?}", limits.cpu_values));
    }
    let (min, max, step) = (limits.memory_mb_min, limits.memory_mb_max, limits.memory_mb_step);
    if let Some(memory_mb) = memory_mb
        && (!(min..=max).contains(&memory_mb) || !memory_mb.is_multiple_of(step))
    {
        problems.add("memory_mb", format!("must be a multiple of {step} from {min} to {max}"));
    }
    problems.into_result()?;
    Ok((cpu.unwrap_or(baseline.cpu), memory_mb.unwrap_or(baseline.memory_mb)))
}

/// What is wrong with a request so far: all of it is reported at once.
#[derive(Debug, Default)]
pub struct Problems(Vec<Detail>);

impl Problems {
    /// One more.
    pub fn add(&mut self, field: impl Into<String>, reason: impl Into<String>) {
        self.0.push(Detail { field: field.into(), reason: reason.into() });
    }

    /// An error if there was any.
    pub fn into_result(self) -> Result<(), ApiError> {
        if self.0.is_empty() { Ok(()) } else { Err(ApiError::invalid_fields(self.0)) }
    }

    /// A template or a snapshot, one of them.
    fn start(&mut self, template: Option<String>, snapshot_id: Option<String>) -> Start {
        match (template, snapshot_id) {
            (template, Some(snapshot_id)) => {
                if template.is_some() {
                    self.add("snapshot_id", "cannot be sent together with template: a sandbox starts from one of them");
                }
                Start::Snapshot(snapshot_id)
            }
            (None, None) => {
                self.add("template", "is required, or snapshot_id; GET /v1/templates lists templates");
                Start::Template(String::new())
            }
            (Some(template), None) => {
                if template.is_empty() || template.len() > MAX_TEMPLATE {
                    self.add("template", format!("must have 1 to {MAX_TEMPLATE} characters"));
                }
                Start::Template(template)
            }
        }
    }

    /// Checks a time-out in seconds.
    pub fn timeout(&mut self, seconds: u64, limits: &PlanLimits) {
        if seconds < 1 || seconds > limits.max_timeout {
            self.add("timeout", format!("must be from 1 to {} seconds on this plan", limits.max_timeout));
        }
    }

    /// Checks a lifecycle, with the shorthand beside it. What the request leaves out is as in `now`; but `kill` undoes
    /// what was set before and means nothing with it.
    pub fn lifecycle(&mut self, request: LifecycleRequest, auto_pause: bool, now: Lifecycle) -> Lifecycle {
        if auto_pause && request.on_timeout == Some(OnTimeout::Kill) {
            self.add("auto_pause", "contradicts lifecycle.on_timeout = kill");
        }
        let on_timeout = match request.on_timeout {
            _ if auto_pause => agent::OnTimeout::Pause,
            Some(on_timeout) => on_timeout.into(),
            None => now.on_timeout,
        };
        let pauses = on_timeout == agent::OnTimeout::Pause;
        if request.auto_resume == Some(true) && !pauses {
            self.add("lifecycle.auto_resume", "needs lifecycle.on_timeout = pause");
        }
        if request.pause_memory == Some(false) && !pauses {
            self.add("lifecycle.pause_memory", "needs lifecycle.on_timeout = pause");
        }
        Lifecycle {
            on_timeout,
            auto_resume: request.auto_resume.unwrap_or(now.auto_resume && pauses),
            pause_memory: request.pause_memory.unwrap_or(now.pause_memory || !pauses),
        }
    }

    /// Checks metadata and turns all values into text.
    pub fn metadata(&mut self, metadata: BTreeMap<String, Value>) -> BTreeMap<String, String> {
        if metadata.len() > MAX_METADATA {
            self.add("metadata", format!("must have at most {MAX_METADATA} entries"));
        }
        let text: BTreeMap<String, String> = metadata
            .into_iter()
            .map(|(key, value)| match value {
                Value::String(text) => (key, text),
                other => (key, other.to_string()),
            })
            .collect();
        for (key, value) in &text {
            if key.is_empty() || key.len() > MAX_METADATA_KEY {
                self.add("metadata", format!("must have keys of 1 to {MAX_METADATA_KEY} bytes"));
            }
            if value.len() > MAX_METADATA_VALUE {
                self.add(format!("metadata.{key}"), format!("must be at most {MAX_METADATA_VALUE} bytes"));
            }
        }
        text
    }

    /// The names may be shown in an error, the values not.
    pub fn envs(&mut self, envs: &BTreeMap<String, String>) {
        if envs.len() > MAX_ENVS {
            self.add("envs", format!("must have at most {MAX_ENVS} entries"));
        }
        if envs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_ENVS_SIZE {
            self.add("envs", format!("must be at most {MAX_ENVS_SIZE} bytes together"));
        }
        for (name, value) in envs {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                self.add("envs", format!("has an entry {name:?} that cannot be an environment variable"));
            }
        }
    }

    /// Checks where which volumes are to be mounted, as (path, name).
    pub fn volume_mounts<'m>(&mut self, field: &str, mounts: impl Iterator<Item = (&'m str, &'m str)>) {
        let (mut paths, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (path, name) in mounts {
            if let Err(reason) = check_mount_path(path) {
                self.add(field, format!("has the path {path:?}, which {reason}"));
            }
            if !paths.insert(path) {
                self.add(field, format!("has the path {path:?} twice"));
            }
            if !names.insert(name) {
                self.add(field, format!("has the volume {name:?} twice: it is mounted at one path"));
            }
        }
        if paths.len() > MOST_MOUNTS {
            self.add(field, format!("must have at most {MOST_MOUNTS} entries"));
        }
    }

    fn exposed_ports(&mut self, ports: &[ExposedPortRequest]) -> Vec<ExposedPort> {
        if ports.len() > MAX_PORTS {
            self.add("exposed_ports", format!("must have at most {MAX_PORTS} entries"));
        }
        let mut seen = BTreeSet::new();
        for (index, port) in ports.iter().enumerate() {
            if port.port == 0 {
                self.add(format!("exposed_ports[{index}].port"), "must be from 1 to 65535");
            } else if !seen.insert(port.port) {
                self.add(format!("exposed_ports[{index}].port"), "is listed twice");
            }
        }
        let exposed = |port: &ExposedPortRequest| ExposedPort {
            port: port.port,
            protocol: port.protocol.into(),
            public: port.public,
        };
        ports.iter().map(exposed).collect()
    }
}
