//! One template of a test, and its builds.

use std::path::Path;
use std::time::Duration;

use sandpiper::client::{Baseline, Client, ClientError, CreateSandbox, NewTemplate, NewVersion, Source, Version};
use sandpiper_protocol::agent::TemplateList;
use sandpiper_protocol::template::{BuildError, BuildState};

use crate::host::{Host, STATE_DIR, agent_get, small};
use crate::sandbox::clean_up;
use crate::wait::{eventually, wait_until_within};

/// How long a build may take: generous, as guests in software emulation are slow, and each is booted twice.
const BUILD: Duration = Duration::from_secs(1800);

/// A template that is deleted, with its versions and files that were sent, when it is dropped.
pub struct Template {
    client: Client,
    pub slug: String,
}

impl Host {
    /// A new template of the host's team.
    pub async fn template(&self, slug: &str) -> Template {
        Template::of(&self.client, slug).await
    }

    /// A template that the command line makes.
    pub fn template_of_the_cli(&self, slug: &str) -> Template {
        Template { client: self.client.clone(), slug: slug.to_owned() }
    }

    /// Waits until nothing of a version is on the host's disk.
    pub async fn has_no_version(&self, id: &str) {
        let traces = ["templates", "warm"].map(|folder| Path::new(STATE_DIR).join(folder));
        eventually(&format!("{id} is off the disk"), || async {
            let listed: Result<TemplateList, _> = agent_get("/templates").await;
            let names = traces.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
            let is_of = |name: std::ffi::OsString| name.to_string_lossy().contains(id);
            listed.is_ok_and(|list| list.templates.iter().all(|version| version.id.as_str() != id))
                && !names.into_iter().any(|entry| is_of(entry.file_name()))
        })
        .await;
    }
}

/// A version of the size that tests have.
pub fn version_of(source: Source) -> NewVersion {
    NewVersion {
        source,
        runtime_baseline: Baseline { cpu: Some(1), memory_mb: Some(256) },
        start_cmd: None,
        ready_cmd: None,
        tags: Vec::new(),
        network: None,
    }
}

impl Template {
    /// A new template of a client's team.
    pub async fn of(client: &Client, slug: &str) -> Self {
        let new = NewTemplate { slug: slug.to_owned(), ..NewTemplate::default() };
        client.create_template(&new).await.unwrap_or_else(|error| panic!("the template {slug} is made: {error}"));
        Self { client: client.clone(), slug: slug.to_owned() }
    }

    /// Has a version be built, and waits until it can be started.
    pub async fn build(&self, new: &NewVersion) -> Version {
        let ended = self.end_of(&self.begin(new).await).await;
        if ended.state != BuildState::Ready {
            let log = self.client.build_log(&self.slug, &ended.id).await.unwrap_or_default();
            let lines: Vec<_> = log.into_iter().map(|entry| entry.text).collect();
            panic!("{}:{}: {:?}\n{}", self.slug, ended.number, ended.error, lines.join("\n"));
        }
        ended
    }

    /// Has a version be built that cannot be, and says why not.
    pub async fn refused(&self, new: &NewVersion) -> BuildError {
        let ended = self.end_of(&self.begin(new).await).await;
        assert_eq!(ended.state, BuildState::Failed, "{}:{} should have failed", self.slug, ended.number);
        ended.error.expect("a build that failed says why")
    }

    /// Has a version be built, which is in the queue then.
    pub async fn begin(&self, new: &NewVersion) -> Version {
        let begun = self.client.build_version(&self.slug, new).await;
        begun.unwrap_or_else(|error| panic!("a version of {} is begun: {error}", self.slug))
    }

    /// The version once its build has ended.
    pub async fn end_of(&self, version: &Version) -> Version {
        self.once(version, "has ended", BuildState::has_ended).await
    }

    /// The version once its build is in such a state.
    pub async fn once(&self, version: &Version, what: &str, is_there: impl Fn(BuildState) -> bool) -> Version {
        wait_until_within(BUILD, &format!("{}:{} {what}", self.slug, version.number), || async {
            let shown = self.show(&version.id).await.map_err(|error| error.to_string())?;
            if is_there(shown.state) { Ok(shown) } else { Err(format!("it is {:?}", shown.state)) }
        })
        .await
    }

    pub async fn show(&self, version: &str) -> Result<Version, ClientError> {
        self.client.version(&self.slug, version).await
    }

    pub async fn delete_version(&self, version: &str) -> Result<(), ClientError> {
        self.client.delete_version(&self.slug, version).await
    }

    /// What a build has said, as one text.
    pub async fn log(&self, version: &Version) -> String {
        let entries = self.client.build_log(&self.slug, &version.id).await.expect("the log is there");
        entries.into_iter().map(|entry| entry.text + "\n").collect()
    }

    /// What asks for a sandbox of the newest version.
    pub fn sandbox(&self) -> CreateSandbox {
        CreateSandbox { template: Some(self.slug.clone()), ..small() }
    }

    /// What asks for a sandbox of one version.
    pub fn sandbox_of(&self, version: &str) -> CreateSandbox {
        CreateSandbox { template: Some(format!("{}:{version}", self.slug)), ..small() }
    }

    /// Deletes it with all its versions, and says when that fails.
    pub async fn delete(self) {
        self.client
            .delete_template(&self.slug)
            .await
            .unwrap_or_else(|error| panic!("{} is deleted: {error}", self.slug));
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        let (client, slug) = (self.client.clone(), self.slug.clone());
        clean_up(&format!("template {}", self.slug), async move { client.delete_template(&slug).await });
    }
}
