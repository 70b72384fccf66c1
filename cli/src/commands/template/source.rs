//! What a version is built of: from what a person named to what the API takes, with the files sent.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use futures_util::Stream;
use sandpiper::client::{Client, ClientError, Source, Upload};
use sandpiper_protocol::template::{Credentials, Dockerfile, Secrets};
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use super::secret::{SecretArgument, build_argument};
use crate::commands::checkpoint;
use crate::context::{self, Context, PackError};
use crate::output::Output;
use crate::text::{bytes, printable};

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// Where the version comes from: one of these.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct From {
    /// A folder with a Dockerfile, which may copy what is in it; `-` reads a Dockerfile that copies nothing from standard
    /// input; any other name is an image's
    #[arg(value_name = "PATH|IMAGE")]
    path: Option<String>,

    /// Take an image of a registry as it is; a name without a registry means what it means to Docker
    #[arg(long, value_name = "REF")]
    image: Option<String>,

    /// Take an image from a file, as `docker save` or `skopeo copy … oci-archive:FILE` write it; `-` is standard input
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,

    /// Take the disk of a checkpoint, by its id or its name
    #[arg(long, value_name = "CHECKPOINT")]
    from_checkpoint: Option<String>,

    /// Take the disk of a stopped sandbox
    #[arg(long, value_name = "SANDBOX")]
    from_sandbox: Option<String>,
}

/// How a Dockerfile is built.
#[derive(clap::Args)]
pub(super) struct DockerfileArguments {
    /// The Dockerfile; PATH/Dockerfile where it is left out
    #[arg(long, short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,

    /// Build this stage instead of the last
    #[arg(long, value_name = "STAGE")]
    target: Option<String>,

    /// Set an ARG of the Dockerfile; NAME alone takes the variable of that name
    #[arg(long, value_name = "NAME=VALUE", value_parser = build_argument)]
    build_arg: Vec<BuildArgument>,

    /// Give `RUN --mount=type=secret,id=NAME` a secret, which no layer and no log has: id=NAME,src=FILE or id=NAME,env=VARIABLE
    #[arg(long, value_name = "id=NAME,…")]
    secret: Vec<SecretArgument>,

    /// Run every step, also those whose results are kept
    #[arg(long)]
    no_cache: bool,
}

type BuildArgument = Option<(String, String)>;

impl DockerfileArguments {
    fn is_given(&self) -> bool {
        self.file.is_some()
            || self.target.is_some()
            || self.no_cache
            || !self.build_arg.is_empty()
            || !self.secret.is_empty()
    }
}

/// Who asks the registry.
#[derive(clap::Args)]
pub(super) struct Login {
    /// User at the registry; the password is read from standard input
    #[arg(long, value_name = "USER", requires = "password_stdin")]
    username: Option<String>,

    /// Read the registry's password from standard input
    #[arg(long, requires = "username")]
    password_stdin: bool,
}

impl Login {
    pub(super) fn read(&self) -> anyhow::Result<Option<Credentials>> {
        let Some(username) = self.username.clone() else { return Ok(None) };
        let password = io::read_to_string(io::stdin()).context("Cannot read the password from standard input")?;
        Ok(Some(Credentials { username, password: password.trim_end_matches(['\r', '\n']).to_owned() }))
    }
}

/// The source that is described, with its files at the host.
///
/// # Errors
///
/// Fails where something that is named is not there or cannot be sent, and where options contradict each other.
pub(super) async fn prepare(
    from: From,
    dockerfile: DockerfileArguments,
    (credentials, registry): (Option<Credentials>, Option<String>),
    client: &Client,
    output: Output,
) -> anyhow::Result<Source> {
    let is_given = dockerfile.is_given() || registry.is_some();
    let source = match from {
        From { path: Some(path), .. } if path == "-" => {
            let mut text = String::new();
            let read = tokio::io::stdin().read_to_string(&mut text).await;
            read.context("Cannot read the Dockerfile from standard input")?;
            let contents = Dockerfile { text: Some(text), ..dockerfile.contents(credentials, registry)? };
            return Ok(Source::Dockerfile(contents));
        }
        From { path: Some(path), .. } if is_folder(&path)? => {
            let context = Context::open(Path::new(&path), dockerfile.file.as_deref())?;
            let contents = dockerfile.contents(credentials, registry)?;
            return Ok(Source::Dockerfile(send_context(context, contents, client, output).await?));
        }
        From { path: Some(reference), .. } | From { image: Some(reference), .. } => {
            Source::Image { reference, credentials }
        }
        From { archive: Some(path), .. } => Source::Archive(send_file(&path, client, output).await?.id),
        From { from_checkpoint: Some(reference), .. } => {
            Source::Checkpoint(checkpoint::find(client, &reference).await?)
        }
        From { from_sandbox: Some(id), .. } => Source::Sandbox(id),
        From { .. } => bail!("Nothing was named to build from"),
    };
    if is_given {
        bail!("There is no Dockerfile: -f, --target, --build-arg, --secret, --no-cache and --registry are for one");
    }
    Ok(source)
}

