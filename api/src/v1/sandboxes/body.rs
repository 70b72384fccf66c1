//! A sandbox, its session and their parts as JSON.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandpiper_protocol::agent;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::store::sandbox_row::{SandboxRow, State};
use crate::store::teams::Team;

/// A sandbox.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Sandbox)]
pub struct SandboxBody {
    #[schema(example = "sbx06f3kq8z2m1c9w0v5t7b4a")]
    pub id: String,
    /// Slug of the team that owns it.
    pub team: String,
    /// Slug of the template it started from.
    pub template: String,
    /// Id of the version it started from.
    pub template_version: String,
    pub state: StateBody,
    /// Seconds from the start to the deadline.
    pub timeout: u64,
    /// When the lifecycle policy applies; null while the sandbox is stopped, unless it ended by itself and is to be removed
    /// then.
    pub deadline: Option<Timestamp>,
    pub lifecycle: LifecycleBody,
    /// Absolute path in the guest to name of the volume, which the sandbox has while it is live.
    pub volume_mounts: BTreeMap<String, String>,
    pub cpu: u32,
    /// MiB.
    pub memory_mb: u32,
    /// Size of the root disk.
    pub disk_gib: u32,
    pub metadata: BTreeMap<String, String>,
    pub exposed_ports: Vec<ExposedPortBody>,
    pub network: NetworkBody,
    /// Whether what its processes write goes into its log.
    pub capture_output: bool,
    /// Base URL of files and processes, for requests with the session's token.
    pub data_plane_url: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub stopped_at: Option<Timestamp>,
    /// When it is deleted if it stays stopped; null where the team's plan keeps it, and for up to a minute after it was stopped.
    pub expires_at: Option<Timestamp>,
    /// The checkpoint that it started from, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Why it ended by itself, until it is resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SandboxErrorBody>,
}

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SandboxState)]
pub enum StateBody {
    Creating,
    Ready,
    /// A checkpoint is being taken of it; it goes on afterwards.
    Checkpointing,
    /// On the way to `stopped`.
    Stopping,
    /// Paused: it keeps its disk, memory and processes, and holds no quota. Or, with an `error`, it ended without being asked
    /// to: it keeps its disk, with everything that was flushed to it (fsync), and a resume boots it from that. A sandbox that
    /// ended so is removed at its deadline if `on_timeout` is `kill`.
    Stopped,
    /// On the way from `stopped` to `ready`.
    Restoring,
    /// It could not be started; `error` says why. It holds nothing, and goes at its deadline.
    Failed,
}

/// What happens at the deadline.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = Lifecycle)]
pub struct LifecycleBody {
    pub on_timeout: OnTimeout,
    /// Whether a request to the data plane wakes a paused sandbox.
    pub auto_resume: bool,
    /// Whether the pause at the deadline keeps the memory and the processes. Otherwise it keeps the disk alone, from which the
    /// sandbox boots when it goes on.
    pub pause_memory: bool,
}

/// What happens at the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    Kill,
    Pause,
}

/// An exposed port.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = ExposedPort)]
pub struct ExposedPortBody {
    pub port: u16,
    pub protocol: PortProtocol,
    /// False: requests need the sandbox's access token.
    pub public: bool,
}

/// What is spoken on a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PortProtocol {
    #[default]
    Http,
}

/// What a sandbox may reach, and who may reach it. `allow_out` beats `deny_out`, both beat the profiles, and those beat
/// `allow_internet_access`. The host itself is denied whatever is said here, and so are private and other protected ranges,
/// but for those that the operator opened: they are as the Internet.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Network)]
pub struct NetworkBody {
    pub allow_internet_access: bool,
    pub allow_package_registry_access: bool,
    /// False closes every public preview: all need the access token.
    pub allow_public_traffic: bool,
    pub allow_out: Vec<String>,
    pub deny_out: Vec<String>,
    pub egress_profiles: Vec<String>,
    pub apply_status: ApplyStatus,
    /// Why it is pending, where the host said why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apply_error: Option<String>,
}

/// Whether the host has the policy already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApplyStatus {
    /// It holds.
    Applied,
    /// Until the host has it, the one before holds.
    Pending,
}

