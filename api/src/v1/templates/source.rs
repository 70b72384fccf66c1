//! What a new version is made of: as requests say it, checked, and as the agent is told.

use std::collections::BTreeMap;

use sandpiper_http::error::ApiError;
use sandpiper_protocol::id;
use sandpiper_protocol::ids::{UploadId, VersionId};
use sandpiper_protocol::template::{BuildSource, Credentials, Dockerfile, Secrets, Step, Steps, StepsBase};
use serde::Deserialize;
use utoipa::ToSchema;

use super::reference::{Found, fresh, look_up};
use super::uploads;
use crate::auth::Caller;
use crate::errors;
use crate::state::App;
use crate::store::checkpoints::State as CheckpointState;
use crate::store::sandbox_row::State as SandboxState;
use crate::v1::sandboxes::owned as owned_sandbox;
use crate::v1::sandboxes::validate::Problems;

/// Longest text of a Dockerfile, bytes.
const MAX_DOCKERFILE: usize = 512 << 10;
/// Longest command of a step, bytes.
const MAX_COMMAND: usize = 64 << 10;
/// Longest name of an image, path or the like, bytes.
const MAX_TEXT: usize = 4096;
/// Steps of one version.
const MOST_STEPS: usize = 1000;
/// Arguments, secrets or variables of one version, and how long they are together.
const MOST_PAIRS: usize = 256;
const MAX_PAIRS_SIZE: usize = 256 << 10;
/// Bytes of a secret: buildah has each from a variable, which Linux bounds.
const MAX_SECRET: usize = 120 << 10;

/// What a version is made of: one of these.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = BuildSource)]
pub enum SourceRequest {
    /// Id of a checkpoint of the team: its disk, at once.
    Checkpoint(String),
    /// Id of a stopped sandbox of the team: its disk, at once.
    Sandbox(String),
    Image(ImageRequest),
    /// Id of a file: an OCI archive, or what `docker save` writes; also compressed.
    Archive(String),
    Dockerfile(DockerfileRequest),
    Steps(StepsRequest),
}

/// An image of a registry.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ImageSource)]
pub struct ImageRequest {
    /// A name without a registry is one as Docker has it.
    #[schema(example = "registry.example/tools/node:22")]
    pub reference: String,
    pub credentials: Option<CredentialsRequest>,
}

/// Of a registry. They are used for this build alone, and not shown.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RegistryCredentials)]
pub struct CredentialsRequest {
    pub username: String,
    pub password: String,
}

impl From<CredentialsRequest> for Credentials {
    fn from(request: CredentialsRequest) -> Self {
        Self { username: request.username, password: request.password }
    }
}

/// A Dockerfile: its text, or where it is in the context.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DockerfileSource)]
pub struct DockerfileRequest {
    /// Its text, at most 512 KiB; without it, it is in the context at `path`.
    pub text: Option<String>,
    /// Id of a file: a tar archive, also compressed, of what it copies from; without it that is nothing.
    pub context: Option<String>,
    /// Relative to the context; `Dockerfile` by default.
    pub path: Option<String>,
    /// The stage that is the result; the last by default.
    pub target: Option<String>,
    /// For `ARG`.
    #[serde(default)]
    pub args: BTreeMap<String, String>,
    /// For `RUN --mount=type=secret,id=NAME`: in no layer, no log, and not shown.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
    /// Of the registries that `FROM` names, by their hosts.
    #[serde(default)]
    pub credentials: BTreeMap<String, CredentialsRequest>,
    /// No step's earlier result is used.
    #[serde(default)]
    #[schema(default = false)]
    pub no_cache: bool,
}

/// Steps on top of an image or of a version.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StepsSource)]
pub struct StepsRequest {
    pub from: BaseRequest,
    pub steps: Vec<StepRequest>,
    /// No step's earlier result is used.
    #[serde(default)]
    #[schema(default = false)]
    pub no_cache: bool,
}

/// What steps begin with.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = StepsBase)]
pub enum BaseRequest {
    Image(ImageRequest),
    /// As a create request names it.
    #[schema(example = "base")]
    Template(String),
}

/// One step, as a line of a Dockerfile.
#[derive(Deserialize, ToSchema)]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = BuildStep)]
pub enum StepRequest {
    /// Files of an archive.
    Copy {
        /// Id of a file: a tar archive, also compressed.
        upload: String,
        /// In the archive.
        source: String,
        target: String,
        user: Option<String>,
        /// Octal text.
        mode: Option<String>,
        #[serde(default)]
        force: bool,
    },
    Run {
        command: String,
        user: Option<String>,
        #[serde(default)]
        force: bool,
    },
    Env {
        env: BTreeMap<String, String>,
    },
    Workdir {
        path: String,
    },
    User {
        name: String,
    },
}

