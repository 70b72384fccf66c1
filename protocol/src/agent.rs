//! What the API process asks of the agent of one host: HTTP/1.1 with JSON bodies over a Unix socket.
//!
//! | request | body | response |
//! |---|---|---|
//! | `POST /sandboxes` | [`CreateSandbox`] | 201 [`CreatedSandbox`] once the guest serves its data plane |
//! | `GET /sandboxes` | | [`SandboxList`] |
//! | `GET /sandboxes/changes?after` | | [`Revision`], once it is another than `after`, or after a while |
//! | `GET /sandboxes/{id}` | | [`Sandbox`] |
//! | `PATCH /sandboxes/{id}` | [`UpdateSandbox`] | [`Sandbox`] |
//! | `DELETE /sandboxes/{id}` | | 204 once no process, file or mount of it is left |
//! | `POST /sandboxes/{id}/session` | | [`Session`] |
//! | `GET /sandboxes/{id}/tokens` | | [`LastingTokens`], in any state |
//! | `POST /revocations` | [`Revocations`] | 204 once the sessions of these keys open nothing |
//! | `PUT /allowances` | [`Allowances`] | 204 once starts of these teams' sandboxes, wakes too, obey them for good |
//! | `PUT /plans` | [`PlanSizes`] | 204; for these the agent makes snapshots ahead, until it ends |
//! | `POST /sandboxes/{id}/pause` | [`PauseSandbox`], or nothing | [`Sandbox`], `stopped`; also when it was already |
//! | `POST /sandboxes/{id}/resume` | [`ResumeSandbox`] | [`CreatedSandbox`], `ready`; also when it was already |
//! | `POST /sandboxes/{id}/fork` | [`ForkSandbox`] | 201 [`ForkedSandboxes`], all or none |
//! | `POST /sandboxes/{id}/checkpoints` | [`CreateCheckpoint`] | 201 [`Checkpoint`], durable |
//! | `GET /checkpoints` | | [`CheckpointList`] |
//! | `GET /checkpoints/{id}` | | [`Checkpoint`] |
//! | `DELETE /checkpoints/{id}` | | 204; sandboxes made from it go on |
//! | `GET /sandboxes/{id}/ports/{port}` | | [`PortRecord`] |
//! | `PUT /sandboxes/{id}/ports/{port}` | [`ExposedPort`] | [`PortRecord`] |
//! | `DELETE /sandboxes/{id}/ports/{port}` | | 204 |
//! | `PUT /sandboxes/{id}/network` | [`Network`] | [`Network`], enforced; of a sandbox that is stopped, written down |
//! | `GET /sandboxes/{id}/network/denied` | | [`DeniedPage`] |
//! | `GET /sandboxes/{id}/usage` | | [`Usage`], asked of the guest now |
//! | `GET /sandboxes/{id}/metrics?start&end` | | [`Metrics`] of these seconds since 1970, both included; all without them |
//! | `GET /sandboxes/{id}/logs?…` | [`LogQuery`] | [`LogPage`]; the last entries are there for a while after the sandbox is gone |
//! | `GET /templates` | | [`TemplateList`] |
//! | `POST /templates` | [`ImportTemplate`] | 201 [`TemplateVersion`], 200 when this artifact is already here |
//! | `/builds…`, `/uploads…`, `DELETE /templates/{id}` | | see [`template`](crate::template) |
//! | `GET`, `PUT`, `DELETE /volumes…` | | see [`volume`](crate::volume) |
//! | `/intervals…` | | see [`interval`](crate::interval) |
//! | `GET /egress-profiles` | | [`EgressProfiles`] |
//! | `POST /network/explain` | [`ExplainNetwork`] | [`NetworkExplanation`] |
//! | `GET /host` | | [`HostInfo`] |
//! | `GET /metrics` | | Prometheus text |
//! | `GET /healthz` | | 200 |
//!
//! A request whose response holds a [`Session`] names in [`SESSION_KEY`] the API key that it is for.
//!
//! Errors: [`ErrorBody`] with 400 `invalid_request`, 403 [`TEAM_DISABLED`] (nothing of the team may start, as its
//! [`Allowance`] says), 404 `not_found`, 409 `conflict` or `invalid_state`, 422 [`QUOTA_EXCEEDED`] (the team's sandboxes hold
//! what its [`Allowance`] says), 500 `internal`, 502 `guest_failed` (the guest did not start, or could not be frozen; the
//! message says why), 503 `capacity_unavailable`. A pause or a checkpoint that fails leaves the sandbox running.

use std::collections::BTreeMap;

