//! `GET/POST /operator/v1/teams`, `GET/PATCH /operator/v1/teams/{team}`, `POST /operator/v1/teams/{team}/disable`, `…/enable`

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use jiff::Timestamp;
use sandpiper_accounts::Operator;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::{NoParameters, Pairs, unknown};
use sandpiper_protocol::ids::TeamId;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::plan::Plan;
use crate::quota::{Amounts, QuotaBody};
use crate::state::App;
use crate::store::teams::{REASON_RULE, SLUG_RULE, Team, TeamFilter, is_reason, is_slug};
use crate::v1::page::{List, Paging};
use crate::v1::teams::body::DisabledBody;

/// A team, as its operator sees it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OperatorTeam)]
pub struct OperatorTeamBody {
    pub id: String,
    pub slug: String,
    pub plan: Plan,
    /// Whether it is somebody's personal team.
    pub is_personal: bool,
    /// Null while it is not disabled.
    pub disabled: Option<DisabledBody>,
    pub created_at: Timestamp,
}

/// A team with what it uses.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OperatorTeamDetail)]
pub struct DetailBody {
    #[serde(flatten)]
    pub team: OperatorTeamBody,
    /// Users who are members.
    pub members: usize,
    pub quota: QuotaBody,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OperatorTeamList)]
pub struct OperatorTeamListBody {
    /// Newest first.
    pub teams: Vec<OperatorTeamBody>,
    /// For the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// The team to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OperatorCreateTeam)]
pub struct CreateRequest {
    /// 1 to 40 of `a-z`, `0-9` and `-`, beginning with a letter; no other team has it.
    pub slug: String,
    pub plan: Plan,
}

/// What of a team is to change.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OperatorUpdateTeam)]
pub struct UpdateRequest {
    pub plan: Plan,
}

/// Why a team is to be disabled.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OperatorDisableTeam)]
pub struct DisableRequest {
    /// For the team, which reads it in each refusal: 1 to 500 bytes without control characters.
    pub reason: String,
}

impl From<Team> for OperatorTeamBody {
    fn from(team: Team) -> Self {
        let Team { id, slug, plan, personal_of, disabled, created_at } = team;
        let (is_personal, disabled) = (personal_of.is_some(), disabled.map(DisabledBody::from));
        Self { id: id.to_string(), slug, plan, is_personal, disabled, created_at }
    }
}

/// List all teams
///
/// Newest first. Those of all users, personal ones among them.
#[utoipa::path(
    get,
    path = "/operator/v1/teams",
    operation_id = "operator_list_teams",
    tag = "operators",
    params(
        ("plan" = Option<Plan>, Query, description = "Only teams on this plan"),
        ("personal" = Option<bool>, Query, description = "`true`: only personal teams; `false`: only others"),
        ("disabled" = Option<bool>, Query, description = "`true`: only disabled teams; `false`: only others"),
        ("slug_prefix" = Option<String>, Query, description = "Only teams whose slug begins so"),
        ("limit" = Option<u32>, Query, description = "Teams per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before, with the same filters"),
    ),
    responses((status = 200, description = "A page", body = OperatorTeamListBody))
)]
pub async fn list(
    _: Operator,
    State(app): State<App>,
    Pairs(pairs): Pairs,
) -> Result<JsonBody<OperatorTeamListBody>, ApiError> {
    let (mut paging, mut filter) = (Paging::default(), TeamFilter::default());
    for (name, value) in pairs {
        match name.as_str() {
            "plan" => {
                let plan = value.parse().map_err(|()| ApiError::invalid_field("plan", PLAN_RULE))?;
                filter.plan = Some(plan);
            }
            "personal" => {
                let rule = |_| ApiError::invalid_field("personal", "must be `true` or `false`");
                filter.is_personal = Some(value.parse().map_err(rule)?);
            }
            "disabled" => {
                let rule = |_| ApiError::invalid_field("disabled", "must be `true` or `false`");
                filter.is_disabled = Some(value.parse().map_err(rule)?);
            }
            "slug_prefix" => filter.slug_prefix = Some(value),
            "limit" | "next_token" if paging.take(&name, &value)? => {}
            _ => return Err(unknown(&name)),
        }
    }
    let TeamFilter { plan, is_personal, is_disabled, slug_prefix } = &filter;
    let list = List::of_ids(TeamId::PREFIX, &json!(["operator", plan, is_personal, is_disabled, slug_prefix]));
    let after = paging.after(&list)?;
    let mut teams = app.store.teams.page(&filter, after.as_deref(), paging.limit + 1).await?;
    let next_token = list.cut(&mut teams, paging.limit, |team| team.id.to_string());
    Ok(JsonBody(OperatorTeamListBody { teams: teams.into_iter().map(Into::into).collect(), next_token }))
}

const PLAN_RULE: &str = "must be `basic`, `pro` or `enterprise`";

