//! How a supervisor brings its sandbox up: from files and a monitor to a guest that says that it is ready.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sandpiper_crash_points::CrashPoint;
use sandpiper_durable as durable;
use sandpiper_images::snapshots::WarmSnapshot;
use sandpiper_images::templates::{Pin as VersionPin, Template};
use sandpiper_machine::control::RequestError;
use sandpiper_machine::link::{Envs, Guest};
use sandpiper_machine::{Machine, MachineEvent, MachinePaths, sanitize, sanitize_to};
use sandpiper_network::Attachment;
use sandpiper_protocol::agent::{SandboxState, StartKind};
use sandpiper_protocol::error_chain;
use sandpiper_protocol::guest::{DAMAGED_VOLUME, GuestMessage, GuestStep, REFUSED_MOUNT};
use sandpiper_protocol::interval::Counters;
use sandpiper_protocol::vmm::{FaultCode, Timings};
use sandpiper_trace as trace;
use tokio::time::{Instant, sleep_until};
use tracing::Instrument;

use crate::capacity::Reservation;
use crate::launch::{Attachments, Kit, Order, Running, Source};
use crate::sandbox::record::{self, Record};
use crate::sandbox::start_error::StartError;
use crate::sandbox::supervisor::{Supervisor, next_command};
use crate::sandbox::{ending, record_file};
use crate::turns::Turn;
use crate::volumes::VolumeError;

/// Steps of a guest that are written down; it may say anything.
const GUEST_STEPS: usize = 16;
/// How long before its guest says so a sandbox may count as ready. One that takes longer counts from when it says so.
const FORESEEN_AT_MOST: Duration = Duration::from_millis(100);

/// How a guest comes to be the sandbox's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sandbox) enum Way {
    /// Its kernel boots from the sandbox's disk.
    Booted,
    /// A bare guest is restored, and enters the sandbox's disk.
    Bare,
    /// It is restored from the template's warm snapshot.
    Warm,
    /// The same, ahead.
    Parked,
    /// It is restored from a snapshot of a sandbox.
    Restored,
}

impl Way {
    /// What the agent's callers are told.
    fn kind(self) -> StartKind {
        match self {
            Self::Booted | Self::Bare => StartKind::Cold,
            Self::Warm => StartKind::Warm,
            Self::Parked => StartKind::Parked,
            Self::Restored => StartKind::Restored,
        }
    }

    /// What the log of the sandbox is told.
    fn told(self) -> &'static str {
        match self {
            Self::Booted => "its kernel has booted",
            Self::Bare => "a guest that had booted already has entered its disk",
            Self::Warm => "restored from the template's warm snapshot",
            Self::Parked => "a machine that was parked has become it",
            Self::Restored => "restored from a snapshot",
        }
    }
}

/// One way to start a sandbox, and what it takes.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) source: Source,
    pub(in crate::sandbox) way: Way,
    /// Key of the warm or bare snapshot that this is.
    pub(crate) warm: Option<String>,
    /// From the moment it is ready to the deadline; without it the sandbox's own time-out.
    pub(crate) timeout_seconds: Option<u64>,
}

impl Attempt {
    pub(crate) fn cold(source: Source) -> Self {
        Self { source, way: Way::Booted, warm: None, timeout_seconds: None }
    }

    /// From its disk too, which a bare guest enters.
    pub(crate) fn bare(bare: WarmSnapshot, template: Template, pin: Arc<VersionPin>) -> Self {
        let files = bare.snapshot.files.clone().shared();
        let source =
            Source::Entering { template: Box::new(template), _pin: Some(pin), folder: bare.folder, bare: files };
        Self { source, way: Way::Bare, warm: Some(bare.key), timeout_seconds: None }
    }

    pub(crate) fn restored(source: Source) -> Self {
        Self { source, way: Way::Restored, warm: None, timeout_seconds: None }
    }

    pub(crate) fn warm(warm: WarmSnapshot) -> Self {
        let files = warm.snapshot.files.clone().shared();
        let source = Source::Snapshot { folder: warm.folder, files, _pin: None };
        Self { source, way: Way::Warm, warm: Some(warm.key), timeout_seconds: None }
    }
}

