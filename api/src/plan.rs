//! Plans: what a team may use. The three names are fixed by the service; every number is configuration.

use std::fmt;
use std::str::FromStr;

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
    pub quota: Quota,
}

/// What all live sandboxes of a team may hold together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    pub sandboxes: u32,
    pub cpu: u32,
    pub memory_mb: u64,
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
                quota: Quota { sandboxes: 10, cpu: 20, memory_mb: 20 * 1024 },
            },
            pro: PlanLimits {
                cpu_values: vec![1, 2, 4, 8],
                memory_mb_min: 128,
                memory_mb_max: 16 * 1024,
                memory_mb_step: 128,
                root_disk_gib: 20,
                max_timeout: 24 * 3600,
                quota: Quota { sandboxes: 100, cpu: 200, memory_mb: 200 * 1024 },
            },
            enterprise: PlanLimits {
                cpu_values: vec![1, 2, 4, 8, 16, 32],
                memory_mb_min: 128,
                memory_mb_max: 64 * 1024,
                memory_mb_step: 128,
                root_disk_gib: 20,
                max_timeout: 7 * 24 * 3600,
                quota: Quota { sandboxes: 1000, cpu: 4000, memory_mb: 4 * 1024 * 1024 },
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
        None
    }
}

/// No plan may allow a longer time-out: a year, so that no deadline leaves the calendar.
pub const MAX_TIMEOUT: u64 = 365 * 24 * 3600;