/// What the agent is told to build from.
#[derive(Debug)]
pub struct Checked {
    pub source: BuildSource,
    /// Of the disk that is used again.
    pub disk_gib: Option<u32>,
    /// The version that its steps begin with.
    pub base: Option<VersionId>,
}

impl From<BuildSource> for Checked {
    fn from(source: BuildSource) -> Self {
        Self { source, disk_gib: None, base: None }
    }
}

impl SourceRequest {
    /// Checks it, and looks up what it names.
    ///
    /// # Errors
    ///
    /// 400; 404 on what is not the team's; 409 on what cannot be used now.
    pub async fn check(self, app: &App, caller: &Caller) -> Result<Checked, ApiError> {
        let mut problems = Problems::default();
        match self {
            SourceRequest::Checkpoint(id) => of_checkpoint(app, caller, &id).await,
            SourceRequest::Sandbox(id) => of_sandbox(app, caller, &id).await,
            SourceRequest::Image(ImageRequest { reference, credentials }) => {
                check_image("source.image.reference", &reference, &mut problems);
                problems.into_result()?;
                Ok(BuildSource::Image { reference, credentials: credentials.map(Into::into) }.into())
            }
            SourceRequest::Archive(id) => Ok(BuildSource::Archive { upload: uploaded(app, caller, &id).await? }.into()),
            SourceRequest::Dockerfile(request) => of_dockerfile(app, caller, request).await,
            SourceRequest::Steps(request) => of_steps(app, caller, request).await,
        }
    }
}

async fn of_checkpoint(app: &App, caller: &Caller, id: &str) -> Result<Checked, ApiError> {
    let row = app.store.checkpoints.get(&caller.team.id, id).await?.ok_or_else(|| errors::no_checkpoint(id))?;
    if row.state != CheckpointState::Ready {
        return Err(ApiError::invalid_state(format!("The checkpoint {id} is not ready; use one that is")));
    }
    let source = BuildSource::Checkpoint { checkpoint: row.id.as_str().into() };
    Ok(Checked { source, disk_gib: Some(row.disk_gib), base: None })
}

async fn of_sandbox(app: &App, caller: &Caller, id: &str) -> Result<Checked, ApiError> {
    let row = owned_sandbox(app, caller, id).await?;
    if row.state != SandboxState::Stopped {
        return Err(ApiError::invalid_state(format!("The sandbox {id} is not stopped; pause it first")));
    }
    let source = BuildSource::Sandbox { sandbox: row.id.as_str().into() };
    Ok(Checked { source, disk_gib: Some(row.disk_gib), base: None })
}

async fn of_dockerfile(app: &App, caller: &Caller, request: DockerfileRequest) -> Result<Checked, ApiError> {
    let mut problems = Problems::default();
    let at = |field: &str| format!("source.dockerfile.{field}");
    if request.text.is_none() && request.context.is_none() {
        problems.add(at("text"), "is required, or context with a Dockerfile in it");
    }
    if request.text.is_some() && request.path.is_some() {
        problems.add(at("path"), "cannot be sent together with text: there is one Dockerfile");
    }
    if request.text.as_ref().is_some_and(|text| text.trim().is_empty() || text.len() > MAX_DOCKERFILE) {
        problems.add(at("text"), format!("must have 1 to {MAX_DOCKERFILE} bytes, not all of them blank"));
    }
    if let Some(path) = &request.path
        && (!is_text(path) || path.starts_with('/') || path.split('/').any(|part| part == ".."))
    {
        problems.add(at("path"), "must be a path in the context, relative to it and without `..`");
    }
    if request.target.as_ref().is_some_and(|target| !is_text(target)) {
        problems.add(at("target"), "must be the name of a stage");
    }
    check_pairs(&at("args"), &request.args, &mut problems);
    check_pairs(&at("secrets"), &request.secrets, &mut problems);
    if request.secrets.values().any(|secret| secret.len() > MAX_SECRET) {
        problems.add(at("secrets"), format!("must have at most {MAX_SECRET} bytes each"));
    }
    if request.credentials.len() > MOST_PAIRS || request.credentials.keys().any(|host| !is_text(host)) {
        problems.add(at("credentials"), format!("must be at most {MOST_PAIRS}, by the hosts of registries"));
    }
    problems.into_result()?;
    let context = match &request.context {
        Some(id) => Some(uploaded(app, caller, id).await?),
        None => None,
    };
    Ok(BuildSource::Dockerfile(Dockerfile {
        context,
        text: request.text,
        path: request.path,
        target: request.target,
        args: request.args,
        secrets: Secrets(request.secrets),
        credentials: request.credentials.into_iter().map(|(host, one)| (host, one.into())).collect(),
        no_cache: request.no_cache,
    })
    .into())
}

