//! Templates and their versions as JSON, and the checks of what names them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandpiper_protocol::ids::TeamId;
use sandpiper_protocol::{agent, id};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::store::templates::versions::{State, VersionRow};
use crate::store::templates::{TemplateRow, Visibility};
use crate::v1::sandboxes::validate::Problems;

/// Longest slug.
pub const MAX_SLUG: usize = 63;
/// Longest description, bytes.
pub const MAX_DESCRIPTION: usize = 1024;
/// Longest tag.
const MAX_TAG: usize = 128;
/// Tags that one version may be given at a time.
const MOST_TAGS: usize = 16;
/// Slugs that paths mean something else by.
const RESERVED: [&str; 3] = ["uploads", "tags", "aliases"];

/// A template.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Template)]
pub struct TemplateBody {
    #[schema(example = "tpl06f3kq8z2m1c9w0v5t7b4a")]
    pub id: String,
    /// What a create request names as `template`; of a template that another team has made public, `<team>/<slug>`.
    #[schema(example = "node")]
    pub slug: String,
    /// Slug of the team that owns it; null for the host's own.
    pub team: Option<String>,
    pub visibility: VisibilityBody,
    pub description: String,
    /// The newest version that can be started; null while there is none.
    pub latest_version: Option<LatestBody>,
    /// Of that version.
    pub runtime_baseline: Option<BaselineBody>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Who may start sandboxes of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TemplateVisibility)]
pub enum VisibilityBody {
    /// The team.
    Private,
    /// Everybody.
    Public,
}

impl From<VisibilityBody> for Visibility {
    fn from(body: VisibilityBody) -> Self {
        match body {
            VisibilityBody::Private => Visibility::Private,
            VisibilityBody::Public => Visibility::Public,
        }
    }
}

/// One immutable version; a create request pins it as `<slug>:<id>` or `<slug>:<number>`.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = LatestTemplateVersion)]
pub struct LatestBody {
    pub id: String,
    /// 1 for the template's first version.
    pub number: u32,
    pub created_at: Timestamp,
}

/// CPU and memory of a sandbox whose create request names none.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = RuntimeBaseline)]
pub struct BaselineBody {
    pub cpu: u32,
    /// MiB.
    pub memory_mb: u32,
}

impl From<agent::RuntimeBaseline> for BaselineBody {
    fn from(baseline: agent::RuntimeBaseline) -> Self {
        Self { cpu: baseline.cpu, memory_mb: baseline.memory_mb }
    }
}

