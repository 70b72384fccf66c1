//! Templates of one's own: their versions, the builds that make them, and what those say.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, Stream, StreamExt};
use reqwest::Method;
use sandpiper_protocol::agent::NetworkPolicy;
use sandpiper_protocol::template::{BuildError, BuildLogEntry, BuildState, Credentials, Dockerfile};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::events::Events;
use super::{Client, ClientError, TIMEOUT};

/// How long a log that is followed may say nothing, not even that it goes on.
const SILENCE: Duration = Duration::from_secs(60);
/// How long it is tried to reach the API again from the first failure on, and the time between two tries.
const RECONNECT_FOR: Duration = Duration::from_secs(120);
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
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
        BuildLog {
            client: self.clone(),
            path,
            last: after,
            reading: None,
            retries: Retries::default(),
            has_ended: false,
        }
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
    client: Client,
    path: String,
    /// Number of the last entry that was given out.
    last: u64,
    reading: Option<Reading>,
    /// Since it could be read last.
    retries: Retries,
    has_ended: bool,
}

struct Reading {
    events: Events,
    pieces: BoxStream<'static, reqwest::Result<Bytes>>,
}

impl BuildLog {
    /// The next entry; none once the build has ended.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, or cannot be reached for long.
    pub async fn next(&mut self) -> Result<Option<BuildLogEntry>, ClientError> {
        while !self.has_ended {
            match self.step().await {
                Ok(Some(entry)) if entry.number <= self.last => {}
                Ok(Some(entry)) => {
                    self.last = entry.number;
                    return Ok(Some(entry));
                }
                Ok(None) => self.has_ended = true,
                Err(error) => self.retries.pause_after(error).await?,
            }
        }
        Ok(None)
    }

    /// The next entry that is sent. After an error the next step connects anew.
    async fn step(&mut self) -> Result<Option<BuildLogEntry>, ClientError> {
        let mut reading = match self.reading.take() {
            Some(reading) => reading,
            None => {
                let reading = self.connect().await?;
                self.retries = Retries::default();
                reading
            }
        };
        loop {
            if let Some(event) = reading.events.next() {
                match event.name.as_str() {
                    "end" => return Ok(None),
                    "log" => {}
                    // Of a later version of the API.
                    _ => continue,
                }
                let entry = serde_json::from_str(&event.data);
                let entry = entry.map_err(|error| self.client.malformed(&self.path, &error.to_string()))?;
                self.reading = Some(reading);
                return Ok(Some(entry));
            }
            let broken = |why: String| Err(ClientError::Broken(why));
            match tokio::time::timeout(SILENCE, reading.pieces.next()).await {
                Ok(Some(Ok(piece))) => {
                    reading.events.push(&piece).map_err(|why| self.client.malformed(&self.path, why))?;
                }
                Ok(Some(Err(error))) => return broken(error.to_string()),
                Ok(None) => return broken("the log ended before the build".to_owned()),
                Err(_) => return broken(format!("nothing came for {} s", SILENCE.as_secs())),
            }
        }
    }

    async fn connect(&self) -> Result<Reading, ClientError> {
        let request = self.client.http.get(format!("{}/v1{}", self.client.base_url, self.path));
        let request =
            self.client.authorized(request).header("accept", "text/event-stream").header("last-event-id", self.last);
        let silence = |_| ClientError::Broken(format!("nothing came for {} s", SILENCE.as_secs()));
        let response = tokio::time::timeout(SILENCE, self.client.send(request)).await.map_err(silence)??;
        Ok(Reading { events: Events::default(), pieces: response.bytes_stream().boxed() })
    }
}

/// Tries to reach the API again, for a while from the first failure on.
#[derive(Debug, Default)]
struct Retries {
    give_up_at: Option<Instant>,
}

impl Retries {
    /// Waits until the next try; or returns the error where there is to be none.
    async fn pause_after(&mut self, error: ClientError) -> Result<(), ClientError> {
        let give_up_at = *self.give_up_at.get_or_insert_with(|| Instant::now() + RECONNECT_FOR);
        if Instant::now() >= give_up_at || !may_pass(&error) {
            return Err(error);
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
        Ok(())
    }
}

/// Whether it is worth another try: the API is being started anew, or cannot reach the host for a moment.
fn may_pass(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. } | ClientError::Broken(_) => true,
        ClientError::Refused { status, .. } => matches!(status, 429 | 502 | 503 | 504),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> ClientError {
        ClientError::Broken("gone".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_tried_again_for_a_while_from_the_first_failure_on() {
        let mut retries = Retries::default();
        // However long nothing was wrong before.
        tokio::time::advance(10 * RECONNECT_FOR).await;
        let began = Instant::now();

        while retries.pause_after(broken()).await.is_ok() {}

        let took = began.elapsed();
        assert!((RECONNECT_FOR..2 * RECONNECT_FOR).contains(&took), "{took:?}");
        assert!(Retries::default().pause_after(broken()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_pass_is_not_tried_again() {
        let refused = ClientError::Refused {
            status: 404,
            code: String::new(),
            message: String::new(),
            request_id: String::new(),
        };
        assert!(Retries::default().pause_after(refused).await.is_err());
    }
}
