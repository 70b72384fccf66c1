//! Sandboxes as the SDKs read them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandpiper_protocol::agent::{LastingTokens, OnTimeout, Previews};
use serde::{Deserialize, Serialize};

use crate::store::sandbox_row::{SandboxRow, State};

/// Of the data plane: what it can do, in the numbers of E2B's own.
pub const ENVD_VERSION: &str = "0.6.13";
/// The SDKs ask for one and use it for nothing.
const CLIENT_ID: &str = "sandpiper";

/// What identifies a sandbox.
#[derive(Debug, Clone, Serialize)]
pub struct Names {
    /// What it was started from: a template's slug, or a snapshot's id.
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    #[serde(rename = "envdVersion")]
    envd_version: &'static str,
}

impl From<&SandboxRow> for Names {
    fn from(row: &SandboxRow) -> Self {
        let template_id = row.snapshot_id.clone().unwrap_or_else(|| row.template.clone());
        Self {
            template_id,
            sandbox_id: row.id.clone(),
            client_id: CLIENT_ID,
            alias: row.snapshot_id.is_none().then(|| row.template.clone()),
            envd_version: ENVD_VERSION,
        }
    }
}

/// What opens a sandbox.
#[derive(Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tokens {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    /// Of one whose ports are not public.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_access_token: Option<String>,
}

impl Tokens {
    /// Those of the sandbox of `row`.
    pub fn new(row: &SandboxRow, tokens: LastingTokens) -> Self {
        Self {
            envd_access_token: Some(tokens.access_token),
            traffic_access_token: (!row.allow_public_traffic).then_some(tokens.traffic_token),
        }
    }
}

/// Secrets are not printed.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

/// A sandbox, in responses that give a way in. It names no domain: the SDKs then use their own setting.
#[derive(Debug, Clone, Serialize)]
pub struct SandboxBody {
    #[serde(flatten)]
    pub names: Names,
    #[serde(flatten)]
    pub tokens: Tokens,
}

/// A sandbox, as lists have it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedSandbox {
    #[serde(flatten)]
    names: Names,
    started_at: Timestamp,
    end_at: Timestamp,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    state: StateBody,
    metadata: BTreeMap<String, String>,
    volume_mounts: Vec<VolumeMount>,
}

/// Where a sandbox mounts the volume of this name.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
}

/// Whether it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StateBody {
    Running,
    Paused,
}

impl From<&SandboxRow> for ListedSandbox {
    fn from(row: &SandboxRow) -> Self {
        let started_at = row.started_at.unwrap_or(row.created_at);
        let ended = if row.state == State::Stopped { row.stopped_at } else { None };
        Self {
            names: row.into(),
            started_at,
            end_at: ended.or(row.deadline).unwrap_or(started_at),
            cpu_count: row.cpu,
            memory_mb: row.memory_mb,
            disk_size_mb: u64::from(row.disk_gib) * 1024,
            state: if row.state == State::Stopped { StateBody::Paused } else { StateBody::Running },
            metadata: row.metadata.clone(),
            volume_mounts: row
                .volume_mounts
                .iter()
                .map(|mount| VolumeMount { name: mount.name.clone(), path: mount.path.clone() })
                .collect(),
        }
    }
}

/// A sandbox by itself.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    #[serde(flatten)]
    listed: ListedSandbox,
    #[serde(flatten)]
    tokens: Tokens,
    allow_internet_access: bool,
    network: NetworkBody,
    lifecycle: LifecycleBody,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct NetworkBody {
    allow_public_traffic: bool,
    allow_out: Vec<String>,
    deny_out: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mask_request_host: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct LifecycleBody {
    auto_resume: bool,
    on_timeout: &'static str,
}

impl SandboxDetail {
    /// The sandbox of `row`, with `tokens` for who may have them.
    pub fn new(row: &SandboxRow, previews: Previews, tokens: Tokens) -> Self {
        Self {
            listed: row.into(),
            tokens,
            allow_internet_access: row.policy.allow_internet_access,
            network: NetworkBody {
                allow_public_traffic: row.allow_public_traffic,
                allow_out: row.policy.allow_out.clone(),
                deny_out: row.policy.deny_out.clone(),
                mask_request_host: previews.mask_host,
            },
            lifecycle: LifecycleBody {
                auto_resume: row.lifecycle.auto_resume,
                on_timeout: match row.lifecycle.on_timeout {
                    OnTimeout::Kill => "kill",
                    OnTimeout::Pause => "pause",
                },
            },
        }
    }
}
