//! The record: what the agent knows of one sandbox, on disk.
//!
//! It names every file of a sandbox before that is used, and is removed after the last one is gone, so that an agent that
//! was killed at any moment finds by it everything that it has to adopt or to remove.

use jiff::{SignedDuration, Timestamp};
use sandpiper_images::layers::Files;
use sandpiper_images::snapshots::Snapshot;
use sandpiper_images::templates::GuestDefaults;
use sandpiper_machine::process::KnownMonitor;
use sandpiper_protocol::agent::{
    CreateSandbox, ExposedPort, Lifecycle, Network, OnTimeout, Previews, Sandbox, SandboxError, SandboxState,
    StartKind, StartTimings,
};
use sandpiper_protocol::id;
use sandpiper_protocol::ids::{IntervalId, SandboxId, TeamId};
use sandpiper_protocol::interval::{Counters, EndReason, Interval, IntervalEnd, Traffic};
use sandpiper_protocol::volume::VolumeMount;
use serde::{Deserialize, Serialize};

use super::seal::SealedEnvs;
use crate::capacity::Demand;

/// Of the record's format. A field that is added gets a `default`; anything else raises this number. Since 3, `process` has
/// the monitor's `id`, which was its `shell`.
pub(crate) const FORMAT_VERSION: u32 = 3;
/// The oldest format that is read.
pub(crate) const OLDEST_VERSION: u32 = 2;

/// Most exposed ports of one sandbox.
pub(crate) const MAX_PORTS: usize = 64;
/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(rename = "form")]
    pub(crate) format_version: u32,
    pub(crate) id: SandboxId,
    pub(crate) state: SandboxState,
    pub(crate) template_version: String,
    pub(crate) cpu: u32,
    pub(crate) memory_mb: u32,
    pub(crate) disk_gib: u32,
    pub(crate) timeout_seconds: u64,
    pub(crate) deadline: Timestamp,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) exposed_ports: Vec<ExposedPort>,
    pub(crate) allow_public_traffic: bool,
    #[serde(default)]
    pub(crate) previews: Previews,
    #[serde(default)]
    pub(crate) network: Network,
    /// Whom it is counted with; nobody, if it is of an earlier agent that was not told.
    #[serde(default)]
    pub(crate) team: Option<TeamId>,
    /// Where its machine's network is, while it has one.
    #[serde(default)]
    pub(crate) slot: Option<u32>,
    /// Names the sandbox in its host names; nobody can guess it.
    pub(crate) route_token: String,
    pub(crate) created_at: Timestamp,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) stopped_at: Option<Timestamp>,
    /// Why its machine ended without being asked to, until another one runs.
    pub(crate) error: Option<SandboxError>,
    pub(crate) timings: StartTimings,
    pub(crate) start: StartKind,
    /// That start was from a bare snapshot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_bare: bool,
    /// Grows with every start; a guest and its forks never have the same one.
    pub(crate) generation: u64,
    pub(crate) envs: SealedEnvs,
    /// The monitor, from the moment it belongs to the sandbox until it is known to be gone.
    pub(crate) process: Option<KnownMonitor>,
    /// The layers that the machine runs on, the last of its disk's being written to; of a stopped sandbox the snapshot.
    pub(crate) files: Files,
    /// The layer that the machine wrote to before it was given those above it, of which it has not said yet that it took
    /// them: any layer from this one on may be written to.
    #[serde(default)]
    pub(crate) unsettled: Option<String>,
    /// The time for which its machine has run, until it is ready with another; see [`crate::intervals`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<Interval>,
    /// Its volumes: attached while its machine runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<VolumeMount>,
    /// The slot of each, in the machine that runs or ran last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) slots: Vec<u8>,
    /// Slots whose volume was taken from programs that had files of it open: nothing else is put there until it boots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) held_slots: Vec<u8>,
    /// Its guest tells what its processes write, for its log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) capture_output: bool,
    /// What its guest is told of its template's version, which may be gone.
    #[serde(default, skip_serializing_if = "GuestDefaults::is_empty")]
    pub(crate) defaults: GuestDefaults,
    /// In `stopping`: on the way to `stopped`, not to its end.
    pub(crate) pausing: bool,
}

