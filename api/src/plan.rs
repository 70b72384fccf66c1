//! Plans: what a team may use. The three names are fixed by the service; every number is configuration.

use std::fmt;
use std::str::FromStr;

use sandpiper_protocol::agent::Amounts;
use sandpiper_protocol::template::BuildLimits;
use sandpiper_protocol::vmm::{DiskLimits, NetLimits};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The plan of a team.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Plan {
    Basic,
    Pro,
    Enterprise,
}

impl Plan {
    /// All of them, smallest first.
    pub const ALL: [Plan; 3] = [Plan::Basic, Plan::Pro, Plan::Enterprise];

    /// Its name in JSON, in the database and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Plan::Basic => "basic",
            Plan::Pro => "pro",
            Plan::Enterprise => "enterprise",
        }
    }

    /// Whether a create request may name CPU and memory of its own.
    pub fn may_override(self) -> bool {
        self != Plan::Basic
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Plan {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Plan::ALL.into_iter().find(|plan| plan.as_str() == text).ok_or(())
    }
}

/// The numbers of one plan.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanLimits {
    /// Numbers of virtual CPUs that a create request may name, ascending.
    pub cpu_values: Vec<u32>,
    pub memory_mb_min: u32,
    pub memory_mb_max: u32,
    /// Memory is a multiple of this.
    pub memory_mb_step: u32,
    pub root_disk_gib: u32,
    /// Longest `timeout`, seconds.
    pub max_timeout: u64,
    /// Days for which a stopped sandbox is kept; 0: for ever.
    #[serde(default)]
    pub stopped_days: u32,
    /// Days for which a checkpoint is kept that nobody uses; 0: for ever.
    #[serde(default)]
    pub checkpoint_days: u32,
    /// Likewise, a volume.
    #[serde(default)]
    pub volume_days: u32,
    /// Likewise, a version of a template.
    #[serde(default)]
    pub template_version_days: u32,
    pub quota: Quota,
    /// Of each sandbox.
    #[serde(default)]
    pub disk: DiskRates,
    /// Of each sandbox.
    #[serde(default)]
    pub network: NetworkRates,
    /// Of each build of a template's version.
    #[serde(default)]
    pub build: BuildRules,
}

/// What a build may take, and what may be sent for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BuildRules {
    /// From the moment it leaves the queue to `ready`.
    pub seconds: u64,
    pub log_bytes: u64,
    pub cpu: u32,
    /// MiB.
    pub memory_mb: u32,
    /// Of all files together that a team has sent for builds within a day.
    pub upload_bytes: u64,
}

impl Default for BuildRules {
    fn default() -> Self {
        Self { seconds: 1800, log_bytes: 16 << 20, cpu: 2, memory_mb: 2048, upload_bytes: 10 << 30 }
    }
}

impl BuildRules {
    /// As the agent is told of them.
    pub fn limits(self) -> BuildLimits {
        let Self { seconds, log_bytes, cpu, memory_mb, .. } = self;
        BuildLimits { seconds, log_bytes, cpu, memory_mb }
    }
}

/// Most that a disk does in a second, within what the host gives every sandbox. 0: what the host gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DiskRates {
    /// Bytes read and written.
    pub bandwidth: u64,
    /// Requests of any kind.
    pub operations: u64,
    /// What `fsync` comes to.
    pub flushes: u64,
}

impl DiskRates {
    /// As the agent is told of them.
    pub fn limits(self) -> DiskLimits {
        DiskLimits {
            bytes_per_second: limit(self.bandwidth),
            operations_per_second: limit(self.operations),
            flushes_per_second: limit(self.flushes),
        }
    }
}

/// Most that passes in a second, each way for itself, within what the host gives every sandbox. 0: what the host gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkRates {
    /// Bytes.
    pub bandwidth: u64,
    pub packets: u64,
}

impl NetworkRates {
    /// As the agent is told of them.
    pub fn limits(self) -> NetLimits {
        NetLimits { bytes_per_second: limit(self.bandwidth), packets_per_second: limit(self.packets) }
    }
}

fn limit(rate: u64) -> Option<u64> {
    (rate > 0).then_some(rate)
}

/// What all live sandboxes of a team may hold together, its volumes, its templates and its webhooks, and what it may keep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    pub sandboxes: u32,
    pub cpu: u32,
    pub memory_mb: u64,
    #[serde(default = "default_volumes")]
    pub volumes: u32,
    /// What all volumes may grow to together.
    #[serde(default = "default_volume_gib")]
    pub volume_gib: u64,
    #[serde(default = "default_templates")]
    pub templates: u32,
    /// That builds may take in 30 days.
    #[serde(default = "default_build_minutes")]
    pub build_minutes: u64,
    #[serde(default = "default_webhooks")]
    pub webhooks: u32,
    /// What sandboxes, checkpoints, volumes, versions of templates and files for builds hold of the disk; 0: without limit.
    #[serde(default)]
    pub stored_gib: u64,
    /// Stopped sandboxes; 0: without limit.
    #[serde(default)]
    pub stopped: u32,
    /// 0: without limit.
    #[serde(default)]
    pub checkpoints: u32,
}

/// Of a plan whose quota was written before there were volumes.
fn default_volumes() -> u32 {
    10
}

fn default_volume_gib() -> u64 {
    100
}

/// Of a plan whose quota was written before there were templates of one's own.
fn default_templates() -> u32 {
    20
}

fn default_build_minutes() -> u64 {
    600
}

/// Of a plan whose quota was written before there were webhooks.
fn default_webhooks() -> u32 {
    10
}

