//! `GET /v1/usage`

use std::ops::Range;

use axum::Json;
use axum::extract::State;
use futures_util::TryStreamExt;
use jiff::{SignedDuration, Timestamp};
use sandpiper_db::{StoreError, from_ms, to_ms};
use sandpiper_http::error::ApiError;
use sandpiper_http::query::{Pairs, unknown};
use sandpiper_protocol::ids::SandboxId;
use sandpiper_protocol::interval::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::ReadAccess;
use crate::billing::Consumption;
use crate::billing::buckets::{Buckets, Granularity, MOST};
use crate::billing::prices::{Cost, Prices};
use crate::state::App;
use crate::store::intervals::Run;

/// How long before `to` the range begins that names no beginning.
const DEFAULT_RANGE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// What a team used.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TeamUsage)]
pub struct UsageBody {
    pub from: Timestamp,
    pub to: Timestamp,
    pub granularity: String,
    /// Until when sandboxes that run are counted so far; null where none ever ran. Times before that may still change where the
    /// host that runs them could not be reached.
    pub counted_until: Option<Timestamp>,
    /// Of the costs; absent where nothing is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// Oldest first, without a gap: full hours or days of UTC, as far as they are between `from` and `to`.
    pub buckets: Vec<BucketBody>,
    /// The sums of all buckets, exactly.
    pub totals: AmountsBody,
}

/// What a team used in one hour or day.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UsageBucket)]
pub struct BucketBody {
    pub from: Timestamp,
    pub to: Timestamp,
    #[serde(flatten)]
    pub amounts: AmountsBody,
}

/// Decimal text, exact to the last digit but for the cost; traffic in whole bytes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = UsageAmounts)]
pub struct AmountsBody {
    /// vCPUs of sandboxes, times the seconds that each ran.
    pub vcpu_seconds: String,
    /// Memory of sandboxes, times the seconds that each ran.
    pub memory_gib_seconds: String,
    /// What stopped sandboxes, checkpoints, volumes and versions of templates held of the host's disk, times the hours that
    /// begin within; measured once in each.
    pub storage_gib_hours: String,
    /// Bytes that sandboxes sent beyond the host, and got from there, in the hours that begin within.
    pub egress_bytes: u64,
    pub ingress_bytes: u64,
    /// To a millionth of the currency's unit; absent where nothing is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
}

impl AmountsBody {
    fn new(consumed: &Consumption, cost: Option<Cost>) -> Self {
        let bytes = |count| u64::try_from(count).unwrap_or(u64::MAX);
        Self {
            vcpu_seconds: consumed.cpu_seconds(),
            memory_gib_seconds: consumed.memory_gib_seconds(),
            storage_gib_hours: consumed.storage_gib_hours(),
            egress_bytes: bytes(consumed.egress_bytes),
            ingress_bytes: bytes(consumed.ingress_bytes),
            cost: cost.map(|cost| cost.to_string()),
        }
    }
}

