//! A team's quota as responses show it: in the limits, and in the refusal of what it has no room for.

use serde::Serialize;
use utoipa::ToSchema;

use crate::plan::{GIB, PlanLimits, Quota};
use crate::store::usage::Usage;

/// The quota that is checked when sandboxes are created, forked, resumed, woken by requests, and paused, when checkpoints are taken,
/// when volumes and templates are created, when versions are built and files sent for that, and when webhooks are created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Quota)]
pub struct QuotaBody {
    /// What all live sandboxes may hold together, the volumes, the templates, and the webhooks, and what may be kept.
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
    /// Live sandboxes; they alone have `cpu` and `memory_mb`.
    pub sandboxes: u32,
    pub cpu: u32,
    pub memory_mb: u64,
    /// Stopped sandboxes.
    pub stopped: u32,
    pub volumes: u32,
    /// What the volumes may grow to together.
    pub volume_gib: u64,
    pub templates: u32,
    /// That builds took in the last 30 days, those that are under way among them.
    pub build_minutes: u64,
    pub webhooks: u32,
    pub checkpoints: u32,
    /// Bytes of disk that sandboxes, live and stopped, checkpoints, volumes, versions of templates, and files for builds hold: what
    /// `stored_gib` limits.
    pub retained_bytes: u64,
}

/// Sandboxes, CPUs, MiB, volumes, GiB, templates, minutes, webhooks, GiB, stopped sandboxes, checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Amounts {
    pub sandboxes: u32,
    pub cpu: u32,
    pub memory_mb: u64,
    pub volumes: u32,
    /// What the volumes may grow to together.
    pub volume_gib: u64,
    pub templates: u32,
    /// That builds may take in 30 days.
    pub build_minutes: u64,
    pub webhooks: u32,
    /// Of the disk: what `retained_bytes` counts. As a limit, 0 is none; as what would be taken, it is not known before.
    pub stored_gib: u64,
    /// Stopped sandboxes. As a limit, 0 is none.
    pub stopped: u32,
    /// As a limit, 0 is none.
    pub checkpoints: u32,
}

impl Amounts {
    /// `count` sandboxes of this size.
    pub fn of_sandboxes(count: u32, cpu: u32, memory_mb: u32) -> Self {
        Self {
            sandboxes: count,
            cpu: cpu.saturating_mul(count),
            memory_mb: u64::from(memory_mb) * u64::from(count),
            ..Self::default()
        }
    }

    /// One volume of this size.
    pub fn of_volume(gib: u32) -> Self {
        Self { volumes: 1, volume_gib: gib.into(), ..Self::default() }
    }

    /// One template.
    pub fn of_template() -> Self {
        Self { templates: 1, ..Self::default() }
    }

    /// One webhook.
    pub fn of_webhook() -> Self {
        Self { webhooks: 1, ..Self::default() }
    }

    /// One checkpoint.
    pub fn of_checkpoint() -> Self {
        Self { checkpoints: 1, ..Self::default() }
    }

    /// A sandbox that is to stop.
    pub fn of_stop() -> Self {
        Self { stopped: 1, ..Self::default() }
    }

    /// A file for builds of so many bytes; 0 where that is not known.
    pub fn of_upload(bytes: u64) -> Self {
        Self { stored_gib: bytes.div_ceil(GIB), ..Self::default() }
    }

    /// One build, however long it takes.
    pub fn of_build() -> Self {
        Self { build_minutes: 1, ..Self::default() }
    }
}

impl From<Quota> for Amounts {
    fn from(quota: Quota) -> Self {
        Self {
            sandboxes: quota.sandboxes,
            cpu: quota.cpu,
            memory_mb: quota.memory_mb,
            volumes: quota.volumes,
            volume_gib: quota.volume_gib,
            templates: quota.templates,
            build_minutes: quota.build_minutes,
            webhooks: quota.webhooks,
            stored_gib: quota.stored_gib,
            stopped: quota.stopped,
            checkpoints: quota.checkpoints,
        }
    }
}

impl QuotaBody {
    /// The quota of `limits`, with `usage` held and `reservation` asked for.
    pub fn new(limits: &PlanLimits, usage: Usage, reservation: Amounts) -> Self {
        Self {
            limits: limits.quota.into(),
            usage: UsageBody {
                sandboxes: usage.sandboxes,
                cpu: usage.cpu,
                memory_mb: usage.memory_mb,
                stopped: usage.stopped,
                volumes: usage.volumes,
                volume_gib: usage.volume_gib,
                templates: usage.templates,
                build_minutes: usage.build_minutes,
                webhooks: usage.webhooks,
                checkpoints: usage.checkpoints,
                retained_bytes: usage.retained_bytes,
            },
            reservation,
        }
    }
}
