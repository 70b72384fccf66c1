//! A sandbox as it is stored.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use sandpiper_db::{StoreError, count, decode_bool, decode_enum, from_ms};
use sandpiper_protocol::agent::{self, ExposedPort, Lifecycle, Network, NetworkPolicy, OnTimeout, SandboxError};
use sandpiper_protocol::ids::TeamId;
use sandpiper_protocol::volume::VolumeMount;
use sqlx::Row;
use sqlx::any::AnyRow;

use super::sandbox_documents::Documents;
use super::volumes::MountRow;

/// Where a sandbox is in its life.
///
/// ```text
///                  checkpointing
///                      │ ▲
///                      ▼ │
///   creating ────────▶ ready ──deadline, pause──▶ stopping ──▶ stopped
///                        ▲                                        │
///                        └──────────── restoring ◀──resume────────┘
///
///   any of these ──DELETE, deadline──▶ destroyed
///   ready, checkpointing, stopping ──ended by itself──▶ stopped
///   creating ──not started──▶ failed ──DELETE, deadline, an hour──▶ destroyed
/// ```
///
/// What is stopped holds its disk and no runtime capacity; with an error, it ended by itself, and its disk is all there is. A
/// pause, checkpoint or resume that goes wrong leads back to where it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    Creating,
    Ready,
    Checkpointing,
    Stopping,
    Stopped,
    Restoring,
    Failed,
    Destroyed,
}

impl State {
    /// The states that hold runtime capacity and so count against the quota: what the list filter calls `running`.
    pub const LIVE: [State; 5] =
        [State::Creating, State::Ready, State::Restoring, State::Checkpointing, State::Stopping];

    /// Every state that a tenant can see.
    pub const VISIBLE: [State; 7] = [
        State::Creating,
        State::Ready,
        State::Checkpointing,
        State::Stopping,
        State::Stopped,
        State::Restoring,
        State::Failed,
    ];

    /// Its name in JSON and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Creating => "creating",
            State::Ready => "ready",
            State::Checkpointing => "checkpointing",
            State::Stopping => "stopping",
            State::Stopped => "stopped",
            State::Restoring => "restoring",
            State::Failed => "failed",
            State::Destroyed => "destroyed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for State {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let all = State::VISIBLE.into_iter().chain([State::Destroyed]);
        all.into_iter().find(|state| state.as_str() == text).ok_or(())
    }
}

impl From<agent::SandboxState> for State {
    fn from(state: agent::SandboxState) -> Self {
        match state {
            agent::SandboxState::Creating => State::Creating,
            agent::SandboxState::Ready => State::Ready,
            agent::SandboxState::Checkpointing => State::Checkpointing,
            agent::SandboxState::Stopping => State::Stopping,
            agent::SandboxState::Stopped => State::Stopped,
            agent::SandboxState::Restoring => State::Restoring,
            agent::SandboxState::Failed => State::Failed,
        }
    }
}

/// A sandbox that a request asks for.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    pub id: String,
    pub template: String,
    pub template_version: String,
    pub cpu: u32,
    pub memory_mb: u32,
    pub disk_gib: u32,
    pub timeout_seconds: u64,
    pub lifecycle: Lifecycle,
    pub metadata: BTreeMap<String, String>,
    pub exposed_ports: Vec<ExposedPort>,
    pub allow_public_traffic: bool,
    /// What its processes write becomes entries of its log.
    pub capture_output: bool,
    /// The agent gets it with the order to make the sandbox.
    pub network: Network,
    /// No volume twice.
    pub volume_mounts: Vec<VolumeMount>,
    /// Sealed; `None` without any.
    pub sealed_envs: Option<String>,
    /// The checkpoint that it starts from.
    pub snapshot_id: Option<String>,
    pub created_at: Timestamp,
}

/// How far the newest network policy of a sandbox has got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkState {
    /// Of the newest policy; grows with every change.
    pub version: u64,
    /// Of the policy that is in force, as the agent last said; 0 before it said anything, never larger than `version`.
    pub applied: u64,
    /// Why the agent does not have the newest one.
    pub error: Option<String>,
}

impl NetworkState {
    /// The columns of a row of `sandboxes`.
    pub(super) fn read(row: &AnyRow) -> Result<Self, StoreError> {
        Ok(Self {
            version: count(row.try_get("network_version")?)?,
            applied: count(row.try_get("network_applied")?)?,
            error: row.try_get("network_error")?,
        })
    }

    /// Whether the newest policy is still to be applied.
    pub fn is_pending(&self) -> bool {
        self.applied < self.version
    }

    /// Whether anything follows from the agent having this version on record: see [`super::sandbox_network`].
    fn follows(&self, recorded: u64) -> bool {
        recorded != self.applied && (self.applied == 0 || recorded < self.applied || recorded > self.version)
    }
}