/// How a machine that is all set up begins to be the sandbox's.
pub(super) enum Begin {
    /// Its monitor starts it.
    Start(Kit),
    /// It runs; its guest becomes this one.
    Become(Guest),
}

/// What is to be seen through of a start.
pub(super) struct Start {
    pub(super) begin: Begin,
    pub(super) way: Way,
    pub(super) timeout_seconds: Option<u64>,
    pub(super) asked_at_us: u64,
}

/// What is written down of a start once its guest is ready.
struct BecomesReady {
    way: Way,
    timeout_seconds: Option<u64>,
    asked_at_us: u64,
    /// What the counters of its network said when the guest got it.
    base: Option<Counters>,
}

/// A record that says that the sandbox is ready, and its file, which is not in its place before it is.
struct Foreseen {
    at: Instant,
    /// What counts until then.
    before: Arc<Record>,
    record: Record,
    prepared: durable::Prepared,
}

impl Foreseen {
    /// Whether it came as foreseen: soon, and with nothing else written down meanwhile.
    fn came_true(&self, now: &Arc<Record>) -> bool {
        self.at.elapsed() < FORESEEN_AT_MOST && Arc::ptr_eq(&self.before, now)
    }
}

/// A start that failed: why, and the machine to be taken away if there is one.
pub(crate) type Failed = (StartError, Option<Running>);

impl Supervisor {
    /// Starts the guest of a new sandbox by the first of these ways that works. On failure the machine comes back, to be
    /// taken away.
    pub(crate) async fn bring_up_new(
        &mut self,
        attempts: Vec<Attempt>,
        envs: &Envs,
        reservation: &Reservation,
    ) -> Result<Running, Failed> {
        let mut attempts = attempts.into_iter().peekable();
        let parked = attempts.peek().and_then(|attempt| self.claim_parked(attempt));
        if let Some(parked) = parked {
            match self.take_over(parked, envs, reservation, self.context.config.boot_timeout() / 2).await {
                Err((error, machine)) if error.is_of_its_source() || matches!(error, StartError::Host { .. }) => {
                    let error = error_chain::chain(&error);
                    tracing::warn!(
                        sandbox = self.record().id.as_str(),
                        error,
                        "a parked machine was of no use; restoring another"
                    );
                    self.start_over(machine, None).await?;
                }
                result => return result,
            }
        }
        // A warm snapshot that did not start this, whose files are not known to be bad.
        let mut suspect = None;
        while let Some(attempt) = attempts.next() {
            let (way, warm) = (attempt.way, attempt.warm.clone());
            let is_last = attempts.peek().is_none();
            let timeout = self.context.config.boot_timeout();
            // A snapshot is restored in a moment or not at all.
            let timeout = if is_last { timeout } else { timeout / 2 };
            match self.bring_up(attempt, envs, reservation, timeout, |_| {}).await {
                Err((error, machine)) if !is_last && error.is_of_its_source() => {
                    let reason = error_chain::chain(&error);
                    let is_bad = error.is_bad_file();
                    tracing::warn!(
                        sandbox = self.record().id.as_str(),
                        ?way,
                        is_bad,
                        reason,
                        "a sandbox did not start this way; trying the next"
                    );
                    self.log.host(format!("not restored, booting instead: {reason}"));
                    let bad;
                    (bad, suspect) = if is_bad { (warm, None) } else { (None, warm) };
                    self.start_over(machine, bad).await?;
                }
                Ok(machine) => {
                    if let Some(key) = warm {
                        self.context.warm.worked(&key);
                    }
                    self.strike(suspect);
                    return Ok(machine);
                }
                result => return result,
            }
        }
        Err((StartError::Host { what: "find anything to start from", source: io::ErrorKind::NotFound.into() }, None))
    }

    /// Notes that the host is well enough to start a sandbox, and yet did not from this warm snapshot.
    fn strike(&self, suspect: Option<String>) {
        if let Some(key) = suspect {
            let context = Arc::clone(&self.context);
            // Nobody waits for it.
            tokio::task::spawn_blocking(move || context.warm.strike(&key));
        }
    }