/// Whether a folder is meant: what looks like a path and is not there is no image.
fn is_folder(path: &str) -> anyhow::Result<bool> {
    if Path::new(path).is_dir() {
        return Ok(true);
    }
    if path.starts_with(['.', '/', '~']) || Path::new(path).exists() {
        bail!("{path} is not a folder; name one with a Dockerfile in it, or an image");
    }
    Ok(false)
}

impl DockerfileArguments {
    fn contents(self, credentials: Option<Credentials>, registry: Option<String>) -> anyhow::Result<Dockerfile> {
        let credentials = match (credentials, registry) {
            (Some(credentials), Some(registry)) => BTreeMap::from([(registry, credentials)]),
            (Some(_), None) => bail!("Say with --registry which registry of the Dockerfile the user is at"),
            (None, _) => BTreeMap::new(),
        };
        let mut secrets = BTreeMap::new();
        for secret in self.secret {
            secrets.insert(secret.name.clone(), secret.read()?);
        }
        Ok(Dockerfile {
            context: None,
            text: None,
            path: None,
            target: self.target,
            args: self.build_arg.into_iter().flatten().collect(),
            secrets: Secrets(secrets),
            credentials,
            no_cache: self.no_cache,
        })
    }
}

async fn send_context(
    context: Context,
    contents: Dockerfile,
    client: &Client,
    output: Output,
) -> anyhow::Result<Dockerfile> {
    let (path, text) = match context.dockerfile.clone() {
        context::Dockerfile::At(path) => (Some(path), None),
        context::Dockerfile::Text(text) => (None, Some(text)),
    };
    let (archive, packing) = context::pack(context);
    let sent = send(None, archive, "sending the context", client, output).await;
    // What kept the context from being packed says more than that its stream ended.
    let packed = match packing.await? {
        Ok(packed) => packed,
        Err(PackError::Gone) => {
            sent?;
            bail!("The host took only a part of the context");
        }
        Err(error) => return Err(error.into()),
    };
    let upload = sent?;
    if !output.is_json() {
        eprintln!("context: {} files and folders, {}", packed.entries, bytes(upload.bytes));
        for path in &packed.left_out {
            eprintln!("left out: {}: neither a file, a folder nor a link", printable(&path.to_string_lossy()));
        }
    }
    Ok(Dockerfile { context: Some(upload.id.into()), path, text, ..contents })
}

async fn send_file(path: &Path, client: &Client, output: Output) -> anyhow::Result<Upload> {
    let unreadable = || format!("Cannot read {}", path.display());
    if path == Path::new("-") {
        let content = ReaderStream::with_capacity(tokio::io::stdin(), PIECE);
        return Ok(send(None, content, "sending the archive", client, output).await?);
    }
    let file = tokio::fs::File::open(path).await.with_context(unreadable)?;
    let metadata = file.metadata().await.with_context(unreadable)?;
    if metadata.is_dir() {
        bail!("{} is a folder, not an archive; name it without --archive to build it", path.display());
    }
    // Of a pipe nobody knows it.
    let length = metadata.is_file().then_some(metadata.len());
    let content = ReaderStream::with_capacity(file, PIECE);
    Ok(send(length, content, "sending the archive", client, output).await?)
}

async fn send(
    length: Option<u64>,
    content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    what: &str,
    client: &Client,
    output: Output,
) -> Result<Upload, ClientError> {
    let progress = output.progress_of_bytes(what, length);
    client.upload(length, content, progress.mover()).await
}