impl From<&SandboxRow> for NetworkBody {
    fn from(row: &SandboxRow) -> Self {
        let policy = row.policy.clone();
        Self {
            allow_internet_access: policy.allow_internet_access,
            allow_package_registry_access: policy.allow_package_registry_access,
            allow_public_traffic: row.allow_public_traffic,
            allow_out: policy.allow_out,
            deny_out: policy.deny_out,
            egress_profiles: policy.egress_profiles,
            apply_status: if row.network.is_pending() { ApplyStatus::Pending } else { ApplyStatus::Applied },
            apply_error: row.network.error.clone(),
        }
    }
}

/// Why a sandbox ended by itself.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = SandboxError)]
pub struct SandboxErrorBody {
    #[schema(example = "guest_panicked")]
    pub code: String,
    pub message: String,
}

impl From<agent::SandboxError> for SandboxErrorBody {
    fn from(error: agent::SandboxError) -> Self {
        Self { code: error.code, message: error.message }
    }
}

/// A short-lived way into a sandbox's data plane.
#[derive(Clone, Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionBody {
    pub data_plane_url: String,
    /// For `Authorization: Bearer <access_token>` on the data plane, and on previews that are not public.
    pub access_token: String,
    pub expires_at: Timestamp,
}

/// The token is a secret: it is not printed.
impl std::fmt::Debug for SessionBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionBody").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

impl SandboxBody {
    /// `row`, a sandbox of `team`.
    pub fn new(team: &Team, row: SandboxRow) -> Self {
        let network = NetworkBody::from(&row);
        let deadline = row.effective_deadline();
        Self {
            id: row.id,
            team: team.slug.clone(),
            template: row.template,
            template_version: row.template_version,
            state: row.state.into(),
            timeout: row.timeout_seconds,
            deadline,
            lifecycle: LifecycleBody {
                on_timeout: row.lifecycle.on_timeout.into(),
                auto_resume: row.lifecycle.auto_resume,
                pause_memory: row.lifecycle.pause_memory,
            },
            volume_mounts: row.volume_mounts.into_iter().map(|mount| (mount.path, mount.name)).collect(),
            cpu: row.cpu,
            memory_mb: row.memory_mb,
            disk_gib: row.disk_gib,
            metadata: row.metadata,
            exposed_ports: row.exposed_ports.into_iter().map(ExposedPortBody::from).collect(),
            network,
            capture_output: row.capture_output,
            data_plane_url: row.data_plane_url,
            created_at: row.created_at,
            started_at: row.started_at,
            stopped_at: row.stopped_at,
            expires_at: row.expires_at.filter(|_| row.state == State::Stopped),
            snapshot_id: row.snapshot_id,
            error: row.error.map(SandboxErrorBody::from),
        }
    }
}

impl From<State> for StateBody {
    fn from(state: State) -> Self {
        match state {
            State::Creating => StateBody::Creating,
            State::Ready => StateBody::Ready,
            State::Checkpointing => StateBody::Checkpointing,
            State::Stopping => StateBody::Stopping,
            State::Stopped => StateBody::Stopped,
            State::Restoring => StateBody::Restoring,
            // A destroyed sandbox is 404 before it gets here.
            State::Failed | State::Destroyed => StateBody::Failed,
        }
    }
}

impl From<agent::OnTimeout> for OnTimeout {
    fn from(value: agent::OnTimeout) -> Self {
        match value {
            agent::OnTimeout::Kill => OnTimeout::Kill,
            agent::OnTimeout::Pause => OnTimeout::Pause,
        }
    }
}

impl From<OnTimeout> for agent::OnTimeout {
    fn from(value: OnTimeout) -> Self {
        match value {
            OnTimeout::Kill => agent::OnTimeout::Kill,
            OnTimeout::Pause => agent::OnTimeout::Pause,
        }
    }
}

impl From<agent::PortProtocol> for PortProtocol {
    fn from(value: agent::PortProtocol) -> Self {
        match value {
            agent::PortProtocol::Http => PortProtocol::Http,
        }
    }
}

impl From<PortProtocol> for agent::PortProtocol {
    fn from(value: PortProtocol) -> Self {
        match value {
            PortProtocol::Http => agent::PortProtocol::Http,
        }
    }
}

impl From<agent::ExposedPort> for ExposedPortBody {
    fn from(port: agent::ExposedPort) -> Self {
        Self { port: port.port, protocol: port.protocol.into(), public: port.public }
    }
}

impl From<agent::Session> for SessionBody {
    fn from(session: agent::Session) -> Self {
        Self {
            data_plane_url: session.data_plane_url,
            access_token: session.access_token,
            expires_at: session.expires_at,
        }
    }
}

/// A port from a path: 1 to 65535 in plain decimal.
pub fn port_number(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain)
}
