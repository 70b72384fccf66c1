//! Files and folders of one sandbox.

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, Stream, StreamExt};
use reqwest::{Body, Method};
use sandpiper_protocol::filesystem::{EntryInfo, EntryResponse, ListDirRequest, MoveRequest, PathRequest, SERVICE};
use sandpiper_protocol::process::WrittenFile;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::data_plane::{as_user, next_piece};
use super::{ClientError, DataPlane};

/// Entries of one folder's list; a guest's server sends no more.
const MAX_ENTRIES: usize = 20_000;

/// How long an upload may make no progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Every call acts as `user`, or where none is named as the sandbox's default user. Paths count from that user's home.
impl DataPlane {
    /// Reads a whole file into memory; [`Self::download`] does not.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::download`] does, or if there is no memory for as many bytes as the sandbox announces.
    pub async fn read_file(&self, path: &str, user: Option<&str>) -> Result<Vec<u8>, ClientError> {
        let mut download = self.download(path, user).await?;
        let mut content = Vec::new();
        // At once: to grow as the pieces come would be to copy, and to touch twice as much memory.
        let size = usize::try_from(download.size()).unwrap_or(usize::MAX);
        content
            .try_reserve_exact(size)
            .map_err(|_| ClientError::Broken(format!("there is no memory for its {size} bytes")))?;
        while let Some(piece) = download.next().await? {
            content.extend_from_slice(&piece);
        }
        Ok(content)
    }

    /// Writes a file; the folders above it are made.
    pub async fn write_file(
        &self,
        path: &str,
        content: Vec<u8>,
        user: Option<&str>,
    ) -> Result<WrittenFile, ClientError> {
        let length = content.len() as u64;
        let content = futures_util::stream::iter([Ok(Bytes::from(content))]);
        self.upload(path, Some(length), content, user).await
    }

    /// Opens a file to read it piece by piece.
    ///
    /// # Errors
    ///
    /// Fails if the sandbox refuses, or does not say how long the file is.
    pub async fn download(&self, path: &str, user: Option<&str>) -> Result<Download, ClientError> {
        let request = as_user(self.request(Method::GET, "/files").query(&[("path", path)]), user);
        let response = self.check(request.send().await).await?;
        let Some(size) = response.content_length() else {
            return Err(self.malformed("it does not say how long the file is"));
        };
        Ok(Download::new(size, response.bytes_stream().boxed()))
    }

    /// Writes a file from a stream, of `length` bytes if that is known. The file takes its place when it is whole: an upload
    /// that breaks off leaves what was there.
    ///
    /// # Errors
    ///
    /// Fails if the sandbox refuses, takes nothing for a minute, or if the stream fails or has another length.
    pub async fn upload(
        &self,
        path: &str,
        length: Option<u64>,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        user: Option<&str>,
    ) -> Result<WrittenFile, ClientError> {
        let sent = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&sent);
        let content = content.inspect(move |piece| {
            let length = piece.as_ref().map_or(0, |piece| piece.len() as u64);
            counter.fetch_add(length.max(1), Ordering::Relaxed);
        });
        let mut request = self
            .request(Method::POST, "/files")
            .query(&[("path", path)])
            .header("content-type", "application/octet-stream");
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        let request = as_user(request.body(Body::wrap_stream(content)), user);
        let mut sending = pin!(request.send());
        let response = loop {
            let before = sent.load(Ordering::Relaxed);
            match tokio::time::timeout(STALL_TIMEOUT, &mut sending).await {
                Ok(response) => break self.check(response).await?,
                Err(_) if sent.load(Ordering::Relaxed) > before => {}
                Err(_) => {
                    let seconds = STALL_TIMEOUT.as_secs();
                    return Err(ClientError::Broken(format!("it took nothing of the file for {seconds} s")));
                }
            }
        };
        let mut written: Vec<WrittenFile> = self.json(response).await?;
        written.pop().ok_or_else(|| self.malformed("no file in the response"))
    }

    /// What there is at a path.
    pub async fn stat(&self, path: &str, user: Option<&str>) -> Result<EntryInfo, ClientError> {
        let request = PathRequest { path: path.to_owned() };
        let response: EntryResponse = self.unary_of(SERVICE, "Stat", &request, user).await?;
        Ok(response.entry)
    }

    /// The entries of a folder, `depth` levels down. The guest chooses their names: they may be anything.
    pub async fn list_dir(&self, path: &str, depth: u32, user: Option<&str>) -> Result<Vec<EntryInfo>, ClientError> {
        let request = ListDirRequest { path: path.to_owned(), depth };
        let response: Listing = self.unary_of(SERVICE, "ListDir", &request, user).await?;
        Ok(response.entries)
    }

    /// Makes a folder and those above it; `already_exists` if it is there.
    pub async fn make_dir(&self, path: &str, user: Option<&str>) -> Result<EntryInfo, ClientError> {
        let request = PathRequest { path: path.to_owned() };
        let response: EntryResponse = self.unary_of(SERVICE, "MakeDir", &request, user).await?;
        Ok(response.entry)
    }

    /// Renames a file or a folder.
    pub async fn rename(&self, source: &str, destination: &str, user: Option<&str>) -> Result<EntryInfo, ClientError> {
        let request = MoveRequest { source: source.to_owned(), destination: destination.to_owned() };
        let response: EntryResponse = self.unary_of(SERVICE, "Move", &request, user).await?;
        Ok(response.entry)
    }

    /// Removes a file, a link or a whole tree, if it is there.
    pub async fn remove(&self, path: &str, user: Option<&str>) -> Result<(), ClientError> {
        let request = PathRequest { path: path.to_owned() };
        self.unary_of::<Value>(SERVICE, "Remove", &request, user).await.map(drop)
    }
}

/// The response of `ListDir`, which is refused before it takes up more memory than an honest one can.
#[derive(Deserialize)]
struct Listing {
    #[serde(default, deserialize_with = "at_most_max_entries")]
    entries: Vec<EntryInfo>,
}

fn at_most_max_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<EntryInfo>, D::Error> {
    struct Entries;

    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<EntryInfo>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_ENTRIES} entries")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = list.next_element()? {
                if entries.len() == MAX_ENTRIES {
                    return Err(A::Error::invalid_length(MAX_ENTRIES + 1, &self));
                }
                entries.push(entry);
            }
            Ok(entries)
        }
    }

    deserializer.deserialize_seq(Entries)
}

/// A file of a sandbox that is being read.
pub struct Download {
    size: u64,
    left: u64,
    body: BoxStream<'static, reqwest::Result<Bytes>>,
}

impl Download {
    /// A file of `size` bytes, whose content comes with `body`.
    pub(crate) fn new(size: u64, body: BoxStream<'static, reqwest::Result<Bytes>>) -> Self {
        Self { size, left: size, body }
    }

    /// Bytes, as the guest announced them. It may say anything.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The next piece; `None` at the end. There are never more than [`Self::size`] bytes.
    ///
    /// # Errors
    ///
    /// Fails if the file ends early, or nothing comes for a minute.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let piece = next_piece(&mut self.body).await?;
        let Some(left) = self.left.checked_sub(piece.as_ref().map_or(0, |piece| piece.len() as u64)) else {
            return Err(ClientError::Broken(format!("the file has more than its {} bytes", self.size)));
        };
        self.left = left;
        if piece.is_none() && left > 0 {
            return Err(ClientError::Broken(format!("the file ended {left} bytes early")));
        }
        Ok(piece)
    }
}
