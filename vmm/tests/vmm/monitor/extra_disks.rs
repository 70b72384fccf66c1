//! Disks that come and go while their guest runs.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::snapshot::Snapshot;
use super::support::{Agent, Guest, Monitor, TIMEOUT, file_with, kvm_is_usable};
use crate::payload::Payload;
use sandpiper_protocol::vmm::{
    DiskConfig, DiskLimits, EXTRA_DISKS, Fault, FaultCode, MachineState, Reply, Request, Then,
};

/// Of slot 0, whose block device the guest drives.
const WINDOW: u64 = 0xd000_0000 + 14 * 0x1000;
const SIZE: u64 = 16 * 4096;

/// Where the guest has its queue, and the one request that it makes again and again: the first sector.
const DESCRIPTORS: u32 = 0x30_0000;
const AVAILABLE: u32 = 0x30_1000;
const USED: u32 = 0x30_2000;
const HEADER: u32 = 0x30_3000;
const DATA: u32 = 0x30_4000;
const STATUS: u32 = 0x30_5000;

/// What a round of the guest prints: the device's size in sectors, its interrupt status, and the status and the first bytes of
/// what was read.
const ROUND: usize = 16;
const CONFIG_CHANGED: u32 = 2;

fn reading_guest() -> Guest {
    let descriptor = |payload: Payload, index: u32, address: u32, length: u32, flags: u32| {
        let at = u64::from(DESCRIPTORS + index * 16);
        let next = (index + 1) << 16;
        payload
            .store_word(at, address)
            .store_word(at + 8, length)
            .store_word(at + 12, if flags & 1 == 1 { flags | next } else { flags })
    };
    let request = Payload::new().map(0xd000_0000);
    let request = descriptor(request, 0, HEADER, 16, 1);
    let request = descriptor(request, 1, DATA, 512, 1 | 2);
    let request = descriptor(request, 2, STATUS, 1, 2);
    let driven = [
        (0x70, 1),
        (0x70, 3),
        (0x24, 1),
        (0x20, 1),
        (0x70, 0xb),
        (0x30, 0),
        (0x38, 16),
        (0x80, DESCRIPTORS),
        (0x90, AVAILABLE),
        (0xa0, USED),
        (0x44, 1),
        (0x70, 0xf),
    ]
    .into_iter()
    .fold(request, |payload, (register, value)| payload.store_word(WINDOW + register, value));
    let round = Payload::new()
        .print_word(WINDOW + 0x100)
        .print_word(WINDOW + 0x60)
        .increment(AVAILABLE + 2)
        .store_word(WINDOW + 0x50, 0)
        .wait_for_equal(AVAILABLE + 2, USED + 2)
        .print_word(STATUS.into())
        .print_word(DATA.into());
    Guest::new(&driven.again(round))
}

/// What one round saw.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Round {
    sectors: u32,
    interrupt: u32,
    status: u32,
    data: [u8; 4],
}

impl Round {
    fn has(self, content: [u8; 4]) -> bool {
        (u64::from(self.sectors), self.status, self.data) == (SIZE / 512, 0, content)
    }

    fn is_empty(self) -> bool {
        (self.sectors, self.status) == (0, 1)
    }
}

