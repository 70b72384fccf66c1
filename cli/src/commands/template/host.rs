//! The templates of the host on this machine, for its operator: asked of its agent.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use sandpiper_protocol::agent::{ImportTemplate, RuntimeBaseline, TemplateList, TemplateVersion};

use crate::agent_socket::{self, AgentSocket};
use crate::output::Output;

/// Add a version of a template of this host from an ext4 image: for its operator
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper template import --slug base /var/cache/sandpiper/templates/base-….ext4
  sandpiper template ls --agent")]
pub(crate) struct ImportArguments {
    /// Socket of the agent on this machine
    #[arg(long, default_value = agent_socket::PATH)]
    agent: PathBuf,

    /// Name that sandboxes ask for
    #[arg(long)]
    slug: String,

    /// Virtual CPUs of a sandbox that names none
    #[arg(long, default_value_t = 1)]
    cpu: u32,

    /// Memory in MiB of a sandbox that names none
    #[arg(long, default_value_t = 512)]
    memory: u32,

    /// A name for the image's content, such as its build's key: a host that has it already says so at once
    #[arg(long)]
    key: Option<String>,

    /// The image
    image: PathBuf,
}

pub(super) async fn import(arguments: ImportArguments, output: Output) -> anyhow::Result<ExitCode> {
    let image = arguments.image.canonicalize().with_context(|| format!("Cannot read {}", arguments.image.display()))?;
    let request = ImportTemplate {
        slug: arguments.slug,
        image: image.to_string_lossy().into_owned(),
        key: arguments.key,
        baseline: RuntimeBaseline { cpu: arguments.cpu, memory_mb: arguments.memory },
    };
    let progress = output.progress("importing the template");
    let version: TemplateVersion = AgentSocket::new(&arguments.agent).post("/templates", &request).await?;
    drop(progress);
    show(&[version], output)
}

/// Everything that the host can start, of all teams.
pub(super) async fn list(agent: &Path, output: Output) -> anyhow::Result<ExitCode> {
    let list: TemplateList = AgentSocket::new(agent).get("/templates").await?;
    show(&list.templates, output)
}

fn show(versions: &[TemplateVersion], output: Output) -> anyhow::Result<ExitCode> {
    if output.is_json() {
        for version in versions {
            output.value(&serde_json::to_value(version)?);
        }
    }
    let rows = versions.iter().map(|version| {
        let size = format!("{} vCPU, {} MiB", version.baseline.cpu, version.baseline.memory_mb);
        vec![version.slug.clone(), version.id.clone(), size, version.created_at.to_string()]
    });
    output.table(&["TEMPLATE", "VERSION", "BASELINE", "CREATED"], rows);
    Ok(ExitCode::SUCCESS)
}
