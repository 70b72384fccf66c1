//! What is known of one build, in its folder: written durably, with a checksum, and without secrets.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_images::checked::{self, DamageError};
use sandpiper_protocol::template::{BuildError, BuildSource, BuildState, StartBuild, StepsBase};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Of the record's format. A field that is added gets a `default`; anything else raises this number.
const FORMAT_VERSION: u32 = 1;
/// What the names of folders begin with that are not, or not any more, a build's.
pub(super) const HIDDEN: &str = ".";
const RECORD: &str = "build.json";
pub(super) const LOG: &str = "log";

/// One build.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    format_version: u32,
    /// What was asked for, without its secrets; once it has ended, also without what may be long.
    pub(crate) order: StartBuild,
    /// SHA-256 of the order, without its secrets, in hex.
    digest: String,
    /// It had some: an agent that was not told them cannot begin it.
    pub(crate) has_secrets: bool,
    pub(crate) state: BuildState,
    #[serde(default)]
    pub(crate) error: Option<BuildError>,
    pub(crate) created_at: Timestamp,
    #[serde(default)]
    pub(crate) started_at: Option<Timestamp>,
    #[serde(default)]
    pub(crate) finished_at: Option<Timestamp>,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("Cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is damaged; remove its folder", path.display())]
    Damaged { path: PathBuf, source: DamageError },
    #[error("{} has format version {version}; this agent reads {FORMAT_VERSION}", path.display())]
    Version { path: PathBuf, version: u64 },
    #[error("{} belongs to another build", path.display())]
    Misplaced { path: PathBuf },
}

impl Record {
    pub(super) fn new(order: &StartBuild) -> Self {
        let mut kept = order.clone();
        let has_secrets = remove_secrets(&mut kept.source);
        Self {
            format_version: FORMAT_VERSION,
            digest: digest(&kept),
            order: kept,
            has_secrets,
            state: BuildState::Queued,
            error: None,
            created_at: Timestamp::now(),
            started_at: None,
            finished_at: None,
        }
    }

    /// Whether this is the build that `other` asks for, as far as that can be told without secrets.
    pub(super) fn is_of(&self, other: &StartBuild) -> bool {
        self.digest == Self::new(other).digest
    }

    /// Notes how it ended. Many records of builds that have ended are kept, and nobody asks again what they were made of.
    pub(super) fn end(&mut self, state: BuildState, error: Option<BuildError>) {
        self.state = state;
        self.error = error;
        let now = Timestamp::now();
        let limit = i64::try_from(self.order.limits.seconds).map_or(SignedDuration::MAX, SignedDuration::from_secs);
        // It is counted with its team for no longer than it may take: what is over, its host was away for.
        let latest = self.started_at.map_or(now, |started| started.saturating_add(limit).unwrap_or(Timestamp::MAX));
        self.finished_at = Some(now.min(latest));
        match &mut self.order.source {
            BuildSource::Dockerfile(dockerfile) => {
                dockerfile.text = None;
                dockerfile.args.clear();
            }
            BuildSource::Steps(steps) => steps.steps.clear(),
            BuildSource::Checkpoint { .. }
            | BuildSource::Sandbox { .. }
            | BuildSource::Image { .. }
            | BuildSource::Archive { .. } => {}
        }
    }

    /// Whether its disk is made by a machine, not of layers that are there.
    pub(super) fn needs_machine(&self) -> bool {
        !matches!(self.order.source, BuildSource::Checkpoint { .. } | BuildSource::Sandbox { .. })
    }

    /// Makes the build's folder, with this record and an empty log: whole or not at all. Blocks.
    pub(super) fn create(&self, builds: &Path) -> io::Result<()> {
        let hidden = builds.join(format!("{HIDDEN}new-{}", self.order.id));
        let make = || {
            durable::remove_tree(&hidden)?;
            fs::create_dir(&hidden)?;
            File::create_new(hidden.join(LOG))?.sync_all()?;
            self.save(&hidden)?;
            let folder = builds.join(self.order.id.as_str());
            fs::rename(&hidden, &folder)?;
            durable::sync_parent(&folder)?;
            CrashPoint::BuildRecorded.pass();
            Ok(())
        };
        make().inspect_err(|_| {
            // The next start does it otherwise.
            let _ = durable::remove_tree(&hidden);
        })
    }

    /// Writes it down for good. Blocks.
    pub(super) fn save(&self, folder: &Path) -> io::Result<()> {
        durable::write_atomic(&folder.join(RECORD), &checked::encode(self)?)
    }