use crate::guest::OutputStream;
use crate::ids::{CheckpointId, SandboxId, TeamId};
use crate::template::{ImageSettings, StartCommand};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::allowance::{Allowance, Allowances, Amounts, PlanSizes};
pub use crate::volume::VolumeMount;

/// Code of an error: see above.
pub const QUOTA_EXCEEDED: &str = "quota_exceeded";
/// Code of an error: see above.
pub const TEAM_DISABLED: &str = "team_disabled";

/// Header with the id of the API key that a session is for; without it the session is nobody's, and is not revoked.
pub const SESSION_KEY: &str = "sandpiper-session-key";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One of the codes above.
    pub code: String,
    /// For a person: what is wrong and what to do.
    pub message: String,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    Creating,
    Ready,
    Checkpointing,
    Stopping,
    /// Holds no runtime capacity. With its memory; or, with [`Sandbox::error`], of its disk alone, because its machine ended
    /// without being asked to. Such a one goes at its deadline, as if it still ran.
    Stopped,
    Restoring,
    /// Of earlier agents: ended without being asked to, and nothing is left but [`Sandbox::error`].
    Failed,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    #[default]
    Kill,
    Pause,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Lifecycle {
    pub on_timeout: OnTimeout,
    pub auto_resume: bool,
    /// Whether a pause at the deadline keeps the memory; otherwise it keeps the disk alone, from which the sandbox boots when it
    /// goes on. Left out where it does: agents of earlier versions know only that.
    #[serde(skip_serializing_if = "is_true")]
    pub pause_memory: bool,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self { on_timeout: OnTimeout::default(), auto_resume: false, pause_memory: true }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_true(value: &bool) -> bool {
    *value
}

/// A TCP port of the guest's 127.0.0.1 that has a preview URL.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExposedPort {
    pub port: u16,
    pub protocol: PortProtocol,
    /// False: requests need the sandbox's access token.
    pub public: bool,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum PortProtocol {
    #[default]
    Http,
}

/// How the ports of a sandbox are reached, besides those that it exposes one by one.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Previews {
    /// Every port has a preview. It is public, or, without [`CreateSandbox::allow_public_traffic`], for those with a token: the
    /// access token, or the one that is for ports alone ([`LastingTokens::traffic_token`]).
    pub all_ports: bool,
    /// What the guest's servers read as `Host`, where `${PORT}` stands for the port; without it, what the client asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_host: Option<String>,
}

/// What a sandbox may reach, and which of its policies that is.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Network {
    /// Grows with every change. An older policy than the sandbox has is ignored; the response tells the one that holds.
    pub version: u64,
    pub policy: NetworkPolicy,
}

/// What a sandbox may reach. `allow_out` beats `deny_out`, both beat the profiles, and those beat
/// `allow_internet_access`; what protects the platform beats them all. The crate `sandpiper-policy` says what entries mean.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkPolicy {
    pub allow_internet_access: bool,
    /// As the profile `package-registries`; nothing where there is none.
    pub allow_package_registry_access: bool,
    /// `host`, `*.host`, an address, or a CIDR, each with an optional `:port`.
    pub allow_out: Vec<String>,
    pub deny_out: Vec<String>,
    /// Names of the operator's lists of entries that may be reached.
    pub egress_profiles: Vec<String>,
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self {
            allow_internet_access: true,
            allow_package_registry_access: false,
            allow_out: Vec::new(),
            deny_out: Vec::new(),
            egress_profiles: Vec::new(),
        }
    }
}

/// What a sandbox was kept from reaching, newest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeniedPage {
    /// Packets and requests that were refused since the sandbox started, also those of which `entries` does not tell.
    pub total: u64,
    pub entries: Vec<Denied>,
}

/// Attempts to reach one destination.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Denied {
    /// Of the last attempt.
    pub time: Timestamp,
    /// `tcp`, `udp`, `icmp`, `dns` (a name was not resolved), `http` or `tls` (a request's `Host`, or a server name), or
    /// another protocol's number.
    pub protocol: String,
    /// An address, or a name.
    pub host: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What in the policy denied it, in words.
    pub rule: String,
    /// Packets or requests.
    pub count: u64,
}

/// Names of the profiles that this host has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EgressProfiles {
    pub profiles: Vec<String>,
}

/// What a policy would mean for destinations.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExplainNetwork {
    pub policy: NetworkPolicy,
    /// `tcp:HOST:PORT`, `udp:HOST:PORT` or `icmp:HOST`.
    pub destinations: Vec<String>,
}

