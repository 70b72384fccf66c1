//! Versions of a template: built, listed, shown, cancelled, deleted. `…/v1/templates/{slug}/versions`

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::{NoParameters, Pairs};
use sandpiper_protocol::agent::RuntimeBaseline;
use sandpiper_protocol::ids::VersionId;
use sandpiper_protocol::template::StartCommand;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::body::{VersionBody, check_tags};
use super::reference::{owned, version, visible};
use super::source::SourceRequest;
use crate::auth::{Caller, ReadAccess, WriteAccess};
use crate::errors;
use crate::orchestration::build::{self, Wanted};
use crate::plan::PlanLimits;
use crate::state::App;
use crate::store::idempotency::Claim;
use crate::store::templates::versions::VersionRow;
use crate::store::templates::{Removal, TemplateRow};
use crate::v1::network::NetworkRequest;
use crate::v1::page::{List, Paging};
use crate::v1::sandboxes::validate::{self, Problems};

/// Longest start or ready command, bytes.
const MAX_COMMAND: usize = 8 << 10;

/// The version to build.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateTemplateVersion)]
pub struct CreateRequest {
    pub source: SourceRequest,
    /// CPU and memory of a sandbox whose create request names none; what is left out is the limits' `cpu` and `memory_mb`.
    pub runtime_baseline: Option<BaselineRequest>,
    /// Of its file system: the plan's `root_disk_gib` at most, and by default. Not with a checkpoint or sandbox, which has its
    /// own.
    #[schema(minimum = 1)]
    pub disk_gib: Option<u32>,
    /// For `/bin/sh -c`: runs in every sandbox of the version from the start. It is started once, when the version is made;
    /// sandboxes go on from there.
    pub start_cmd: Option<String>,
    /// For `/bin/sh -c`: run again and again until it succeeds, which says that `start_cmd` is up.
    pub ready_cmd: Option<String>,
    /// Words that stand for the version once it is ready, as `<slug>:<tag>`; those that another version has go over to it.
    #[serde(default)]
    pub tags: Vec<String>,
    /// What the build may reach; the whole internet by default. Sandboxes of the version have policies of their own.
    pub network: Option<NetworkRequest>,
}

/// CPU and memory.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuntimeBaselineRequest)]
pub struct BaselineRequest {
    /// One of the plan's `cpu_values`.
    pub cpu: Option<u32>,
    /// MiB, within the plan's limits.
    pub memory_mb: Option<u32>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
pub struct TemplateVersionList {
    /// Newest first.
    pub versions: Vec<VersionBody>,
    /// For the next page, of the same list; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_token: Option<String>,
}

/// Build a version
///
/// Responds at once with a version in `queued`, which becomes `ready`, or `failed` with an `error`; its log says how it goes.
/// While no version of the template is ready, nothing can be started from it.
#[utoipa::path(
    post,
    path = "/v1/templates/{slug}/versions",
    operation_id = "create_template_version",
    tag = "templates",
    params(("slug" = String, Path, description = "Slug or id of the template")),
    request_body = CreateRequest,
    responses((status = 202, description = "It is being built", body = VersionBody))
)]
pub async fn create(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    claim: Option<Extension<Claim>>,
    Path(slug): Path<String>,
    Json(request): Json<CreateRequest>,
) -> Result<Response, ApiError> {
    let template = owned(&app, &caller, &slug).await?;
    let limits = &app.offer.of(caller.team.plan);
    let baseline = baseline(&app, request.runtime_baseline.unwrap_or_default(), limits)?;
    let mut problems = Problems::default();
    let start = start_command(request.start_cmd, request.ready_cmd, &mut problems);
    check_tags("tags", &request.tags, &mut problems);
    if request.disk_gib.is_some_and(|gib| !(1..=limits.root_disk_gib).contains(&gib)) {
        problems.add("disk_gib", format!("must be from 1 to {} on this plan", limits.root_disk_gib));
    }
    let network = request.network.unwrap_or_default().check(&mut problems);
    problems.into_result()?;
    let policy = network.policy(&app).await?;
    let checked = request.source.check(&app, &caller).await?;
    if checked.disk_gib.is_some() && request.disk_gib.is_some() {
        return Err(ApiError::invalid_field("disk_gib", "is that of the checkpoint or sandbox; leave it out"));
    }
    let wanted = Wanted {
        id: VersionId::generate(),
        disk_gib: checked.disk_gib.or(request.disk_gib).unwrap_or(limits.root_disk_gib),
        source: checked.source,
        base: checked.base,
        baseline,
        start,
        tags: request.tags,
        policy,
    };
    let claim = claim.map(|Extension(claim)| claim);
    let row = build::start(&app, &caller, &template, wanted, claim.as_ref()).await?;
    Ok(response(&caller, &template, row))
}

/// CPU and memory of a version: as asked where the plan allows it, else the limits' own.
///
/// # Errors
///
/// 400.
pub fn baseline(app: &App, asked: BaselineRequest, limits: &PlanLimits) -> Result<RuntimeBaseline, ApiError> {
    let fallback = app.settings.baseline;
    let fallback = RuntimeBaseline { cpu: fallback.cpu, memory_mb: fallback.memory_mb };
    let (cpu, memory_mb) = validate::size((asked.cpu, asked.memory_mb), fallback, limits)?;
    Ok(RuntimeBaseline { cpu, memory_mb })
}

