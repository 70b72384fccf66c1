//! What teams may hold on this host, as the API process said last: see [`sandpiper_protocol::allowance`].
//!
//! It is in a file, so that it holds while no API process is there, and after the agent and the host were restarted. A team
//! that was never named is not limited: its sandboxes are from before there were allowances. None is ever forgotten, for
//! teams are not removed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandpiper_durable as durable;
use sandpiper_protocol::agent::{Allowance, Amounts};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::ids::TeamId;
use sandpiper_protocol::vmm::{DiskLimits, NetLimits};
use serde::{Deserialize, Serialize};

use sandpiper_images::checked::{self, DamageError};

/// The newest of each team. Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Allowances {
    known: Arc<Mutex<Document>>,
    file: Arc<Mutex<AllowanceFile>>,
}

#[derive(Debug)]
struct AllowanceFile {
    path: PathBuf,
    /// Whether it has what is known.
    is_current: bool,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Document {
    teams: BTreeMap<TeamId, Allowance>,
}

impl Allowances {
    /// What is in the file `path`. Of a damaged one nothing is known until the API process has told it again, which it does
    /// within a minute: nobody is kept waiting for that.
    ///
    /// # Errors
    /// When there is a file, and it cannot be read.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let known = match std::fs::read(path) {
            Ok(text) => decode(&text).unwrap_or_else(|error| {
                let error = error_chain::chain(&error);
                tracing::error!(path = %path.display(), error, "what teams may hold is unknown until the API tells it");
                Document::default()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Document::default(),
            Err(error) => return Err(error),
        };
        let file = AllowanceFile { path: path.to_owned(), is_current: true };
        Ok(Self { known: Arc::new(Mutex::new(known)), file: Arc::new(Mutex::new(file)) })
    }

    /// Takes over what the API process says. It holds from now on; once this returns, for good. Blocks.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) fn take(&self, allowances: Vec<Allowance>) -> io::Result<()> {
        // First, so that of several calls the last has the file.
        let mut file = lock(&self.file);
        let document = {
            let mut known = lock(&self.known);
            for allowance in allowances {
                if known.teams.get(&allowance.team) != Some(&allowance) {
                    known.teams.insert(allowance.team.clone(), allowance);
                    file.is_current = false;
                }
            }
            if file.is_current {
                return Ok(());
            }
            known.clone()
        };
        durable::write_atomic(&file.path, &checked::encode(&document)?)?;
        file.is_current = true;
        Ok(())
    }

    /// That of a team.
    pub(crate) fn of(&self, team: &TeamId) -> Option<Allowance> {
        lock(&self.known).teams.get(team).cloned()
    }

    /// Whether a team is disabled.
    pub(crate) fn is_disabled(&self, team: &TeamId) -> bool {
        lock(&self.known).teams.get(team).is_some_and(|allowance| allowance.disabled)
    }

    /// What a team may hold.
    pub(super) fn quota(&self, team: &TeamId) -> Option<Amounts> {
        lock(&self.known).teams.get(team).map(|allowance| allowance.quota)
    }

    /// How fast a disk may be, if it is of a machine of `team` on a host that gives everybody at most `host`.
    pub(crate) fn disk(&self, team: Option<&TeamId>, host: DiskLimits) -> DiskLimits {
        team.and_then(|team| self.of(team)).map_or(host, |allowance| allowance.disk.and(host))
    }

    /// Likewise, of a network device.
    pub(crate) fn network(&self, team: Option<&TeamId>, host: NetLimits) -> NetLimits {
        team.and_then(|team| self.of(team)).map_or(host, |allowance| allowance.network.and(host))
    }
}

fn decode(text: &[u8]) -> Result<Document, DamageError> {
    Ok(serde_json::from_value(checked::verify(text)?)?)
}

/// What is under these locks is right after each step, whoever panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn allowance(team: &str, sandboxes: u32) -> Allowance {
        Allowance {
            team: team.into(),
            quota: Amounts { sandboxes, cpu: 8, memory_mb: 4096 },
            disk: DiskLimits { flushes_per_second: Some(50), bytes_per_second: Some(9), ..DiskLimits::default() },
            network: NetLimits::default(),
            disabled: false,
        }
    }

    #[test]
    fn the_last_word_holds_and_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("allowances.json");
        let allowances = Allowances::open(&path).unwrap();
        allowances.take(vec![allowance("a", 1), allowance("b", 2)]).unwrap();
        allowances.take(vec![allowance("a", 3)]).unwrap();

        let again = Allowances::open(&path).unwrap();

        assert_eq!((again.of(&"a".into()), again.of(&"b".into())), (Some(allowance("a", 3)), Some(allowance("b", 2))));
        assert_eq!((again.quota(&"c".into()), again.of(&"c".into())), (None, None));
    }

    #[test]
    fn what_could_not_be_written_holds_all_the_same_and_is_written_the_next_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/allowances.json");
        let allowances = Allowances::open(&path).unwrap();
        assert!(allowances.take(vec![allowance("a", 1)]).is_err());
        assert_eq!(allowances.of(&"a".into()), Some(allowance("a", 1)));

        fs::create_dir(path.parent().unwrap()).unwrap();
        allowances.take(vec![allowance("a", 1)]).unwrap();

        assert_eq!(Allowances::open(&path).unwrap().of(&"a".into()), Some(allowance("a", 1)));
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        allowances.take(vec![allowance("a", 1)]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written, "nothing new is written");
    }

    #[test]
    fn a_damaged_file_is_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("allowances.json");
        Allowances::open(&path).unwrap().take(vec![allowance("a", 1)]).unwrap();
        let changed = fs::read_to_string(&path).unwrap().replace("4096", "9096");
        fs::write(&path, changed).unwrap();

        let allowances = Allowances::open(&path).unwrap();
        assert_eq!(allowances.of(&"a".into()), None);

        allowances.take(vec![allowance("a", 1)]).unwrap();
        assert_eq!(Allowances::open(&path).unwrap().of(&"a".into()), Some(allowance("a", 1)));
    }

    #[test]
    fn a_machine_keeps_to_its_host_and_to_its_teams_plan() {
        let folder = tempfile::tempdir().unwrap();
        let allowances = Allowances::open(&folder.path().join("allowances.json")).unwrap();
        allowances.take(vec![allowance("a", 1)]).unwrap();
        let host =
            DiskLimits { flushes_per_second: Some(200), operations_per_second: Some(7), bytes_per_second: Some(8) };

        let both = allowances.disk(Some(&"a".into()), host);

        assert_eq!(both, DiskLimits { flushes_per_second: Some(50), ..host });
        assert_eq!(allowances.disk(Some(&"b".into()), host), host);
        assert_eq!(allowances.disk(None, host), host);
        let host = NetLimits { bytes_per_second: None, packets_per_second: Some(9) };
        assert_eq!(allowances.network(Some(&"a".into()), host), host);
    }
}