/// What this host would do, for each destination in the order of the request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NetworkExplanation {
    pub decisions: Vec<NetworkDecision>,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct NetworkDecision {
    pub is_allowed: bool,
    /// What in the policy decided, in words.
    pub rule: String,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct CreateSandbox {
    /// Chosen by the API process (`sbx…`), so that a lost response can be asked for again.
    pub id: SandboxId,
    /// Ignored with `checkpoint`, whose sandbox's version it is.
    pub template_version: String,
    /// A checkpoint to start from (`ckp…`). One with memory goes on with its processes and has the CPU, memory and disk
    /// size that it was taken with; one without has its disk size at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointId>,
    pub cpu: u32,
    pub memory_mb: u32,
    pub disk_gib: u32,
    pub timeout_seconds: u64,
    pub lifecycle: Lifecycle,
    pub envs: BTreeMap<String, String>,
    pub exposed_ports: Vec<ExposedPort>,
    /// False closes every public preview port: all need the access token.
    pub allow_public_traffic: bool,
    #[serde(default)]
    pub previews: Previews,
    #[serde(default)]
    pub network: Network,
    /// At most [`MOST_MOUNTS`](crate::volume::MOST_MOUNTS); none is attached to another sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    /// What its processes write to stdout and stderr becomes entries of its log.
    #[serde(default)]
    pub capture_output: bool,
    /// Of the team that the sandbox is counted with; without it the sandbox is nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowance: Option<Allowance>,
}

/// `envs` are a tenant's secrets: their names and values are not printed.
impl std::fmt::Debug for CreateSandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateSandbox")
            .field("id", &self.id)
            .field("template_version", &self.template_version)
            .field("cpu", &self.cpu)
            .field("memory_mb", &self.memory_mb)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CreatedSandbox {
    pub sandbox: Sandbox,
    pub session: Session,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxList {
    pub sandboxes: Vec<Sandbox>,
    /// Ids of sandboxes that exist, and whose records nobody can read: they are to be left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

/// Changes whenever something does that [`SandboxList`] shows, but for what disks hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    pub revision: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sandbox {
    pub id: SandboxId,
    pub state: SandboxState,
    pub template_version: String,
    pub cpu: u32,
    pub memory_mb: u32,
    pub disk_gib: u32,
    pub timeout_seconds: u64,
    pub deadline: Timestamp,
    pub lifecycle: Lifecycle,
    pub exposed_ports: Vec<ExposedPort>,
    pub allow_public_traffic: bool,
    #[serde(default)]
    pub previews: Previews,
    /// Of the policy that is written down: see [`Network::version`]. The policy itself may be large.
    #[serde(default)]
    pub network_version: u64,
    /// Attached while it is live; of a stopped one, what its next start attaches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    /// As [`CreateSandbox::capture_output`].
    #[serde(default)]
    pub capture_output: bool,
    pub data_plane_url: String,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub stopped_at: Option<Timestamp>,
    pub error: Option<SandboxError>,
    pub timings: StartTimings,
    /// How the last start went: from a snapshot, or by booting.
    #[serde(default)]
    pub start: StartKind,
    /// It was started from a bare snapshot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_bare: bool,
    /// Bytes of this host's disk that are the sandbox's own; of a file that it shares with forks or checkpoints its share.
    #[serde(default)]
    pub retained_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum StartKind {
    /// From its disk: the kernel was booted, or, where [`Sandbox::is_bare`], a guest entered it that had booted already.
    #[default]
    Cold,
    /// From the template's warm snapshot.
    Warm,
    /// The same, restored ahead.
    Parked,
    /// From a snapshot of this sandbox, of another, or from a checkpoint.
    Restored,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct SandboxError {
    /// `guest_powered_off`, `guest_reset`, `guest_panicked`, `guest_failed`, `monitor_failed`, `forbidden_system_call`,
    /// `host_restarted`, `resume_failed`.
    pub code: String,
    pub message: String,
}

/// How long the last start took, microseconds, each measured from the moment a monitor was asked for; 0 for a step not
/// reached.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct StartTimings {
    pub first_instruction_us: u64,
    pub guest_init_us: u64,
    pub data_plane_ready_us: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct UpdateSandbox {
    /// Seconds from now.
    #[serde(default)]
    pub timeout_seconds: Option<u64>,
    #[serde(default)]
    pub lifecycle: Option<Lifecycle>,
    /// See [`CreateSandbox::allow_public_traffic`].
    #[serde(default)]
    pub allow_public_traffic: Option<bool>,
    /// See [`CreateSandbox::capture_output`]; of a sandbox that runs, from now on. Left out where nothing is said: agents of
    /// earlier versions do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture_output: Option<bool>,
}

/// What is kept of a sandbox that is paused.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseSandbox {
    /// Of its disk alone: it boots when it goes on.
    #[serde(default)]
    pub disk_only: bool,
    /// Files on a volume that are open do not keep it from being paused: whoever has them open reads and writes errors from
    /// then on. Without it the pause is refused with `volume_busy`.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeSandbox {
    /// Seconds from the moment it is ready; without it the sandbox's own time-out. A deadline is never brought forward.
    #[serde(default)]
    pub timeout_seconds: Option<u64>,
    /// A stopped sandbox boots from its disk, and its memory is forgotten for good.
    #[serde(default)]
    pub disk_only: bool,
    /// Of its team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowance: Option<Allowance>,
}

/// New sandboxes that go on from where this one is, which goes on too (or stays stopped).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkSandbox {
    /// Chosen by the API process, 1 to 20.
    pub ids: Vec<SandboxId>,
    /// Seconds from the moment each is ready; without it the time-out of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Of the team of all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowance: Option<Allowance>,
    /// As in [`CreateCheckpoint::force`].
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForkedSandboxes {
    pub sandboxes: Vec<CreatedSandbox>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateCheckpoint {
    /// Chosen by the API process (`ckp…`).
    pub id: CheckpointId,
    /// With the processes as they run, not the disk alone.
    pub memory: bool,
    /// With memory: files on a volume that are open do not keep it from being taken. Whoever has them open reads and writes
    /// errors from then on, as with [`PauseSandbox::force`].
    #[serde(default)]
    pub force: bool,
}

/// A sandbox as it was, from which new ones can be started.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Checkpoint {
    pub id: CheckpointId,
    /// The sandbox that it was taken of; it may be gone.
    pub sandbox: SandboxId,
    pub template_version: String,
    pub memory: bool,
    pub cpu: u32,
    pub memory_mb: u32,
    pub disk_gib: u32,
    pub created_at: Timestamp,
    /// As [`Sandbox::retained_bytes`].
    pub retained_bytes: u64,
    /// How long the sandbox stood still for it.
    pub stopped_us: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckpointList {
    pub checkpoints: Vec<Checkpoint>,
}

/// A credential for one sandbox's data plane. Never stored, never logged.
#[derive(Clone, Serialize, Deserialize)]
pub struct Session {
    pub data_plane_url: String,
    pub access_token: String,
    pub expires_at: Timestamp,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("data_plane_url", &self.data_plane_url).finish_non_exhaustive()
    }
}

/// Credentials that are the same for as long as the sandbox is there, through pauses too, and end with it; or all at once when
/// the operator has the host make a new session key. Never stored by the API process, never logged.
#[derive(Clone, Serialize, Deserialize)]
pub struct LastingTokens {
    /// Opens the data plane, and every port.
    pub access_token: String,
    /// Opens every port, and nothing else.
    pub traffic_token: String,
}

impl std::fmt::Debug for LastingTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastingTokens").finish_non_exhaustive()
    }
}

/// Ids of API keys that are revoked. They may be sent again; what is left out stays revoked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Revocations {
    pub keys: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct PortRecord {
    pub port: u16,
    pub host: String,
    pub url: String,
    pub protocol: PortProtocol,
    pub public: bool,
    pub status: PortStatus,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum PortStatus {
    /// Something in the guest accepts connections.
    Open,
    Closed,
    /// The guest could not be asked.
    Unknown,
}

/// What a machine has and uses, as its guest says: the response to `GET /metrics` on its data plane. Sizes are in bytes.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct Usage {
    /// Seconds since 1970.
    pub ts: i64,
    pub cpu_count: u32,
    /// Of all CPUs together: 100 is all of them.
    pub cpu_used_pct: f64,
    pub mem_used: u64,
    pub mem_total: u64,
    /// Of the memory that is not used, what holds files.
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

/// What a sandbox's machine took of the host over time: the agent keeps a day of it. Oldest first.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Metrics {
    /// From one point to the next while the machine runs. Each is the mean of what was measured within.
    pub step_seconds: u32,
    pub points: Vec<MetricPoint>,
}

/// What a machine took of the host until one moment.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct MetricPoint {
    pub time: Timestamp,
    /// Thousandths of one CPU.
    pub cpu_millis: u64,
    /// What the guest has ever touched and the host holds for it, and the monitor's own.
    pub memory_bytes: u64,
    /// What its disk holds, its template's part included.
    pub disk_bytes: u64,
    /// As the guest sees it; 0 on a host whose sandboxes have no network.
    pub received_bytes_per_second: u64,
    pub sent_bytes_per_second: u64,
}