/// Waits for a whole round that was printed after this call and that `is_it`.
fn wait_for(console: &File, is_it: impl Fn(Round) -> bool) -> Round {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let length = usize::try_from(console.metadata().unwrap().len()).unwrap();
        let mut bytes = [0; ROUND];
        if let Some(start) = (length / ROUND).checked_sub(1) {
            console.read_exact_at(&mut bytes, (start * ROUND) as u64).unwrap();
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let data = bytes[12..].try_into().unwrap();
            let round = Round { sectors: word(0), interrupt: word(4), status: word(8), data };
            if is_it(round) {
                return round;
            }
        }
        assert!(Instant::now() < deadline, "no such round; the last of {length} bytes: {bytes:x?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn volume(content: [u8; 4]) -> File {
    file_with(&content.repeat(128))
}

fn attach_as(agent: &mut Agent, slot: u8, disk: DiskConfig, layers: &[&File]) -> Result<Reply, Fault> {
    let fds: Vec<BorrowedFd<'_>> = layers.iter().map(AsFd::as_fd).collect();
    agent.request(Request::AttachDisk { slot, disk, limits: DiskLimits::default() }, &fds)
}

fn config() -> DiskConfig {
    DiskConfig { serial: "volume".into(), size: SIZE, layers: 1, read_only: false }
}

fn attach(agent: &mut Agent, slot: u8, layer: &File) {
    let reply = attach_as(agent, slot, config(), &[layer]);
    assert!(matches!(reply, Ok(Reply::DiskAttached)), "{reply:?}");
}

fn detach(agent: &mut Agent, slot: u8) {
    let reply = agent.request(Request::DetachDisk { slot }, &[]);
    assert!(matches!(reply, Ok(Reply::DiskDetached)), "{reply:?}");
}

#[test]
fn a_running_guest_sees_disks_come_and_go_and_each_request_is_answered() {
    if !kvm_is_usable() {
        return;
    }
    let guest = reading_guest();
    let console = guest.console.as_ref().unwrap();
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    wait_for(console, Round::is_empty);

    for content in [*b"abcd", *b"efgh", *b"ijkl"] {
        attach(&mut monitor.agent, 0, &volume(content));
        let seen = wait_for(console, |round| round.has(content));
        assert_eq!(seen.interrupt & CONFIG_CHANGED, CONFIG_CHANGED, "{seen:?}");
        detach(&mut monitor.agent, 0);
        wait_for(console, Round::is_empty);
    }

    assert!(matches!(monitor.agent.request(Request::Stop, &[]), Ok(Reply::Stopping)));
    monitor.end();
    let rounds = guest.output();
    assert!(rounds.chunks_exact(ROUND).all(|round| matches!(round[8..12], [0 | 1, 0, 0, 0])), "another status");
}

#[test]
fn many_disks_come_and_go_and_leave_nothing_behind() {
    if !kvm_is_usable() {
        return;
    }
    let guest = reading_guest();
    let console = guest.console.as_ref().unwrap();
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    wait_for(console, Round::is_empty);
    let layer = volume(*b"same");
    let before = monitor.descriptors();
    assert_eq!(monitor.threads("block"), 1, "of slot 0 alone, because it is asked for something");

    // Not so many that the guest prints more meanwhile than a console keeps.
    for slot in (0..EXTRA_DISKS).cycle().take(200) {
        attach(&mut monitor.agent, slot, &layer);
        detach(&mut monitor.agent, slot);
    }

    // Something of the start may not have been closed yet when they were counted.
    let (more, threads) = (|| monitor.descriptors().saturating_sub(before), || monitor.threads("block"));
    let deadline = Instant::now() + TIMEOUT;
    while (more(), threads()) != (0, 1) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((more(), threads()), (0, 1), "descriptors that were not there before, and threads of disks");
    attach(&mut monitor.agent, 0, &layer);
    wait_for(console, |round| round.has(*b"same"));
}

#[test]
fn a_snapshot_has_no_disks_in_its_slots_and_a_machine_takes_them_before_and_after_it() {
    if !kvm_is_usable() {
        return;
    }
    let guest = reading_guest();
    let console = guest.console.as_ref().unwrap();
    let mut monitor = Monitor::start();
    monitor.agent.boot(&guest).unwrap();
    attach(&mut monitor.agent, 0, &volume(*b"abcd"));
    attach(&mut monitor.agent, 3, &volume(*b"none"));
    wait_for(console, |round| round.has(*b"abcd"));

    let fault = Snapshot::take(&mut monitor.agent, &[], Then::Pause).map(drop).unwrap_err();
    assert_eq!(fault.code, FaultCode::InvalidState);
    assert!(fault.message.contains("disks in its slots ([0, 3])"), "{fault}");
    let status = monitor.agent.request(Request::Status, &[]);
    assert!(matches!(status, Ok(Reply::Status { state: MachineState::Running, .. })), "{status:?}");
    for slot in 0..EXTRA_DISKS {
        detach(&mut monitor.agent, slot);
    }
    let (snapshot, _) = Snapshot::take(&mut monitor.agent, &[], Then::Pause).unwrap();

    // While it stands still, too.
    for content in [*b"efgh", *b"ijkl"] {
        attach(&mut monitor.agent, 0, &volume(content));
        detach(&mut monitor.agent, 0);
    }
    attach(&mut monitor.agent, 0, &volume(*b"mnop"));
    monitor.agent.request(Request::Resume, &[]).unwrap();
    wait_for(console, |round| round.has(*b"mnop"));

    for content in [*b"qrst", *b"uvwx"] {
        let console = tempfile::tempfile().unwrap();
        let mut monitor = Monitor::start();
        snapshot.restore(&mut monitor.agent, &console).unwrap();
        attach(&mut monitor.agent, 0, &volume(content));
        wait_for_words(&console, content);
        detach(&mut monitor.agent, 0);
    }
}

/// As [`wait_for`], of a guest whose output began in the middle of a round.
fn wait_for_words(console: &File, content: [u8; 4]) {
    let deadline = Instant::now() + TIMEOUT;
    let read = [&[0; 4][..], &content].concat();
    loop {
        let mut bytes = vec![0; usize::try_from(console.metadata().unwrap().len()).unwrap()];
        console.read_exact_at(&mut bytes, 0).unwrap();
        if bytes.windows(read.len()).any(|words| words == read) {
            return;
        }
        assert!(Instant::now() < deadline, "it does not read {content:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_disk_that_cannot_be_attached_is_refused_and_not_kept() {
    if !kvm_is_usable() {
        return;
    }
    let guest = reading_guest();
    let mut monitor = Monitor::start();
    let layer = volume(*b"abcd");
    let fault = attach_as(&mut monitor.agent, 0, config(), &[&layer]).unwrap_err();
    assert_eq!(fault.code, FaultCode::InvalidState, "there is no machine: {fault}");
    monitor.agent.boot(&guest).unwrap();
    wait_for(guest.console.as_ref().unwrap(), Round::is_empty);
    attach(&mut monitor.agent, 1, &layer);
    let before = monitor.descriptors();

    let refused: [(u8, DiskConfig, &[&File], FaultCode); 7] = [
        (EXTRA_DISKS, config(), &[&layer], FaultCode::BadConfig),
        (u8::MAX, config(), &[&layer], FaultCode::BadConfig),
        (1, config(), &[&layer], FaultCode::InvalidState),
        (0, DiskConfig { serial: "more than twenty letters".into(), ..config() }, &[&layer], FaultCode::BadConfig),
        (0, DiskConfig { size: 4095, ..config() }, &[&layer], FaultCode::BadConfig),
        (0, DiskConfig { layers: 2, ..config() }, &[&layer], FaultCode::Malformed),
        (0, config(), &[&layer, &layer], FaultCode::Malformed),
    ];
    for (slot, disk, layers, code) in refused {
        let fault = attach_as(&mut monitor.agent, slot, disk, layers).unwrap_err();
        assert_eq!(fault.code, code, "{fault}");
    }
    let fault = monitor.agent.request(Request::DetachDisk { slot: EXTRA_DISKS }, &[]).unwrap_err();
    assert_eq!(fault.code, FaultCode::BadConfig, "{fault}");

    assert_eq!(monitor.descriptors(), before);
    attach(&mut monitor.agent, 0, &layer);
    wait_for(guest.console.as_ref().unwrap(), |round| round.has(*b"abcd"));
}