    /// Removes all that an attempt made, and the warm snapshot if that is bad.
    async fn start_over(&mut self, machine: Option<Running>, bad: Option<String>) -> Result<(), Failed> {
        if let Some(machine) = machine {
            self.end_process(machine).await;
        }
        let context = Arc::clone(&self.context);
        let paths = context.paths.sandbox(&self.record().id);
        let clean = move || {
            if let Some(key) = bad {
                tracing::warn!(key, "removing a damaged warm snapshot");
                context.warm.discard(&key);
            }
            ending::free(&paths)
        };
        let cleaned = durable::blocking(clean).await;
        cleaned.map_err(|source| (StartError::Host { what: "remove the files of a start that failed", source }, None))
    }

    /// Waits for its turn, starts the guest and waits until it is ready: from its turn on at most for `timeout`. `change` is made
    /// to the record together with what the start itself has to write down. On failure the machine comes back, to be taken away.
    pub(crate) async fn bring_up(
        &mut self,
        attempt: Attempt,
        envs: &Envs,
        reservation: &Reservation,
        timeout: Duration,
        change: impl FnOnce(&mut Record),
    ) -> Result<Running, Failed> {
        let Attempt { source, way, timeout_seconds, .. } = attempt;
        let turn = self.await_turn().instrument(trace::step("turn")).await;
        let _turn = turn.map_err(|error| (error, None))?;
        let (asked_at_us, give_up_at) = (trace::now_us(), Instant::now() + timeout);
        let volumes = self.claim_volumes_in_time(way, give_up_at).await.map_err(|error| (error, None))?;
        let launched = self.launch(source, envs, reservation, volumes, change).await;
        let (running, kit) = launched.map_err(|error| (error, None))?;
        self.see_through(running, Start { begin: Begin::Start(kit), way, timeout_seconds, asked_at_us }, give_up_at)
            .await
    }

    /// Waits until it is this start's turn, unless something ends it before.
    async fn await_turn(&mut self) -> Result<Turn, StartError> {
        let (turns, team) = (self.context.turns.clone(), self.record().team.clone());
        tokio::select! {
            turn = turns.take(team) => Ok(turn),
            error = self.called_off() => Err(error),
        }
    }

    /// Takes the sandbox's volumes for a start by this way, unless something ends it.
    pub(super) async fn claim_volumes_in_time(
        &mut self,
        way: Way,
        give_up_at: Instant,
    ) -> Result<Attachments, StartError> {
        let claim = Self::claim_volumes(Arc::clone(&self.context), self.record(), way == Way::Booted);
        tokio::select! {
            volumes = claim => Ok(volumes?),
            error = self.interruption(give_up_at) => Err(error),
        }
    }

    /// Begins a machine that is written down, and waits until its guest is ready. On failure it comes back, to be taken away.
    pub(super) async fn see_through(
        &mut self,
        mut running: Running,
        start: Start,
        give_up_at: Instant,
    ) -> Result<Running, Failed> {
        let Start { begin, way, timeout_seconds, asked_at_us } = start;
        running.console = self.follow_console();
        let context = Arc::clone(&self.context);
        let Running { machine, volumes, .. } = &mut running;
        let (kit, guest) = match begin {
            Begin::Start(kit) => (Some(kit), None),
            Begin::Become(guest) => (None, Some(guest)),
        };
        let start = async {
            let Some(kit) = kit else { return Ok(Ok(Timings::default())) };
            tokio::select! {
                started = kit.start(machine, &context.config).instrument(trace::step("monitor")) => Ok(started),
                error = self.interruption(give_up_at) => Err(error),
            }
        };
        let (started, opened) = tokio::join!(start, volumes.open().instrument(trace::step("volumes")));
        let mut timings = match started {
            Ok(Ok(timings)) => timings,
            Ok(Err(error)) => {
                let error = self.start_refused(&mut running.machine, error).await;
                return Err((error, Some(running)));
            }
            Err(error) => return Err((error, Some(running))),
        };
        CrashPoint::StartRunning.pass();
        let attached = match opened {
            Ok(()) => running.volumes.attach(&mut running.machine).await,
            Err(error) => Err(error),
        };
        if let Err(error) = attached {
            return Err((not_attached(error, way), Some(running)));
        }
        if !running.volumes.is_empty() {
            CrashPoint::VolumesAttached.pass();
        }
        if let Some(guest) = guest {
            timings.guest_init_us = trace::now_us();
            if let Err(source) = running.machine.become_another(guest) {
                return Err((StartError::Host { what: "talk to a parked machine", source }, Some(running)));
            }
        }
        let base = running.network.as_ref().map(Attachment::base);
        let becomes_ready = BecomesReady { way, timeout_seconds, asked_at_us, base };
        let foreseen = self.foresee(&becomes_ready).instrument(trace::step("prepare the record"));
        let ready = self.await_ready(&mut running.machine, timings, give_up_at).instrument(trace::step("guest"));
        let (ready, foreseen) = tokio::join!(ready, foreseen);
        let set_ready = match (ready, foreseen) {
            (Ok(when), Ok(foreseen)) => {
                let set_ready = self.set_ready(becomes_ready, foreseen, when);
                set_ready.instrument(trace::step("record that it is ready")).await
            }
            (Ok(_), Err(error)) => Err(error),
            (Err(error), _) => return Err((error, Some(running))),
        };
        match set_ready.map_err(|source| StartError::Host { what: "write the sandbox's record", source }) {
            Ok(()) => Ok(running),
            Err(error) => Err((error, Some(running))),
        }
    }

