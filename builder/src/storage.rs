//! What buildah's storage has, read from its lists, which are those of containers-storage: an answer without a run of buildah.
//!
//! ```text
//!   storage/overlay-images/images.json            what is called what, and its uppermost layer
//!          /overlay-layers/layers.json            which layer is on which
//!          /overlay-containers/containers.json    steps that go on, or were broken off
//!          /overlay/ID/{diff,link}                the files of a layer, and its short name
//!          /overlay/l/LINK                        the same files under that name: a mount has room for few characters
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sandpiper_protocol::builder::CACHE;
use serde::Deserialize;

use crate::inside::in_folder;

/// Where trees of images are mounted: not in the cache, which must be free to be unmounted.
const TREE: &str = "/run/sandpiper-tree";

/// What is below the lowest layer: a mount that is only read needs two.
const EMPTY: &str = "/run/sandpiper-empty";

/// An image in the list.
#[derive(Debug, Deserialize)]
pub(crate) struct Image {
    pub(crate) id: String,
    #[serde(default)]
    names: Option<Vec<String>>,
    /// The uppermost; none of an image without files.
    #[serde(default)]
    pub(crate) layer: String,
}

/// A layer in the list.
#[derive(Debug, Deserialize)]
pub(crate) struct Layer {
    pub(crate) id: String,
    /// The one below; none of the lowest.
    #[serde(default)]
    pub(crate) parent: String,
}

#[cfg(test)]
impl Image {
    pub(crate) fn new(id: &str, layer: &str) -> Self {
        Self { id: id.to_owned(), names: None, layer: layer.to_owned() }
    }
}

#[cfg(test)]
impl Layer {
    pub(crate) fn new(id: &str, parent: &str) -> Self {
        Self { id: id.to_owned(), parent: parent.to_owned() }
    }
}

/// Where it is.
pub(crate) fn folder() -> PathBuf {
    Path::new(CACHE).join("storage")
}

/// All images.
///
/// # Errors
///
/// Fails if the list cannot be read; one that is not there has nothing in it.
pub(crate) fn images() -> io::Result<Vec<Image>> {
    read_list("overlay-images/images.json")
}

/// All layers.
///
/// # Errors
///
/// As [`images`].
pub(crate) fn layers() -> io::Result<Vec<Layer>> {
    read_list("overlay-layers/layers.json")
}

/// Whether there are containers.
///
/// # Errors
///
/// As [`images`].
pub(crate) fn has_containers() -> io::Result<bool> {
    Ok(!read_list::<serde_json::Value>("overlay-containers/containers.json")?.is_empty())
}

/// Whether there is an image with this name or id.
pub(crate) fn has(image: &str) -> bool {
    id(image).is_some()
}

/// The id of the image with this name or id.
pub(crate) fn id(image: &str) -> Option<String> {
    // Of a list that cannot be read it is not known, and buildah says why once it is asked to make the image.
    let images = images().ok()?;
    find(image, &images).map(|image| image.id.clone())
}

/// Ids of the layers from `top` down.
pub(crate) fn chain<'a>(top: &'a str, layers: &'a [Layer]) -> Vec<&'a str> {
    let mut chain = Vec::new();
    let mut id = top;
    // Lists of a damaged storage might lead in a circle.
    while !id.is_empty() && chain.len() <= layers.len() {
        chain.push(id);
        id = layers.iter().find(|layer| layer.id == id).map_or("", |layer| &layer.parent);
    }
    chain
}

/// Does `work` with the files of the image with this name or id, which are there to be read.
///
/// # Errors
///
/// Fails without doing the work if there is no such image, or its files cannot be mounted.
pub(crate) fn with_tree<T>(image: &str, work: impl FnOnce(&Path) -> T) -> io::Result<T> {
    let (images, layers) = (images()?, layers()?);
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("the storage has no image {image}"));
    let top = &find(image, &images).ok_or_else(missing)?.layer;
    fs::create_dir_all(EMPTY)?;
    if top.is_empty() {
        return Ok(work(Path::new(EMPTY)));
    }
    let overlay = folder().join("overlay");
    let mut lower = String::from("lowerdir=");
    for layer in chain(top, &layers) {
        let link = fs::read_to_string(overlay.join(layer).join("link"))?;
        lower += &format!("l/{}:", link.trim());
    }
    lower += EMPTY;
    fs::create_dir_all(TREE)?;
    let options = std::ffi::CString::new(lower)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    in_folder(&overlay, || mount("overlay", TREE, "overlay", flags, options.as_c_str()))??;
    let done = work(Path::new(TREE));
    // A thread that had it as its root may have ended for us, and not yet for the kernel.
    unmount(TREE, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
    Ok(done)
}

fn find<'a>(image: &str, images: &'a [Image]) -> Option<&'a Image> {
    let id = image.trim_start_matches("sha256:");
    let is_meant = |one: &&Image| one.id == id || one.names.iter().flatten().any(|name| name == image);
    images.iter().find(is_meant)
}

fn read_list<T: for<'a> Deserialize<'a>>(name: &str) -> io::Result<Vec<T>> {
    match fs::read(folder().join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        text => Ok(serde_json::from_slice(&text?)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_lead_in_a_circle_end_somewhere() {
        let layers = [Layer::new("1", "2"), Layer::new("2", "1")];
        assert!(chain("1", &layers).len() <= 3);
    }

    #[test]
    fn an_image_is_found_by_its_id_and_by_each_of_its_names() {
        let images: Vec<Image> = serde_json::from_value(serde_json::json!([
            {"id": "00aa", "names": null, "layer": "1"},
            {"id": "00bb", "names": ["localhost/a:1", "localhost/a:2"]},
        ]))
        .unwrap();
        let id = |image| find(image, &images).map(|image| image.id.as_str());
        assert_eq!((id("00aa"), id("sha256:00aa")), (Some("00aa"), Some("00aa")));
        assert_eq!((id("localhost/a:2"), id("localhost/a")), (Some("00bb"), None));
    }
}
