//! An image of a registry.

use std::collections::BTreeMap;
use std::io::Write;

use super::Made;
use super::images::Image;
use crate::buildah::{Buildah, Line};
use crate::events::Events;
use crate::failure::Failure;
use crate::image::{self, Origin};
use crate::progress::{Said, of_error};
use crate::registries::{DOCKERS, registry_of};
use crate::registry;
use crate::storage;

/// An image of a registry that is in the storage.
pub(super) struct Pulled {
    pub(super) image: String,
    pub(super) origin: Origin,
    /// What the registry had under its name before it was taken, if that is known.
    pub(super) found: Option<String>,
}

/// Takes the image as it is.
pub(super) fn image<W: Write>(reference: &str, buildah: &Buildah, events: &mut Events<W>) -> Result<Made, Failure> {
    events.step(1, 1, &format!("FROM {reference}"), false)?;
    let Pulled { image, origin, found } = pull(reference, buildah, events)?;
    let digests = BTreeMap::from([(reference.to_owned(), origin.digest)]);
    Ok(Made { image, digests, found: found.map(|found| BTreeMap::from([(reference.to_owned(), found)])) })
}

/// Takes an image for this machine into the storage.
pub(super) fn pull<W: Write>(reference: &str, buildah: &Buildah, events: &mut Events<W>) -> Result<Pulled, Failure> {
    pull_for(&Image { reference: reference.to_owned(), platform: None }, buildah, events)
}

/// Takes an image into the storage, always the registry's newest; of what is there already nothing is sent. One with a digest
/// that is there is not asked for.
pub(super) fn pull_for<W: Write>(image: &Image, buildah: &Buildah, events: &mut Events<W>) -> Result<Pulled, Failure> {
    let Image { reference, platform } = image;
    check(reference)?;
    // Before it is taken: should the name move on in between, it has moved on for the next build.
    let found = registry::digest(reference, buildah.files());
    let asked = without_tag(reference);
    let id = match storage::id(&full_name(&asked)) {
        Some(id) if asked.contains('@') && platform.is_none() => id,
        _ => {
            let options: Vec<String> = platform.iter().map(|platform| format!("--platform={platform}")).collect();
            // With the transport's name nothing else can be meant, such as a file of this machine.
            take(&format!("docker://{asked}"), &options, buildah, events)?
        }
    };
    let origin = image::origin(buildah, &id)?;
    Ok(Pulled { image: id, origin, found })
}

/// Takes what `source`, a transport and a name, stands for into the storage. Returns the image's id.
pub(super) fn take<W: Write>(
    source: &str,
    options: &[String],
    buildah: &Buildah,
    events: &mut Events<W>,
) -> Result<String, Failure> {
    let mut id = String::new();
    let mut arguments = vec!["pull".to_owned(), "--policy=always".into(), buildah.policy_option()];
    arguments.extend_from_slice(options);
    arguments.push(source.to_owned());
    buildah.run(arguments, |line| {
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

/// With a digest a tag says nothing, and buildah takes only one of them.
fn without_tag(reference: &str) -> String {
    let Some((name, digest)) = reference.split_once('@') else { return reference.to_owned() };
    let name = match name.rsplit_once(':') {
        Some((before, tag)) if !tag.contains('/') => before,
        _ => name,
    };
    format!("{name}@{digest}")
}

/// As the storage has it: with the registry, and what Docker's has before names without a slash.
fn full_name(reference: &str) -> String {
    let registry = registry_of(reference);
    let path = reference.strip_prefix(registry).and_then(|rest| rest.strip_prefix('/')).unwrap_or(reference);
    let library = if registry == DOCKERS && !path.contains('/') { "library/" } else { "" };
    format!("{registry}/{library}{path}")
}

/// Refuses what is no image's name.
pub(super) fn check(reference: &str) -> Result<(), Failure> {
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
    fn a_digest_goes_before_a_tag() {
        for (reference, asked) in [
            ("a.example:5000/b:1@sha256:00ff", "a.example:5000/b@sha256:00ff"),
            ("a.example:5000/b@sha256:00ff", "a.example:5000/b@sha256:00ff"),
            ("a.example:5000/b:1", "a.example:5000/b:1"),
        ] {
            assert_eq!(without_tag(reference), asked);
        }
    }

    #[test]
    fn names_are_completed_as_docker_does() {
        for (reference, name) in [
            ("a@sha256:00ff", "docker.io/library/a@sha256:00ff"),
            ("a/b@sha256:00ff", "docker.io/a/b@sha256:00ff"),
            ("docker.io/a@sha256:00ff", "docker.io/library/a@sha256:00ff"),
            ("a.example:5000/b@sha256:00ff", "a.example:5000/b@sha256:00ff"),
        ] {
            assert_eq!(full_name(reference), name);
        }
    }

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
