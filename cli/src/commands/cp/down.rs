//! From a sandbox or a volume to this machine.

use std::path::{Component, Path};

use anyhow::{Context, bail};
use sandpiper::client::{ClientError, Download};
use sandpiper_protocol::filesystem::FileType;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::local::{Folder, checked_name};
use super::place::{base_name, below};
use super::remote::{Remote, RemoteEntry};
use super::report::Report;
use super::{MAX_DEPTH, MAX_ENTRIES};

pub(super) struct Down<'a> {
    pub(super) remote: &'a Remote,
    pub(super) report: &'a mut Report,
}

/// One folder of the tree, half copied.
struct Level {
    folder: Folder,
    /// In the sandbox.
    path: String,
    mode: u32,
    left: Vec<Entry>,
}

/// What is kept of an entry until its turn.
struct Entry {
    name: String,
    kind: FileType,
    mode: u32,
}

impl Down<'_> {
    pub(super) async fn print(&mut self, from: &str) -> anyhow::Result<()> {
        let mut download = self.remote.download(from).await?;
        self.report.begin(from);
        self.report.expect(download.size());
        let mut out = tokio::io::stdout();
        self.receive(&mut download, &mut out).await?;
        out.flush().await.context("Cannot write to standard output")
    }

    pub(super) async fn save(&mut self, from: &str, to: &Path, recursive: bool) -> anyhow::Result<()> {
        let named = self.remote.stat(from).await?;
        match named.kind {
            FileType::File => {
                let (folder, name) = destination(to, base_name(from))?;
                let name = name.with_context(|| format!("{from} has no name of its own: name the local file"))?;
                let mut download = self.remote.download(from).await?;
                self.report.expect(download.size());
                self.file(&mut download, &folder, &name, named.mode).await
            }
            FileType::Directory if recursive => {
                let (folder, name) = destination(to, base_name(from))?;
                let folder = match name {
                    Some(name) => folder.enter(&name).with_context(|| format!("Cannot copy into {}", to.display()))?,
                    // `cp -r sbx:/ there` copies what is in it.
                    None => folder,
                };
                self.tree(from, folder, named.mode).await
            }
            FileType::Directory => bail!("{from} is a folder; copy it with -r"),
            FileType::Symlink => bail!("{from} is a link that leads nowhere"),
            FileType::Unspecified => bail!("{from} is neither a file nor a folder"),
        }
    }

    /// Copies what is in the folder `path` into `folder`, depth first.
    async fn tree(&mut self, path: &str, folder: Folder, mode: u32) -> anyhow::Result<()> {
        let mut seen = 0;
        let mut levels = vec![self.level(path.to_owned(), folder, mode, &mut seen).await?];
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { return Ok(()) };
            let Some(entry) = level.left.pop() else {
                level.folder.set_mode(level.mode).with_context(|| format!("Cannot set the mode of {}", level.path))?;
                levels.pop();
                continue;
            };
            let path = below(&level.path, &entry.name);
            if let Err(why) = checked_name(&entry.name) {
                self.report.fail(&path, why);
                continue;
            }
            let copied = match entry.kind {
                FileType::File => match self.remote.download(&path).await {
                    Ok(mut download) => self.file(&mut download, &level.folder, &entry.name, entry.mode).await,
                    Err(error) => Err(error.into()),
                },
                FileType::Directory if depth >= MAX_DEPTH => {
                    bail!("{path} is more than {MAX_DEPTH} levels down; copy it by itself")
                }
                FileType::Directory => {
                    let folder = level.folder.enter(&entry.name).with_context(|| format!("Cannot make {path} here"))?;
                    match self.level(path.clone(), folder, entry.mode, &mut seen).await {
                        Ok(level) => {
                            levels.push(level);
                            Ok(())
                        }
                        Err(error) => Err(error),
                    }
                }
                FileType::Symlink | FileType::Unspecified => {
                    self.report.skip(&path, "not a regular file");
                    Ok(())
                }
            };
            self.go_on(&path, copied)?;
        }
    }

    /// What a sandbox refuses is left out; anything else ends the copy.
    fn go_on(&mut self, path: &str, copied: anyhow::Result<()>) -> anyhow::Result<()> {
        let Err(error) = copied else { return Ok(()) };
        match error.downcast_ref::<ClientError>() {
            Some(ClientError::Refused { message, .. }) => {
                self.report.fail(path, message);
                Ok(())
            }
            _ => Err(error.context(format!("Cannot copy {path}"))),
        }
    }

    /// Lists a folder. Links are left out here.
    async fn level(&mut self, path: String, folder: Folder, mode: u32, seen: &mut usize) -> anyhow::Result<Level> {
        let mut left = Vec::new();
        for entry in self.remote.list(&path).await? {
            let RemoteEntry { name, kind, mode, is_link } = entry;
            if is_link {
                self.report.skip(&below(&path, &name), "a symbolic link");
                continue;
            }
            left.push(Entry { name, kind, mode });
        }
        *seen += left.len();
        if *seen > MAX_ENTRIES {
            bail!(
                "There are more than {MAX_ENTRIES} files and folders; copy the folders in it one by one, or a tar of it"
            );
        }
        // Taken from the end.
        left.reverse();
        Ok(Level { folder, path, mode, left })
    }

    /// Copies one file to `name` of `folder`.
    async fn file(&mut self, download: &mut Download, folder: &Folder, name: &str, mode: u32) -> anyhow::Result<()> {
        let room = folder.room().context("Cannot tell how much room there is")?;
        if download.size() > room {
            bail!("{name} has {} bytes, and there is room for {room}", download.size());
        }
        self.report.begin(name);
        let partial = folder.create(name).with_context(|| format!("Cannot create {name}"))?;
        let mut file = tokio::fs::File::from_std(partial.writer()?);
        self.receive(download, &mut file).await?;
        file.flush().await.with_context(|| format!("Cannot write {name}"))?;
        partial.finish(mode).with_context(|| format!("Cannot put {name} in its place"))
    }

    async fn receive(&mut self, download: &mut Download, out: &mut (impl AsyncWrite + Unpin)) -> anyhow::Result<()> {
        while let Some(piece) = download.next().await? {
            out.write_all(&piece).await.context("Cannot write what came")?;
            self.report.moved(piece.len());
        }
        self.report.copied(download.size());
        Ok(())
    }
}

/// The folder that is written to, and the name in it: `own` if `to` is a folder, or ends like one. `None`: the folder itself.
fn destination(to: &Path, own: Option<&str>) -> anyhow::Result<(Folder, Option<String>)> {
    let open = |path: &Path| Folder::open(path).with_context(|| format!("Cannot copy into {}", path.display()));
    if to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Ok((open(to)?, own.map(str::to_owned)));
    }
    let Some(Component::Normal(name)) = to.components().next_back() else { bail!("{} is no name", to.display()) };
    let name = name.to_str().with_context(|| format!("{} is not UTF-8", to.display()))?;
    let above = to.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((open(above)?, Some(name.to_owned())))
}
