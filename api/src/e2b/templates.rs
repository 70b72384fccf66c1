//! Templates as the SDKs and their command line see them. `POST /v3/templates`, `POST /v2/templates`, `GET /templates`,
//! `GET /v2/templates`, `GET /templates/{id}`, `PATCH /v2/templates/{id}`, `PATCH /templates/{id}`,
//! `GET /templates/aliases/{alias}`
//!
//! A build begins with an announcement: its response names the template and the build, for which files are sent then; the
//! build itself is [`super::builds`]. `{id}` is the template's id or its name.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use jiff::Timestamp;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::{NoParameters, Pairs, unknown};
use sandpiper_protocol::ids::VersionId;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::reference::{DEFAULT_TAG, name, own, tag};
use super::{body::ENVD_VERSION, build_id, builds, pages};
use crate::auth::{Caller, ReadAccess, WriteAccess};
use crate::errors;
use crate::state::App;
use crate::store::templates::announced::Announced;
use crate::store::templates::versions::{State as VersionState, VersionRow};
use crate::store::templates::{Change, NewTemplate, TemplateId, TemplateRow, Visibility};
use crate::v1::page::{List, Paging};
use crate::v1::sandboxes::validate::Problems;
use crate::v1::templates::body::{check_slug, check_tags};
use crate::v1::templates::create::make;
use crate::v1::templates::reference::{owned, visible};
use crate::v1::templates::versions::{BaselineRequest, baseline};

/// Templates of a page, or builds, unless a request names fewer.
const LIMIT: u32 = 100;

/// The build to announce.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewBuild {
    /// `name`, `name:tag`, `team/name:tag`.
    name: Option<String>,
    /// The same, from older SDKs.
    alias: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u32>,
    min_free_disk_mb: Option<u64>,
    #[serde(rename = "teamID")]
    team_id: Option<String>,
}

/// A build that is announced.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AnnouncedBody {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    public: bool,
    names: Vec<String>,
    tags: Vec<String>,
    aliases: Vec<String>,
}

/// A template, by its newest version.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TemplateBody {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    public: bool,
    aliases: Vec<String>,
    names: Vec<String>,
    created_at: Timestamp,
    updated_at: Timestamp,
    /// Nobody counts here who starts what.
    created_by: Option<()>,
    last_spawned_at: Option<Timestamp>,
    spawn_count: u64,
    build_count: u32,
    envd_version: &'static str,
    build_status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    description: String,
}

/// A template with its builds.
#[derive(Debug, Serialize)]
struct TemplateAndBuilds {
    #[serde(flatten)]
    template: TemplateBody,
    builds: Vec<BuildBody>,
}

/// A build of a template.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BuildBody {
    #[serde(rename = "buildID")]
    build_id: String,
    status: &'static str,
    created_at: Timestamp,
    updated_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<Timestamp>,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    envd_version: &'static str,
}

/// What to change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateChange {
    public: Option<bool>,
}

impl TemplateBody {
    /// `row`, of which `newest` is the newest version there is.
    fn new(row: &TemplateRow, newest: Option<&VersionRow>) -> Self {
        let shown = row.latest.as_ref().or(newest);
        Self {
            template_id: row.id.to_string(),
            build_id: shown.map(|version| build_id::to_uuid(&version.id)).unwrap_or_default(),
            cpu_count: shown.map_or(0, |version| version.baseline.cpu),
            memory_mb: shown.map_or(0, |version| version.baseline.memory_mb),
            disk_size_mb: shown.map_or(0, |version| mib(version.disk_gib)),
            public: row.visibility == Visibility::Public,
            aliases: vec![row.slug.clone()],
            names: names(row),
            created_at: row.created_at,
            updated_at: row.updated_at,
            created_by: None,
            last_spawned_at: None,
            spawn_count: 0,
            build_count: newest.map_or(0, |version| version.number),
            envd_version: ENVD_VERSION,
            build_status: builds::status(shown.map_or(VersionState::Queued, |version| version.state)),
            description: row.description.clone(),
        }
    }
}

