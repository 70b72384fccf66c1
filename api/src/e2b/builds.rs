//! Builds that were announced: `POST /v2/templates/{id}/builds/{build}`, `GET …/status`, `GET …/logs`

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as JsonBody};
use jiff::Timestamp;
use sandpiper_http::audited::Acted;
use sandpiper_http::error::ApiError;
use sandpiper_http::json::Json;
use sandpiper_http::query::{NoParameters, Pairs, unknown};
use sandpiper_protocol::agent::NetworkPolicy;
use sandpiper_protocol::ids::VersionId;
use sandpiper_protocol::template::{
    BuildLogEntry, BuildSource, Credentials, LogLevel, MAX_LOG_ENTRIES, StartCommand, Step, Steps, StepsBase,
};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::reference::{self, name, own};
use super::{build_files, build_id};
use crate::auth::{Caller, ReadAccess, WriteAccess};
use crate::orchestration::build::{self, Wanted};
use crate::state::App;
use crate::store::templates::TemplateRow;
use crate::store::templates::versions::{State as VersionState, VersionRow};
use crate::v1::sandboxes::validate::{Problems, Start};
use crate::v1::templates::logs;
use crate::v1::templates::reference::owned;
use crate::v1::templates::source::{StepRequest, base_version, check_image, check_step, steps_limit};

/// Entries of one response, at most and unless a request names fewer.
const LIMIT: usize = 100;
/// What runs where a template says when it is ready and not what is to be: nothing.
const NO_COMMAND: &str = "true";
/// The user whose password is a key of Google's registry.
const GCP_USER: &str = "_json_key";

/// What a version is made of.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartRequest {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Registry>,
    force: Option<bool>,
    #[serde(default)]
    steps: Vec<StepBody>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

/// Credentials of the image's registry.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum Registry {
    #[serde(rename = "registry")]
    General {
        username: String,
        password: String,
    },
    Gcp {
        service_account_json: String,
    },
    /// Which needs a request to Amazon that nobody makes here.
    Aws(IgnoredAny),
}

/// A step: what its arguments mean follows from its type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StepBody {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Vec<String>,
    files_hash: Option<String>,
    force: Option<bool>,
    /// What the SDK does with them is done when they get here.
    #[serde(rename = "forceUpload")]
    _force_upload: Option<bool>,
    #[serde(rename = "resolveSymlinks")]
    _resolve_symlinks: Option<bool>,
    #[serde(rename = "gzip")]
    _gzip: Option<bool>,
}

/// How a build goes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusBody {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    status: &'static str,
    logs: Vec<String>,
    log_entries: Vec<EntryBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<ReasonBody>,
}

/// Why a build failed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReasonBody {
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    log_entries: [EntryBody; 0],
}

/// A line of a build's log.
#[derive(Debug, Serialize)]
struct EntryBody {
    timestamp: Timestamp,
    message: String,
    level: LogLevel,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<String>,
}

impl From<BuildLogEntry> for EntryBody {
    fn from(entry: BuildLogEntry) -> Self {
        Self {
            timestamp: entry.time,
            message: entry.text,
            level: entry.level,
            step: entry.step.map(|step| step.to_string()),
        }
    }
}

/// The SDKs' word for a state.
pub fn status(state: VersionState) -> &'static str {
    match state {
        VersionState::Queued => "waiting",
        VersionState::Building | VersionState::Warming => "building",
        VersionState::Ready => "ready",
        VersionState::Failed | VersionState::Cancelled | VersionState::Deleted => "error",
    }
}