fn start_command(start: Option<String>, ready: Option<String>, problems: &mut Problems) -> Option<StartCommand> {
    let is_wrong =
        |text: &Option<String>| text.as_ref().is_some_and(|text| text.trim().is_empty() || text.len() > MAX_COMMAND);
    for (field, text) in [("start_cmd", &start), ("ready_cmd", &ready)] {
        if is_wrong(text) {
            problems.add(field, format!("must have 1 to {MAX_COMMAND} bytes, not all of them blank"));
        }
    }
    if start.is_none() && ready.is_some() {
        problems.add("ready_cmd", "says when start_cmd is up; send that, too");
    }
    start.map(|command| StartCommand { command, ready })
}

/// The response for a version that an earlier request with the same idempotency key began; `None` if nothing came of it.
///
/// # Errors
///
/// Those of the database.
pub async fn response_for_existing(app: &App, caller: &Caller, id: &VersionId) -> Result<Option<Response>, ApiError> {
    let Some(row) = app.store.templates.version_by_id(id).await? else { return Ok(None) };
    let template = app.store.templates.find(&caller.team.id, None, &row.template).await?;
    let template = template.filter(|template| template.is_of(&caller.team.id));
    Ok(template.map(|template| response(caller, &template, row)))
}

fn response(caller: &Caller, template: &TemplateRow, row: VersionRow) -> Response {
    let name = template.name_for(&caller.team.id);
    let location = [(header::LOCATION, format!("/v1/templates/{name}/versions/{}", row.number))];
    let acted = Extension(Acted(vec![row.id.to_string()]));
    (StatusCode::ACCEPTED, location, acted, JsonBody(VersionBody::new(name, row))).into_response()
}

/// List versions
///
/// Newest first, page by page. Of a template that is not the team's own, those that can be started.
#[utoipa::path(
    get,
    path = "/v1/templates/{slug}/versions",
    operation_id = "list_template_versions",
    tag = "templates",
    params(
        ("slug" = String, Path, description = "Slug or id of the template"),
        ("limit" = Option<u32>, Query, description = "Versions per page: 50 by default, 100 at most", minimum = 1),
        ("next_token" = Option<String>, Query, description = "From the page before"),
    ),
    responses((status = 200, description = "A page", body = TemplateVersionList))
)]
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(slug): Path<String>,
    query: Pairs,
) -> Result<JsonBody<TemplateVersionList>, ApiError> {
    let template = visible(&app, &caller, &slug).await?;
    let paging = Paging::alone(query)?;
    let list = List::of_ids("ver", &json!([caller.team.id, template.id]));
    let after = paging.after(&list)?;

    let all = template.is_of(&caller.team.id);
    let page = app.store.templates.versions(&template.id, all, after.as_deref(), paging.limit).await?;

    let name = template.name_for(&caller.team.id);
    Ok(JsonBody(TemplateVersionList {
        versions: page.versions.into_iter().map(|row| VersionBody::new(name.clone(), row)).collect(),
        next_token: page.after.map(|after| list.token(after)),
    }))
}

/// Show a version
///
/// How far it is, and what came of it.
#[utoipa::path(
    get,
    path = "/v1/templates/{slug}/versions/{version}",
    operation_id = "show_template_version",
    tag = "templates",
    params(
        ("slug" = String, Path, description = "Slug or id of the template"),
        ("version" = String, Path, description = "Number or id of the version, or a tag"),
    ),
    responses((status = 200, description = "The version", body = VersionBody))
)]
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((slug, reference)): Path<(String, String)>,
) -> Result<JsonBody<VersionBody>, ApiError> {
    let template = visible(&app, &caller, &slug).await?;
    let row = build::refresh(&app, version(&app, &caller, &template, &reference).await?).await?;
    Ok(JsonBody(VersionBody::new(template.name_for(&caller.team.id), row)))
}

/// Delete a version
///
/// Refused with 409 `template_in_use` while it is being built, or a sandbox, a checkpoint or a build needs it.
#[utoipa::path(
    delete,
    path = "/v1/templates/{slug}/versions/{version}",
    operation_id = "delete_template_version",
    tag = "templates",
    params(
        ("slug" = String, Path, description = "Slug or id of the template"),
        ("version" = String, Path, description = "Number or id of the version, or a tag"),
    ),
    responses((status = 204, description = "Gone"))
)]
pub async fn delete(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((slug, reference)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let template = owned(&app, &caller, &slug).await?;
    let row = version(&app, &caller, &template, &reference).await?;
    match app.store.templates.delete_version(&row.id, row.number, app.clock.now()).await? {
        Removal::Removed(()) => {
            let acted = Extension(Acted(vec![row.id.to_string()]));
            build::remove(&app, [row.id]);
            Ok((StatusCode::NO_CONTENT, acted).into_response())
        }
        Removal::InUse(number, used) => Err(errors::version_in_use(&template, number, &used)),
    }
}

/// Cancel a build
///
/// The version becomes `cancelled`, at once or as soon as the host has ended it. One that has ended is 409 `invalid_state`.
#[utoipa::path(
    post,
    path = "/v1/templates/{slug}/versions/{version}/cancel",
    operation_id = "cancel_template_version",
    tag = "templates",
    params(
        ("slug" = String, Path, description = "Slug or id of the template"),
        ("version" = String, Path, description = "Number or id of the version"),
    ),
    responses((status = 202, description = "It ends", body = VersionBody))
)]
pub async fn cancel(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((slug, reference)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let template = owned(&app, &caller, &slug).await?;
    let row = version(&app, &caller, &template, &reference).await?;
    let row = build::cancel(&app, &row).await?;
    let acted = Extension(Acted(vec![row.id.to_string()]));
    let body = VersionBody::new(template.name_for(&caller.team.id), row);
    Ok((StatusCode::ACCEPTED, acted, JsonBody(body)).into_response())
}
