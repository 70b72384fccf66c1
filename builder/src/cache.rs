//! What builds of a team leave for its later ones: images, and results of steps, in buildah's storage.
//!
//! The machine of a build may be killed at any moment. buildah's storage writes what it has to a list (synced) once a layer
//! is complete, and relies on the layer's files being on the disk by then. ext4 sees to that if it allocates blocks at once:
//! it then writes a file's data before the change that makes it longer, and all changes in their order. So the cache is
//! mounted anew that way.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{fstatvfs, major, minor, syncfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use sandpiper_protocol::builder::CACHE;

use crate::buildah::{Buildah, temporary};
use crate::failure::Failure;
use crate::storage::{self, Image, Layer, chain};

/// `delalloc` is what lets a file be complete before its data is written.
const OPTIONS: &std::ffi::CStr = c"nodelalloc,data=ordered,discard,errors=remount-ro";

/// When images were used last: seconds since 1970, by id.
const USED: &str = "used.json";

/// What begins the names of folders that `RUN --mount=type=cache` keeps.
const CACHE_MOUNTS: &str = "buildah-cache";

/// The file system at [`CACHE`].
pub(crate) struct Cache {
    root: File,
}

impl Cache {
    /// Mounts it the way that a storage needs.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be done.
    pub(crate) fn open() -> Result<Self, Failure> {
        let open = || {
            mount_anew(Path::new(CACHE))?;
            fs::create_dir_all(temporary())?;
            File::open(CACHE)
        };
        Ok(Self { root: open().map_err(|error| failed(&error))? })
    }

    /// Removes what a build that was killed has left, and a storage that it has left damaged.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be done.
    pub(crate) fn clear_leftovers(&self, buildah: &Buildah) -> Result<(), Failure> {
        remove_files(&temporary(), |name| !name.to_string_lossy().starts_with(CACHE_MOUNTS))
            .map_err(|error| failed(&error))?;
        let is_readable = storage::images().is_ok() && storage::layers().is_ok();
        let cleared = match storage::has_containers() {
            Ok(false) if is_readable => return Ok(()),
            _ => buildah.output(["rm", "--all"]),
        };
        if let Err(error) = cleared {
            eprintln!("sandpiper-builder: the cache is begun anew, as buildah cannot read it: {error}");
            remove_tree(&storage::folder()).map_err(|error| failed(&error))?;
            buildah.output(["rm", "--all"])?;
        }
        Ok(())
    }

    /// Notes that an image was used now, with those that it was made from.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be noted.
    pub(crate) fn used(&self, image: &str) -> Result<(), Failure> {
        let note = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
            let (images, layers) = (storage::images()?, storage::layers()?);
            let mut used = read_used();
            used.retain(|id, _| images.iter().any(|image| image.id == *id));
            used.extend(made_from(image, &images, &layers).map(|id| (id.to_owned(), now)));
            fs::write(Path::new(CACHE).join(USED), serde_json::to_vec(&used)?)
        };
        note().map_err(|error| failed(&error))
    }

    /// Removes images until at most `limit` bytes are taken; those that were used longest ago go first.
    ///
    /// # Errors
    ///
    /// Fails if the lists of images cannot be read.
    pub(crate) fn prune(&self, buildah: &Buildah, limit: u64) -> Result<(), Failure> {
        if self.size()? <= limit {
            return Ok(());
        }
        let (images, layers) = (storage::images(), storage::layers());
        let (images, layers) = (images.map_err(|error| failed(&error))?, layers.map_err(|error| failed(&error))?);
        for id in oldest_first(&images, &layers, &read_used()) {
            if let Err(error) = buildah.output(["rmi", "--force", id]) {
                // One that goes with another that was removed.
                eprintln!("sandpiper-builder: the image {id} stays in the cache: {error}");
            }
            if self.size()? <= limit {
                return Ok(());
            }
        }
        remove_files(&temporary(), |_| true).map_err(|error| failed(&error))
    }

    /// Writes everything down, and lets go of the disk: containers of steps that failed are still mounted.
    ///
    /// # Errors
    ///
    /// Fails if that cannot be done.
    pub(crate) fn leave(self, buildah: &Buildah) -> Result<(), Failure> {
        let mounts = || fs::read_to_string("/proc/self/mountinfo");
        let left = mounts().map_err(|error| failed(&error))?;
        if mounted_below(&left, CACHE).next().is_some() {
            buildah.output(["rm", "--all"])?;
        }
        let leave = || {
            for place in mounted_below(&mounts()?, CACHE) {
                unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
            }
            Ok(syncfs(&self.root)?)
        };
        leave().map_err(|error: io::Error| failed(&error))
    }

    /// Bytes that are taken, once what was removed is.
    fn size(&self) -> Result<u64, Failure> {
        let size = || {
            syncfs(&self.root)?;
            let state = fstatvfs(&self.root)?;
            rustix::io::Result::Ok((state.f_blocks - state.f_bfree) * state.f_frsize)
        };
        size().map_err(|error| failed(&error.into()))
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::host("The build cache cannot be used", error)
}