impl TemplateBody {
    /// `row`, as `team` sees it.
    pub fn new(team: &TeamId, row: TemplateRow) -> Self {
        let slug = row.name_for(team);
        let latest = row.latest.as_ref();
        Self {
            id: row.id.to_string(),
            slug,
            team: row.owner.as_ref().map(|owner| owner.slug.clone()),
            visibility: match row.visibility {
                Visibility::Private => VisibilityBody::Private,
                Visibility::Public => VisibilityBody::Public,
            },
            latest_version: latest.map(|version| LatestBody {
                id: version.id.to_string(),
                number: version.number,
                created_at: version.created_at,
            }),
            runtime_baseline: latest.map(|version| version.baseline.into()),
            description: row.description,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// A version of a template.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = TemplateVersion)]
pub struct VersionBody {
    #[schema(example = "ver06f3kq8z2m1c9w0v5t7b4a")]
    pub id: String,
    /// Slug of the template.
    pub template: String,
    /// 1 for the template's first version.
    pub number: u32,
    pub state: StateBody,
    /// Builds before it in the host's queue, while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// What it is made of.
    pub source: SourceBody,
    /// Words that stand for it, as `<slug>:<tag>`; of one that is not ready, those that will.
    pub tags: Vec<String>,
    pub runtime_baseline: BaselineBody,
    /// Of its file system: what a sandbox of it has at least. 0: any size will do.
    pub disk_gib: u32,
    /// Runs in every sandbox of it from the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_cmd: Option<String>,
    /// Succeeds when that is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_cmd: Option<String>,
    pub settings: SettingsBody,
    /// What its image would start by itself: `ENTRYPOINT` and `CMD`. Nothing starts it here but `start_cmd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Digests of the images that it was built from, by reference.
    pub images: BTreeMap<String, String>,
    /// Of its file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Bytes of disk that it holds; what it shares with others counts in part.
    pub size: u64,
    /// Why it could not be built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<BuildErrorBody>,
    pub created_at: Timestamp,
    /// When it left the queue.
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// When it is to be deleted, by the days that the team's plan keeps one that nobody uses; null: it is kept.
    pub expires_at: Option<Timestamp>,
    /// Number of its log's last entry.
    pub log_end: u64,
}

/// How far a version is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TemplateVersionState)]
pub enum StateBody {
    /// It waits for others to end.
    Queued,
    /// Its file system is made.
    Building,
    /// A first sandbox of it starts, so that those that follow start at once.
    Warming,
    Ready,
    /// `error` says why.
    Failed,
    Cancelled,
}

impl From<State> for StateBody {
    fn from(state: State) -> Self {
        match state {
            State::Queued => StateBody::Queued,
            State::Building => StateBody::Building,
            State::Warming => StateBody::Warming,
            State::Ready => StateBody::Ready,
            State::Failed => StateBody::Failed,
            // A deleted version is 404 before it gets here.
            State::Cancelled | State::Deleted => StateBody::Cancelled,
        }
    }
}

/// What a version is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TemplateVersionSource)]
pub enum SourceBody {
    /// The host's operator put it there.
    Import,
    Checkpoint,
    Sandbox,
    Image,
    Archive,
    Dockerfile,
    Steps,
}

impl SourceBody {
    fn of(word: &str) -> Self {
        match word {
            "checkpoint" => SourceBody::Checkpoint,
            "sandbox" => SourceBody::Sandbox,
            "image" => SourceBody::Image,
            "archive" => SourceBody::Archive,
            "dockerfile" => SourceBody::Dockerfile,
            "steps" => SourceBody::Steps,
            // The schema has these words and no others.
            _ => SourceBody::Import,
        }
    }
}

/// What processes of a version's sandboxes have where nothing else is said.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[schema(as = TemplateSettings)]
pub struct SettingsBody {
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Absolute path; without it the user's home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Name or number; without it `user`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Why a version could not be built.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = BuildError)]
pub struct BuildErrorBody {
    /// For programs: `step_failed`, `source_refused`, `source_unreachable`, `no_shell`, `disk_full`, `memory_exhausted`,
    /// `too_slow`, `log_full`, `not_ready`, `host_restarted`, `host_failed`, …
    #[schema(example = "step_failed")]
    pub code: String,
    /// What failed, and what to do.
    pub message: String,
    /// The step that failed, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
}

impl VersionBody {
    /// `row`, a version of the template that a create request names so.
    pub fn new(template: String, row: VersionRow) -> Self {
        let (start_cmd, ready_cmd) = row.start.map(|start| (start.command, start.ready)).unzip();
        Self {
            id: row.id.to_string(),
            template,
            number: row.number,
            state: row.state.into(),
            position: row.position,
            source: SourceBody::of(&row.source),
            tags: row.tags,
            runtime_baseline: row.baseline.into(),
            disk_gib: row.disk_gib,
            start_cmd,
            ready_cmd: ready_cmd.flatten(),
            settings: SettingsBody {
                env: row.report.settings.env,
                workdir: row.report.settings.workdir,
                user: row.report.settings.user,
            },
            command: row.report.command,
            images: row.report.images,
            digest: row.digest,
            size: row.retained_bytes,
            error: row.error.map(|error| BuildErrorBody { code: error.code, message: error.message, step: error.step }),
            created_at: row.created_at,
            started_at: row.started_at,
            finished_at: row.finished_at,
            expires_at: row.expires_at,
            log_end: row.log_end,
        }
    }
}

/// Checks the slug of a new template.
pub fn check_slug(field: &str, slug: &str, problems: &mut Problems) {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    let is_plain = (1..=MAX_SLUG).contains(&slug.len())
        && slug.bytes().all(is_allowed)
        && slug.starts_with(|first: char| first.is_ascii_alphanumeric());
    if !is_plain {
        let reason = format!(
            "must have 1 to {MAX_SLUG} lower-case letters, digits, `-`, `_` or `.`, and begin with a letter or digit"
        );
        problems.add(field, reason);
    } else if RESERVED.contains(&slug) {
        problems.add(field, "stands for something else here; choose another");
    } else if ["tpl", "ver", "ckp"].iter().any(|prefix| id::is_valid(prefix, slug)) {
        problems.add(field, "must not look like an id");
    }
}

/// Checks a description.
pub fn check_description(description: &str, problems: &mut Problems) {
    if description.len() > MAX_DESCRIPTION {
        problems.add("description", format!("must have at most {MAX_DESCRIPTION} bytes"));
    }
}

/// Checks tags.
pub fn check_tags(field: &str, tags: &[String], problems: &mut Problems) {
    if tags.len() > MOST_TAGS {
        problems.add(field, format!("must be at most {MOST_TAGS}"));
    }
    for (index, tag) in tags.iter().enumerate() {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_plain = (1..=MAX_TAG).contains(&tag.len())
            && tag.bytes().all(is_allowed)
            && tag.starts_with(|first: char| first.is_ascii_alphanumeric());
        let field = format!("{field}[{index}]");
        if !is_plain {
            let reason =
                format!("must have 1 to {MAX_TAG} letters, digits, `-`, `_` or `.`, and begin with a letter or digit");
            problems.add(field, reason);
        } else if tag.bytes().all(|byte| byte.is_ascii_digit()) || id::is_valid("ver", tag) {
            problems.add(field, "must not look like a number or an id, by which versions are found too");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_slug(slug: &str) -> bool {
        let mut problems = Problems::default();
        check_slug("slug", slug, &mut problems);
        problems.into_result().is_ok()
    }

    #[test]
    fn slugs_are_short_plain_and_nothing_else() {
        for slug in ["a", "node-22", "3.12_slim", &"x".repeat(63)] {
            assert!(is_slug(slug), "{slug}");
        }
        for slug in ["", "-a", "A", "a:b", "a/b", "uploads", "tpl0000000000000000000000", &"x".repeat(64)] {
            assert!(!is_slug(slug), "{slug}");
        }
    }

    #[test]
    fn a_tag_is_never_taken_for_a_number_or_an_id() {
        let is_tag = |tag: &str| {
            let mut problems = Problems::default();
            check_tags("tags", &[tag.to_owned()], &mut problems);
            problems.into_result().is_ok()
        };
        for tag in ["latest", "v1", "2026.1", "A_b-c"] {
            assert!(is_tag(tag), "{tag}");
        }
        for tag in ["", "12", "a b", ".a", "ver0000000000000000000000"] {
            assert!(!is_tag(tag), "{tag}");
        }
    }
}
