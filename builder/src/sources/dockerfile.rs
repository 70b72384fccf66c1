//! A Dockerfile and its context.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use sandpiper_protocol::template::Dockerfile;

use super::build::{Build, Built, build};
use super::{Made, make_folder, open};
use crate::buildah::Buildah;
use crate::events::Events;
use crate::failure::Failure;
use crate::image;
use crate::unpack::read_within;

/// Where it is in a context unless the order says otherwise.
const NAME: &str = "Dockerfile";

/// What says which files of a context are none; the first that is there.
const IGNORE_FILES: [&str; 2] = [".containerignore", ".dockerignore"];

/// Bytes of a Dockerfile, and of a list of ignored files.
const MAX_TEXT: u64 = 1 << 20;

/// Builds the image that a Dockerfile describes.
pub(super) fn image<W: Write>(
    dockerfile: &Dockerfile,
    buildah: &Buildah,
    events: &mut Events<W>,
) -> Result<Made, Failure> {
    let context = make_folder("context")?;
    if let Some(upload) = &dockerfile.context {
        events.info("Unpacking the context")?;
        open(upload)?.unpack(&context)?;
    }
    let text = match &dockerfile.text {
        Some(text) => text.clone(),
        None => read(&context, dockerfile.path.as_deref().unwrap_or(NAME))?,
    };
    let options = options(dockerfile, &context, buildah)?;
    let number = |number, of| Some((number, of));
    let Built { image, bases } =
        build(&Build { text: &text, context: &context, options, number: &number }, buildah, events)?;
    Ok(Made { image, digests: digests(&bases, buildah) })
}

/// Reads it where the context has it: a link in it must not show what else is in this machine.
fn read(context: &Path, path: &str) -> Result<String, Failure> {
    match read_within(context, path, MAX_TEXT) {
        Ok(Some(text)) => Ok(text),
        Ok(None) => {
            Err(Failure::SourceRefused(format!("The context has no {path}: add it, or name the one that is meant")))
        }
        Err(error) => Err(Failure::SourceRefused(format!("{path} of the context cannot be read: {error}"))),
    }
}

fn options(dockerfile: &Dockerfile, context: &Path, buildah: &Buildah) -> Result<Vec<String>, Failure> {
    let mut options: Vec<String> =
        dockerfile.args.iter().map(|(name, value)| format!("--build-arg={name}={value}")).collect();
    for (number, (name, value)) in dockerfile.secrets.0.iter().enumerate() {
        if name.is_empty() || name.contains([',', '=', '"', '\n']) {
            return Err(Failure::SourceRefused(format!(
                "A secret cannot be called {name:?}: use letters, digits, _ and -"
            )));
        }
        let file = buildah.files().put_secret(number, value)?;
        options.push(format!("--secret=id={name},src={}", file.display()));
    }
    options.extend(dockerfile.target.iter().map(|stage| format!("--target={stage}")));
    if dockerfile.no_cache {
        options.push("--no-cache".into());
    }
    // One that names nothing where there is none: buildah itself would follow a link out of the context.
    let ignored = IGNORE_FILES.iter().find_map(|name| read_within(context, name, MAX_TEXT).ok()?).unwrap_or_default();
    let ignored = buildah.files().put_other("ignored", &ignored)?;
    options.push(format!("--ignorefile={}", ignored.display()));
    Ok(options)
}

/// The digests of the images that stages began with. Names of stages before are none.
fn digests(bases: &[String], buildah: &Buildah) -> BTreeMap<String, String> {
    let digest = |base: &String| Some((base.clone(), image::digest(buildah, base).ok()?));
    bases.iter().filter_map(digest).collect()
}
