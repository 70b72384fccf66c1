//! What an image says of the programs that run in it.

use std::collections::BTreeMap;

use sandpiper_protocol::template::ImageSettings;
use serde::Deserialize;

use crate::buildah::Buildah;
use crate::failure::Failure;

/// The architecture of the machines, as images name it.
const ARCHITECTURE: &str = "amd64";

/// Bytes of an image's settings: what is said of it is a line to the agent, and to its sandboxes.
const MAX_SETTINGS: usize = 60 << 10;

/// An image's configuration, of the OCI image format.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Config {
    architecture: String,
    os: String,
    config: Execution,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Execution {
    user: String,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: String,
}

/// What `buildah inspect --type image` says, of which this is a part.
#[derive(Deserialize)]
struct Inspected {
    #[serde(rename = "FromImageDigest")]
    digest: String,
    #[serde(rename = "OCIv1")]
    image: Config,
    #[serde(rename = "Docker", default)]
    docker: Docker,
}

impl Inspected {
    fn has_triggers(&self) -> bool {
        self.docker.config.as_ref().and_then(|config| config.on_build.as_ref()).is_some_and(|all| !all.is_empty())
    }
}

/// What only Docker's format of images has.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Docker {
    config: Option<Triggers>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Triggers {
    on_build: Option<Vec<String>>,
}

impl Config {
    /// # Errors
    ///
    /// Fails if there is no such image in buildah's storage.
    pub(crate) fn of(buildah: &Buildah, image: &str) -> Result<Self, Failure> {
        Ok(inspect(buildah, image)?.image)
    }

    /// Refuses images that no sandbox could run.
    ///
    /// # Errors
    ///
    /// Fails for one of another architecture, and for one with more settings than sandboxes take.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.architecture == ARCHITECTURE && self.os == "linux" {
            let said = serde_json::to_vec(&(self.settings(), self.command()));
            return match said.map_or(0, |said| said.len()) {
                0..=MAX_SETTINGS => Ok(()),
                _ => Err(Failure::SourceRefused(format!(
                    "The image's variables, folder, user and command have more than {} KiB: set fewer, or shorter ones",
                    MAX_SETTINGS >> 10
                ))),
            };
        }
        let Self { os, architecture, .. } = self;
        Err(Failure::SourceRefused(format!(
            "The image is for {os}/{architecture}, and sandboxes are linux/{ARCHITECTURE}: name one that is for these"
        )))
    }

    pub(crate) fn user(&self) -> Option<&str> {
        Some(self.config.user.as_str()).filter(|user| !user.is_empty())
    }

    /// The folder that programs start in, which may not exist.
    pub(crate) fn workdir(&self) -> Option<&str> {
        Some(self.config.working_dir.as_str()).filter(|folder| folder.starts_with('/') && *folder != "/")
    }

    pub(crate) fn settings(&self) -> ImageSettings {
        let variables = self.config.env.iter().flatten().filter_map(|pair| pair.split_once('='));
        let env: BTreeMap<String, String> = variables
            .filter(|(name, value)| !name.is_empty() && !name.contains('\0') && !value.contains('\0'))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        ImageSettings { env, workdir: self.workdir().map(str::to_owned), user: self.user().map(str::to_owned) }
    }

    /// What it starts, for a shell.
    pub(crate) fn command(&self) -> Option<String> {
        let words = self.config.entrypoint.iter().chain(&self.config.cmd).flatten();
        let command: Vec<String> = words.map(|word| quoted(word)).collect();
        Some(command.join(" ")).filter(|command| !command.is_empty())
    }
}

/// Where an image came from, and what it does to images that are made of it.
pub(crate) struct Origin {
    /// Of its manifest, by which its registry gives the same one again.
    pub(crate) digest: String,
    /// Whether it has `ONBUILD`.
    pub(crate) has_triggers: bool,
}

/// # Errors
///
/// Fails if there is no such image in buildah's storage.
pub(crate) fn origin(buildah: &Buildah, image: &str) -> Result<Origin, Failure> {
    let inspected = inspect(buildah, image)?;
    Ok(Origin { has_triggers: inspected.has_triggers(), digest: inspected.digest })
}

/// An image with the same files, for `buildah from`: that would run the `ONBUILD` of this one, in this machine and outside of any
/// container.
///
/// # Errors
///
/// Fails if there is no such image, or no room for another.
pub(crate) fn without_triggers(buildah: &Buildah, image: &str) -> Result<String, Failure> {
    if !inspect(buildah, image)?.has_triggers() {
        return Ok(image.to_owned());
    }
    let name = format!("localhost/sandpiper-plain:{}", image.trim_start_matches("sha256:"));
    let target = format!("containers-storage:{name}");
    // The OCI format has no such thing.
    buildah.output(["push", "--quiet", "--format=oci", &buildah.policy_option(), image, &target])?;
    Ok(name)
}

fn inspect(buildah: &Buildah, image: &str) -> Result<Inspected, Failure> {
    let text = buildah.output(["inspect", "--type=image", image])?;
    serde_json::from_str(&text).map_err(|error| Failure::host("What the image says of itself cannot be read", &error))
}

/// A word, so that a POSIX shell takes it for one.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(config: serde_json::Value) -> Config {
        let text = serde_json::json!({"architecture": "amd64", "os": "linux", "config": config});
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn the_settings_are_what_the_image_says() {
        let config = config(serde_json::json!({
            "User": "app:web", "Env": ["PATH=/bin", "A=b=c", "=x", "none"], "WorkingDir": "/app",
            "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo it's"],
        }));
        let settings = config.settings();
        assert_eq!(settings.env, [("A".into(), "b=c".into()), ("PATH".into(), "/bin".into())].into());
        assert_eq!((settings.workdir.as_deref(), settings.user.as_deref()), (Some("/app"), Some("app:web")));
        assert_eq!(config.command().as_deref(), Some(r"/bin/sh -c 'echo it'\''s'"));
    }

    #[test]
    fn an_image_that_says_nothing_has_no_settings() {
        let config = config(serde_json::json!({"Env": null, "WorkingDir": "/"}));
        assert!(config.settings().is_empty());
        assert_eq!(config.command(), None);
    }

    #[test]
    fn images_with_more_settings_than_sandboxes_take_are_refused() {
        let with = |bytes: usize| config(serde_json::json!({"Env": [format!("A={}", "x".repeat(bytes))]}));
        assert!(with(50 << 10).check().is_ok());
        let refused = with(MAX_SETTINGS).check().unwrap_err();
        assert!(refused.to_string().contains("more than 60 KiB"), "{refused}");
    }

    #[test]
    fn images_for_other_processors_are_refused() {
        assert!(config(serde_json::json!({})).check().is_ok());
        let other = Config { architecture: "arm64".into(), os: "linux".into(), ..Config::default() };
        assert!(other.check().unwrap_err().to_string().contains("linux/arm64"));
    }
}
