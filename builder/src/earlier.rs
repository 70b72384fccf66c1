//! Orders that were carried out before, and what came of each, in the team's cache.
//!
//! An order that is the same once more, down to the bytes of what was sent for it, needs no run of buildah: the registries are
//! asked whether they have the same images under the same names, and the agent whether it has the file system.
//!
//! ```text
//!   CACHE/orders/FINGERPRINT    what registries had, the steps that were told, and the last event
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sandpiper_protocol::builder::{CACHE, Event, Order};
use sandpiper_protocol::template::{BuildSource, Dockerfile, Step, StepsBase};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::events::{Events, Told};
use crate::failure::Failure;
use crate::registries::Files;
use crate::registry;

const FOLDER: &str = "orders";

/// How many are kept.
const MOST: usize = 256;

/// An order that may be there already.
pub(crate) struct Earlier {
    path: PathBuf,
}

/// What came of one.
#[derive(Serialize, Deserialize)]
struct Kept {
    found: BTreeMap<String, String>,
    steps: Vec<Told>,
    finished: Event,
}

impl Earlier {
    /// `None` for an order that is carried out each time: one with secrets, of which nothing is to be on a disk, and one whose steps
    /// are forced.
    pub(crate) fn of(order: &Order) -> Option<Self> {
        Some(Self { path: Path::new(CACHE).join(FOLDER).join(fingerprint(order)?) })
    }

    /// What came of it, told as if it had been carried out again; `None` if it has to be.
    ///
    /// # Errors
    ///
    /// Fails if nobody hears what is told.
    pub(crate) fn again<W: Write>(
        &self,
        order: &Order,
        files: &Files,
        events: &mut Events<W>,
    ) -> Result<Option<Event>, Failure> {
        if is_without_cache(&order.source) {
            return Ok(None);
        }
        // One that was not written to its end is none.
        let kept = fs::read(&self.path).ok().and_then(|text| serde_json::from_slice::<Kept>(&text).ok());
        let Some(Kept { found, steps, finished }) = kept else { return Ok(None) };
        let Event::Finished { image, settings, command, digests, .. } = finished else { return Ok(None) };
        let is_there = |(reference, digest): (&String, &String)| {
            files.check_allowed(reference).is_ok() && registry::digest(reference, files).as_ref() == Some(digest)
        };
        if !order.known.contains(&image) || !found.iter().all(is_there) {
            return Ok(None);
        }
        for Told { number, of, text } in &steps {
            events.step(*number, *of, text, true)?;
        }
        Ok(Some(Event::Finished { image, is_known: true, settings, command, digests }))
    }

    /// Keeps what came of it for the next time.
    ///
    /// # Errors
    ///
    /// Fails if the cache cannot be written to.
    pub(crate) fn keep(
        &self,
        found: BTreeMap<String, String>,
        steps: Vec<Told>,
        finished: &Event,
    ) -> Result<(), Failure> {
        let keep = || {
            let folder = self.path.parent().unwrap_or(Path::new(CACHE));
            fs::create_dir_all(folder)?;
            let unfinished = self.path.with_extension("new");
            fs::write(&unfinished, serde_json::to_vec(&Kept { found, steps, finished: finished.clone() })?)?;
            fs::rename(&unfinished, &self.path)?;
            forget(folder)
        };
        keep().map_err(|error| Failure::host("The build cache cannot be written", &error).in_cache())
    }
}

/// Leaves the [`MOST`] that were kept last.
fn forget(folder: &Path) -> io::Result<()> {
    let mut kept = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        kept.push((entry.metadata()?.modified()?, entry.path()));
    }
    kept.sort();
    let over = kept.len().saturating_sub(MOST);
    kept.iter().take(over).try_for_each(|(_, path)| fs::remove_file(path))
}

fn is_without_cache(source: &BuildSource) -> bool {
    match source {
        BuildSource::Dockerfile(dockerfile) => dockerfile.no_cache,
        BuildSource::Steps(steps) => steps.no_cache,
        _ => false,
    }
}

