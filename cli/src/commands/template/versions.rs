//! `sandpiper template ls`, `show`, `rm`, `cancel` and `tag`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use sandpiper::client::{Client, Version};
use sandpiper_protocol::template::BuildState;
use serde_json::{Value, json};

use super::reference::Reference;
use crate::agent_socket;
use crate::output::Output;
use crate::text::{bytes, printable, printable_lines};

/// List the templates that sandboxes can be started from
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper template ls
  sandpiper --json template ls | jq -r .slug
  sandpiper template ls --agent         on the host itself, as root: what is there for all teams")]
pub(crate) struct ListArguments {
    /// List what the host on this machine has, as its agent at this socket says
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = agent_socket::PATH)]
    pub(super) agent: Option<PathBuf>,
}

/// Show a template and its versions, or all of one version
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper template show app
  sandpiper template show app:3
  sandpiper --json template show app:latest | jq .settings")]
pub(crate) struct ShowArguments {
    #[arg(value_name = "SLUG[:VERSION]")]
    reference: Reference,
}

/// Delete templates with all their versions, or single versions
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper template rm app:1 app:2
  sandpiper template rm app")]
pub(crate) struct RemoveArguments {
    #[arg(required = true, value_name = "SLUG[:VERSION]")]
    references: Vec<Reference>,
}

/// Cancel a build
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper template cancel app         its last build
  sandpiper template cancel app:3")]
pub(crate) struct CancelArguments {
    #[arg(value_name = "SLUG[:VERSION]")]
    version: Reference,
}

/// Have tags stand for a version
#[derive(clap::Args)]
#[command(after_help = "\
A tag stands for one version: given to another, it is taken from the first.

Examples:
  sandpiper template tag app:3 stable
  sandpiper template tag app:latest v2 2026.11
  sandpiper run --template app:stable -- true")]
pub(crate) struct TagArguments {
    /// The version; the newest that is ready where none is named
    #[arg(value_name = "SLUG[:VERSION]")]
    version: Reference,

    /// What it is to be called
    #[arg(required = true, value_name = "TAG")]
    tags: Vec<String>,
}

pub(super) async fn list(client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let templates = client.templates().await?;
    if output.is_json() {
        templates.iter().for_each(|template| output.value(&template.raw));
    } else if templates.is_empty() {
        output.line("No templates. Build one with: sandpiper template build PATH -t NAME");
    }
    let rows = templates.iter().map(|template| {
        let latest = template.latest_version.as_ref();
        vec![
            template.slug.clone(),
            latest.map_or_else(|| "-".to_owned(), |version| version.number.to_string()),
            template.team.clone().unwrap_or_else(|| "the host's".to_owned()),
            template.visibility.clone(),
            printable(&template.description).into_owned(),
            latest.map_or_else(|| "-".to_owned(), |version| version.created_at.clone()),
        ]
    });
    if !templates.is_empty() {
        output.table(&["TEMPLATE", "VERSION", "TEAM", "FOR", "DESCRIPTION", "BUILT"], rows);
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn show(arguments: &ShowArguments, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let reference = &arguments.reference;
    if let Some(version) = &reference.version {
        show_version(&client.version(&reference.slug, version).await?, output);
        return Ok(ExitCode::SUCCESS);
    }
    let template = client.template(&reference.slug).await?;
    let versions = client.versions(&reference.slug).await?;
    if output.is_json() {
        let versions: Vec<&Value> = versions.iter().map(|version| &version.raw).collect();
        let mut shown = template.raw;
        shown["versions"] = json!(versions);
        output.value(&shown);
    }
    let rows = versions.iter().map(|version| {
        vec![
            format!("{}:{}", template.slug, version.number),
            version.id.clone(),
            state(version),
            version.tags.join(", "),
            bytes(version.size),
            version.created_at.clone(),
        ]
    });
    output.table(&["VERSION", "ID", "STATE", "TAGS", "HOLDS", "CREATED"], rows);
    Ok(ExitCode::SUCCESS)
}

/// Every field of a version that says something, one a line.
fn show_version(version: &Version, output: Output) {
    if output.is_json() {
        output.value(&version.raw);
        return;
    }
    let fields = version.raw.as_object().into_iter().flatten();
    let rows = fields.filter(|(_, value)| !is_nothing(value)).map(|(name, value)| {
        let text = match (name.as_str(), value) {
            ("size", _) => bytes(version.size),
            ("error", _) => version.error.as_ref().map(|error| error.message.clone()).unwrap_or_default(),
            (_, Value::String(text)) => text.clone(),
            (_, value) => value.to_string(),
        };
        vec![name.clone(), printable_lines(&text).into_owned()]
    });
    output.table(&["FIELD", ""], rows);
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn state(version: &Version) -> String {
    let word = match version.state {
        BuildState::Queued => "queued",
        BuildState::Building => "building",
        BuildState::Warming => "warming",
        BuildState::Ready => "ready",
        BuildState::Failed => "failed",
        BuildState::Cancelled => "cancelled",
    };
    match (&version.error, version.position) {
        (Some(error), _) => format!("{word}: {}", error.code),
        (None, Some(position)) => format!("{word}, {position} before it"),
        (None, None) => word.to_owned(),
    }
}

pub(super) async fn remove(arguments: &RemoveArguments, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    for reference in &arguments.references {
        let progress = output.progress(&format!("deleting {reference}"));
        let deleted = match &reference.version {
            Some(version) => client.delete_version(&reference.slug, version).await,
            None => client.delete_template(&reference.slug).await,
        };
        deleted.with_context(|| format!("Cannot delete {reference}"))?;
        drop(progress);
        if output.is_json() {
            output.value(&json!({"template": reference.to_string(), "deleted": true}));
        }
        output.line(&reference.to_string());
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn cancel(arguments: &CancelArguments, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let slug = &arguments.version.slug;
    let version = find(client, &arguments.version).await?;
    let cancelled = client.cancel_build(slug, &version.id).await?;
    if output.is_json() {
        output.value(&cancelled.raw);
    }
    output.line(&format!("{slug}:{} is {}", cancelled.number, state(&cancelled)));
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn tag(arguments: TagArguments, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let TagArguments { version: Reference { slug, version }, tags } = arguments;
    let number = match version {
        Some(version) => client.version(&slug, &version).await?.number,
        None => match client.template(&slug).await?.latest_version {
            Some(latest) => latest.number,
            None => bail!("{slug} has no version that is ready; `sandpiper template show {slug}` lists them"),
        },
    };
    client.tag_version(&slug, &number.to_string(), &tags).await?;
    if output.is_json() {
        output.value(&client.version(&slug, &number.to_string()).await?.raw);
    }
    output.line(&format!("{slug}:{number}"));
    Ok(ExitCode::SUCCESS)
}

/// The version that is named, or the one that was built last.
pub(super) async fn find(client: &Client, reference: &Reference) -> anyhow::Result<Version> {
    if let Some(version) = &reference.version {
        return Ok(client.version(&reference.slug, version).await?);
    }
    let versions = client.versions(&reference.slug).await?;
    match versions.into_iter().max_by_key(|version| version.number) {
        Some(version) => Ok(version),
        None => bail!("{} has no version; build one with: sandpiper template build PATH -t {0}", reference.slug),
    }
}