impl Record {
    /// The record of a sandbox that is about to be created.
    pub(crate) fn new(request: &CreateSandbox, generation: u64, envs: SealedEnvs, now: Timestamp) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            id: request.id.clone(),
            state: SandboxState::Creating,
            template_version: request.template_version.clone(),
            cpu: request.cpu,
            memory_mb: request.memory_mb,
            disk_gib: request.disk_gib,
            timeout_seconds: request.timeout_seconds,
            deadline: deadline(now, request.timeout_seconds),
            lifecycle: request.lifecycle,
            exposed_ports: request.exposed_ports.clone(),
            allow_public_traffic: request.allow_public_traffic,
            previews: request.previews.clone(),
            network: request.network.clone(),
            team: request.allowance.as_ref().map(|allowance| allowance.team.clone()),
            slot: None,
            route_token: id::route_token(),
            created_at: now,
            started_at: None,
            stopped_at: None,
            error: None,
            timings: StartTimings::default(),
            start: StartKind::default(),
            is_bare: false,
            generation,
            envs,
            process: None,
            files: Files::default(),
            unsettled: None,
            interval: None,
            volumes: request.volume_mounts.clone(),
            slots: Vec::new(),
            held_slots: Vec::new(),
            capture_output: request.capture_output,
            defaults: GuestDefaults::default(),
            pausing: false,
        }
    }

    /// Notes slots that programs hold, beside those that they held before.
    pub(crate) fn hold_slots(&mut self, held: &[u8]) {
        self.held_slots.extend(held);
        self.held_slots.sort_unstable();
        self.held_slots.dedup();
    }

    /// What its machine needs of the host.
    pub(crate) fn demand(&self) -> Demand {
        Demand { team: self.team.clone(), cpu: self.cpu, memory_mb: self.memory_mb }
    }

    /// What can be made of the sandbox's files.
    pub(crate) fn snapshot(&self, files: Files) -> Snapshot {
        // Programs, and what they hold, are in the memory.
        let held_slots = if files.has_memory() { self.held_slots.clone() } else { Vec::new() };
        Snapshot {
            template_version: self.template_version.clone(),
            cpu: self.cpu,
            memory_mb: self.memory_mb,
            disk_gib: self.disk_gib,
            files,
            held_slots,
            defaults: self.defaults.clone(),
            can_wait: false,
        }
    }

    /// Notes that the sandbox's machine runs for its team from `now` on. `base` is what the counters of its network said when it got
    /// that, if it has one.
    pub(crate) fn begin_interval(&mut self, now: Timestamp, base: Option<Counters>) {
        self.interval = Some(Interval {
            id: IntervalId::generate(),
            sandbox: self.id.clone(),
            team: self.team.clone(),
            cpu: self.cpu,
            memory_mb: self.memory_mb,
            began_at_ms: now.as_millisecond(),
            traffic: base.map(|base| Traffic::begin(now.as_millisecond(), base)),
            end: None,
        });
    }

    /// Notes what went through the network of a machine that has run until now. Nothing changes where that is not known.
    pub(crate) fn note_traffic(&mut self, traffic: Option<Traffic>) {
        if let Some(interval) = self.interval.as_mut().filter(|interval| interval.end.is_none()) {
            interval.traffic = traffic.or(interval.traffic);
        }
    }

    /// Notes that it runs no more, unless that is noted already. A clock that was set back makes no time negative, and has no
    /// reading be one of another time.
    pub(crate) fn end_interval(&mut self, at_ms: i64, reason: EndReason) {
        if let Some(interval) = self.interval.as_mut().filter(|interval| interval.end.is_none()) {
            interval.end = Some(IntervalEnd { at_ms: at_ms.max(interval.known_until_ms()), reason });
        }
    }

    /// Turns the record into that of a sandbox which is `files` only, and can go on from them.
    pub(crate) fn stop(&mut self, files: Files, now: Timestamp) {
        self.end_interval(now.as_millisecond(), EndReason::Paused);
        self.state = SandboxState::Stopped;
        self.pausing = false;
        self.stopped_at = Some(now);
        self.process = None;
        self.slot = None;
        self.files = files;
        self.unsettled = None;
    }

    /// The disk's uppermost layer.
    pub(crate) fn top(&self) -> Option<&str> {
        self.files.disk.last().map(|layer| layer.name.as_str())
    }

    /// Takes back the disk's uppermost layer, which the machine was never given.
    pub(crate) fn drop_top(&mut self) {
        self.files.disk.pop();
        if self.unsettled.as_deref() == self.top() {
            self.unsettled = None;
        }
    }

    /// How many of the disk's layers, from the top, may be written to.
    pub(crate) fn written_layers(&self) -> usize {
        if matches!(self.state, SandboxState::Stopped | SandboxState::Failed) {
            return 0;
        }
        let layers = &self.files.disk;
        let from = layers.iter().position(|layer| Some(&layer.name) == self.unsettled.as_ref());
        from.map_or(1, |from| layers.len() - from)
    }

    /// Turns the record of a sandbox that was being resumed back into that of the stopped one. The layer that the resume
    /// had put on top is not part of it any more.
    pub(crate) fn undo_resume(&mut self) {
        self.state = SandboxState::Stopped;
        self.process = None;
        self.slot = None;
        self.files.disk.pop();
    }

    /// Turns the record into that of a sandbox whose machine ended without being asked to: of it, the disk is left.
    pub(crate) fn lose_machine(&mut self, error: SandboxError, now: Timestamp) {
        self.end_interval(now.as_millisecond(), EndReason::Crashed);
        let disk = self.files.disk_only();
        self.stop(disk, now);
        self.error = Some(error);
    }

    /// When a sandbox that does not run is removed all the same: one whose machine ended unasked has the time that it would
    /// have had, one that was paused has any.
    pub(crate) fn removed_at(&self) -> Option<Timestamp> {
        let is_removed = match self.state {
            SandboxState::Stopped => self.error.is_some() && self.lifecycle.on_timeout == OnTimeout::Kill,
            SandboxState::Failed => true,
            _ => false,
        };
        is_removed.then_some(self.deadline)
    }

    /// Whether a request to the sandbox has it go on.
    pub(crate) fn wakes(&self) -> bool {
        let sleeps = matches!(self.state, SandboxState::Stopped | SandboxState::Restoring) || self.is_pausing();
        self.lifecycle.auto_resume && sleeps
    }

    fn is_pausing(&self) -> bool {
        self.state == SandboxState::Stopping && self.pausing
    }

    /// The form in which the API process sees it.
    pub(crate) fn to_contract(&self, data_plane_url: String, retained_bytes: u64) -> Sandbox {
        Sandbox {
            id: self.id.clone(),
            state: self.state,
            template_version: self.template_version.clone(),
            cpu: self.cpu,
            memory_mb: self.memory_mb,
            disk_gib: self.disk_gib,
            timeout_seconds: self.timeout_seconds,
            deadline: self.deadline,
            lifecycle: self.lifecycle,
            exposed_ports: self.exposed_ports.clone(),
            allow_public_traffic: self.allow_public_traffic,
            previews: self.previews.clone(),
            network_version: self.network.version,
            volume_mounts: self.volumes.clone(),
            capture_output: self.capture_output,
            data_plane_url,
            created_at: self.created_at,
            started_at: self.started_at,
            stopped_at: self.stopped_at,
            error: self.error.clone(),
            timings: self.timings,
            start: self.start,
            is_bare: self.is_bare,
            retained_bytes,
        }
    }
}