impl From<VersionRow> for BuildBody {
    fn from(row: VersionRow) -> Self {
        Self {
            build_id: build_id::to_uuid(&row.id),
            status: builds::status(row.state),
            created_at: row.created_at,
            updated_at: row.finished_at.or(row.started_at).unwrap_or(row.created_at),
            finished_at: row.finished_at,
            cpu_count: row.baseline.cpu,
            memory_mb: row.baseline.memory_mb,
            disk_size_mb: mib(row.disk_gib),
            envd_version: ENVD_VERSION,
        }
    }
}

fn mib(gib: u32) -> u64 {
    u64::from(gib) * 1024
}

/// `team/name`; of the host's, the name alone.
fn names(row: &TemplateRow) -> Vec<String> {
    vec![match &row.owner {
        Some(owner) => format!("{}/{}", owner.slug, row.slug),
        None => row.slug.clone(),
    }]
}

/// Announce a build. The template is made where it is missing.
pub async fn announce(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Json(request): Json<NewBuild>,
) -> Result<Response, ApiError> {
    caller.check_team(request.team_id.as_deref())?;
    let limits = &app.offer.of(caller.team.plan);
    let full = request.name.or(request.alias).ok_or_else(|| ApiError::invalid_field("name", "is required"))?;
    let bare = own(&caller, &full).ok_or_else(|| ApiError::invalid_field("name", "must not be of another team"))?;
    let mut problems = Problems::default();
    check_slug("name", name(bare), &mut problems);
    let mut tags = request.tags;
    tags.extend(tag(bare).map(str::to_owned));
    if tags.is_empty() {
        tags.push(DEFAULT_TAG.to_owned());
    }
    tags.sort();
    tags.dedup();
    check_tags("tags", &tags, &mut problems);
    if request.min_free_disk_mb.is_some_and(|least| least > mib(limits.root_disk_gib)) {
        problems.add("minFreeDiskMb", format!("must be at most {} on this plan", mib(limits.root_disk_gib)));
    }
    problems.into_result()?;
    let asked = BaselineRequest { cpu: request.cpu_count, memory_mb: request.memory_mb };
    let baseline = baseline(&app, asked, limits)?;
    let template = find_or_make(&app, &caller, name(bare)).await?;
    let announced = Announced { id: VersionId::generate(), template: template.id.clone(), baseline, tags };
    app.store.templates.announce(&announced, app.clock.now()).await?;
    let body = AnnouncedBody {
        template_id: template.id.to_string(),
        build_id: build_id::to_uuid(&announced.id),
        public: template.visibility == Visibility::Public,
        names: names(&template),
        tags: announced.tags,
        aliases: vec![template.slug],
    };
    let acted = Extension(Acted(vec![body.template_id.clone(), announced.id.to_string()]));
    Ok((StatusCode::ACCEPTED, acted, JsonBody(body)).into_response())
}

async fn find_or_make(app: &App, caller: &Caller, slug: &str) -> Result<TemplateRow, ApiError> {
    let found = app.store.templates.find(&caller.team.id, None, slug).await?;
    if let Some(template) = found.filter(|template| template.is_of(&caller.team.id)) {
        return Ok(template);
    }
    let new = NewTemplate {
        id: TemplateId::generate(),
        slug: slug.to_owned(),
        visibility: Visibility::Private,
        description: String::new(),
        created_at: app.clock.now(),
    };
    match make(app, caller, &new, None).await {
        // Another request has made it in this moment.
        Err(error) if error.code() == "conflict" => owned(app, caller, slug).await,
        made => made,
    }
}

