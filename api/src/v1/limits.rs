//! What a team may use, and what it uses.

use axum::Json;
use axum::extract::State;
use sandpiper_http::error::ApiError;
use sandpiper_http::query::Pairs;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::{Caller, ReadAccess};
use crate::billing::prices::Prices;
use crate::plan::{BuildRules, DiskRates, NetworkRates, Plan, PlanLimits};
use crate::quota::{Amounts, QuotaBody};
use crate::state::App;

/// The limits of a team.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxLimits)]
pub struct LimitsBody {
    /// CPUs of a sandbox whose template names none.
    pub cpu: u32,
    /// Memory of a sandbox whose template names none, MiB.
    pub memory_mb: u32,
    /// The team's plan.
    pub plan: Plan,
    /// All plans, smallest first.
    pub plans: Vec<PlanBody>,
    /// Numbers of CPUs that a create request may name.
    pub cpu_values: Vec<u32>,
    pub memory_mb_min: u32,
    pub memory_mb_max: u32,
    /// Memory is a multiple of this.
    pub memory_mb_step: u32,
    pub root_disk_gib: u32,
    /// Longest `timeout`, seconds.
    pub max_timeout: u64,
    /// Days for which a stopped sandbox is kept; 0: for ever.
    pub stopped_days: u32,
    /// Likewise, a checkpoint that nobody uses.
    pub checkpoint_days: u32,
    /// A volume that no sandbox mounts.
    pub volume_days: u32,
    /// A version of a template that is neither tagged nor the newest, and that nobody uses.
    pub template_version_days: u32,
    /// All 0 where nothing is charged.
    pub prices: PricesBody,
    pub quota: QuotaBody,
}

/// One plan of the catalog.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PlanLimits)]
pub struct PlanBody {
    pub name: Plan,
    /// Whether a create request may name `cpu` and `memory_mb`.
    pub overrides: bool,
    pub cpu_values: Vec<u32>,
    pub memory_mb_min: u32,
    pub memory_mb_max: u32,
    pub memory_mb_step: u32,
    pub root_disk_gib: u32,
    pub max_timeout: u64,
    /// Days for which a stopped sandbox is kept; 0: for ever.
    pub stopped_days: u32,
    /// Likewise, a checkpoint that nobody uses.
    pub checkpoint_days: u32,
    /// A volume that no sandbox mounts.
    pub volume_days: u32,
    /// A version of a template that is neither tagged nor the newest, and that nobody uses.
    pub template_version_days: u32,
    pub quota: Amounts,
    /// Most that the disk of each sandbox does in a second. 0, or more than the host gives every sandbox: what that gives.
    pub disk: DiskRates,
    /// Likewise, what passes through the network of each sandbox, each way for itself.
    pub network: NetworkRates,
    /// What a build of a template's version may take, and what may be sent for builds within a day.
    pub build: BuildRules,
}

/// What a unit costs, for a time or for each: decimal text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Prices)]
pub struct PricesBody {
    pub currency: String,
    pub vcpu_second: String,
    pub memory_gib_second: String,
    pub storage_gib_hour: String,
    /// A GiB that leaves a sandbox.
    pub egress_gib: String,
    /// A GiB that comes to one.
    pub ingress_gib: String,
}

impl PricesBody {
    fn new(prices: &Prices) -> Self {
        Self {
            currency: prices.currency.clone(),
            vcpu_second: prices.vcpu_second.to_string(),
            memory_gib_second: prices.memory_gib_second.to_string(),
            storage_gib_hour: prices.storage_gib_hour.to_string(),
            egress_gib: prices.egress_gib.to_string(),
            ingress_gib: prices.ingress_gib.to_string(),
        }
    }
}

impl PlanBody {
    fn new(name: Plan, limits: &PlanLimits) -> Self {
        Self {
            name,
            overrides: name.may_override(),
            cpu_values: limits.cpu_values.clone(),
            memory_mb_min: limits.memory_mb_min,
            memory_mb_max: limits.memory_mb_max,
            memory_mb_step: limits.memory_mb_step,
            root_disk_gib: limits.root_disk_gib,
            max_timeout: limits.max_timeout,
            stopped_days: limits.stopped_days,
            checkpoint_days: limits.checkpoint_days,
            volume_days: limits.volume_days,
            template_version_days: limits.template_version_days,
            quota: limits.quota.into(),
            disk: limits.disk,
            network: limits.network,
            build: limits.build,
        }
    }
}

/// Show the limits
///
/// The team's plan, the catalog of plans, prices, and the quota with what is in use.
#[utoipa::path(
    get,
    path = "/v1/sandbox_limits",
    operation_id = "show_limits",
    tag = "limits",
    params(("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default")),
    responses((status = 200, description = "The limits", body = LimitsBody))
)]
pub async fn limits(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<Json<LimitsBody>, ApiError> {
    caller.check_team(query.only_team()?.as_deref())?;
    let Caller { team, .. } = caller;
    let config = &app.settings;
    let mine = &app.offer.of(team.plan);
    let usage = app.store.sandboxes.usage(&team.id, app.clock.now()).await?;
    Ok(Json(LimitsBody {
        cpu: config.baseline.cpu,
        memory_mb: config.baseline.memory_mb,
        plan: team.plan,
        plans: Plan::ALL.into_iter().map(|plan| PlanBody::new(plan, &app.offer.of(plan))).collect(),
        cpu_values: mine.cpu_values.clone(),
        memory_mb_min: mine.memory_mb_min,
        memory_mb_max: mine.memory_mb_max,
        memory_mb_step: mine.memory_mb_step,
        root_disk_gib: mine.root_disk_gib,
        max_timeout: mine.max_timeout,
        stopped_days: mine.stopped_days,
        checkpoint_days: mine.checkpoint_days,
        volume_days: mine.volume_days,
        template_version_days: mine.template_version_days,
        prices: PricesBody::new(&config.prices.clone().unwrap_or_default()),
        quota: QuotaBody::new(mine, usage, Amounts::of_sandboxes(1, config.baseline.cpu, config.baseline.memory_mb)),
    }))
}