/// The moment `seconds` after `now`; the end of time where that overflows.
pub(crate) fn deadline(now: Timestamp, seconds: u64) -> Timestamp {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sandbox::seal::Sealer;
    use sandpiper_images::layers::{Layer, Role};
    use sandpiper_machine::link::Envs;
    use sandpiper_protocol::interval::Bytes;

    /// A record as `POST /sandboxes` makes it.
    pub(crate) fn example(id: &str) -> Record {
        let folder = tempfile::tempdir().unwrap();
        let sealer = Sealer::open(&folder.path().join("key")).unwrap();
        let request = CreateSandbox {
            id: id.into(),
            template_version: id::generate("ver"),
            checkpoint: None,
            cpu: 1,
            memory_mb: 256,
            disk_gib: 2,
            timeout_seconds: 300,
            lifecycle: Lifecycle::default(),
            envs: Envs::new(),
            exposed_ports: Vec::new(),
            allow_public_traffic: true,
            previews: Previews::default(),
            network: Network::default(),
            volume_mounts: Vec::new(),
            capture_output: false,
            allowance: None,
        };
        Record::new(&request, 1, sealer.seal(id, &request.envs).unwrap(), Timestamp::now())
    }

    #[test]
    fn a_resume_that_is_undone_leaves_the_snapshot_as_it_was() {
        let mut record = example("sbxa");
        let mut files = record.files.clone();
        files.disk = vec![Layer::own(files.new_name(Role::Disk))];
        files.state = Some(files.new_name(Role::State));
        record.stop(files.clone(), Timestamp::now());
        record.state = SandboxState::Restoring;
        let top = record.files.new_name(Role::Disk);
        record.files.disk.push(Layer::own(top));

        record.undo_resume();

        assert_eq!(record.state, SandboxState::Stopped);
        assert_eq!(record.files.names(), files.names());
    }

    #[test]
    fn an_interval_ends_once_and_not_before_it_began() {
        let mut record = example("sbxa");
        let began = Timestamp::now();
        record.begin_interval(began, None);
        let earlier = began.checked_sub(SignedDuration::from_secs(5)).unwrap();

        record.lose_machine(SandboxError { code: "c".into(), message: "m".into() }, earlier);
        let first = record.interval.clone();
        record.stop(Files::default(), Timestamp::MAX);

        assert_eq!(record.interval, first);
        let end = IntervalEnd { at_ms: began.as_millisecond(), reason: EndReason::Crashed };
        assert_eq!(first.unwrap().end, Some(end));
    }

    #[test]
    fn traffic_is_noted_until_the_interval_ends_and_that_is_not_before_it_was_read() {
        let mut record = example("sbxa");
        let bytes = |egress| Bytes { egress, ingress: 0 };
        let counters = |egress| Counters { forwarded: bytes(egress), ..Counters::default() };
        let began = Timestamp::now();
        record.begin_interval(began, Some(counters(100)));
        let read = |record: &Record, ms, egress| {
            let known = record.interval.as_ref().unwrap().traffic.unwrap();
            Some(known.read(began.as_millisecond() + ms, counters(egress)))
        };

        record.note_traffic(read(&record, 5000, 170));
        record.note_traffic(None);
        record.end_interval(began.as_millisecond() + 10, EndReason::Lost);
        record.note_traffic(read(&record, 6000, 900));

        let interval = record.interval.unwrap();
        assert_eq!(interval.traffic.unwrap().total, bytes(70));
        assert_eq!(interval.end.unwrap().at_ms, began.as_millisecond() + 5000);
    }

    #[test]
    fn a_deadline_holds_for_a_lost_machine_and_not_for_one_that_was_paused() {
        let mut record = example("sbxa");
        assert_eq!(record.removed_at(), None, "a running one's is its supervisor's");
        record.stop(Files::default(), Timestamp::now());
        assert_eq!(record.removed_at(), None);

        record.lose_machine(SandboxError { code: "c".into(), message: "m".into() }, Timestamp::now());
        assert_eq!(record.removed_at(), Some(record.deadline));
        record.lifecycle.on_timeout = OnTimeout::Pause;
        assert_eq!(record.removed_at(), None);

        record.state = SandboxState::Failed;
        assert_eq!(record.removed_at(), Some(record.deadline));
    }

    #[test]
    fn any_layer_may_be_written_to_from_the_one_on_above_which_nothing_is_settled() {
        let mut record = example("sbxa");
        record.state = SandboxState::Ready;
        for _ in 0..4 {
            let name = record.files.new_name(Role::Disk);
            record.files.disk.push(Layer::own(name));
        }
        assert_eq!(record.written_layers(), 1);
        record.unsettled = Some("disk-1.layer".into());
        assert_eq!(record.written_layers(), 3);

        record.drop_top();
        assert_eq!((record.written_layers(), record.top()), (2, Some("disk-2.layer")));
        record.drop_top();
        assert_eq!((record.written_layers(), record.unsettled.as_deref()), (1, None));

        record.unsettled = Some("disk-0.layer".into());
        record.stop(record.files.clone(), Timestamp::now());
        assert_eq!((record.written_layers(), record.unsettled.as_deref()), (0, None));
    }

    #[test]
    fn only_a_pausing_or_paused_sandbox_that_may_is_woken() {
        let mut record = example("sbxa");
        record.state = SandboxState::Stopped;
        assert!(!record.wakes());
        record.lifecycle.auto_resume = true;
        assert!(record.wakes());
        record.state = SandboxState::Stopping;
        assert!(!record.wakes());
        record.pausing = true;
        assert!(record.wakes());
        record.state = SandboxState::Failed;
        assert!(!record.wakes());
    }

    #[test]
    fn a_deadline_beyond_time_does_not_overflow() {
        assert_eq!(deadline(Timestamp::now(), u64::MAX), Timestamp::MAX);
    }
}
