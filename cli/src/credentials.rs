//! Which host the command talks to, and with what to show: flags and environment first, then the session that `login` left, then the
//! file that `up` writes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sandpiper::client::Client;
use sandpiper_durable as durable;
use serde::de::DeserializeOwned;
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
        read(&Self::path()?)
    }

    /// Replaces what is stored; a crash leaves the old or the new file.
    pub(crate) fn store(&self) -> anyhow::Result<PathBuf> {
        write(Self::path()?, self)
    }
}

/// `login.toml` beside it: the session that a user is signed in to.
#[derive(Serialize, Deserialize)]
pub(crate) struct Login {
    pub(crate) url: String,
    pub(crate) token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
}

impl Login {
    fn path() -> anyhow::Result<PathBuf> {
        Ok(Credentials::path()?.with_file_name("login.toml"))
    }

    /// The session, if there is one.
    pub(crate) fn load() -> anyhow::Result<Option<Self>> {
        read(&Self::path()?)
    }

    /// Replaces what is stored; a crash leaves the old or the new file.
    pub(crate) fn store(&self) -> anyhow::Result<PathBuf> {
        write(Self::path()?, self)
    }

    /// Forgets it.
    pub(crate) fn remove() -> anyhow::Result<()> {
        let path = Self::path()?;
        durable::remove_file(&path).with_context(|| format!("Cannot remove {}", path.display()))
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Option<T>> {
    match fs::read_to_string(path) {
        Ok(text) => {
            Ok(Some(toml::from_str(&text).with_context(|| format!("{} is not valid; remove it", path.display()))?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("Cannot read {}", path.display())),
    }
}

fn write(path: PathBuf, content: &impl Serialize) -> anyhow::Result<PathBuf> {
    let folder = path.parent().context("The credentials' path has no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("Cannot create {}", folder.display()))?;
    durable::write_atomic(&path, toml::to_string(content)?.as_bytes())
        .with_context(|| format!("Cannot write {}", path.display()))?;
    Ok(path)
}

/// What the caller of a command gave.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub(crate) url: Option<&'a str>,
    pub(crate) api_key: Option<&'a str>,
    pub(crate) team: Option<&'a str>,
    pub(crate) ca: Option<&'a Path>,
}

impl Given<'_> {
    /// A client with what was given, else with the login session, else with the stored credentials. What is stored is sent only to
    /// the host it is of.
    pub(crate) fn client(self) -> anyhow::Result<Client> {
        let (login, stored) = (Login::load()?, Credentials::load()?);
        let url = self.url(login.as_ref(), stored.as_ref());
        let login = login.as_ref().filter(|login| login.url == url);
        let stored = stored.as_ref().filter(|stored| stored.url == url);
        let key = self.api_key.or(login.map(|login| login.token.as_str()));
        let Some(key) = key.or(stored.map(|stored| stored.api_key.as_str())) else {
            bail!(
                "No API key for {url}: give --api-key or SANDPIPER_API_KEY, sign in with `sandpiper login`, or start a host \
                 here with `sandpiper up`"
            );
        };
        let ca = self.ca.or(login.and_then(|login| login.ca.as_deref()));
        client(url, key, ca.or(stored.and_then(|stored| stored.ca.as_deref())), self.team)
    }

    /// A client of the same host that has nothing to show yet, with the host's URL and its certificate authority.
    pub(crate) fn stranger(self) -> anyhow::Result<(Client, String, Option<PathBuf>)> {
        let stored = Credentials::load()?;
        let url = self.url(None, stored.as_ref()).to_owned();
        let stored_ca = stored.filter(|stored| stored.url == url).and_then(|stored| stored.ca);
        let ca = self.ca.map(Path::to_owned).or(stored_ca);
        Ok((client(&url, "", ca.as_deref(), None)?, url, ca))
    }

    fn url<'a>(&'a self, login: Option<&'a Login>, stored: Option<&'a Credentials>) -> &'a str {
        let login = login.map(|login| login.url.as_str());
        self.url.or(login).or(stored.map(|stored| stored.url.as_str())).unwrap_or(DEFAULT_URL)
    }
}

fn client(url: &str, key: &str, ca: Option<&Path>, team: Option<&str>) -> anyhow::Result<Client> {
    let ca = ca.map(|path| fs::read(path).with_context(|| format!("Cannot read {}", path.display()))).transpose()?;
    Ok(Client::new(url, key, ca.as_deref())?.for_team(team.map(str::to_owned)))
}