    /// Gathers what the machine is made of, and writes all of it down.
    async fn launch(
        &mut self,
        source: Source,
        envs: &Envs,
        reservation: &Reservation,
        volumes: Attachments,
        change: impl FnOnce(&mut Record),
    ) -> Result<(Running, Kit), StartError> {
        let mut record = (*self.record()).clone();
        change(&mut record);
        record.slots = volumes.slots();
        let launcher = &self.context.launcher;
        let paths = self.context.paths.sandbox(&record.id);
        let (net_limits, disk_limits) = self.device_limits();
        let gathered = launcher.gather(Order {
            source,
            paths: paths.clone(),
            shape: self.shape(),
            disk_gib: record.disk_gib,
            name: record.id.to_string(),
            envs: envs.clone(),
            generation: record.generation,
            defaults: record.defaults.clone(),
            network: Some(record.network.clone()),
            net_limits,
            disk_limits,
            volumes,
            serves_volume: false,
            capture_output: record.capture_output,
        });
        let gathered = gathered.instrument(trace::step("gather")).await?;
        CrashPoint::StartFilesMade.pass();
        record.files = gathered.files().clone();
        record.slot = gathered.slot();
        record.process = Some(gathered.monitor());
        let settled = gathered.settle(launcher, reservation.clone(), move || write_record(&paths, record));
        let (running, kit, record) = settled
            .instrument(trace::step("record"))
            .await
            .map_err(|source| StartError::Host { what: "write the sandbox's record", source })?;
        CrashPoint::StartRecorded.pass();
        self.publish(record);
        Ok((running, kit))
    }

    /// The monitor's own account of its end says more than a closed connection.
    async fn start_refused(&self, machine: &mut Machine, error: RequestError) -> StartError {
        match error {
            RequestError::Refused(fault) if fault.code == FaultCode::BadSnapshot => {
                StartError::BadSnapshot(sanitize(&fault.message))
            }
            RequestError::Refused(_) => StartError::Guest(ending::error("monitor_failed", error_chain::chain(&error))),
            error => match tokio::time::timeout(self.context.config.stop_timeout(), machine.next()).await {
                Ok(MachineEvent::Ended(ended)) => StartError::Guest(self.explain(ended).await),
                _ => StartError::Guest(ending::error("monitor_failed", error_chain::chain(&error))),
            },
        }
    }