async fn of_steps(app: &App, caller: &Caller, request: StepsRequest) -> Result<Checked, ApiError> {
    let mut problems = Problems::default();
    steps_limit("source.steps.steps", request.steps.len(), &mut problems);
    if let BaseRequest::Image(image) = &request.from {
        check_image("source.steps.from.image.reference", &image.reference, &mut problems);
    }
    for (index, step) in request.steps.iter().enumerate() {
        check_step(&format!("source.steps.steps[{index}]"), step, &mut problems);
    }
    problems.into_result()?;
    let (from, base) = match request.from {
        BaseRequest::Image(ImageRequest { reference, credentials }) => {
            (StepsBase::Image { reference, credentials: credentials.map(Into::into) }, None)
        }
        BaseRequest::Template(name) => {
            let version = base_version(app, caller, &name).await?;
            (StepsBase::Version { version: version.clone() }, Some(version))
        }
    };
    for step in &request.steps {
        if let StepRequest::Copy { upload, .. } = step {
            uploaded(app, caller, upload).await?;
        }
    }
    let steps = request.steps.into_iter().map(Step::from).collect();
    let source = BuildSource::Steps(Steps { from, steps, no_cache: request.no_cache });
    Ok(Checked { source, disk_gib: None, base })
}

/// The version that a name stands for.
///
/// # Errors
///
/// 404, and 409 on one that cannot be started.
pub async fn base_version(app: &App, caller: &Caller, name: &str) -> Result<VersionId, ApiError> {
    let team = &caller.team.id;
    match look_up(app, team, name).await? {
        Found::Version(_, version) => Ok(version.id),
        _ => Ok(fresh(app, team, name).await?.1.id),
    }
}

impl From<StepRequest> for Step {
    fn from(step: StepRequest) -> Self {
        match step {
            StepRequest::Copy { upload, source, target, user, mode, force } => {
                Step::Copy { upload: upload.into(), source, target, user, mode, force }
            }
            StepRequest::Run { command, user, force } => Step::Run { command, user, force },
            StepRequest::Env { env } => Step::Env { env },
            StepRequest::Workdir { path } => Step::Workdir { path },
            StepRequest::User { name } => Step::User { name },
        }
    }
}

/// The team's file of this id, which is kept for a day more.
///
/// # Errors
///
/// 404.
pub async fn uploaded(app: &App, caller: &Caller, id: &str) -> Result<UploadId, ApiError> {
    let row = match id::is_valid(UploadId::PREFIX, id) {
        true => uploads::kept(app, caller, id).await?,
        false => None,
    };
    Ok(row.ok_or_else(|| errors::no_upload(id))?.id)
}

/// Checks the name of an image, as far as it needs no knowledge of registries.
pub fn check_image(field: &str, reference: &str, problems: &mut Problems) {
    if !is_text(reference) || reference.contains(char::is_whitespace) {
        problems.add(field, "must be the name of an image, such as registry.example/tools/node:22");
    }
}

/// Checks how many steps there are.
pub fn steps_limit(field: &str, count: usize, problems: &mut Problems) {
    if count > MOST_STEPS {
        problems.add(field, format!("must be at most {MOST_STEPS}"));
    }
}

/// Checks a step, but for the file that it copies from.
pub fn check_step(at: &str, step: &StepRequest, problems: &mut Problems) {
    let mut text = |field: &str, value: &str| {
        if !is_text(value) {
            problems
                .add(format!("{at}.{field}"), format!("must have 1 to {MAX_TEXT} bytes, and no control characters"));
        }
    };
    match step {
        StepRequest::Copy { source, target, user, mode, .. } => {
            text("source", source);
            text("target", target);
            if let Some(user) = user {
                text("user", user);
            }
            let is_octal =
                |mode: &String| (1..=4).contains(&mode.len()) && mode.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
            if mode.as_ref().is_some_and(|mode| !is_octal(mode)) {
                problems.add(format!("{at}.mode"), "must be octal text, such as 0755");
            }
        }
        StepRequest::Run { command, user, .. } => {
            if let Some(user) = user {
                text("user", user);
            }
            if command.trim().is_empty() || command.len() > MAX_COMMAND {
                problems.add(format!("{at}.command"), format!("must have 1 to {MAX_COMMAND} bytes, not all blank"));
            }
        }
        StepRequest::Env { env } => check_pairs(&format!("{at}.env"), env, problems),
        StepRequest::Workdir { path } => text("path", path),
        StepRequest::User { name } => text("name", name),
    }
}

/// Checks names and values, without naming a value, which may be a secret.
fn check_pairs(field: &str, pairs: &BTreeMap<String, String>, problems: &mut Problems) {
    if pairs.len() > MOST_PAIRS
        || pairs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_PAIRS_SIZE
    {
        problems.add(field, format!("must be at most {MOST_PAIRS}, of {MAX_PAIRS_SIZE} bytes together"));
    }
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    if pairs.keys().any(|name| !is_name(name)) {
        problems.add(field, "must have names of letters, digits, `_`, `-` and `.`");
    }
}

fn is_text(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= MAX_TEXT && !text.chars().any(char::is_control)
}
