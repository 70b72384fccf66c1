//! Templates of one's own: their versions, the builds that make them, and what those say.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use reqwest::Method;
use sandpiper_protocol::agent::NetworkPolicy;
use sandpiper_protocol::template::{BuildError, BuildLogEntry, BuildState, Credentials, Dockerfile};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::event_stream::{EventStream, Retries};
use super::{Client, ClientError, TIMEOUT};

/// Between two looks at whether a build has ended.
const END_POLL: Duration = Duration::from_secs(1);

/// A template to make; `Default` is a private one.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NewTemplate {
    pub slug: String,
    /// `private`, or `public`: every team of the host may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// A template as the API shows it; `raw` has every field.
#[derive(Debug, Clone, Deserialize)]
pub struct Template {
    pub slug: String,
    /// Without it, the host's own.
    pub team: Option<String>,
    /// `private` or `public`.
    pub visibility: String,
    pub description: String,
    /// The newest that can be started; none before the first build has succeeded.
    pub latest_version: Option<LatestVersion>,
    #[serde(skip)]
    pub raw: Value,
}

#[derive(Debug, Clone, Deserialize)]
pub struct LatestVersion {
    pub id: String,
    pub number: u32,
    pub created_at: String,
}

/// A version to build.
#[derive(Debug, Clone, Serialize)]
pub struct NewVersion {
    pub source: Source,
    pub runtime_baseline: Baseline,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_cmd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_cmd: Option<String>,
    /// Names that stand for this version once it is ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What the build may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
}

/// What a version is made of.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Id of a checkpoint: its disk, at once.
    Checkpoint(String),
    /// Id of a stopped sandbox: its disk, at once.
    Sandbox(String),
    /// An image of a registry. A name without a registry is one as Docker has it.
    Image {
        reference: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        credentials: Option<Credentials>,
    },
    /// Id of an upload: an OCI archive, or what `docker save` writes; also compressed.
    Archive(String),
    Dockerfile(Dockerfile),
}

/// CPU and memory of a sandbox that names none, where not those of the team's plan.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Baseline {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
}

impl Source {
    /// Id of the upload that it needs.
    pub fn upload(&self) -> Option<&str> {
        match self {
            Self::Archive(upload) => Some(upload),
            Self::Dockerfile(Dockerfile { context: Some(upload), .. }) => Some(upload.as_str()),
            _ => None,
        }
    }
}

/// A version as the API shows it; `raw` has every field.
#[derive(Debug, Clone, Deserialize)]
pub struct Version {
    pub id: String,
    pub number: u32,
    pub state: BuildState,
    /// Builds before it, while it waits.
    #[serde(default)]
    pub position: Option<u32>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<BuildError>,
    pub tags: Vec<String>,
    /// Bytes of disk that it holds.
    pub size: u64,
    pub created_at: String,
    #[serde(skip)]
    pub raw: Value,
}

/// A file that was sent for builds.
#[derive(Debug, Clone, Deserialize)]
pub struct Upload {
    pub id: String,
    pub bytes: u64,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: String,
}

impl Client {
    /// Makes a template without a version.
    pub async fn create_template(&self, new: &NewTemplate) -> Result<Template, ClientError> {
        let body = serde_json::to_value(new).map_err(|error| self.malformed("/templates", &error.to_string()))?;
        self.read_template(self.call(Method::POST, "/templates", Some(body)).await?)
    }

    /// All templates that the key's team may use, page after page.
    pub async fn templates(&self) -> Result<Vec<Template>, ClientError> {
        let templates = self.pages("/templates", "limit=100", "templates").await?;
        templates.into_iter().map(|value| self.read_template(value)).collect()
    }

    pub async fn template(&self, slug: &str) -> Result<Template, ClientError> {
        self.read_template(self.call(Method::GET, &template_path(slug), None).await?)
    }

