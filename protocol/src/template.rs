//! Versions of templates, and how the API process has the agent build them: part of [`agent`](crate::agent).
//!
//! | request | body | response |
//! |---|---|---|
//! | `POST /builds` | [`StartBuild`] | 202 [`Build`]; 200 when a build of this id is there already |
//! | `GET /builds` | | [`BuildList`]: those that go on, and those that ended within a day |
//! | `GET /builds/{id}` | | [`Build`] |
//! | `GET /builds/{id}/logs?after&limit` | | [`BuildLogPage`]: entries numbered above `after`, oldest first |
//! | `POST /builds/{id}/cancel` | | [`Build`]; one that has ended stays as it is |
//! | `PUT /uploads/{id}` | the file's bytes | 201 [`Upload`] once they are on stable storage; 200 when it is there already |
//! | `GET /uploads/{id}` | | [`Upload`] |
//! | `DELETE /uploads/{id}` | | 204; builds that have begun to read it go on |
//! | `DELETE /templates/{id}` | | 204; sandboxes and checkpoints that were made from the version go on |
//!
//! A version has its build's id. The build is written down before the response, and goes on after the agent was killed or
//! ends `failed` with a reason: nothing stays `building` for ever. What an upload is, nobody on the host looks at: a machine
//! of the agent's own template reads it.
//!
//! Errors besides those of the agent: 409 `conflict` (the id is another's; a sandbox that is not stopped), 413 (an upload or
//! a log beyond its limit), 422 `build_unavailable` (the host has no builder; the message says how one is installed).

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::agent::{Network, RuntimeBaseline, TemplateVersion};
use crate::ids::{CheckpointId, SandboxId, TeamId, UploadId, VersionId};

/// Slug of the template whose machines build others. It is the agent's own: no tenant sees it.
pub const BUILDER_TEMPLATE: &str = "builder";

/// Entries in one page of a build's log.
pub const MAX_LOG_ENTRIES: usize = 1000;

/// What programs of a version's sandboxes have where nothing else is said: an image's settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ImageSettings {
    /// Variables, below those of the sandbox and of the single process.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Absolute path; without it the user's home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Name or number; without it `user`, who is made where the image has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl ImageSettings {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A program that runs in every sandbox of a version from the start.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct StartCommand {
    /// For `/bin/sh -c`, as the version's user in its directory.
    pub command: String,
    /// For `/bin/sh -c`: run again and again until it succeeds; the program is up then. Without it, a while is waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
}

/// A version that is to be built.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartBuild {
    /// Chosen by the API process, so that a lost response can be asked for again.
    pub id: VersionId,
    /// Whose build cache is used, and whom the build is counted with.
    pub team: TeamId,
    /// Slug of the template, for logs.
    pub slug: String,
    pub source: BuildSource,
    pub baseline: RuntimeBaseline,
    /// Of the version's file system; a sandbox may have a larger one.
    pub disk_gib: u32,
    /// Of the disk that the team's sandboxes have at least, for which the first start is made.
    #[serde(default)]
    pub sandbox_disk_gib: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartCommand>,
    /// What the build may reach. Its finished sandboxes have policies of their own.
    #[serde(default)]
    pub network: Network,
    pub limits: BuildLimits,
}

/// What a build may take.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct BuildLimits {
    /// From the moment it leaves the queue to `ready`.
    pub seconds: u64,
    pub log_bytes: u64,
    pub cpu: u32,
    pub memory_mb: u32,
}

/// What a version is made of.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum BuildSource {
    /// The disk of a checkpoint: its layers are used again, so this takes no time.
    Checkpoint { checkpoint: CheckpointId },
    /// The disk of a stopped sandbox, likewise.
    Sandbox { sandbox: SandboxId },
    /// An image of a registry. A name without a registry is one as Docker has it.
    Image {
        reference: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        credentials: Option<Credentials>,
    },
    /// An OCI archive, or what `docker save` writes; also compressed.
    Archive { upload: UploadId },
    /// A Dockerfile and what it copies from.
    Dockerfile(Dockerfile),
    /// Steps on top of an image or a version, as the E2B SDKs send them.
    Steps(Steps),
}

