//! What steps begin with: an image of a registry, or a version. Both with the users of a sandbox, as whom steps run.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::fs::chown;
use std::path::Path;

use sandpiper_protocol::builder::BASE;
use sandpiper_protocol::template::{ImageSettings, StepsBase};

use super::Made;
use super::pull::pull;
use crate::buildah::Buildah;
use crate::events::Events;
use crate::failure::Failure;
use crate::image::Config;
use crate::inside::inside;
use crate::root::{copy, forget_volume};

/// Names in the storage, which no registry has.
const PREPARED: &str = "localhost/sandpiper-prepared";
const VERSION: &str = "localhost/sandpiper-version";

/// What steps begin with, in the storage.
pub(super) struct Base {
    /// Its name there.
    pub(super) name: String,
    /// As whom its programs run.
    pub(super) user: String,
    /// Whether it has bash, which steps are written for.
    pub(super) has_bash: bool,
    pub(super) digests: BTreeMap<String, String>,
}

/// Takes or makes it, once for all builds of the team that begin with the same.
pub(super) fn prepare<W: Write>(
    from: &StepsBase,
    settings: &ImageSettings,
    buildah: &Buildah,
    events: &mut Events<W>,
) -> Result<Base, Failure> {
    match from {
        StepsBase::Image { reference, .. } => {
            events.info(&format!("FROM {reference}"))?;
            let Made { image, digests } = pull(reference, buildah, events)?;
            let config = Config::of(buildah, &image)?;
            config.check()?;
            let name = format!("{PREPARED}:{}", image.trim_start_matches("sha256:"));
            if !exists(&name, buildah) {
                with_container(&image, &name, buildah, |_, tree| add_users(tree))?;
            }
            base(name, config.user().unwrap_or("root"), digests, buildah)
        }
        StepsBase::Version { version } => {
            events.info(&format!("FROM version {}", version.as_str()))?;
            let name = format!("{VERSION}:{}", version.as_str());
            if !exists(&name, buildah) {
                with_container("scratch", &name, buildah, |container, tree| {
                    copy(Path::new(BASE), tree)?;
                    own(tree).map_err(|error| failed(&error))?;
                    add_users(tree)?;
                    configure(container, settings, buildah)
                })?;
            }
            base(name, settings.user.as_deref().unwrap_or("user"), BTreeMap::new(), buildah)
        }
    }
}

fn base(name: String, user: &str, digests: BTreeMap<String, String>, buildah: &Buildah) -> Result<Base, Failure> {
    let has_bash = in_container(&name, buildah, |_, tree| {
        inside(tree, || Path::new("/bin/bash").is_file()).map_err(|error| failed(&error))
    })?;
    Ok(Base { name, user: user.to_owned(), has_bash, digests })
}

fn exists(name: &str, buildah: &Buildah) -> bool {
    buildah.output(["inspect", "--type=image", "--format={{.FromImageID}}", name]).is_ok()
}

/// Makes the image `name` of what `work` does to a container of `from` and its tree.
fn with_container(
    from: &str,
    name: &str,
    buildah: &Buildah,
    work: impl FnOnce(&str, &Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    in_container(from, buildah, |container, tree| {
        work(container, tree)?;
        buildah.output(["umount", container])?;
        buildah.output(["commit", "--quiet", "--format=docker", &buildah.policy_option(), container, name])?;
        Ok(())
    })
}

/// Does `work` with a container of `from` and its tree; the container is gone after it.
fn in_container<T>(
    from: &str,
    buildah: &Buildah,
    work: impl FnOnce(&str, &Path) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let container = buildah.output(["from", "--pull-never", "--format=docker", &buildah.policy_option(), from])?;
    let done = buildah.output(["mount", &container]).and_then(|tree| work(&container, Path::new(&tree)));
    let removed = buildah.output(["rm", &container]);
    let done = done?;
    removed?;
    Ok(done)
}

/// Gives the root back to root: mounted as volumes are, it is somebody's.
fn own(tree: &Path) -> io::Result<()> {
    forget_volume(tree)?;
    chown(tree, Some(0), Some(0))
}

fn add_users(tree: &Path) -> Result<(), Failure> {
    inside(tree, || sandpiper_init::ensure_users(Path::new("/")))
        .and_then(|added| added)
        .map_err(|error| failed(&error))
}

fn configure(container: &str, settings: &ImageSettings, buildah: &Buildah) -> Result<(), Failure> {
    let mut arguments = vec!["config".to_owned()];
    arguments.extend(settings.env.iter().map(|(name, value)| format!("--env={name}={value}")));
    arguments.extend(settings.workdir.iter().map(|folder| format!("--workingdir={folder}")));
    arguments.push(format!("--user={}", settings.user.as_deref().unwrap_or("user")));
    arguments.push(container.to_owned());
    buildah.output(arguments).map(drop)
}

fn failed(error: &io::Error) -> Failure {
    Failure::host("What the steps begin with cannot be prepared", error)
}