/// Begin a build that was announced. A repetition changes nothing.
pub async fn start(
    WriteAccess(caller): WriteAccess,
    State(app): State<App>,
    _: NoParameters,
    Path((id, build)): Path<(String, String)>,
    Json(request): Json<StartRequest>,
) -> Result<Response, ApiError> {
    let template = own_template(&app, &caller, &id).await?;
    let version = build_id::parse(&build).ok_or_else(|| no_build(&build))?;
    let acted = Extension(Acted(vec![version.to_string()]));
    let accepted = || (StatusCode::ACCEPTED, acted, JsonBody(json!({}))).into_response();
    if begun(&app, &template, &version).await?.is_some() {
        return Ok(accepted());
    }
    if app.store.templates.was_deleted(&template.id, &version).await? {
        return Err(ApiError::invalid_state(format!("The build {build} was deleted; begin another template build")));
    }
    let announced = app.store.templates.announced(&template.id, &version).await?;
    let announced = announced.ok_or_else(|| no_build(&build))?;
    let start = request.start_command();
    let (source, base) = request.source(&app, &caller).await?;
    let wanted = Wanted {
        id: announced.id,
        source,
        base,
        baseline: announced.baseline,
        disk_gib: app.offer.of(caller.team.plan).root_disk_gib,
        start,
        tags: announced.tags,
        policy: NetworkPolicy::default(),
    };
    match build::start(&app, &caller, &template, wanted, None).await {
        // Another request for this build was faster.
        Err(_) if begun(&app, &template, &version).await?.is_some() => {}
        started => drop(started?),
    }
    Ok(accepted())
}

impl StartRequest {
    fn start_command(&self) -> Option<StartCommand> {
        let text = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        match (text(&self.start_cmd), text(&self.ready_cmd)) {
            (None, None) => None,
            (command, ready) => Some(StartCommand { command: command.unwrap_or_else(|| NO_COMMAND.to_owned()), ready }),
        }
    }

    async fn source(self, app: &App, caller: &Caller) -> Result<(BuildSource, Option<VersionId>), ApiError> {
        let mut problems = Problems::default();
        steps_limit("steps", self.steps.len(), &mut problems);
        let (from, base) = match (self.from_image, self.from_template) {
            (Some(reference), None) => {
                check_image("fromImage", &reference, &mut problems);
                let credentials = self.from_image_registry.and_then(|registry| registry.credentials(&mut problems));
                (StepsBase::Image { reference, credentials }, None)
            }
            (None, Some(template)) => {
                let version = match reference::find(app, caller, &template).await? {
                    Start::Template(name) => base_version(app, caller, &name).await?,
                    Start::Snapshot(_) => {
                        return Err(ApiError::invalid_field(
                            "fromTemplate",
                            "is a snapshot; steps begin with templates",
                        ));
                    }
                };
                (StepsBase::Version { version: version.clone() }, Some(version))
            }
            _ => return Err(ApiError::invalid_field("fromImage", "is required, or fromTemplate, one of them")),
        };
        let mut steps = Vec::with_capacity(self.steps.len());
        for (index, step) in self.steps.into_iter().enumerate() {
            let at = format!("steps[{index}]");
            match step.check(app, caller, &at, &mut problems).await? {
                Some(step) => steps.push(step),
                None => problems.add(at, "is not a step of a kind that is known, with the arguments of its kind"),
            }
        }
        problems.into_result()?;
        let no_cache = self.force.unwrap_or(false);
        Ok((BuildSource::Steps(Steps { from, steps, no_cache }), base))
    }
}

impl Registry {
    fn credentials(self, problems: &mut Problems) -> Option<Credentials> {
        match self {
            Registry::General { username, password } => Some(Credentials { username, password }),
            Registry::Gcp { service_account_json } => {
                Some(Credentials { username: GCP_USER.to_owned(), password: service_account_json })
            }
            Registry::Aws(_) => {
                let reason = "of the type aws is not available; get a password with `aws ecr get-login-password` and send it \
                              with the type registry";
                problems.add("fromImageRegistry", reason);
                None
            }
        }
    }
}

