//! Which host the command talks to, and with which key: flags and environment first, then the file that `up` writes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sandpiper::client::Client;
use sandpiper_durable as durable;
use serde::{Deserialize, Serialize};

/// Where an API listens unless told otherwise.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:7070";

/// `~/.config/sandpiper/credentials.toml`, readable by its owner only.
#[derive(Serialize, Deserialize)]
pub(crate) struct Credentials {
    pub(crate) url: String,
    pub(crate) api_key: String,
    /// For `/operator`: merchants and payments. Absent where the file is older than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operator_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
}

impl Credentials {
    pub(crate) fn path() -> anyhow::Result<PathBuf> {
        if let Some(folder) = std::env::var_os("XDG_CONFIG_HOME") {
            return Ok(PathBuf::from(folder).join("sandpiper/credentials.toml"));
        }
        let home = std::env::var_os("HOME").context("HOME is not set; give --url and --api-key")?;
        Ok(PathBuf::from(home).join(".config/sandpiper/credentials.toml"))
    }

    /// What is stored, if anything is.
    pub(crate) fn load() -> anyhow::Result<Option<Self>> {
        let path = Self::path()?;
        match fs::read_to_string(&path) {
            Ok(text) => {
                Ok(Some(toml::from_str(&text).with_context(|| format!("{} is not valid; remove it", path.display()))?))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("Cannot read {}", path.display())),
        }
    }

    /// Replaces what is stored; a crash leaves the old or the new file.
    pub(crate) fn store(&self) -> anyhow::Result<PathBuf> {
        let path = Self::path()?;
        let folder = path.parent().context("The credentials' path has no folder")?;
        fs::create_dir_all(folder).with_context(|| format!("Cannot create {}", folder.display()))?;
        durable::write_atomic(&path, toml::to_string(self)?.as_bytes())
            .with_context(|| format!("Cannot write {}", path.display()))?;
        Ok(path)
    }
}

/// A client with what the caller gave, and from the stored credentials what it did not give. A stored key is sent only to
/// the host it was made for.
pub(crate) fn client(url: Option<&str>, api_key: Option<&str>, ca: Option<&Path>) -> anyhow::Result<Client> {
    let stored = Credentials::load()?;
    let url = url.or(stored.as_ref().map(|stored| stored.url.as_str())).unwrap_or(DEFAULT_URL);
    let stored = stored.as_ref().filter(|stored| stored.url == url);
    let Some(api_key) = api_key.or(stored.map(|stored| stored.api_key.as_str())) else {
        bail!("No API key for {url}: give --api-key or SANDPIPER_API_KEY, or start a host here with `sandpiper up`");
    };
    let ca = ca.or(stored.and_then(|stored| stored.ca.as_deref()));
    let ca = ca.map(|path| fs::read(path).with_context(|| format!("Cannot read {}", path.display()))).transpose()?;
    Ok(Client::new(url, api_key, ca.as_deref())?)
}