/// Show what was used
///
/// vCPU seconds, memory, storage and traffic of the team by hours or days, and what they cost. Sandboxes that run are counted so far.
#[utoipa::path(
    get,
    path = "/v1/usage",
    operation_id = "show_usage",
    tag = "limits",
    params(
        ("team" = Option<String>, Query, description = "Slug or id of the key's own team, which is also the default"),
        ("from" = Option<Timestamp>, Query, description = "The first moment; 30 days before `to` by default"),
        ("to" = Option<Timestamp>, Query, description = "The moment after the last; now by default"),
        (
            "granularity" = Option<String>, Query,
            description = "`hour` or `day`, which is the default; a range has at most 1000 of them"
        ),
        ("sandbox_id" = Option<String>, Query, description = "Only what this sandbox used, which may be gone"),
    ),
    responses((status = 200, description = "What was used", body = UsageBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    query: Pairs,
) -> Result<Json<UsageBody>, ApiError> {
    let question = Question::new(query, from_ms(to_ms(app.clock.now()))?)?;
    caller.check_team(question.team.as_deref())?;
    let range = to_ms(question.from)..to_ms(question.to);
    let mut buckets = Buckets::new(range.clone(), question.granularity).ok_or_else(|| question.no_range())?;
    let (team_id, sandbox_id) = (&caller.team.id, question.sandbox_id.as_deref());
    let mut runs = app.store.intervals.within(&range, Some(team_id), sandbox_id);
    while let Some(Run { time, cpu, memory_mb, .. }) = runs.try_next().await? {
        buckets.add_run(time, cpu, memory_mb);
    }
    drop(runs);
    for (hour_ms, bytes) in app.store.storage.of_team(team_id, &range, sandbox_id).await? {
        buckets.add_stored(hour_ms, bytes);
    }
    let mut traffic = app.store.traffic.of_team(team_id, &range, sandbox_id);
    while let Some((from_ms, Bytes { egress, ingress })) = traffic.try_next().await? {
        buckets.add_traffic(from_ms, egress, ingress);
    }
    drop(traffic);
    let counted_until = app.store.intervals.seen_at_ms().await?.map(from_ms).transpose()?;
    Ok(Json(UsageBody::new(&question, &buckets.finish(), counted_until, app.settings.prices.as_ref())?))
}

impl UsageBody {
    fn new(
        question: &Question,
        buckets: &[(Range<i64>, Consumption)],
        counted_until: Option<Timestamp>,
        prices: Option<&Prices>,
    ) -> Result<Self, ApiError> {
        let consumed = || buckets.iter().map(|(_, consumed)| consumed);
        let total = consumed().fold(Consumption::default(), |sum, one| sum + *one);
        let (costs, cost) = match prices {
            Some(prices) => {
                let (costs, cost) = prices.costs(consumed()).zip(prices.cost(&total)).ok_or_else(too_dear)?;
                (costs.into_iter().map(Some).collect(), Some(cost))
            }
            None => (vec![None; buckets.len()], None),
        };
        let bodies = buckets.iter().zip(costs).map(|((span, consumed), cost)| {
            let amounts = AmountsBody::new(consumed, cost);
            Ok(BucketBody { from: from_ms(span.start)?, to: from_ms(span.end)?, amounts })
        });
        Ok(Self {
            from: question.from,
            to: question.to,
            granularity: question.granularity.as_str().to_owned(),
            counted_until,
            currency: prices.map(|prices| prices.currency.clone()),
            buckets: bodies.collect::<Result<_, StoreError>>()?,
            totals: AmountsBody::new(&total, cost),
        })
    }
}

fn too_dear() -> ApiError {
    ApiError::internal("The cost of a team's usage is beyond all numbers; see to [prices] in the configuration")
}

/// What is asked for.
struct Question {
    team: Option<String>,
    from: Timestamp,
    to: Timestamp,
    granularity: Granularity,
    sandbox_id: Option<String>,
}

impl Question {
    fn new(Pairs(pairs): Pairs, now: Timestamp) -> Result<Self, ApiError> {
        let (mut team, mut from, mut to, mut granularity, mut sandbox_id) = (None, None, None, None, None);
        for (name, value) in pairs {
            let field = match name.as_str() {
                "team" => &mut team,
                "from" => &mut from,
                "to" => &mut to,
                "granularity" => &mut granularity,
                "sandbox_id" => &mut sandbox_id,
                _ => return Err(unknown(&name)),
            };
            if field.replace(value).is_some() {
                return Err(ApiError::invalid_field(name, "is given twice"));
            }
        }
        let to = to.map_or(Ok(now), |text| time("to", &text))?;
        let earlier = to.checked_sub(DEFAULT_RANGE).unwrap_or(Timestamp::MIN);
        let granularity = granularity.as_deref().unwrap_or("day");
        let granularity =
            granularity.parse().map_err(|()| ApiError::invalid_field("granularity", "must be `hour` or `day`"))?;
        if sandbox_id.as_deref().is_some_and(|id| !SandboxId::from(id).is_valid()) {
            return Err(ApiError::invalid_field("sandbox_id", "is no id of a sandbox"));
        }
        Ok(Self { team, from: from.map_or(Ok(earlier), |text| time("from", &text))?, to, granularity, sandbox_id })
    }

    /// Why a range is not answered.
    fn no_range(&self) -> ApiError {
        let granularity = self.granularity.as_str();
        let reason =
            format!("must be before `to`, by at most {MOST} {granularity}s: ask for less at a time, or for days");
        ApiError::invalid_field("from", reason)
    }
}

/// A time in whole milliseconds, as all that is counted is.
///
/// # Errors
///
/// 400.
pub fn time(name: &'static str, text: &str) -> Result<Timestamp, ApiError> {
    let wrong =
        || ApiError::invalid_field(name, "must be a time with its zone, such as 2026-01-31T12:00:00Z (a `+` is `%2B`)");
    let time: Timestamp = text.parse().map_err(|_| wrong())?;
    Timestamp::from_millisecond(to_ms(time)).map_err(|_| wrong())
}
