//! `sandpiper template`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use sandpiper_protocol::agent::{ImportTemplate, RuntimeBaseline, TemplateList, TemplateVersion};

use crate::agent_socket::AgentSocket;
use crate::output::Output;

/// The templates of the host on this machine
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Add a version of a template from an ext4 image
    Import(ImportArguments),
    /// List what this host can start
    Ls(AgentArguments),
}

#[derive(clap::Args)]
pub(crate) struct AgentArguments {
    /// Socket of the agent on this machine
    #[arg(long, default_value = "/run/sandpiper/agent.sock")]
    agent: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct ImportArguments {
    #[command(flatten)]
    agent: AgentArguments,

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

pub(crate) async fn run(command: Command, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        Command::Import(arguments) => {
            let image =
                arguments.image.canonicalize().with_context(|| format!("Cannot read {}", arguments.image.display()))?;
            let request = ImportTemplate {
                slug: arguments.slug,
                image: image.to_string_lossy().into_owned(),
                key: arguments.key,
                baseline: RuntimeBaseline { cpu: arguments.cpu, memory_mb: arguments.memory },
            };
            let progress = output.progress("importing the template");
            let version: TemplateVersion =
                AgentSocket::new(&arguments.agent.agent).post("/templates", &request).await?;
            drop(progress);
            show(&[version], output)
        }
        Command::Ls(arguments) => {
            let list: TemplateList = AgentSocket::new(&arguments.agent).get("/templates").await?;
            show(&list.templates, output)
        }
    }
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
