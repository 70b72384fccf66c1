//! `sandpiper template build` and `pull`

use std::process::ExitCode;

use anyhow::Context;
use sandpiper::client::{Baseline, Client, ClientError, NewTemplate, NewVersion, Source, Version};
use sandpiper_protocol::template::BuildState;
use tokio::signal::unix::{SignalKind, signal};

use super::follow;
use super::reference::{Reference, parse_target};
use super::source::{self, DockerfileArguments, From, Login};
use crate::commands::start::NetworkArguments;
use crate::output::Output;
use crate::text::printable_lines;

/// Status of a command that SIGINT ended, as shells have it.
const INTERRUPTED: u8 = 130;
/// Status where nobody knows what came of a build that was begun.
const LOST: u8 = 3;

/// Build a version of a template, from a Dockerfile, an image, or what a sandbox has become
#[derive(clap::Args)]
#[command(after_help = "\
The build runs in a machine of its own. What it says is printed as it goes on, and at the end the version's name. Ctrl-C \
cancels it; with --detach it goes on by itself.

`.dockerignore`, or one beside the Dockerfile that is called as it is (web.Dockerfile.dockerignore), leaves files out of \
the context as it does with Docker.

Exit status: 0 when the version is ready, 1 when it could not be built, 125 when the build was not begun, 3 when it was \
begun and the API could not be reached any more (it goes on), 130 when it was cancelled with Ctrl-C.

Examples:
  sandpiper template build . -t app
  sandpiper template build . -t app:v2 -f web.Dockerfile --target release --build-arg V=2
  sandpiper template build . -t app --secret id=token,src=$HOME/.token
  sandpiper template build . -t app --start 'node server.js' --ready 'curl -fs localhost:3000'
  sandpiper template build python:3.12 -t python --memory 1024
  sandpiper template build --archive image.tar -t app
  sandpiper template build --from-checkpoint after-setup -t ready-made
  sandpiper template build . -t app --no-internet --allow-out deb.example.com")]
pub(crate) struct Arguments {
    #[command(flatten)]
    from: From,

    #[command(flatten)]
    dockerfile: DockerfileArguments,

    #[command(flatten)]
    login: Login,

    /// Registry of the Dockerfile that --username is for
    #[arg(long, value_name = "HOST", requires = "username")]
    registry: Option<String>,

    #[command(flatten)]
    version: VersionArguments,
}

/// Make an image of a registry a template
#[derive(clap::Args)]
#[command(after_help = "\
The same as `sandpiper template build --image REF`.

Examples:
  sandpiper template pull python:3.12 -t python
  sandpiper template pull registry.example/team/app@sha256:… -t app
  pass show registry | sandpiper template pull registry.example/team/app -t app --username me --password-stdin")]
pub(crate) struct PullArguments {
    /// The image; a name without a registry means what it means to Docker
    #[arg(value_name = "REF")]
    image: String,

    #[command(flatten)]
    login: Login,

    #[command(flatten)]
    version: VersionArguments,
}

/// What the version is to be.
#[derive(clap::Args)]
struct VersionArguments {
    /// The template, which is made if it is not there; and a tag that will stand for the version
    #[arg(long = "tag", short = 't', value_name = "SLUG[:TAG]", value_parser = parse_target)]
    name: Reference,

    /// Command that runs in every sandbox of it from the start
    #[arg(long, value_name = "COMMAND")]
    start: Option<String>,

    /// Command that succeeds when what --start runs is up: sandboxes begin at that point
    #[arg(long, value_name = "COMMAND", requires = "start")]
    ready: Option<String>,

    /// Virtual CPUs of a sandbox that names none
    #[arg(long)]
    cpu: Option<u32>,

    /// Memory in MiB of a sandbox that names none
    #[arg(long)]
    memory: Option<u32>,

    #[command(flatten)]
    network: NetworkArguments,

    /// Do not wait for the build; print the version's name at once
    #[arg(long)]
    detach: bool,
}

pub(super) async fn build(arguments: Arguments, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let login = (arguments.login.read()?, arguments.registry);
    run(source::prepare(arguments.from, arguments.dockerfile, login, client, output), arguments.version, client, output)
        .await
}

pub(super) async fn pull(arguments: PullArguments, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let credentials = arguments.login.read()?;
    let source = Source::Image { reference: arguments.image, credentials };
    run(async { Ok(source) }, arguments.version, client, output).await
}

async fn run(
    source: impl Future<Output = anyhow::Result<Source>>,
    arguments: VersionArguments,
    client: &Client,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut stopped = async || tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} };
    let (slug, detach) = (arguments.name.slug.clone(), arguments.detach);
    let preparing = async {
        let new = arguments.new_version(source.await?);
        make_template(client, &slug).await?;
        anyhow::Ok(new)
    };
    // What was sent for no build is removed by the host after a while.
    let new = tokio::select! {
        new = preparing => new?,
        () = stopped() => return Ok(ExitCode::from(INTERRUPTED)),
    };
    let upload = new.source.upload();
    let mut beginning = std::pin::pin!(client.build_version(&slug, &new));
    let (version, is_stopped) = tokio::select! {
        begun = &mut beginning => (begun?, false),
        // The host may have the request already: only its response says which build is to be cancelled.
        () = stopped() => {
            if !output.is_json() {
                eprintln!("cancelling: {slug}");
            }
            tokio::select! {
                begun = &mut beginning => (begun?, true),
                () = stopped() => {
                    eprintln!("The build may have been begun; see: sandpiper template show {slug}");
                    return Ok(ExitCode::from(INTERRUPTED));
                }
            }
        }
    };
    if is_stopped {
        return cancel(client, &slug, &version, upload, output).await;
    }
    if detach {
        tell(&slug, &version, output);
        return Ok(ExitCode::SUCCESS);
    }
    let ended = tokio::select! {
        ended = follow::to_the_end(client, &slug, version.clone(), output) => ended,
        () = stopped() => return cancel(client, &slug, &version, upload, output).await,
    };
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            let name = format!("{slug}:{}", version.number);
            let advice =
                format!("The build of {name} goes on, unseen; follow it with: sandpiper template logs -f {name}");
            output.report(&error.context(advice));
            return Ok(ExitCode::from(LOST));
        }
    };
    forget(client, upload).await;
    Ok(conclude(&slug, &ended, output))
}

