//! An image of a registry.

use std::collections::BTreeMap;
use std::io::Write;

use super::Made;
use crate::buildah::{Buildah, Line};
use crate::events::Events;
use crate::failure::Failure;
use crate::image;
use crate::progress::{Said, of_error};

/// Takes the image as it is.
pub(super) fn image<W: Write>(reference: &str, buildah: &Buildah, events: &mut Events<W>) -> Result<Made, Failure> {
    events.step(1, 1, &format!("FROM {reference}"), false)?;
    pull(reference, buildah, events)
}

/// Takes an image into the storage, always the registry's newest; of what is there already nothing is sent.
pub(super) fn pull<W: Write>(reference: &str, buildah: &Buildah, events: &mut Events<W>) -> Result<Made, Failure> {
    check(reference)?;
    // With the transport's name nothing else can be meant, such as a file of this machine.
    let image = take(&format!("docker://{reference}"), buildah, events)?;
    let digests = BTreeMap::from([(reference.to_owned(), image::digest(buildah, &image)?)]);
    Ok(Made { image, digests })
}

/// Takes what `source`, a transport and a name, stands for into the storage. Returns the image's id.
pub(super) fn take<W: Write>(source: &str, buildah: &Buildah, events: &mut Events<W>) -> Result<String, Failure> {
    let mut id = String::new();
    buildah.run(["pull", "--policy=always", &buildah.policy_option(), source], |line| {
        match line {
            Some(Line::Output(line)) => id = line,
            Some(Line::Error(line)) => {
                if let Said::Line(level, text) = of_error(&line) {
                    events.log(level, text)?;
                }
            }
            None => {}
        }
        Ok(None)
    })?;
    Ok(id)
}

fn check(reference: &str) -> Result<(), Failure> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    if !reference.is_empty() && reference.bytes().all(is_plain) && !reference.contains("://") {
        return Ok(());
    }
    Err(Failure::SourceRefused(format!("{reference:?} is no name of an image: it is like registry.example/name:tag")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_told_from_options_and_files() {
        for good in ["a", "a.example:5000/b/c:1.2_3-x", "a@sha256:00ff", "A/b"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "oci:///srv", "docker://a", "a\n", "--all $(x)"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }
}