impl BuildSource {
    /// The files that it names, each once.
    pub fn uploads(&self) -> Vec<&UploadId> {
        let mut uploads: Vec<&UploadId> = match self {
            Self::Archive { upload } => vec![upload],
            Self::Dockerfile(dockerfile) => dockerfile.context.iter().collect(),
            Self::Steps(steps) => {
                let uploads = steps.steps.iter().filter_map(|step| match step {
                    Step::Copy { upload, .. } => Some(upload),
                    Step::Run { .. } | Step::Env { .. } | Step::Workdir { .. } | Step::User { .. } => None,
                });
                uploads.collect()
            }
            Self::Checkpoint { .. } | Self::Sandbox { .. } | Self::Image { .. } => Vec::new(),
        };
        uploads.sort_unstable();
        uploads.dedup();
        uploads
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Dockerfile {
    /// A tar archive, also compressed; without it the context is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<UploadId>,
    /// Its text; without it, it is in the context at `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Relative to the context; `Dockerfile` where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The stage that is the result; the last where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// For `RUN --mount=type=secret,id=NAME`: never in a layer, a log or on a disk.
    #[serde(default, skip_serializing_if = "Secrets::is_empty")]
    pub secrets: Secrets,
    /// Of the registry that `FROM` names, by its host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credentials: BTreeMap<String, Credentials>,
    /// No step's earlier result is used.
    #[serde(default)]
    pub no_cache: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Steps {
    pub from: StepsBase,
    pub steps: Vec<Step>,
    /// No step's earlier result is used.
    #[serde(default)]
    pub no_cache: bool,
}

/// What steps begin with.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StepsBase {
    Image {
        reference: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        credentials: Option<Credentials>,
    },
    /// A version that is on this host.
    Version { version: VersionId },
}

/// One step, as a line of a Dockerfile.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Files of an archive, whose paths are those of the source.
    Copy {
        upload: UploadId,
        source: String,
        target: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// Octal.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<String>,
        #[serde(default)]
        force: bool,
    },
    Run {
        command: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// Of a registry. Neither is printed.
#[derive(Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// Secrets of a build by name. Their values are not printed.
#[derive(Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub struct Secrets(pub BTreeMap<String, String>);

impl Secrets {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How far a build is.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct Build {
    pub id: VersionId,
    pub state: BuildState,
    /// Builds before it in the queue; while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<BuildError>,
    /// What came of it, once it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<TemplateVersion>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Number of the log's last entry; 0 while it has none.
    #[serde(default)]
    pub log_end: u64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "snake_case")]
pub enum BuildState {
    /// Waits for others to end.
    Queued,
    /// The file system is made.
    Building,
    /// A first sandbox of it is started and written down, so that those that follow start at once.
    Warming,
    Ready,
    Failed,
    Cancelled,
}

impl BuildState {
    /// Whether nothing more happens to it.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Ready | Self::Failed | Self::Cancelled)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct BuildError {
    /// `step_failed`, `source_refused` (an image or a context that cannot be used), `source_unreachable`, `no_shell`,
    /// `disk_full`, `memory_exhausted`, `too_slow`, `log_full`, `not_ready` (the start command did not come up),
    /// `host_restarted`, `host_failed`.
    pub code: String,
    /// For a person: what failed, and what to do.
    pub message: String,
    /// The step that failed, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BuildList {
    pub builds: Vec<Build>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BuildLogPage {
    pub entries: Vec<BuildLogEntry>,
    /// Nothing comes after these: the build has ended.
    pub is_complete: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct BuildLogEntry {
    /// From 1, without a gap.
    pub number: u64,
    pub time: Timestamp,
    pub level: LogLevel,
    /// The step that it is of, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// One line, without its end and without control characters.
    pub text: String,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// A file that was sent for builds.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Upload {
    pub id: UploadId,
    pub bytes: u64,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_not_printed() {
        let secrets = Secrets(BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]));
        let credentials = Credentials { username: "me".into(), password: "hunter2".into() };
        let printed = format!("{secrets:?} {credentials:?}");
        assert!(printed.contains("TOKEN") && !printed.contains("hunter2"), "{printed}");
    }

    #[test]
    fn a_source_is_told_by_its_kind() {
        let source: BuildSource = serde_json::from_value(json!({
            "kind": "dockerfile", "text": "FROM scratch", "args": {"A": "1"},
        }))
        .unwrap();
        let BuildSource::Dockerfile(dockerfile) = &source else { panic!("{source:?}") };
        assert_eq!(dockerfile.text.as_deref(), Some("FROM scratch"));
        let unknown = serde_json::from_value::<BuildSource>(json!({"kind": "dockerfile", "tekst": ""}));
        assert!(unknown.unwrap_err().to_string().contains("tekst"));
    }

    #[test]
    fn a_source_names_each_of_its_files_once() {
        let copy = |upload: &str| json!({"step": "copy", "upload": upload, "source": "a", "target": "/a"});
        let source: BuildSource = serde_json::from_value(json!({
            "kind": "steps", "from": {"version": {"version": "ver1"}},
            "steps": [copy("upl2"), {"step": "run", "command": "true"}, copy("upl1"), copy("upl2")],
        }))
        .unwrap();
        assert_eq!(source.uploads(), [&UploadId::from("upl1"), &UploadId::from("upl2")]);
    }
}
