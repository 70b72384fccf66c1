//! From this machine to a sandbox or a volume.
//!
//! The data plane gives new files the mode 0644: their own follows by `chmod`, run in the sandbox for many at once.

use std::collections::BTreeMap;
use std::fs::{Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};
use futures_util::StreamExt;
use sandpiper::client::ClientError;
use sandpiper_protocol::filesystem::FileType;
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use super::MAX_DEPTH;
use super::place::{base_name, below};
use super::remote::Remote;
use super::report::Report;

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// Paths of one `chmod`, and their bytes.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 64 << 10;

pub(super) struct Up<'a> {
    remote: &'a Remote,
    report: &'a mut Report,
    /// Paths of the sandbox that wait for their mode.
    modes: BTreeMap<u32, Vec<String>>,
    waiting_bytes: usize,
}

impl<'a> Up<'a> {
    pub(super) fn new(remote: &'a Remote, report: &'a mut Report) -> Self {
        Self { remote, report, modes: BTreeMap::new(), waiting_bytes: 0 }
    }

    pub(super) async fn send_stdin(&mut self, to: &str) -> anyhow::Result<()> {
        self.report.begin(to);
        let bar = self.report.bar();
        let content = ReaderStream::with_capacity(tokio::io::stdin(), PIECE);
        let start = bar.position();
        let moving = bar.clone();
        let content = content.inspect(move |piece| moving.inc(piece.as_ref().map_or(0, |piece| piece.len() as u64)));
        self.remote.upload(to, None, content).await?;
        self.report.copied(bar.position() - start);
        Ok(())
    }

    pub(super) async fn send(&mut self, from: &Path, to: &str, recursive: bool) -> anyhow::Result<()> {
        let metadata = from.metadata().with_context(|| format!("Cannot read {}", from.display()))?;
        let name = from.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let target = match self.remote.stat(to).await {
            Ok(entry) if entry.kind == FileType::Directory => under(to, name)?,
            Ok(_) => to.to_owned(),
            Err(error) if error.status() == Some(404) && !to.ends_with('/') => to.to_owned(),
            Err(error) if error.status() == Some(404) => under(to, name)?,
            Err(error) => return Err(error.into()),
        };
        if metadata.is_file() {
            self.report.expect(metadata.len());
            self.file(from, &target, 0).await?;
        } else if !metadata.is_dir() {
            bail!("{} is neither a file nor a folder; to copy what comes out of it, use `-`", from.display());
        } else if recursive {
            self.tree(from, target, &metadata).await?;
        } else {
            bail!("{} is a folder; copy it with -r", from.display());
        }
        self.set_modes().await
    }

    /// Copies what is in `from` into the folder `to`, which is made, depth first.
    async fn tree(&mut self, from: &Path, to: String, metadata: &Metadata) -> anyhow::Result<()> {
        let mut folders = Vec::new();
        let mut left = vec![(from.to_owned(), to, metadata.mode(), 1)];
        while let Some((from, to, mode, depth)) = left.pop() {
            if depth > MAX_DEPTH {
                bail!("{} is more than {MAX_DEPTH} levels down; copy it by itself", from.display());
            }
            match self.remote.make_dir(&to).await {
                Ok(Some(made)) => folders.push((mode, made)),
                Ok(None) => {}
                Err(error) => return Err(anyhow::Error::new(error).context(format!("Cannot make {to}"))),
            }
            for entry in from.read_dir().with_context(|| format!("Cannot read {}", from.display()))? {
                let path = entry.with_context(|| format!("Cannot read {}", from.display()))?.path();
                let metadata = path.symlink_metadata().with_context(|| format!("Cannot read {}", path.display()))?;
                let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                    self.report.fail(&path.to_string_lossy(), "its name is not UTF-8");
                    continue;
                };
                let target = below(&to, name);
                if metadata.is_dir() {
                    left.push((path, target, metadata.mode(), depth + 1));
                } else if metadata.is_file() {
                    self.file_or_note(&path, &target).await?;
                } else {
                    self.report.skip(&path.to_string_lossy(), "neither a file nor a folder");
                }
            }
        }
        // The folders below first: one that may not be entered ends what comes after it.
        for (mode, path) in folders.into_iter().rev() {
            self.wait_for_mode(mode, path).await?;
            self.set_modes().await?;
        }
        Ok(())
    }

    /// What the sandbox refuses is left out; anything else ends the copy.
    async fn file_or_note(&mut self, from: &Path, to: &str) -> anyhow::Result<()> {
        let Err(error) = self.file(from, to, nix::libc::O_NOFOLLOW).await else { return Ok(()) };
        match error.downcast_ref::<ClientError>() {
            Some(ClientError::Refused { message, .. }) => {
                self.report.fail(to, message);
                Ok(())
            }
            _ => Err(error.context(format!("Cannot copy {}", from.display()))),
        }
    }

    async fn file(&mut self, from: &Path, to: &str, flags: i32) -> anyhow::Result<()> {
        let cannot_read = || format!("Cannot read {}", from.display());
        let file = OpenOptions::new().read(true).custom_flags(flags).open(from).with_context(cannot_read)?;
        let metadata = file.metadata().with_context(cannot_read)?;
        self.report.begin(to);
        let bar = self.report.bar();
        // One that grows is copied as far as it was; one that shrinks breaks off.
        let file = tokio::fs::File::from_std(file).take(metadata.len());
        let content = ReaderStream::with_capacity(file, PIECE);
        let content = content.inspect(move |piece| bar.inc(piece.as_ref().map_or(0, |piece| piece.len() as u64)));
        let written = self.remote.upload(to, Some(metadata.len()), content).await?;
        self.report.copied(metadata.len());
        self.wait_for_mode(metadata.mode(), written).await
    }

    async fn wait_for_mode(&mut self, mode: u32, path: String) -> anyhow::Result<()> {
        self.waiting_bytes += path.len();
        self.modes.entry(mode & 0o777).or_default().push(path);
        let count: usize = self.modes.values().map(Vec::len).sum();
        if count >= BATCH || self.waiting_bytes >= BATCH_BYTES { self.set_modes().await } else { Ok(()) }
    }

    async fn set_modes(&mut self) -> anyhow::Result<()> {
        self.waiting_bytes = 0;
        for (mode, paths) in std::mem::take(&mut self.modes) {
            if !self.remote.set_modes(mode, &paths).await? {
                self.report.fail(&paths[0], &format!("its content is there, but chmod {mode:04o} failed"));
            }
        }
        Ok(())
    }
}

/// `name` in the folder `to` of the sandbox; a source without a name, such as `/`, is copied into the folder itself.
fn under(to: &str, name: Option<String>) -> anyhow::Result<String> {
    match name {
        Some(name) => Ok(below(to, &name)),
        None if base_name(to).is_some() => Ok(to.to_owned()),
        None => bail!("The source has no name that could be kept: name the destination"),
    }
}