impl MetricPoint {
    /// How much of all `cpus` of the machine: 100 is all of them.
    pub fn cpu_used_pct(&self, cpus: u32) -> f64 {
        // A million CPUs at most, so that no digit is lost.
        let millis = u32::try_from(self.cpu_millis).unwrap_or(u32::MAX);
        f64::from(millis) / 10.0 / f64::from(cpus.max(1))
    }
}

/// Entries of a page of a log at most.
pub const MAX_LOG_ENTRIES: usize = 1000;

/// Which entries of a sandbox's log are wanted; those that all of it selects.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct LogQuery {
    /// Only those that follow the entry with this sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Only those before the entry with this sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Milliseconds since 1970 of the first that is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<i64>,
    /// Milliseconds since 1970 of the last that is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
    /// Only those whose message has this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<String>,
    /// Only those of this source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<LogSource>,
    /// Newest first, instead of oldest first.
    pub newest_first: bool,
    /// [`MAX_LOG_ENTRIES`] without it, and at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Entries of a sandbox's log, in the order of the query.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LogPage {
    pub entries: Vec<LogEntry>,
    /// Whether the query selects more than these.
    pub has_more: bool,
    /// Sequence of the log's last entry; 0 where it has none.
    pub last: u64,
    /// Whether entries that follow `after` may be gone: a log has a size, and the oldest entries give way.
    pub is_truncated: bool,
    /// Whether the sandbox has ended, so that nothing follows.
    pub is_ended: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogEntry {
    /// Greater than that of any entry before: by one, or by more where another agent had begun to write.
    pub sequence: u64,
    pub time: Timestamp,
    pub source: LogSource,
    pub message: String,
    /// Whose line it is, of the source [`LogSource::Process`]; without it, the host says there how many lines were left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<LogProcess>,
}

