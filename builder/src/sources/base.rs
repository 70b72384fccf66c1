//! What steps begin with: an image of a registry, or a version. Both with the users of a sandbox, as whom steps run.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::fs::chown;
use std::path::Path;

use sandpiper_protocol::builder::BASE;
use sandpiper_protocol::template::{ImageSettings, StepsBase};

use super::pull::{Pulled, pull};
use crate::buildah::Buildah;
use crate::events::Events;
use crate::failure::Failure;
use crate::image::{self, Config};
use crate::inside::inside;
use crate::root::{check_users, copy, forget_volume};
use crate::storage;
use crate::unpack::read_within;

/// Names in the storage, which no registry has.
const PREPARED: &str = "localhost/sandpiper-prepared";
const VERSION: &str = "localhost/sandpiper-version";

/// As whom steps run where nothing else is said, in the folder that is this one's.
const USER: &str = "user";

/// Bytes of a file of users that is read: none is larger.
const MAX_USERS: u64 = 4 << 20;

/// What steps begin with, in the storage.
pub(super) struct Base {
    /// Its name there.
    pub(super) name: String,
    /// As whom its programs run.
    pub(super) user: String,
    /// Whether it has bash, which steps are written for.
    pub(super) has_bash: bool,
    pub(super) digests: BTreeMap<String, String>,
    /// What registries had under the image's name; [`super::Made`] says more.
    pub(super) found: Option<BTreeMap<String, String>>,
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
            let Pulled { image, origin, found } = pull(reference, buildah, events)?;
            let config = Config::of(buildah, &image)?;
            config.check()?;
            let name = format!("{PREPARED}:{}", image.trim_start_matches("sha256:"));
            if !storage::has(&name) {
                let image = image::without_triggers(buildah, &image)?;
                // Of its variables it has its own.
                let settings = ImageSettings { env: BTreeMap::new(), ..config.settings() };
                with_container(&image, &name, buildah, |container, tree| {
                    add_users(tree)?;
                    configure(container, tree, &settings, buildah)
                })?;
            }
            let digests = BTreeMap::from([(reference.clone(), origin.digest)]);
            let found = found.map(|found| BTreeMap::from([(reference.clone(), found)]));
            base(name, config.user().unwrap_or(USER), digests, found)
        }
        StepsBase::Version { version } => {
            events.info(&format!("FROM version {}", version.as_str()))?;
            let name = format!("{VERSION}:{}", version.as_str());
            if !storage::has(&name) {
                with_container("scratch", &name, buildah, |container, tree| {
                    copy(Path::new(BASE), tree)?;
                    own(tree).map_err(|error| failed(&error))?;
                    add_users(tree)?;
                    configure(container, tree, settings, buildah)
                })?;
            }
            base(name, settings.user.as_deref().unwrap_or(USER), BTreeMap::new(), Some(BTreeMap::new()))
        }
    }
}

fn base(
    name: String,
    user: &str,
    digests: BTreeMap<String, String>,
    found: Option<BTreeMap<String, String>>,
) -> Result<Base, Failure> {
    let has_bash = storage::with_tree(&name, |tree| inside(tree, || Path::new("/bin/bash").is_file()));
    let has_bash = has_bash.flatten().map_err(|error| failed(&error))?;
    Ok(Base { name, user: user.to_owned(), has_bash, digests, found })
}

/// Makes the image `name` of what `work` does to a container of `from` and its tree.
fn with_container(
    from: &str,
    name: &str,
    buildah: &Buildah,
    work: impl FnOnce(&str, &Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let policy = buildah.policy_option();
    let container = buildah.output(["from", "--pull-never", "--format=docker", &policy, from])?;
    let made = buildah.output(["mount", &container]).and_then(|tree| {
        work(&container, Path::new(&tree)).map_err(Failure::in_cache)?;
        buildah.output(["umount", &container])?;
        buildah.output(["commit", "--quiet", "--format=docker", &policy, &container, name])
    });
    let removed = buildah.output(["rm", &container]);
    made?;
    removed.map(drop)
}

/// Gives the root back to root: mounted as volumes are, it is somebody's.
fn own(tree: &Path) -> io::Result<()> {
    forget_volume(tree)?;
    chown(tree, Some(0), Some(0))
}

/// Refuses a tree whose files of users are none: a pipe would have nothing for ever.
fn add_users(tree: &Path) -> Result<(), Failure> {
    check_users(tree)?;
    inside(tree, || sandpiper_init::ensure_users(Path::new("/")))
        .and_then(|added| added)
        .map_err(|error| failed(&error))
}

/// Says as whom steps run, and where: in the user's home unless the settings say otherwise, as sandboxes do.
fn configure(container: &str, tree: &Path, settings: &ImageSettings, buildah: &Buildah) -> Result<(), Failure> {
    let user = settings.user.as_deref().unwrap_or(USER);
    let folder = match &settings.workdir {
        Some(folder) => folder.clone(),
        None => home_of(user, &read_within(tree, "/etc/passwd", MAX_USERS).ok().flatten().unwrap_or_default()),
    };
    let mut arguments = vec!["config".to_owned(), format!("--workingdir={folder}"), format!("--user={user}")];
    // buildah puts variables in.
    let env = settings.env.iter().map(|(name, value)| format!("--env={name}={}", value.replace('$', "$$")));
    arguments.extend(env);
    arguments.push(container.to_owned());
    buildah.output(arguments).map(drop)
}

/// The home of a user of a database.
fn home_of(user: &str, passwd: &str) -> String {
    let name = user.split(':').next().unwrap_or_default();
    let entry = passwd.lines().find(|line| line.split(':').next() == Some(name));
    let home = entry.and_then(|line| line.split(':').nth(5)).filter(|home| home.starts_with('/'));
    home.unwrap_or("/").to_owned()
}

fn failed(error: &io::Error) -> Failure {
    Failure::host("What the steps begin with cannot be prepared", error)
}