impl StepBody {
    /// The step; `None` where it is none.
    async fn check(
        self,
        app: &App,
        caller: &Caller,
        at: &str,
        problems: &mut Problems,
    ) -> Result<Option<Step>, ApiError> {
        let force = self.force.unwrap_or(false);
        let mut args = self.args.into_iter().map(Some);
        let mut next = || args.next().flatten().filter(|text| !text.is_empty());
        let step = match self.kind.as_str() {
            "COPY" => {
                let (Some(source), Some(target), Some(hash)) = (next(), next(), self.files_hash) else {
                    return Ok(None);
                };
                let upload = build_files::sent(app, caller, &hash).await?;
                StepRequest::Copy { upload: upload.to_string(), source, target, user: next(), mode: next(), force }
            }
            "RUN" => {
                let Some(command) = next() else { return Ok(None) };
                StepRequest::Run { command, user: next(), force }
            }
            "ENV" => {
                let words: Vec<String> = args.flatten().collect();
                let pairs = words.chunks_exact(2);
                if !pairs.remainder().is_empty() {
                    return Ok(None);
                }
                StepRequest::Env { env: pairs.map(|pair| (pair[0].clone(), pair[1].clone())).collect() }
            }
            "WORKDIR" => {
                let Some(path) = next() else { return Ok(None) };
                StepRequest::Workdir { path }
            }
            "USER" => {
                let Some(name) = next() else { return Ok(None) };
                StepRequest::User { name }
            }
            _ => return Ok(None),
        };
        check_step(at, &step, problems);
        Ok(Some(step.into()))
    }
}

/// Show how a build goes, with lines of its log from `logsOffset` on.
pub async fn show(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path((id, build)): Path<(String, String)>,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let (mut offset, mut limit, mut least) = (0, LIMIT, LogLevel::Debug);
    for (parameter, value) in pairs {
        match parameter.as_str() {
            "logsOffset" => offset = number("logsOffset", &value)?,
            "limit" => limit = limit_of(&value)?,
            "level" => least = level(&value)?,
            _ => return Err(unknown(&parameter)),
        }
    }
    let template = own_template(&app, &caller, &id).await?;
    let version = build_id::parse(&build).ok_or_else(|| no_build(&build))?;
    let mut body = StatusBody {
        template_id: template.id.to_string(),
        build_id: build_id::to_uuid(&version),
        status: status(VersionState::Queued),
        logs: Vec::new(),
        log_entries: Vec::new(),
        reason: None,
    };
    let Some(row) = begun(&app, &template, &version).await? else {
        if app.store.templates.was_deleted(&template.id, &version).await? {
            return Err(no_build(&build));
        }
        let announced = app.store.templates.announced(&template.id, &version).await?;
        return announced.map(|_| JsonBody(body).into_response()).ok_or_else(|| no_build(&build));
    };
    let row = build::refresh(&app, row).await?;
    let shown = match least {
        // Lines are numbered from 1 without a gap.
        LogLevel::Debug => select(&app, &row, offset, limit, |_| true).await?,
        // The offset counts what was shown, as the SDKs do.
        _ => {
            let mut skipped = 0;
            let is_next = |entry: &BuildLogEntry| {
                let is_shown = rank(entry.level) >= rank(least);
                let is_next = is_shown && skipped >= offset;
                skipped += u64::from(is_shown);
                is_next
            };
            select(&app, &row, 0, limit, is_next).await?
        }
    };
    body.log_entries = shown.into_iter().map(EntryBody::from).collect();
    body.logs = body.log_entries.iter().map(|entry| entry.message.clone()).collect();
    body.status = status(row.state);
    body.reason = reason(&row);
    Ok(JsonBody(body).into_response())
}

fn reason(row: &VersionRow) -> Option<ReasonBody> {
    let message = match (&row.error, row.state) {
        (Some(error), _) => error.message.clone(),
        (None, VersionState::Cancelled) => "The build was cancelled".to_owned(),
        (None, _) => return None,
    };
    let step = row.error.as_ref().and_then(|error| error.step).map(|step| step.to_string());
    Some(ReasonBody { message, step, log_entries: [] })
}

