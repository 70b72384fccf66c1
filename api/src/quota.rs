//! A team's quota as responses show it: in the limits, and in the refusal of what it has no room for.

use serde::Serialize;
use utoipa::ToSchema;

use crate::plan::PlanLimits;
use crate::store::sandboxes::Usage;

/// The quota that is checked when sandboxes are created, forked, resumed, and woken by requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Quota)]
pub struct QuotaBody {
    /// What all live sandboxes may hold together.
    pub limits: Amounts,
    /// What the team holds now.
    pub usage: UsageBody,
    /// What would be taken: by the refused request, or, in the limits, by one more sandbox of the default size.
    pub reservation: Amounts,
}

/// What a team holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Usage)]
pub struct UsageBody {
    /// Live sandboxes; they alone count against the limits, with `cpu` and `memory_mb`.
    pub sandboxes: u32,
    pub cpu: u32,
    pub memory_mb: u64,
    /// Stopped sandboxes.
    pub stopped: u32,
    /// Bytes of disk that sandboxes, live and stopped, and checkpoints hold.
    pub retained_bytes: u64,
}

/// Sandboxes, CPUs, MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Amounts {
    pub sandboxes: u32,
    pub cpu: u32,
    pub memory_mb: u64,
}

impl QuotaBody {
    /// The quota of `limits`, with `usage` held and `count` sandboxes of this size asked for.
    pub fn new(limits: &PlanLimits, usage: Usage, count: u32, cpu: u32, memory_mb: u32) -> Self {
        let limits = limits.quota;
        Self {
            limits: Amounts { sandboxes: limits.sandboxes, cpu: limits.cpu, memory_mb: limits.memory_mb },
            usage: UsageBody {
                sandboxes: usage.sandboxes,
                cpu: usage.cpu,
                memory_mb: usage.memory_mb,
                stopped: usage.stopped,
                retained_bytes: usage.retained_bytes,
            },
            reservation: Amounts {
                sandboxes: count,
                cpu: cpu.saturating_mul(count),
                memory_mb: u64::from(memory_mb) * u64::from(count),
            },
        }
    }
}
