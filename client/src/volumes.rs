//! Volumes, and what is in those that no sandbox has.

use std::io;

use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Client, ClientError, Download, TIMEOUT};

/// A volume as the API shows it; `raw` has every field.
#[derive(Debug, Clone, Deserialize)]
pub struct Volume {
    pub id: String,
    pub name: String,
    pub state: String,
    pub size_gib: u32,
    /// Bytes of disk that it holds.
    pub retained_bytes: u64,
    pub created_at: String,
    /// The live sandbox that has it.
    #[serde(default)]
    pub attached_to: Option<String>,
    #[serde(skip)]
    pub raw: Value,
}

/// Something in a volume.
#[derive(Debug, Clone, Deserialize)]
pub struct VolumeEntry {
    /// From the volume's root.
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`.
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// Octal text.
    pub mode: String,
}

impl Client {
    /// Makes a volume of this name.
    pub async fn create_volume(&self, name: &str) -> Result<Volume, ClientError> {
        self.read_volume(self.call(Method::POST, "/volumes", Some(json!({"name": name}))).await?)
    }

    /// All volumes of the key's team, page after page.
    pub async fn volumes(&self) -> Result<Vec<Volume>, ClientError> {
        let volumes = self.pages("/volumes", "limit=100", "volumes").await?;
        volumes.into_iter().map(|value| self.read_volume(value)).collect()
    }

    /// The volume that `reference` names: its name, or its id.
    pub async fn find_volume(&self, reference: &str) -> Result<Option<Volume>, ClientError> {
        let volumes = self.volumes().await?;
        Ok(volumes.into_iter().find(|volume| volume.name == reference || volume.id == reference))
    }

    /// Deletes a volume with all that is in it.
    pub async fn delete_volume(&self, id: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, &format!("/volumes/{id}"), None).await.map(drop)
    }

    /// What is in the volume of this id, which no sandbox may have meanwhile.
    pub fn volume_files(&self, id: &str) -> VolumeFiles {
        VolumeFiles { client: self.clone(), id: id.to_owned() }
    }

    fn read_volume(&self, raw: Value) -> Result<Volume, ClientError> {
        let volume: Volume = self.parse("/volumes", raw.clone())?;
        Ok(Volume { raw, ..volume })
    }
}

/// What is in a volume that no sandbox has. Paths are absolute, from its root.
#[derive(Clone)]
pub struct VolumeFiles {
    client: Client,
    id: String,
}

impl VolumeFiles {
    /// What there is at a path: of a link, the link itself.
    pub async fn stat(&self, path: &str) -> Result<VolumeEntry, ClientError> {
        self.entry(self.request(Method::GET, "path", path)).await
    }

    /// The entries of a directory, page after page.
    pub async fn list(&self, path: &str) -> Result<Vec<VolumeEntry>, ClientError> {
        let (mut all, mut token) = (Vec::new(), None::<String>);
        loop {
            let mut request = self.request(Method::GET, "directories", path).query(&[("limit", "100")]);
            if let Some(token) = &token {
                request = request.query(&[("next_token", token)]);
            }
            let page: Page = self.client.json(self.client.send(request.timeout(TIMEOUT)).await?).await?;
            all.extend(page.entries);
            token = page.next_token;
            if token.is_none() {
                return Ok(all);
            }
        }
    }

    /// Makes a directory, and those above it. One that is there stays as it is.
    pub async fn make_directory(&self, path: &str) -> Result<VolumeEntry, ClientError> {
        self.entry(self.request(Method::POST, "directories", path)).await
    }

    /// Sets the mode of what there is at a path.
    pub async fn set_mode(&self, path: &str, mode: u32) -> Result<VolumeEntry, ClientError> {
        let change = json!({"mode": format!("{mode:04o}")});
        self.entry(self.request(Method::PATCH, "path", path).json(&change)).await
    }

    /// Opens a file to read it piece by piece.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, or does not say how long the file is.
    pub async fn download(&self, path: &str) -> Result<Download, ClientError> {
        let response = self.client.send(self.request(Method::GET, "files", path)).await?;
        match response.content_length() {
            Some(size) => Ok(Download::new(size, response.bytes_stream().boxed())),
            None => Err(self.client.malformed("/volumes", "it does not say how long the file is")),
        }
    }

    /// Writes a file from a stream, of `length` bytes if that is known; returns once it is on stable storage. It takes its
    /// place when it is whole.
    ///
    /// # Errors
    ///
    /// Fails if the API refuses, nothing moves for long, or if the stream fails or has another length.
    pub async fn upload(
        &self,
        path: &str,
        mode: Option<u32>,
        length: Option<u64>,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<VolumeEntry, ClientError> {
        let mut request = self.request(Method::PUT, "files", path);
        if let Some(mode) = mode {
            request = request.query(&[("mode", format!("{mode:04o}"))]);
        }
        let response = self.client.send_stream(request, length, content).await?;
        self.client.json(response).await
    }

    fn request(&self, method: Method, what: &str, path: &str) -> RequestBuilder {
        let url = format!("{}/v1/volumes/{}/{what}", self.client.base_url, self.id);
        self.client.authorized(self.client.http.request(method, url).query(&[("path", path)]))
    }

    async fn entry(&self, request: RequestBuilder) -> Result<VolumeEntry, ClientError> {
        self.client.json(self.client.send(request.timeout(TIMEOUT)).await?).await
    }
}

/// A page of a directory.
#[derive(Deserialize)]
struct Page {
    entries: Vec<VolumeEntry>,
    next_token: Option<String>,
}