/// Of all that an order says of what is to be made, and of the bytes that were sent for it. Who asks a registry is no part of it.
fn fingerprint(order: &Order) -> Option<String> {
    let content = |upload| order.contents.get(upload);
    let source = match &order.source {
        BuildSource::Image { reference, .. } => json!({"image": reference}),
        BuildSource::Archive { upload } => json!({"archive": content(upload)?}),
        BuildSource::Dockerfile(dockerfile) if dockerfile.secrets.0.is_empty() => {
            let Dockerfile { context, text, path, target, args, .. } = dockerfile;
            let context = match context {
                Some(upload) => Some(content(upload)?),
                None => None,
            };
            json!({"context": context, "text": text, "path": path, "target": target, "args": args})
        }
        BuildSource::Steps(steps) => {
            let from = match &steps.from {
                StepsBase::Image { reference, .. } => json!({"image": reference}),
                StepsBase::Version { version } => json!({"version": version, "settings": order.base_settings}),
            };
            let mut all = vec![from];
            for step in &steps.steps {
                if let Step::Copy { force: true, .. } | Step::Run { force: true, .. } = step {
                    return None;
                }
                let mut said = serde_json::to_value(step).ok()?;
                if let Step::Copy { upload, .. } = step {
                    said["upload"] = content(upload)?.as_str().into();
                }
                all.push(said);
            }
            Value::Array(all)
        }
        BuildSource::Dockerfile(_) | BuildSource::Checkpoint { .. } | BuildSource::Sandbox { .. } => return None,
    };
    Some(Sha256::digest(source.to_string()).iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: Value) -> Option<String> {
        let order =
            json!({"source": source, "cache_bytes": 1, "contents": {"upl_1": "0a", "upl_2": "0a", "upl_3": "0b"}});
        fingerprint(&serde_json::from_value(order).unwrap())
    }

    #[test]
    fn an_order_is_known_by_what_it_is_made_of_and_not_by_who_asks() {
        let file = |more: Value| {
            let mut source = json!({"kind": "dockerfile", "text": "FROM a"});
            source.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(source)
        };
        let plain = file(json!({}));
        assert!(plain.is_some());
        assert_eq!(file(json!({"no_cache": true})), plain);
        assert_eq!(file(json!({"credentials": {"a.example": {"username": "u", "password": "p"}}})), plain);
        for other in
            [json!({"text": "FROM b"}), json!({"args": {"A": "1"}}), json!({"target": "a"}), json!({"path": "a"})]
        {
            assert_ne!(file(other.clone()), plain, "{other}");
        }
        assert_eq!(file(json!({"secrets": {"a": "b"}})), None);
    }

    #[test]
    fn what_was_sent_is_known_by_its_content() {
        let of_context = |upload: &str| of(json!({"kind": "dockerfile", "context": upload}));
        assert_eq!(of_context("upl_1"), of_context("upl_2"));
        assert_ne!(of_context("upl_1"), of_context("upl_3"));
        assert_eq!(of_context("upl_4"), None);
        let copy = |upload: &str| {
            let copy = json!({"step": "copy", "upload": upload, "source": "a", "target": "/"});
            of(json!({"kind": "steps", "from": {"image": {"reference": "a"}}, "steps": [copy]}))
        };
        assert_eq!(copy("upl_1"), copy("upl_2"));
        assert_ne!(copy("upl_1"), copy("upl_3"));
    }

    #[test]
    fn steps_that_are_forced_are_carried_out_each_time() {
        let steps = |force: bool| {
            let run = json!({"step": "run", "command": "date", "force": force});
            of(json!({"kind": "steps", "from": {"image": {"reference": "a"}}, "steps": [run]}))
        };
        assert!(steps(false).is_some() && steps(true).is_none());
    }

    #[test]
    fn those_that_were_kept_last_stay() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..MOST + 3 {
            let file = fs::File::create(folder.path().join(number.to_string())).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(u64::try_from(number).unwrap());
            file.set_modified(time).unwrap();
        }
        forget(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), MOST);
        assert!(!folder.path().join("2").exists() && folder.path().join("3").exists());
    }
}