/// Show lines of a build's log.
pub async fn log(
    ReadAccess(caller): ReadAccess,
    State(app): State<App>,
    Path((id, build)): Path<(String, String)>,
    Pairs(pairs): Pairs,
) -> Result<Response, ApiError> {
    let (mut cursor, mut limit, mut least) = (None, LIMIT, LogLevel::Debug);
    for (parameter, value) in pairs {
        match parameter.as_str() {
            "cursor" => cursor = Some(milliseconds("cursor", &value)?),
            "limit" => limit = limit_of(&value)?,
            "level" => least = level(&value)?,
            "direction" if value == "forward" => {}
            "direction" => return Err(ApiError::invalid_field("direction", "must be forward on this host")),
            // Wherever they are kept: here it is one place.
            "source" => {}
            _ => return Err(unknown(&parameter)),
        }
    }
    let template = own_template(&app, &caller, &id).await?;
    let version = build_id::parse(&build).ok_or_else(|| no_build(&build))?;
    let row = begun(&app, &template, &version).await?.ok_or_else(|| no_build(&build))?;
    let after = match cursor {
        None => 0,
        Some(cursor) => lines_before(&app, &row, cursor).await?,
    };
    let is_wanted = |entry: &BuildLogEntry| {
        rank(entry.level) >= rank(least) && cursor.is_none_or(|cursor| entry.time.as_millisecond() >= cursor)
    };
    let shown = select(&app, &row, after, limit, is_wanted).await?;
    Ok(JsonBody(json!({"logs": shown.into_iter().map(EntryBody::from).collect::<Vec<_>>()})).into_response())
}

/// The first `limit` lines of a log that are wanted, of those that follow line `after`.
async fn select(
    app: &App,
    row: &VersionRow,
    mut after: u64,
    limit: usize,
    mut is_wanted: impl FnMut(&BuildLogEntry) -> bool,
) -> Result<Vec<BuildLogEntry>, ApiError> {
    let mut selected = Vec::new();
    while selected.len() < limit {
        let page = logs::page(app, row, after, MAX_LOG_ENTRIES).await?;
        let Some(last) = page.entries.last() else { break };
        after = last.number;
        let missing = limit - selected.len();
        selected.extend(page.entries.into_iter().filter(&mut is_wanted).take(missing));
        if page.is_complete {
            break;
        }
    }
    Ok(selected)
}

/// How many lines of a log are from before `cursor`, milliseconds since 1970: lines are in the order of their times.
async fn lines_before(app: &App, row: &VersionRow, cursor: i64) -> Result<u64, ApiError> {
    let (mut before, mut end) = (0, row.log_end);
    while before < end {
        let middle = before + (end - before) / 2;
        match logs::page(app, row, middle, 1).await?.entries.first() {
            Some(entry) if entry.time.as_millisecond() < cursor => before = middle + 1,
            _ => end = middle,
        }
    }
    Ok(before)
}

/// The caller's template of this id or name.
pub(super) async fn own_template(app: &App, caller: &Caller, id: &str) -> Result<TemplateRow, ApiError> {
    owned(app, caller, name(own(caller, id).unwrap_or(id))).await
}

/// The version of a build that has begun.
async fn begun(app: &App, template: &TemplateRow, id: &VersionId) -> Result<Option<VersionRow>, ApiError> {
    let row = app.store.templates.version_by_id(id).await?;
    Ok(row.filter(|row| row.template == template.id))
}

fn no_build(build: &str) -> ApiError {
    ApiError::not_found(format!("There is no build {build:?} of this template"))
}

fn number(field: &str, text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| ApiError::invalid_field(field, "must be a whole number"))
}

fn milliseconds(field: &str, text: &str) -> Result<i64, ApiError> {
    text.parse().map_err(|_| ApiError::invalid_field(field, "must be milliseconds since 1970"))
}

/// Lines of one response.
fn limit_of(text: &str) -> Result<usize, ApiError> {
    Ok(usize::try_from(number("limit", text)?).unwrap_or(LIMIT).min(LIMIT))
}

fn level(text: &str) -> Result<LogLevel, ApiError> {
    match text {
        "debug" => Ok(LogLevel::Debug),
        "info" => Ok(LogLevel::Info),
        "warn" => Ok(LogLevel::Warn),
        "error" => Ok(LogLevel::Error),
        _ => Err(ApiError::invalid_field("level", "must be debug, info, warn or error")),
    }
}

fn rank(level: LogLevel) -> u8 {
    match level {
        LogLevel::Debug => 0,
        LogLevel::Info => 1,
        LogLevel::Warn => 2,
        LogLevel::Error => 3,
    }
}