    /// Deletes a template with all its versions, of which no sandbox and no checkpoint may be made.
    pub async fn delete_template(&self, slug: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &template_path(slug), None).await.map(drop)
    }

    /// Has a version be built; returns once the build is in the queue.
    pub async fn build_version(&self, slug: &str, new: &NewVersion) -> Result<Version, ClientError> {
        let path = format!("{}/versions", template_path(slug));
        let body = serde_json::to_value(new).map_err(|error| self.malformed(&path, &error.to_string()))?;
        self.read_version(&path, self.call(Method::POST, &path, Some(body)).await?)
    }

    /// All versions of a template, page after page.
    pub async fn versions(&self, slug: &str) -> Result<Vec<Version>, ClientError> {
        let path = format!("{}/versions", template_path(slug));
        let versions = self.pages(&path, "limit=100", "versions").await?;
        versions.into_iter().map(|value| self.read_version(&path, value)).collect()
    }

    /// One version: `reference` is its number, its id or a tag.
    pub async fn version(&self, slug: &str, reference: &str) -> Result<Version, ClientError> {
        let path = version_path(slug, reference);
        self.read_version(&path, self.call(Method::GET, &path, None).await?)
    }

    /// A version once its build has ended.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, or cannot be reached for long.
    pub async fn ended_version(&self, slug: &str, reference: &str) -> Result<Version, ClientError> {
        let mut retries = Retries::default();
        loop {
            match self.version(slug, reference).await {
                Ok(version) if version.state.has_ended() => return Ok(version),
                Ok(_) => {
                    retries = Retries::default();
                    tokio::time::sleep(END_POLL).await;
                }
                Err(error) => retries.pause_after(error).await?,
            }
        }
    }

    /// Deletes a version, of which no sandbox and no checkpoint may be made.
    pub async fn delete_version(&self, slug: &str, reference: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &version_path(slug, reference), None).await.map(drop)
    }

    /// Has tags stand for a version that is ready, also those that stand for another.
    pub async fn tag_version(&self, slug: &str, reference: &str, tags: &[String]) -> Result<(), ClientError> {
        // Of the routes for the E2B SDKs: `/v1` gives tags only to what is to be built.
        let request = self.authorized(self.http.post(format!("{}/templates/tags", self.base_url)));
        let body = json!({"target": format!("{slug}:{reference}"), "tags": tags});
        self.send(request.timeout(TIMEOUT).json(&body)).await.map(drop)
    }

    /// Ends the build of a version.
    ///
    /// # Errors
    ///
    /// Fails with the status 409 if it has ended.
    pub async fn cancel_build(&self, slug: &str, reference: &str) -> Result<Version, ClientError> {
        let path = format!("{}/cancel", version_path(slug, reference));
        self.read_version(&path, self.call(Method::POST, &path, None).await?)
    }

    /// What a build has said so far, page after page.
    pub async fn build_log(&self, slug: &str, reference: &str) -> Result<Vec<BuildLogEntry>, ClientError> {
        let path = format!("{}/logs", version_path(slug, reference));
        let (mut all, mut token) = (Vec::new(), String::new());
        loop {
            let page = self.call(Method::GET, &format!("{path}?limit=100{token}"), None).await?;
            let page: LogPage = self.parse(&path, page)?;
            // While the build goes on, the last page has a token too.
            let is_last = page.entries.is_empty();
            all.extend(page.entries);
            match page.next_token {
                Some(next) if !is_last => token = format!("&next_token={next}"),
                _ => return Ok(all),
            }
        }
    }

    /// What a build says, from entry number `after` + 1 on to its end.
    pub fn follow_build(&self, slug: &str, reference: &str, after: u64) -> BuildLog {
        let path = format!("{}/logs", version_path(slug, reference));
        BuildLog { events: EventStream::new(self, path, Some(after.to_string())), last: after, has_ended: false }
    }

    /// Sends a file for builds from a stream, of `length` bytes if that is known; returns once it is on stable storage.
    /// `progress` is called with the number of bytes of each piece as it is sent.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, nothing moves for long, or if the stream fails or has another length.
    pub async fn upload(
        &self,
        length: Option<u64>,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        progress: impl Fn(usize) + Send + 'static,
    ) -> Result<Upload, ClientError> {
        let content = content.inspect(move |piece| progress(piece.as_ref().map_or(0, Bytes::len)));
        let request = self.authorized(self.http.put(format!("{}/v1/templates/uploads", self.base_url)));
        self.json(self.send_stream(request, length, content).await?).await
    }

    /// Removes a file that was sent for builds; those that have begun to read it go on.
    pub async fn delete_upload(&self, id: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/templates/uploads/{id}"), None).await.map(drop)
    }

    fn read_template(&self, raw: Value) -> Result<Template, ClientError> {
        let template: Template = self.parse("/templates", raw.clone())?;
        Ok(Template { raw, ..template })
    }

    fn read_version(&self, path: &str, raw: Value) -> Result<Version, ClientError> {
        let version: Version = self.parse(path, raw.clone())?;
        Ok(Version { raw, ..version })
    }
}

/// A page of a log.
#[derive(Deserialize)]
struct LogPage {
    entries: Vec<BuildLogEntry>,
    #[serde(default)]
    next_token: Option<String>,
}

/// The path of a template: of another team's, its name has a slash.
fn template_path(slug: &str) -> String {
    format!("/templates/{}", slug.replace('/', "%2F"))
}

fn version_path(slug: &str, reference: &str) -> String {
    format!("{}/versions/{reference}", template_path(slug))
}

/// The log of a build as it grows. A connection that breaks off is made anew, and no entry comes twice.
pub struct BuildLog {
    events: EventStream,
    /// Number of the last entry that was given out.
    last: u64,
    has_ended: bool,
}

impl BuildLog {
    /// The next entry; none once the build has ended.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, or cannot be reached for long.
    pub async fn next(&mut self) -> Result<Option<BuildLogEntry>, ClientError> {
        while !self.has_ended {
            let event = self.events.next().await?;
            match event.name.as_str() {
                "end" => self.has_ended = true,
                "log" => {
                    let entry: BuildLogEntry = self.events.parse(&event)?;
                    if entry.number > self.last {
                        self.last = entry.number;
                        return Ok(Some(entry));
                    }
                }
                // Of a later version of the API.
                _ => {}
            }
        }
        Ok(None)
    }
}