/// A sandbox as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRow {
    pub id: String,
    pub team_id: TeamId,
    pub state: State,
    pub template: String,
    pub template_version: String,
    pub cpu: u32,
    pub memory_mb: u32,
    pub disk_gib: u32,
    pub timeout_seconds: u64,
    pub deadline: Option<Timestamp>,
    pub lifecycle: Lifecycle,
    pub metadata: BTreeMap<String, String>,
    pub exposed_ports: Vec<ExposedPort>,
    pub allow_public_traffic: bool,
    /// As [`NewSandbox::capture_output`].
    pub capture_output: bool,
    /// The newest, which the agent may not have yet.
    pub policy: NetworkPolicy,
    pub network: NetworkState,
    /// By path.
    pub volume_mounts: Vec<MountRow>,
    pub data_plane_url: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub stopped_at: Option<Timestamp>,
    /// When it is to be deleted because it was stopped for long, as it was announced.
    pub expires_at: Option<Timestamp>,
    pub error: Option<SandboxError>,
    /// The checkpoint that it started from.
    pub snapshot_id: Option<String>,
    /// Of the host's disk.
    pub retained_bytes: u64,
    /// The process that starts or resumes it, if that is still alive.
    pub process: Option<String>,
}

impl SandboxRow {
    /// A row as [`WITH_DOCUMENTS`](super::sandbox_documents::WITH_DOCUMENTS) selects it.
    pub(super) fn read_with_documents(row: &AnyRow) -> Result<Self, StoreError> {
        Self::read(row, Documents::read(row)?)
    }

    /// A row of `sandboxes`, with its documents.
    pub(crate) fn read(row: &AnyRow, documents: Documents) -> Result<Self, StoreError> {
        let time = |column: &str| -> Result<Option<Timestamp>, StoreError> {
            row.try_get::<Option<i64>, _>(column)?.map(from_ms).transpose()
        };
        let Documents { metadata, policy, volume_mounts } = documents;
        let ports: String = row.try_get("exposed_ports")?;
        let error_code: Option<String> = row.try_get("error_code")?;
        let error_message: Option<String> = row.try_get("error_message")?;
        Ok(Self {
            id: row.try_get("id")?,
            team_id: row.try_get::<String, _>("team_id")?.into(),
            state: decode_enum(row.try_get("state")?)?,
            template: row.try_get("template")?,
            template_version: row.try_get("template_version")?,
            cpu: count(row.try_get("cpu")?)?,
            memory_mb: count(row.try_get("memory_mb")?)?,
            disk_gib: count(row.try_get("disk_gib")?)?,
            timeout_seconds: count(row.try_get("timeout_seconds")?)?,
            deadline: time("deadline_ms")?,
            lifecycle: Lifecycle {
                on_timeout: on_timeout(row.try_get("on_timeout")?)?,
                auto_resume: decode_bool(row.try_get("auto_resume")?)?,
                pause_memory: decode_bool(row.try_get("pause_memory")?)?,
            },
            metadata,
            exposed_ports: serde_json::from_str(&ports)
                .map_err(|_| StoreError::Corrupt { what: "exposed_ports".into() })?,
            allow_public_traffic: decode_bool(row.try_get("allow_public_traffic")?)?,
            capture_output: decode_bool(row.try_get("capture_output")?)?,
            policy,
            network: NetworkState::read(row)?,
            volume_mounts,
            data_plane_url: row.try_get("data_plane_url")?,
            created_at: from_ms(row.try_get("created_at_ms")?)?,
            started_at: time("started_at_ms")?,
            stopped_at: time("stopped_at_ms")?,
            expires_at: time("expires_at_ms")?,
            error: error_code.zip(error_message).map(|(code, message)| SandboxError { code, message }),
            snapshot_id: row.try_get("snapshot_id")?,
            retained_bytes: count(row.try_get("retained_bytes")?)?,
            process: row.try_get("process")?,
        })
    }

    /// When the lifecycle policy applies; `None` of a sandbox that was paused, which has any time.
    pub fn effective_deadline(&self) -> Option<Timestamp> {
        let is_removed = self.error.is_some() && self.lifecycle.on_timeout == OnTimeout::Kill;
        self.deadline.filter(|_| self.state != State::Stopped || is_removed)
    }

    /// Whether the agent's report holds nothing that this row does not say already. Times are compared as stored, in
    /// milliseconds. `timeout_seconds` is the tenant's and never taken over: a later `connect` may have asked the agent for
    /// less or more, while resuming without a time-out means the original one. `retained_bytes` changes all the time and is
    /// taken over by itself, for all sandboxes at once.
    pub(crate) fn matches(&self, report: &agent::Sandbox) -> bool {
        let ms = |time: Option<Timestamp>| time.map(Timestamp::as_millisecond);
        self.state == State::from(report.state)
            && ms(self.deadline) == ms(Some(report.deadline))
            && self.lifecycle == report.lifecycle
            && self.exposed_ports == report.exposed_ports
            && self.allow_public_traffic == report.allow_public_traffic
            && self.capture_output == report.capture_output
            && self.data_plane_url.as_deref() == Some(report.data_plane_url.as_str())
            && ms(self.started_at) == ms(report.started_at)
            && ms(self.stopped_at) == ms(report.stopped_at)
            && self.error == report.error
            && !self.network.follows(report.network_version)
    }
}

/// `on_timeout` as stored.
pub(crate) fn on_timeout_word(value: OnTimeout) -> &'static str {
    match value {
        OnTimeout::Kill => "kill",
        OnTimeout::Pause => "pause",
    }
}

fn on_timeout(word: &str) -> Result<OnTimeout, StoreError> {
    match word {
        "kill" => Ok(OnTimeout::Kill),
        "pause" => Ok(OnTimeout::Pause),
        _ => Err(StoreError::Corrupt { what: format!("on_timeout {word:?}") }),
    }
}