/// The process that wrote a line. All of it is what the guest says.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct LogProcess {
    /// Of the process that the data plane started; the line may be that of one of its children.
    pub pid: u32,
    /// The file name of its program.
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    pub stream: OutputStream,
    /// The line was longer than the log takes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum LogSource {
    /// The agent: created, started, ended and why.
    Host,
    /// PID 1 of the guest.
    Guest,
    /// The serial port, where the operator turned it on.
    Console,
    /// Processes of the data plane, where the sandbox's [`capture_output`](Sandbox::capture_output) is on.
    Process,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TemplateList {
    pub templates: Vec<TemplateVersion>,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct TemplateVersion {
    /// `ver…`
    pub id: String,
    pub slug: String,
    /// Of the root file system image: SHA-256, hexadecimal, over its blocks that are not all zeros, their offsets, and
    /// its length. Empty of a version that was built: its layers may be shared, and are never read for it.
    pub digest: String,
    /// The name that its importer gave to the content, if any; of one that a builder made, which image it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub created_at: Timestamp,
    pub baseline: RuntimeBaseline,
    /// Whose it is; without it, everybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<TeamId>,
    /// Of its file system; a sandbox of it has that at least. 0 where any size will do.
    #[serde(default)]
    pub disk_gib: u32,
    #[serde(default, skip_serializing_if = "ImageSettings::is_empty")]
    pub settings: ImageSettings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartCommand>,
    /// What its image would start by itself, as a command for a shell; for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Digests of the images that it was built from, by reference.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
    /// As [`Sandbox::retained_bytes`].
    #[serde(default)]
    pub retained_bytes: u64,
}

/// CPU and memory of a sandbox whose request names none.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct RuntimeBaseline {
    pub cpu: u32,
    pub memory_mb: u32,
}

/// Adds a version of a template from an image on this host. Only root reaches this socket's operations.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImportTemplate {
    pub slug: String,
    /// Absolute path of an ext4 image, copied (holes kept).
    pub image: String,
    /// A name for the image's content that the caller vouches for, such as the key of its build, 1 to 255 bytes: where the
    /// slug has a version of this key, that version is the result and the image is not read.
    #[serde(default)]
    pub key: Option<String>,
    pub baseline: RuntimeBaseline,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostInfo {
    pub version: String,
    pub cpus: u32,
    pub memory_mb: u64,
    pub memory_available_mb: u64,
    pub sandboxes_live: u32,
    pub sandboxes_max: u32,
    /// Most that one sandbox may have.
    pub vcpus_max: u32,
    /// Host name under which data planes and previews are reached, without a port.
    pub data_plane_host: String,
}
