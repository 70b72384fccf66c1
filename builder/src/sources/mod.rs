//! From what a version is to be made of to an image in buildah's storage.

mod archive;
mod base;
mod build;
mod dockerfile;
mod images;
mod pull;
mod steps;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sandpiper_protocol::builder::{Order, UPLOADS};
use sandpiper_protocol::ids::UploadId;
use sandpiper_protocol::template::{BuildSource, Credentials};

use crate::buildah::Buildah;
use crate::events::Events;
use crate::failure::Failure;
use crate::registries;
use crate::unpack::Upload;

/// What a source became.
pub(crate) struct Made {
    /// Its id in the storage.
    pub(crate) image: String,
    /// Of the images that it was made from, by reference.
    pub(crate) digests: BTreeMap<String, String>,
    /// What registries had under these names: with it, and with what the order says and holds, all that it was made of is named.
    /// `None` where that is not known.
    pub(crate) found: Option<BTreeMap<String, String>>,
}

/// Makes the image of an order.
///
/// # Errors
///
/// Fails for whatever a source may be refused for, and where a step of it fails.
pub(crate) fn make<W: Write>(order: &Order, buildah: &Buildah, events: &mut Events<W>) -> Result<Made, Failure> {
    match &order.source {
        BuildSource::Image { reference, .. } => pull::image(reference, buildah, events),
        BuildSource::Archive { upload } => archive::image(upload, buildah, events),
        BuildSource::Dockerfile(dockerfile) => dockerfile::image(dockerfile, buildah, events),
        BuildSource::Steps(steps) => steps::image(steps, &order.base_settings, buildah, events),
        BuildSource::Checkpoint { .. } | BuildSource::Sandbox { .. } => Err(Failure::Host(
            "A disk that is there already was given to the builder; the agent takes it as it is".into(),
        )),
    }
}

/// What of an order no log may show.
pub(crate) fn secrets(order: &Order) -> Vec<String> {
    let mut secrets = Vec::new();
    let mut credentials: Vec<&Credentials> = order.registries.credentials.values().collect();
    match &order.source {
        BuildSource::Image { credentials: own, .. } => credentials.extend(own),
        BuildSource::Dockerfile(dockerfile) => {
            secrets.extend(dockerfile.secrets.0.values().cloned());
            credentials.extend(dockerfile.credentials.values());
        }
        BuildSource::Steps(steps) => credentials.extend(steps::credentials(steps)),
        BuildSource::Archive { .. } | BuildSource::Checkpoint { .. } | BuildSource::Sandbox { .. } => {}
    }
    secrets.extend(credentials.into_iter().flat_map(|one| [one.password.clone(), registries::encoded(one)]));
    secrets
}

/// Opens an upload.
fn open(upload: &UploadId) -> Result<Upload, Failure> {
    Upload::open(&Path::new(UPLOADS).join(upload.as_str()))
        .map_err(|error| Failure::host("The upload cannot be read", &error))
}

/// A new folder or file beside the uploads, gone with them.
fn beside_uploads(name: &str) -> PathBuf {
    Path::new(UPLOADS).join(name)
}

/// Makes a folder beside the uploads.
fn make_folder(name: &str) -> Result<PathBuf, Failure> {
    let folder = beside_uploads(name);
    fs::create_dir_all(&folder).map_err(|error| Failure::host("A folder for the context cannot be made", &error))?;
    Ok(folder)
}