/// Bytes.
pub const GIB: u64 = 1 << 30;

impl Quota {
    /// Bytes of the disk that a team may hold; `None`: without limit.
    pub fn stored_bytes(self) -> Option<u64> {
        (self.stored_gib > 0).then(|| self.stored_gib.saturating_mul(GIB))
    }

    /// As the agent is told of it.
    pub fn amounts(self) -> Amounts {
        Amounts { sandboxes: self.sandboxes, cpu: self.cpu, memory_mb: self.memory_mb }
    }
}

/// The limits of every plan.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plans {
    pub basic: PlanLimits,
    pub pro: PlanLimits,
    pub enterprise: PlanLimits,
}

impl Plans {
    /// The limits of `plan`.
    pub fn of(&self, plan: Plan) -> &PlanLimits {
        match plan {
            Plan::Basic => &self.basic,
            Plan::Pro => &self.pro,
            Plan::Enterprise => &self.enterprise,
        }
    }
}

impl Plans {
    /// The limits of `plan`, to change.
    pub(crate) fn of_mut(&mut self, plan: Plan) -> &mut PlanLimits {
        match plan {
            Plan::Basic => &mut self.basic,
            Plan::Pro => &mut self.pro,
            Plan::Enterprise => &mut self.enterprise,
        }
    }
}

impl Default for Plans {
    fn default() -> Self {
        Self {
            basic: PlanLimits {
                cpu_values: vec![1, 2],
                memory_mb_min: 128,
                memory_mb_max: 2048,
                memory_mb_step: 128,
                root_disk_gib: 10,
                max_timeout: 3600,
                stopped_days: 0,
                checkpoint_days: 0,
                volume_days: 0,
                template_version_days: 0,
                quota: Quota {
                    sandboxes: 10,
                    cpu: 20,
                    memory_mb: 20 * 1024,
                    volumes: 10,
                    volume_gib: 100,
                    templates: 20,
                    build_minutes: 600,
                    webhooks: 10,
                    stored_gib: 250,
                    stopped: 100,
                    checkpoints: 100,
                },
                disk: DiskRates { bandwidth: 256 << 20, operations: 10_000, flushes: 100 },
                network: NetworkRates { bandwidth: 128 << 20, packets: 100_000 },
                build: BuildRules::default(),
            },
            pro: PlanLimits {
                cpu_values: vec![1, 2, 4, 8],
                memory_mb_min: 128,
                memory_mb_max: 16 * 1024,
                memory_mb_step: 128,
                root_disk_gib: 20,
                max_timeout: 24 * 3600,
                stopped_days: 0,
                checkpoint_days: 0,
                volume_days: 0,
                template_version_days: 0,
                quota: Quota {
                    sandboxes: 100,
                    cpu: 200,
                    memory_mb: 200 * 1024,
                    volumes: 100,
                    volume_gib: 1000,
                    templates: 200,
                    build_minutes: 6000,
                    webhooks: 10,
                    stored_gib: 2500,
                    stopped: 1000,
                    checkpoints: 1000,
                },
                disk: DiskRates { bandwidth: 384 << 20, operations: 15_000, flushes: 150 },
                network: NetworkRates { bandwidth: 1 << 30, packets: 200_000 },
                build: BuildRules { seconds: 3600, cpu: 4, memory_mb: 4096, ..BuildRules::default() },
            },
            enterprise: PlanLimits {
                cpu_values: vec![1, 2, 4, 8, 16, 32],
                memory_mb_min: 128,
                memory_mb_max: 64 * 1024,
                memory_mb_step: 128,
                root_disk_gib: 20,
                max_timeout: 7 * 24 * 3600,
                stopped_days: 0,
                checkpoint_days: 0,
                volume_days: 0,
                template_version_days: 0,
                quota: Quota {
                    sandboxes: 1000,
                    cpu: 4000,
                    memory_mb: 4 * 1024 * 1024,
                    volumes: 1000,
                    volume_gib: 10_000,
                    templates: 2000,
                    build_minutes: 60_000,
                    webhooks: 100,
                    stored_gib: 25_000,
                    stopped: 10_000,
                    checkpoints: 10_000,
                },
                disk: DiskRates::default(),
                network: NetworkRates::default(),
                build: BuildRules { seconds: 2 * 3600, cpu: 8, memory_mb: 8192, ..BuildRules::default() },
            },
        }
    }
}

impl PlanLimits {
    /// What is wrong with these numbers, if anything.
    pub fn problem(&self) -> Option<&'static str> {
        if self.cpu_values.is_empty() || self.cpu_values.contains(&0) || !self.cpu_values.is_sorted() {
            return Some("cpu_values must be ascending numbers from 1");
        }
        if self.memory_mb_step == 0 || self.memory_mb_min == 0 || self.memory_mb_min > self.memory_mb_max {
            return Some("memory_mb_min must be from 1 to memory_mb_max, memory_mb_step at least 1");
        }
        if self.root_disk_gib == 0 || self.max_timeout == 0 || self.max_timeout > MAX_TIMEOUT {
            return Some("root_disk_gib must be at least 1, max_timeout from 1 to 31536000 (a year)");
        }
        let BuildRules { seconds, log_bytes, cpu, memory_mb, upload_bytes } = self.build;
        if [seconds, log_bytes, cpu.into(), memory_mb.into(), upload_bytes].contains(&0) {
            return Some("each number of build must be at least 1");
        }
        None
    }
}

/// No plan may allow a longer time-out: a year, so that no deadline leaves the calendar.
pub const MAX_TIMEOUT: u64 = 365 * 24 * 3600;