/// List the team's own templates: all of them, as the command line expects.
pub async fn list_all(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    for (parameter, value) in pairs {
        match parameter.as_str() {
            "teamID" => caller.check_team(Some(&value))?,
            _ => return Err(unknown(&parameter)),
        }
    }
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = app.store.templates.list(&caller.team.id, after.as_deref(), LIMIT).await?;
        listed.extend(with_newest(&app, &caller, page.templates).await?);
        after = page.after;
        if after.is_none() {
            return Ok(JsonBody(listed).into_response());
        }
    }
}

/// List the team's own templates, page by page.
pub async fn list(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let mut paging = Paging::of_limit(LIMIT);
    for (parameter, value) in pairs {
        match parameter.as_str() {
            "limit" => drop(paging.take("limit", &value)?),
            "nextToken" => drop(paging.take("next_token", &value)?),
            "teamID" => caller.check_team(Some(&value))?,
            _ => return Err(unknown(&parameter)),
        }
    }
    let list = List::of_ids("tpl", &json!(["e2b", caller.team.id]));
    let after = paging.after(&list)?;
    let page = app.store.templates.list(&caller.team.id, after.as_deref(), paging.limit).await?;
    let shown = with_newest(&app, &caller, page.templates).await?;
    Ok(pages::response(&shown, page.after.map(|after| list.token(after))))
}

/// The team's own of these templates.
async fn with_newest(app: &App, caller: &Caller, rows: Vec<TemplateRow>) -> Result<Vec<TemplateBody>, ApiError> {
    let mut bodies = Vec::new();
    for row in rows.iter().filter(|row| row.is_of(&caller.team.id)) {
        let newest = app.store.templates.versions(&row.id, true, None, 1).await?.versions.pop();
        bodies.push(TemplateBody::new(row, newest.as_ref()));
    }
    Ok(bodies)
}

/// Show a template with its builds, page by page.
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let mut paging = Paging::of_limit(LIMIT);
    for (parameter, value) in pairs {
        match parameter.as_str() {
            "limit" => drop(paging.take("limit", &value)?),
            "nextToken" => drop(paging.take("next_token", &value)?),
            _ => return Err(unknown(&parameter)),
        }
    }
    let row = owned(&app, &caller, name(&id)).await?;
    let list = List::of_ids("ver", &json!(["e2b", row.id]));
    let after = paging.after(&list)?;
    let newest = app.store.templates.versions(&row.id, true, None, 1).await?.versions.pop();
    let page = app.store.templates.versions(&row.id, true, after.as_deref(), paging.limit).await?;
    let body = TemplateAndBuilds {
        template: TemplateBody::new(&row, newest.as_ref()),
        builds: page.versions.into_iter().map(BuildBody::from).collect(),
    };
    Ok(pages::with_next(JsonBody(body), page.after.map(|after| list.token(after))))
}

/// Make a template public or private.
pub async fn update(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(id): Path<String>,
    Json(TemplateChange { public }): Json<TemplateChange>,
) -> Result<Response, ApiError> {
    let row = owned(&app, &caller, name(&id)).await?;
    let visibility = public.map(|public| if public { Visibility::Public } else { Visibility::Private });
    let change = Change { visibility, description: None };
    app.store.templates.change(&row.id, &change, app.clock.now()).await?;
    let acted = Extension(Acted(vec![row.id.to_string()]));
    Ok((acted, JsonBody(json!({"names": names(&row)}))).into_response())
}

/// Say whether there is a template of this name. What other teams keep to themselves does not exist.
pub async fn alias(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    _: NoParameters,
    Path(alias): Path<String>,
) -> Result<Response, ApiError> {
    let bare = own(&caller, &alias).unwrap_or(&alias);
    let row = visible(&app, &caller, name(bare)).await.map_err(|error| match error.status() {
        StatusCode::NOT_FOUND => errors::no_template(&alias),
        _ => error,
    })?;
    let public = row.visibility == Visibility::Public;
    Ok(JsonBody(json!({"templateID": row.id.as_str(), "public": public})).into_response())
}
