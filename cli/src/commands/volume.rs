//! `sandpiper volume`

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, bail};
use sandpiper::client::{Client, CreateSandbox, Volume};
use serde_json::json;

use super::cp::{Place, Remote, copy};
use super::session::{self, ProcessArguments};
use crate::output::Output;
use crate::text::bytes;

/// Where `shell` has the volume.
const SHELL_MOUNT: &str = "/volume";

/// Keep files beyond the life of sandboxes, in volumes that they mount
#[derive(clap::Subcommand)]
#[command(after_help = "\
One sandbox has a volume at a time. `cp`, `cat` and `shell` are for volumes that none has.

Examples:
  sandpiper volume create models
  sandpiper volume cp -r ./weights models:/weights
  sandpiper run --volume models:/data -- ls /data/weights
  sandpiper volume cat models:/weights/notes.txt
  sandpiper volume shell models
  sandpiper volume ls
  sandpiper volume rm models")]
pub(crate) enum Command {
    /// Make an empty volume; print its id
    Create(CreateArguments),
    /// List volumes, newest first
    Ls,
    /// Delete volumes, with all that is in them
    Rm(RmArguments),
    /// Copy files to and from a volume
    Cp(CopyArguments),
    /// Print a file of a volume
    Cat(CatArguments),
    /// Open a shell in a new sandbox that has the volume; the sandbox goes with the shell
    Shell(ShellArguments),
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper volume create models
  sandpiper --json volume create models | jq -r .id")]
pub(crate) struct CreateArguments {
    /// 1 to 63 letters, digits, `-`, `_` and `.`, that no other volume of the team has
    name: String,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper volume rm models
  sandpiper volume rm vol…")]
pub(crate) struct RmArguments {
    /// The volumes' names or ids
    #[arg(required = true, value_name = "VOLUME")]
    volumes: Vec<String>,
}

#[derive(clap::Args)]
#[command(after_help = "\
One of SOURCE and DESTINATION is in a volume: VOLUME:/PATH. `-` is standard input or output. A local name with a colon is \
written ./a:b. What is copied is as with `sandpiper cp`.

Examples:
  sandpiper volume cp app.tar models:/
  sandpiper volume cp -r ./weights models:/weights
  sandpiper volume cp -r models:/results ./results
  tar c . | sandpiper volume cp - models:/all.tar")]
pub(crate) struct CopyArguments {
    #[arg(value_name = "SOURCE")]
    from: Place,

    #[arg(value_name = "DESTINATION")]
    to: Place,

    /// Copy a folder and all that is in it
    #[arg(long, short = 'r')]
    recursive: bool,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper volume cat models:/notes.txt | less")]
pub(crate) struct CatArguments {
    #[arg(value_name = "VOLUME:/PATH")]
    file: Place,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sandpiper volume shell models                         the volume is at /volume
  sandpiper volume shell models --template base")]
pub(crate) struct ShellArguments {
    /// The volume's name or id
    volume: String,

    /// Template of the sandbox
    #[arg(long, default_value = "base")]
    template: String,

    /// Seconds until the sandbox is destroyed, whatever the shell does
    #[arg(long, default_value_t = 3600)]
    timeout: u64,
}

pub(crate) async fn run(command: Command, client: Client, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(arguments) => create(&arguments.name, &client, output).await?,
        Command::Ls => list(&client.volumes().await?, output),
        Command::Rm(arguments) => {
            for reference in arguments.volumes {
                remove(&reference, &client, output).await?;
            }
        }
        Command::Cp(arguments) => {
            return copy(&arguments.from, &arguments.to, arguments.recursive, output, async |name: &str| {
                open(&client, name).await
            })
            .await;
        }
        Command::Cat(arguments) => {
            return copy(&arguments.file, &Place::Stdio, false, output, async |name: &str| open(&client, name).await)
                .await;
        }
        Command::Shell(arguments) => return shell(arguments, &client, output).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// The volume of this name or id.
async fn find(client: &Client, reference: &str) -> anyhow::Result<Volume> {
    match client.find_volume(reference).await? {
        Some(volume) => Ok(volume),
        None => bail!("There is no volume {reference:?}; `sandpiper volume ls` lists them"),
    }
}

/// What is in the volume of this name or id.
async fn open(client: &Client, reference: &str) -> anyhow::Result<Remote> {
    let volume = find(client, reference).await?;
    Ok(Remote::Volume(client.volume_files(&volume.id)))
}

async fn create(name: &str, client: &Client, output: Output) -> anyhow::Result<()> {
    let progress = output.progress(&format!("making the volume {name}"));
    let volume = client.create_volume(name).await?;
    drop(progress);
    if output.is_json() {
        output.value(&volume.raw);
    }
    output.line(&volume.id);
    Ok(())
}

async fn remove(reference: &str, client: &Client, output: Output) -> anyhow::Result<()> {
    let Volume { id, .. } = find(client, reference).await?;
    let progress = output.progress(&format!("deleting {id}"));
    client.delete_volume(&id).await.with_context(|| format!("Cannot delete {id}"))?;
    drop(progress);
    if output.is_json() {
        output.value(&json!({"id": id, "deleted": true}));
    }
    output.line(&id);
    Ok(())
}

async fn shell(arguments: ShellArguments, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let volume = find(client, &arguments.volume).await?;
    let request = CreateSandbox {
        template: Some(arguments.template),
        timeout: Some(arguments.timeout),
        volume_mounts: BTreeMap::from([(SHELL_MOUNT.to_owned(), volume.name)]),
        ..CreateSandbox::default()
    };
    let progress = output.progress("starting a sandbox");
    let (sandbox, session) = client.create(&request).await?;
    drop(progress);
    let ended =
        session::run(&client.data_plane(&session), ProcessArguments::shell(SHELL_MOUNT.to_owned()), output).await;
    let deleted = client.delete(&sandbox.id).await;
    let status = ended?;
    deleted.with_context(|| format!("The shell ended, but {} was not destroyed", sandbox.id))?;
    Ok(status)
}

fn list(volumes: &[Volume], output: Output) {
    if output.is_json() {
        for volume in volumes {
            output.value(&volume.raw);
        }
        return;
    }
    if volumes.is_empty() {
        output.line("No volumes. Make one with: sandpiper volume create NAME");
        return;
    }
    let rows = volumes.iter().map(|volume| {
        vec![
            volume.id.clone(),
            volume.name.clone(),
            volume.state.clone(),
            format!("{} GiB", volume.size_gib),
            bytes(volume.retained_bytes),
            volume.attached_to.clone().unwrap_or_else(|| "-".to_owned()),
            volume.created_at.clone(),
        ]
    });
    output.table(&["VOLUME", "NAME", "STATE", "UP TO", "HOLDS", "SANDBOX", "CREATED"], rows);
}
