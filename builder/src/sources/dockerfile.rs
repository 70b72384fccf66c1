//! A Dockerfile and its context.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use sandpiper_protocol::template::Dockerfile;

use super::build::{Build, build};
use super::images::{Needed, needed};
use super::pull::pull_for;
use super::{Made, make_folder, open};
use crate::buildah::Buildah;
use crate::events::Events;
use crate::failure::Failure;
use crate::unpack::read_within;

/// Where it is in a context unless the order says otherwise.
const NAME: &str = "Dockerfile";

/// What says which files of a context are none; the first that is there.
const IGNORE_FILES: [&str; 2] = [".containerignore", ".dockerignore"];

/// Bytes of a Dockerfile, and of a list of ignored files.
const MAX_TEXT: u64 = 1 << 20;

/// Bytes of a secret: the kernel lets no variable of a new program be longer than 128 KiB (`MAX_ARG_STRLEN`).
const MAX_SECRET: usize = 120 << 10;

/// Images that a Dockerfile may name: each is asked for.
const MAX_IMAGES: usize = 256;

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
    let (digests, found) = pull_all(&text, dockerfile, buildah, events)?;
    // From here on programs of the tenant's run.
    buildah.files().forget_credentials()?;
    let mut options = options(dockerfile, &context, buildah)?;
    let variables = secrets(dockerfile, &mut options)?;
    let number = |number, of| Some((number, of));
    let built = build(&Build { text: &text, context: &context, options, variables, number: &number }, buildah, events)?;
    Ok(Made { image: built.image, digests, found })
}

/// Digests by the names of images.
type Digests = BTreeMap<String, String>;

/// Has all images here that the text names, and returns their digests, and what [`Made::found`] is to say.
fn pull_all<W: Write>(
    text: &str,
    dockerfile: &Dockerfile,
    buildah: &Buildah,
    events: &mut Events<W>,
) -> Result<(Digests, Option<Digests>), Failure> {
    let Needed { images, and_more } = needed(text, &dockerfile.args, dockerfile.target.as_deref());
    if images.len() > MAX_IMAGES {
        return Err(Failure::SourceRefused(format!("The Dockerfile names more than {MAX_IMAGES} images")));
    }
    for image in &images {
        buildah.files().check_allowed(&image.reference)?;
    }
    let (mut digests, mut found) = (Digests::new(), (!and_more).then(Digests::new));
    for image in &images {
        events.info(&format!("Pulling {}", image.reference))?;
        let pulled = pull_for(image, buildah, events)?;
        digests.insert(image.reference.clone(), pulled.origin.digest);
        // What its `ONBUILD` asks for is not in the text.
        let known = pulled.found.filter(|_| !pulled.origin.has_triggers);
        found = found.zip(known).map(|(mut found, digest)| {
            found.insert(image.reference.clone(), digest);
            found
        });
    }
    Ok((digests, found))
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
    options.extend(dockerfile.target.iter().map(|stage| format!("--target={stage}")));
    // What was asked for already is not asked for again, without credentials; only a name that nobody could tell before.
    options.push("--pull=false".into());
    if dockerfile.no_cache {
        options.push("--no-cache".into());
    }
    // One that names nothing where there is none: buildah itself would follow a link out of the context.
    let ignored = buildah.files().put_other("ignored", &ignored(context)?)?;
    options.push(format!("--ignorefile={}", ignored.display()));
    Ok(options)
}

/// What buildah is to have in its environment. From there it writes a secret to a file in memory for each step that mounts it; from
/// a file it would copy it to the folder of the step's container, which is on the team's disk.
fn secrets(dockerfile: &Dockerfile, options: &mut Vec<String>) -> Result<Vec<(String, String)>, Failure> {
    let mut variables = Vec::new();
    for (number, (name, value)) in dockerfile.secrets.0.iter().enumerate() {
        if name.is_empty() || name.contains([',', '=', '"', '\n']) {
            return Err(Failure::SourceRefused(format!(
                "A secret cannot be called {name:?}: use letters, digits, _ and -"
            )));
        }
        if value.contains('\0') || value.len() > MAX_SECRET {
            return Err(Failure::SourceRefused(format!(
                "The secret {name:?} cannot be passed on: it is at most {MAX_SECRET} bytes of text without a zero byte"
            )));
        }
        let variable = format!("SANDPIPER_SECRET_{number}");
        options.push(format!("--secret=id={name},env={variable}"));
        variables.push((variable, value.clone()));
    }
    Ok(variables)
}

/// Which files of the context are none. A list that is there and cannot be read may name what nobody is to see.
fn ignored(context: &Path) -> Result<String, Failure> {
    for name in IGNORE_FILES {
        match read_within(context, name, MAX_TEXT) {
            Ok(Some(text)) => return Ok(text),
            Ok(None) => {}
            Err(error) => {
                return Err(Failure::SourceRefused(format!("{name} of the context cannot be read: {error}")));
            }
        }
    }
    Ok(String::new())
}