/// Make a team
///
/// Without members: invite its first owner next.
#[utoipa::path(
    post,
    path = "/operator/v1/teams",
    operation_id = "operator_create_team",
    tag = "operators",
    request_body = CreateRequest,
    responses((status = 201, description = "Made", body = DetailBody))
)]
pub async fn create(
    _: Operator,
    State(app): State<App>,
    _: NoParameters,
    Json(CreateRequest { slug, plan }): Json<CreateRequest>,
) -> Result<Response, ApiError> {
    if !is_slug(&slug) {
        return Err(ApiError::invalid_field("slug", SLUG_RULE));
    }
    let team = app.store.teams.create(&slug, plan, app.clock.now()).await?;
    let team = team.ok_or_else(|| ApiError::conflict(format!("There is a team {slug:?}; choose another slug")))?;
    let location = [(header::LOCATION, format!("/operator/v1/teams/{slug}"))];
    let acted = Extension(Acted(vec![team.id.to_string()]));
    Ok((StatusCode::CREATED, location, acted, JsonBody(detail(&app, team).await?)).into_response())
}

/// Show any team
///
/// With its quota, and what of it is in use.
#[utoipa::path(
    get,
    path = "/operator/v1/teams/{team}",
    operation_id = "operator_show_team",
    tag = "operators",
    params(("team" = String, Path, description = "Slug or id of the team")),
    responses((status = 200, description = "The team", body = DetailBody))
)]
pub async fn show(
    _: Operator,
    State(app): State<App>,
    _: NoParameters,
    Path(team): Path<String>,
) -> Result<JsonBody<DetailBody>, ApiError> {
    let team = find(&app, &team).await?;
    Ok(JsonBody(detail(&app, team).await?))
}

/// Change a team's plan
///
/// It holds from the next request on. What the team has beyond the new plan it keeps.
#[utoipa::path(
    patch,
    path = "/operator/v1/teams/{team}",
    operation_id = "operator_update_team",
    tag = "operators",
    params(("team" = String, Path, description = "Slug or id of the team")),
    request_body = UpdateRequest,
    responses((status = 200, description = "Changed", body = DetailBody))
)]
pub async fn update(
    _: Operator,
    State(app): State<App>,
    _: NoParameters,
    Path(team): Path<String>,
    Json(UpdateRequest { plan }): Json<UpdateRequest>,
) -> Result<Response, ApiError> {
    let team = find(&app, &team).await?;
    app.store.teams.set_plan(&team.slug, plan).await?;
    acted(&app, &team).await
}

/// Disable a team
///
/// Its keys and its members' sessions are refused with 403 `team_disabled` from the next request on, and requests to its sandboxes
/// within two seconds. What runs of it is paused, and its builds are cancelled, as soon as that can be done; its webhooks wait. Nothing
/// is deleted, also not at the end of the days for which its plan keeps things. A team that is disabled already stays so, for this reason.
#[utoipa::path(
    post,
    path = "/operator/v1/teams/{team}/disable",
    operation_id = "operator_disable_team",
    tag = "operators",
    params(("team" = String, Path, description = "Slug or id of the team")),
    request_body = DisableRequest,
    responses((status = 200, description = "Disabled", body = DetailBody))
)]
pub async fn disable(
    _: Operator,
    State(app): State<App>,
    _: NoParameters,
    Path(team): Path<String>,
    Json(DisableRequest { reason }): Json<DisableRequest>,
) -> Result<Response, ApiError> {
    let team = find(&app, &team).await?;
    if !is_reason(&reason) {
        return Err(ApiError::invalid_field("reason", REASON_RULE));
    }
    app.store.teams.disable(&team.slug, &reason, app.clock.now()).await?;
    acted(&app, &team).await
}

/// Enable a team
///
/// All is as it was, but for what was paused, which is resumed when its team asks for that. One that is not disabled stays so.
#[utoipa::path(
    post,
    path = "/operator/v1/teams/{team}/enable",
    operation_id = "operator_enable_team",
    tag = "operators",
    params(("team" = String, Path, description = "Slug or id of the team")),
    responses((status = 200, description = "Enabled", body = DetailBody))
)]
pub async fn enable(
    _: Operator,
    State(app): State<App>,
    _: NoParameters,
    Path(team): Path<String>,
) -> Result<Response, ApiError> {
    let team = find(&app, &team).await?;
    app.store.teams.enable(&team.slug).await?;
    acted(&app, &team).await
}

/// The response to what was done with a team: as it is then.
async fn acted(app: &App, team: &Team) -> Result<Response, ApiError> {
    let acted = Extension(Acted(vec![team.id.to_string()]));
    let team = find(app, team.id.as_str()).await?;
    Ok((acted, JsonBody(detail(app, team).await?)).into_response())
}

/// The team of this slug or id.
///
/// # Errors
///
/// 404.
pub(super) async fn find(app: &App, named: &str) -> Result<Team, ApiError> {
    let team = app.store.teams.named(named).await?;
    team.ok_or_else(|| ApiError::not_found(format!("There is no team {named:?}; GET /operator/v1/teams lists them")))
}

async fn detail(app: &App, team: Team) -> Result<DetailBody, ApiError> {
    let usage = app.store.sandboxes.usage(&team.id, app.clock.now()).await?;
    let baseline = app.settings.baseline;
    let reservation = Amounts::of_sandboxes(1, baseline.cpu, baseline.memory_mb);
    let quota = QuotaBody::new(&app.offer.of(team.plan), usage, reservation);
    let members = app.store.members.of(&team.id).await?.len();
    Ok(DetailBody { team: team.into(), members, quota })
}