    /// The record of the build `id`, in its folder. Blocks.
    pub(super) fn load(folder: &Path, id: &str) -> Result<Self, RecordError> {
        let path = folder.join(RECORD);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(source) => return Err(RecordError::Read { path, source }),
        };
        let damaged = |source| RecordError::Damaged { path: path.clone(), source };
        let value = checked::verify(&text).map_err(damaged)?;
        let version = value["format_version"].as_u64().unwrap_or_default();
        if version != u64::from(FORMAT_VERSION) {
            return Err(RecordError::Version { path, version });
        }
        let record: Self = serde_json::from_value(value).map_err(|error| damaged(error.into()))?;
        if *record.order.id == *id { Ok(record) } else { Err(RecordError::Misplaced { path }) }
    }
}

/// What two orders that are the same have in common. Maps of an order are sorted, so its JSON is always the same.
fn digest(order: &StartBuild) -> String {
    let json = serde_json::to_vec(order).unwrap_or_default();
    Sha256::digest(json).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Takes secrets and credentials out of a source; says whether there were any.
fn remove_secrets(source: &mut BuildSource) -> bool {
    match source {
        BuildSource::Image { credentials, .. } => credentials.take().is_some(),
        BuildSource::Dockerfile(dockerfile) => {
            let had_any = !dockerfile.secrets.is_empty() || !dockerfile.credentials.is_empty();
            dockerfile.secrets.0.clear();
            dockerfile.credentials.clear();
            had_any
        }
        BuildSource::Steps(steps) => match &mut steps.from {
            StepsBase::Image { credentials, .. } => credentials.take().is_some(),
            StepsBase::Version { .. } => false,
        },
        BuildSource::Checkpoint { .. } | BuildSource::Sandbox { .. } | BuildSource::Archive { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn order(source: serde_json::Value) -> StartBuild {
        serde_json::from_value(json!({
            "id": sandpiper_protocol::id::generate("ver"), "team": "team_a", "slug": "mine", "source": source,
            "baseline": {"cpu": 1, "memory_mb": 64}, "disk_gib": 1,
            "limits": {"seconds": 60, "log_bytes": 65_536, "cpu": 1, "memory_mb": 256},
        }))
        .unwrap()
    }

    #[test]
    fn no_secret_is_written_down_and_the_same_order_is_known_again() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = json!({"username": "me", "password": "hunter2"});
        let sources = [
            json!({"kind": "image", "reference": "registry.example/app", "credentials": credentials}),
            json!({"kind": "dockerfile", "text": "FROM scratch", "secrets": {"TOKEN": "hunter2"}}),
            json!({"kind": "dockerfile", "text": "FROM scratch", "credentials": {"registry.example": credentials}}),
            json!({"kind": "steps", "steps": [], "from": {"image": {"reference": "a", "credentials": credentials}}}),
        ];
        for source in sources {
            let order = order(source);
            let record = Record::new(&order);
            record.create(folder.path()).unwrap();

            let path = folder.path().join(order.id.as_str());
            let text = fs::read_to_string(path.join(RECORD)).unwrap();
            let loaded = Record::load(&path, &order.id).unwrap();

            assert!(loaded.has_secrets && !text.contains("hunter2"), "{text}");
            assert!(loaded.is_of(&order) && !loaded.is_of(&StartBuild { disk_gib: 2, ..order }));
        }
    }

    #[test]
    fn a_build_that_has_ended_is_known_again_without_what_it_was_made_of_and_took_no_longer_than_it_may() {
        let sources = [
            json!({"kind": "dockerfile", "text": "FROM scratch\n".repeat(1000), "args": {"A": "b".repeat(1000)}}),
            json!({"kind": "steps", "from": {"version": {"version": "ver1"}}, "steps": [{"step": "run", "command": "x".repeat(9000)}]}),
        ];
        for source in sources {
            let order = order(source);
            let mut record = Record::new(&order);
            // Its host was switched off for an hour.
            let started_at = Timestamp::now() - SignedDuration::from_hours(1);
            record.started_at = Some(started_at);

            record.end(BuildState::Failed, None);

            assert!(record.is_of(&order) && !record.is_of(&StartBuild { disk_gib: 2, ..order.clone() }));
            assert!(serde_json::to_vec(&record).unwrap().len() < 2000);
            assert_eq!(record.finished_at, Some(started_at + SignedDuration::from_secs(60)));
        }
    }

    #[test]
    fn a_record_that_was_changed_or_moved_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let order = order(json!({"kind": "checkpoint", "checkpoint": "ckp1"}));
        Record::new(&order).create(folder.path()).unwrap();
        let path = folder.path().join(order.id.as_str());
        assert!(matches!(Record::load(&path, "verother"), Err(RecordError::Misplaced { .. })));

        let text = fs::read_to_string(path.join(RECORD)).unwrap();
        fs::write(path.join(RECORD), text.replace("\"mine\"", "\"fine\"")).unwrap();

        assert!(matches!(Record::load(&path, &order.id), Err(RecordError::Damaged { .. })));
    }
}