    /// Waits for the guest to say that it is ready; returns when that was, and the monitor's steps before it.
    async fn await_ready(
        &mut self,
        machine: &mut Machine,
        mut timings: Timings,
        give_up_at: Instant,
    ) -> Result<(u64, Timings), StartError> {
        loop {
            let event = tokio::select! {
                event = machine.next() => event,
                error = self.interruption(give_up_at) => return Err(error),
            };
            match event {
                MachineEvent::Guest(GuestMessage::Ready { is_bare: true, .. }) => {
                    let message = "The guest has not entered the sandbox's disk".to_owned();
                    return Err(StartError::Guest(ending::error("guest_failed", message)));
                }
                MachineEvent::Guest(GuestMessage::Ready { init_version, steps, captures_output, .. }) => {
                    let now_us = trace::now_us();
                    tell_steps(&timings, steps, now_us);
                    self.log.host(format!("the guest's init is {}", sanitize(&init_version)));
                    self.check_capture(captures_output);
                    return Ok((now_us, timings));
                }
                MachineEvent::Disk(event) => self.hear_disk(&event),
                MachineEvent::LinkOpened => {
                    // The guest is busy with its first message now, so this costs the start nothing.
                    match machine.timings().await {
                        Ok(found) => timings = found,
                        Err(error) => {
                            tracing::debug!(error = %error_chain::chain(&error), "a monitor did not report its timings")
                        }
                    }
                }
                MachineEvent::Guest(GuestMessage::Failed { message }) if message.starts_with(DAMAGED_VOLUME) => {
                    return Err(VolumeError::Damaged(sanitize(&message)).into());
                }
                MachineEvent::Guest(GuestMessage::Failed { message }) if message.starts_with(REFUSED_MOUNT) => {
                    return Err(VolumeError::Place(sanitize(&message)).into());
                }
                MachineEvent::Guest(message) => {
                    if let Some(error) = self.hear(message) {
                        return Err(StartError::Guest(error));
                    }
                }
                MachineEvent::Ended(ended) => return Err(StartError::Guest(self.explain(ended).await)),
                MachineEvent::OutOfControl => return Err(StartError::Guest(ending::out_of_control())),
            }
        }
    }

    /// Waits for what ends a start from outside: a delete, the agent's end, the time-out. May be dropped and called again.
    async fn interruption(&mut self, give_up_at: Instant) -> StartError {
        tokio::select! {
            error = self.called_off() => error,
            () = sleep_until(give_up_at) => {
                let message = "The guest was not ready in time; its logs may say why".to_owned();
                StartError::Guest(ending::error("guest_failed", message))
            }
        }
    }

    /// Likewise, without a time-out.
    async fn called_off(&mut self) -> StartError {
        let leave = self.context.leave.clone();
        loop {
            tokio::select! {
                () = leave.cancelled() => return StartError::ShuttingDown,
                command = next_command(&mut self.commands) => {
                    if let Some(cause) = self.postpone(command) {
                        return StartError::Deleted(cause);
                    }
                }
            }
        }
    }

    /// Writes down, while the guest is not ready yet, what can be of that it is: the sandbox's folder, which was of no importance
    /// to anybody until now, and the record of one whose guest does not boot, for it is ready in a moment. Who waits for the start
    /// waits for less then.
    fn foresee(&self, becomes_ready: &BecomesReady) -> impl Future<Output = io::Result<Option<Foreseen>>> + use<> {
        let (before, at) = (self.record(), Instant::now());
        let record = (becomes_ready.way != Way::Booted).then(|| {
            let mut record = (*before).clone();
            becomes_ready.note(&mut record, Timestamp::now());
            record
        });
        let paths = self.context.paths.sandbox(&before.id);
        // The record that is prepared takes the place of the one that says when the sandbox ran last.
        let kept = self.keep_interval();
        let prepared = durable::blocking(move || {
            let prepared = record.map(|record| Ok::<_, io::Error>((record_file::prepare(&paths, &record)?, record)));
            let prepared = prepared.transpose()?;
            // Afterwards: a file system with a journal has written the folder down with the file in it.
            if before.state == SandboxState::Creating {
                durable::sync_parent(&paths.state)?;
            }
            Ok(prepared.map(|(prepared, record)| Foreseen { at, before, record, prepared }))
        });
        async { tokio::join!(kept, prepared).1 }
    }