/// Ends the build, unless it has ended by itself in this moment.
async fn cancel(
    client: &Client,
    slug: &str,
    version: &Version,
    upload: Option<&str>,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let cancelled = match client.cancel_build(slug, &version.id).await {
        Err(ClientError::Refused { status: 409, .. }) => client.version(slug, &version.id).await,
        cancelled => cancelled,
    };
    let now = cancelled.with_context(|| format!("{slug}:{} was not cancelled and goes on", version.number))?;
    forget(client, upload).await;
    if matches!(now.state, BuildState::Ready | BuildState::Failed) {
        return Ok(conclude(slug, &now, output));
    }
    if !output.is_json() {
        eprintln!("cancelled: {slug}:{}", version.number);
    }
    Ok(ExitCode::from(INTERRUPTED))
}

impl VersionArguments {
    fn new_version(self, source: Source) -> NewVersion {
        NewVersion {
            source,
            runtime_baseline: Baseline { cpu: self.cpu, memory_mb: self.memory },
            start_cmd: self.start,
            ready_cmd: self.ready,
            tags: self.name.version.into_iter().collect(),
            network: self.network.policy(),
        }
    }
}

/// Makes the template if it is not there.
async fn make_template(client: &Client, slug: &str) -> anyhow::Result<()> {
    let is_there = match client.template(slug).await {
        // One of the host's is not for teams to build.
        Ok(template) => template.team.is_some(),
        Err(error) if error.status() == Some(404) => false,
        Err(error) => return Err(error.into()),
    };
    if !is_there {
        let template = NewTemplate { slug: slug.to_owned(), ..NewTemplate::default() };
        match client.create_template(&template).await {
            // Somebody else made it in this moment.
            Err(ClientError::Refused { status: 409, .. }) => {}
            created => drop(created?),
        }
    }
    Ok(())
}

/// Removes what was sent: nothing else needs it. What cannot be removed now goes after a while, too.
async fn forget(client: &Client, upload: Option<&str>) {
    if let Some(upload) = upload {
        let _ = client.delete_upload(upload).await;
    }
}

/// Says how it ended, and fails unless the version is ready.
fn conclude(slug: &str, version: &Version, output: Output) -> ExitCode {
    match version.state {
        BuildState::Ready => {
            tell(slug, version, output);
            return ExitCode::SUCCESS;
        }
        _ if output.is_json() => output.value(&version.raw),
        BuildState::Cancelled => eprintln!("error: {slug}:{} was cancelled", version.number),
        _ => {
            let reason = version.error.as_ref().map_or("its log says why", |error| error.message.as_str());
            eprintln!("error: {slug}:{} could not be built: {}", version.number, printable_lines(reason));
        }
    }
    ExitCode::FAILURE
}

fn tell(slug: &str, version: &Version, output: Output) {
    if output.is_json() {
        output.value(&version.raw);
    }
    output.line(&format!("{slug}:{}", version.number));
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        build: Arguments,
    }

    fn is_accepted(line: &str) -> bool {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).is_ok()
    }

    #[test]
    fn a_version_is_built_of_one_thing() {
        for source in [".", "python:3.12", "--image a", "--archive a.tar", "--from-checkpoint c", "--from-sandbox s"] {
            assert!(is_accepted(&format!("{source} -t app")), "{source}");
        }
        for source in ["", ". --image a", "--from-checkpoint c --from-sandbox s"] {
            assert!(!is_accepted(&format!("{source} -t app")), "{source}");
        }
    }

    #[test]
    fn options_that_need_another_are_not_taken_alone() {
        assert!(!is_accepted("."), "a template has a name");
        assert!(!is_accepted(". -t app:3"), "a number is no tag");
        assert!(!is_accepted(". -t app --ready true"));
        assert!(!is_accepted(". -t app --username me"));
        assert!(is_accepted(". -t app:v1 --start a --ready b --username me --password-stdin --registry r.example"));
    }

    #[test]
    fn what_is_not_said_is_left_to_the_api() {
        let line = Line::parse_from(["x", "a", "-t", "app:v1", "--memory", "512", "--no-internet"]);
        let source = Source::Image { reference: "a".into(), credentials: None };
        let new = serde_json::to_value(line.build.version.new_version(source)).unwrap();
        assert_eq!(
            new,
            serde_json::json!({
                "source": {"image": {"reference": "a"}}, "runtime_baseline": {"memory_mb": 512}, "tags": ["v1"],
                "network": {
                    "allow_internet_access": false, "allow_package_registry_access": false, "allow_out": [],
                    "deny_out": [], "egress_profiles": [],
                },
            })
        );
    }
}
