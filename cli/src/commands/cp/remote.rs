//! The other side of a copy: a sandbox, or a volume that no sandbox has.

use std::io;

use bytes::Bytes;
use futures_util::Stream;
use sandpiper::client::{ClientError, Command, DataPlane, Download, VolumeFiles};
use sandpiper_protocol::filesystem::FileType;

use super::place::base_name;

pub(crate) enum Remote {
    Sandbox {
        data_plane: DataPlane,
        /// Linux user to act as.
        user: Option<String>,
    },
    Volume(VolumeFiles),
}

/// What there is at a path. It may have any name.
pub(super) struct RemoteEntry {
    pub(super) name: String,
    pub(super) kind: FileType,
    pub(super) mode: u32,
    /// Of a sandbox, `kind` is what it leads to.
    pub(super) is_link: bool,
}

impl Remote {
    /// A path as a person gave it.
    pub(super) fn path<'p>(&self, path: &'p str) -> &'p str {
        match (self, path) {
            (Self::Sandbox { .. }, "") => "~",
            (Self::Volume(_), "") => "/",
            (_, path) => path,
        }
    }

    pub(super) async fn stat(&self, path: &str) -> Result<RemoteEntry, ClientError> {
        match self {
            Self::Sandbox { data_plane, user } => Ok(data_plane.stat(path, user.as_deref()).await?.into()),
            Self::Volume(files) => Ok(files.stat(path).await?.into()),
        }
    }

    /// What is in a folder.
    pub(super) async fn list(&self, path: &str) -> Result<Vec<RemoteEntry>, ClientError> {
        Ok(match self {
            Self::Sandbox { data_plane, user } => {
                let entries = data_plane.list_dir(path, 1, user.as_deref()).await?;
                entries.into_iter().map(RemoteEntry::from).collect()
            }
            Self::Volume(files) => files.list(path).await?.into_iter().map(RemoteEntry::from).collect(),
        })
    }

    pub(super) async fn download(&self, path: &str) -> Result<Download, ClientError> {
        match self {
            Self::Sandbox { data_plane, user } => data_plane.download(path, user.as_deref()).await,
            Self::Volume(files) => files.download(path).await,
        }
    }

    /// Writes a file; its path as it is there.
    pub(super) async fn upload(
        &self,
        path: &str,
        length: Option<u64>,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<String, ClientError> {
        match self {
            Self::Sandbox { data_plane, user } => {
                Ok(data_plane.upload(path, length, content, user.as_deref()).await?.path)
            }
            Self::Volume(files) => Ok(files.upload(path, None, length, content).await?.path),
        }
    }

    /// Makes a folder and those above it; its path, or `None` if it was there.
    pub(super) async fn make_dir(&self, path: &str) -> Result<Option<String>, ClientError> {
        match self {
            Self::Sandbox { data_plane, user } => match data_plane.make_dir(path, user.as_deref()).await {
                Ok(made) => Ok(Some(made.path)),
                Err(error) if error.code() == Some("already_exists") => Ok(None),
                Err(error) => Err(error),
            },
            Self::Volume(files) => match files.stat(path).await {
                Ok(_) => Ok(None),
                Err(error) if error.status() == Some(404) => Ok(Some(files.make_directory(path).await?.path)),
                Err(error) => Err(error),
            },
        }
    }

    /// Gives these paths a mode; false where that was refused of any of them.
    pub(super) async fn set_modes(&self, mode: u32, paths: &[String]) -> Result<bool, ClientError> {
        let done = match self {
            Self::Sandbox { data_plane, user } => {
                let mut arguments = vec![format!("{mode:04o}"), "--".to_owned()];
                arguments.extend(paths.iter().cloned());
                let command = Command {
                    program: "chmod".to_owned(),
                    arguments,
                    user: user.clone(),
                    timeout: Some(std::time::Duration::from_secs(60)),
                    ..Command::default()
                };
                data_plane.run(&command).await.map(|output| output.end.exited && output.end.exit_code == 0)
            }
            Self::Volume(files) => {
                for path in paths {
                    match files.set_mode(path, mode).await {
                        Ok(_) => {}
                        Err(ClientError::Refused { .. }) => return Ok(false),
                        Err(error) => return Err(error),
                    }
                }
                Ok(true)
            }
        };
        match done {
            Err(ClientError::Refused { .. }) => Ok(false),
            done => done,
        }
    }
}

impl From<sandpiper_protocol::filesystem::EntryInfo> for RemoteEntry {
    fn from(entry: sandpiper_protocol::filesystem::EntryInfo) -> Self {
        Self { name: entry.name, kind: entry.kind, mode: entry.mode, is_link: entry.symlink_target.is_some() }
    }
}

impl From<sandpiper::client::VolumeEntry> for RemoteEntry {
    fn from(entry: sandpiper::client::VolumeEntry) -> Self {
        Self {
            name: base_name(&entry.path).unwrap_or_default().to_owned(),
            kind: match entry.kind.as_str() {
                "file" => FileType::File,
                "directory" => FileType::Directory,
                "symlink" => FileType::Symlink,
                _ => FileType::Unspecified,
            },
            is_link: entry.kind == "symlink",
            // What is no number is nobody's permission.
            mode: u32::from_str_radix(&entry.mode, 8).unwrap_or_default(),
        }
    }
}