    /// Writes down that the guest is ready, since `now_us`, with the monitor's steps before.
    async fn set_ready(
        &mut self,
        becomes_ready: BecomesReady,
        foreseen: Option<Foreseen>,
        (now_us, timings): (u64, Timings),
    ) -> io::Result<()> {
        CrashPoint::StartGuestReady.pass();
        let BecomesReady { way, asked_at_us, .. } = becomes_ready;
        let since = |step: u64| if step == 0 { 0 } else { step.saturating_sub(asked_at_us) };
        let note_timings = |record: &mut Record| {
            record.timings.first_instruction_us = since(timings.first_instruction_us);
            record.timings.guest_init_us = since(timings.guest_init_us);
            record.timings.data_plane_ready_us = since(now_us);
        };
        match foreseen.filter(|foreseen| foreseen.came_true(&self.record())) {
            Some(Foreseen { mut record, prepared, .. }) => {
                let paths = self.context.paths.sandbox(&record.id);
                durable::blocking(move || record_file::put_in_place(&paths, prepared)).await?;
                // The file has them with the next change.
                note_timings(&mut record);
                self.publish(record);
                self.follow_interval();
            }
            None => {
                let console = self.context.config.console;
                let change = self.change_interval(|record| {
                    becomes_ready.note(record, Timestamp::now());
                    note_timings(record);
                    if way == Way::Booted {
                        record.held_slots.clear();
                        record.files.memory.clear();
                        record.files.working_set = None;
                        record.files.console = console;
                    }
                });
                change.await?;
            }
        }
        CrashPoint::StartReady.pass();
        self.log.host(way.told());
        self.context.metrics.started(
            way.kind(),
            way == Way::Bare,
            Duration::from_micros(now_us.saturating_sub(asked_at_us)),
        );
        Ok(())
    }
}

impl BecomesReady {
    /// Has the record say that the sandbox is ready since `now`.
    fn note(&self, record: &mut Record, now: Timestamp) {
        record.begin_interval(now, self.base);
        record.state = SandboxState::Ready;
        record.start = self.way.kind();
        record.is_bare = self.way == Way::Bare;
        record.started_at = Some(now);
        record.stopped_at = None;
        record.error = None;
        record.deadline = record::deadline(now, self.timeout_seconds.unwrap_or(record.timeout_seconds));
        // What it was restored from below the next snapshot is needed on; the rest has served.
        record.files.state = None;
    }
}

/// Why a machine that was just started has no volumes. One that an older monitor wrote down may have no slots for them, and gets
/// them by a boot.
fn not_attached(error: VolumeError, way: Way) -> StartError {
    match error {
        VolumeError::Monitor(RequestError::Refused(fault))
            if way != Way::Booted && fault.code == FaultCode::InvalidState =>
        {
            StartError::BadSnapshot(sanitize(&fault.message))
        }
        error => error.into(),
    }
}

/// Writes down which files and which monitor are a machine's. Blocks.
pub(super) fn write_record(paths: &MachinePaths, record: Record) -> io::Result<Record> {
    CrashPoint::StartMonitorMoved.pass();
    record_file::save_draft(paths, &record)?;
    Ok(record)
}

/// The steps before the guest was ready, of which the monitor told and the guest.
fn tell_steps(timings: &Timings, of_guest: Vec<GuestStep>, ready_us: u64) {
    let Timings { boot_request_us, first_instruction_us, guest_init_us, .. } = *timings;
    let steps = [
        ("monitor", "from the request to the first instruction", boot_request_us, first_instruction_us),
        ("guest", "from there to the link", first_instruction_us, guest_init_us),
        ("guest", "from the link to ready", guest_init_us, ready_us),
    ];
    // A step that was not told of has no time.
    for (by, name, from, to) in steps.into_iter().filter(|(_, _, from, to)| *from > 0 && to >= from) {
        trace::passed(by, name, from, to);
    }
    // Its clock is its own; both know the moment at which it was ready.
    let end_us = of_guest.last().map_or(0, |step| step.to_us);
    for GuestStep { name, from_us, to_us } in of_guest.into_iter().take(GUEST_STEPS) {
        let at = |us: u64| ready_us.saturating_sub(end_us.saturating_sub(us)).max(guest_init_us);
        trace::passed("guest", &sanitize_to(&name, 64), at(from_us), at(to_us.max(from_us)));
    }
}
