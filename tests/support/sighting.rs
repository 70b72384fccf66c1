//! What a look at the host shows of each sandbox, at one moment: its record's file and its monitor's process. The agent is not
//! asked.

use std::fs::{self, File};
use std::io::Read;
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::Pid;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::host::{Host, RUNTIME_DIR, STATE_DIR};
use crate::traces::{MARKER, names, pid_in};

/// A sandbox as it was seen.
#[derive(Debug, Clone)]
pub struct Sighting {
    pub sandbox: String,
    /// From when to when its record was written, in milliseconds since 1970: one that is written ahead takes its time.
    pub written_ms: RangeInclusive<i64>,
    /// None while it is stopped.
    pub monitor: Option<Monitor>,
}

/// The monitor that a record names.
#[derive(Debug, Clone)]
pub struct Monitor {
    /// No other monitor ever has it.
    pub id: String,
    pub pid: Pid,
    /// Its process lives.
    pub lives: bool,
    /// The record says that the machine is its team's: not while it starts, nor once it is being deleted.
    pub is_ready: bool,
    /// The agent is about to save the machine, for a pause or a checkpoint.
    pub is_being_saved: bool,
}

impl Host {
    /// Every sandbox that has a record.
    pub fn sightings(&self) -> Vec<Sighting> {
        names(&Path::new(STATE_DIR).join("sandboxes")).into_iter().filter_map(sighting).collect()
    }

    /// When an agent wrote down last that all ran which runs, in milliseconds since 1970; None where none ever did.
    pub fn noted_ms(&self) -> Option<i64> {
        fs::metadata(Path::new(STATE_DIR).join("intervals/seen")).and_then(|metadata| metadata.modified()).ok().map(ms)
    }

    /// Whether an agent takes connections.
    pub fn agent_listens(&self) -> bool {
        UnixStream::connect(Path::new(RUNTIME_DIR).join("agent.sock")).is_ok()
    }
}

fn sighting(sandbox: String) -> Option<Sighting> {
    let (record, written_ms) = record_in(&Path::new(STATE_DIR).join("sandboxes").join(&sandbox))?;
    Some(Sighting { sandbox, written_ms, monitor: monitor(&record) })
}

/// What the agent has written down in a sandbox's folder, and when that was: the draft, where it follows the record that was saved,
/// or there is none. A record that was written ahead and has been ended is saved. The newest is read first: what takes the place
/// of the record meanwhile is found there.
pub(crate) fn record_in(folder: &Path) -> Option<(Value, RangeInclusive<i64>)> {
    let [draft, next, record] = ["draft.json", "record.next.json", "record.json"].map(|name| read(&folder.join(name)));
    let saved = next.filter(|next| follows(next, record.as_ref())).or(record);
    let said = draft.filter(|draft| follows(draft, saved.as_ref())).or(saved);
    said.and_then(|(text, written_ms)| Some((serde_json::from_slice(&text).ok()?, written_ms)))
}

/// Whether this file says that it follows that record, or is the first.
fn follows((text, _): &Written, record: Option<&Written>) -> bool {
    let digest = record.map(|(text, _)| hex(&Sha256::digest(text)));
    serde_json::from_slice::<Value>(text).is_ok_and(|said| said["follows"].as_str() == digest.as_deref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a file holds, and from when to when that was written: not known to begin earlier where its file system does not say so.
type Written = (Vec<u8>, RangeInclusive<i64>);

fn read(path: &Path) -> Option<Written> {
    let mut file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok()?;
    let ended_ms = ms(metadata.modified().ok()?);
    Some((text, metadata.created().map_or(ended_ms, ms).min(ended_ms)..=ended_ms))
}

/// Milliseconds since 1970.
fn ms(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn monitor(record: &Value) -> Option<Monitor> {
    let (id, pid) = (record["process"]["id"].as_str()?.to_owned(), pid_in(record)?);
    let is_pausing = record["pausing"] == true;
    let (is_ready, is_being_saved) = match record["state"].as_str()? {
        "ready" => (true, false),
        "checkpointing" => (true, true),
        "stopping" => (is_pausing, is_pausing),
        _ => (false, false),
    };
    Some(Monitor { lives: lives(pid, &id), id, pid, is_ready, is_being_saved })
}

/// Whether this process is the monitor with this id. One that has ended has no environment, if only its parent does not know
/// yet.
fn lives(pid: Pid, id: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let variable = format!("{MARKER}{STATE_DIR}/monitors/{id}");
    environment.split(|byte| *byte == 0).any(|found| found == variable.as_bytes())
}