fn mount_anew(place: &Path) -> io::Result<()> {
    let device = fs::metadata(place)?.dev();
    let description = fs::read_to_string(format!("/sys/dev/block/{}:{}/uevent", major(device), minor(device)))?;
    let name = description.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its disk has no name"))?;
    unmount(place, UnmountFlags::NOFOLLOW)?;
    Ok(mount(format!("/dev/{name}"), place, "ext4", MountFlags::NOSUID | MountFlags::NODEV, OPTIONS)?)
}

/// Where something is mounted in a folder, the last first. In this storage no name needs an escape.
fn mounted_below<'a>(mountinfo: &'a str, folder: &str) -> impl Iterator<Item = &'a str> {
    let places = mountinfo.lines().rev().filter_map(|line| line.split(' ').nth(4));
    places.filter(move |place| place.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
}

fn read_used() -> BTreeMap<String, u64> {
    // Without it nothing was ever used, which is only a worse order.
    let text = fs::read(Path::new(CACHE).join(USED)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Ids of the images whose files are below those of `image`, and its own.
fn made_from<'a>(image: &'a str, images: &'a [Image], layers: &'a [Layer]) -> impl Iterator<Item = &'a str> {
    let top = images.iter().find(|one| one.id == image).map_or("", |one| &one.layer);
    let chain: HashSet<&str> = chain(top, layers).into_iter().collect();
    let is_below = move |one: &&Image| one.id == image || chain.contains(one.layer.as_str());
    images.iter().filter(is_below).map(|one| one.id.as_str())
}

/// Ids of the images in the order in which they go: of those that were used at the same time the ones with most layers, as
/// the others' files go with them only.
fn oldest_first<'a>(images: &'a [Image], layers: &[Layer], used: &BTreeMap<String, u64>) -> Vec<&'a str> {
    let mut order: Vec<_> = images
        .iter()
        .map(|image| (used.get(&image.id).copied().unwrap_or(0), chain(&image.layer, layers).len(), image.id.as_str()))
        .collect();
    order.sort_by_key(|(used, depth, _)| (*used, std::cmp::Reverse(*depth)));
    order.into_iter().map(|(_, _, id)| id).collect()
}

fn remove_files(folder: &Path, is_wanted: impl Fn(&OsStr) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if is_wanted(&entry.file_name()) {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

/// By a program: the standard library has a descriptor open for every folder above, and folders may be very deep.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let status = Command::new("rm").args(["-rf", "--one-file-system", "--"]).arg(path).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{} cannot be removed", path.display()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers 1 to 3 on one another, and 4 by itself.
    fn lists() -> (Vec<Image>, Vec<Layer>) {
        let images = [("base", "1"), ("step", "2"), ("last", "3"), ("other", "4"), ("bare", "")];
        let layers = [("1", ""), ("2", "1"), ("3", "2"), ("4", "")];
        (
            images.map(|(id, layer)| Image::new(id, layer)).into(),
            layers.map(|(id, parent)| Layer::new(id, parent)).into(),
        )
    }

    #[test]
    fn an_image_is_used_with_those_that_it_was_made_from() {
        let (images, layers) = lists();
        assert_eq!(made_from("step", &images, &layers).collect::<Vec<_>>(), ["base", "step"]);
        assert_eq!(made_from("bare", &images, &layers).collect::<Vec<_>>(), ["bare"]);
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_steps_before_what_they_are_on() {
        let (images, layers) = lists();
        let used = [("base", 5), ("step", 5), ("last", 5), ("other", 4)].map(|(id, time)| (id.to_owned(), time)).into();
        assert_eq!(oldest_first(&images, &layers, &used), ["bare", "other", "last", "step", "base"]);
    }

    #[test]
    fn mounts_in_the_cache_are_told_from_it_and_others() {
        let mountinfo = "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /srv/cache rw - ext4 b rw\n\
            3 2 0:1 / /srv/cache/a rw - overlay c rw\n4 3 0:2 / /srv/cache/a/b rw - overlay d rw\n\
            5 1 0:3 / /srv/cached rw - tmpfs e rw\n";
        assert_eq!(mounted_below(mountinfo, "/srv/cache").collect::<Vec<_>>(), ["/srv/cache/a/b", "/srv/cache/a"]);
    }
}
