//! The device as a driver sees it: rings and requests in guest memory on one side, a disk of real files on the other.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH,
    VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
};
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::MockSplitQueue;
use vm_memory::{Bytes, GuestAddress};

use sandpiper_protocol::vmm::{DiskFailure, DiskLimits};

use super::*;
use crate::devices::virtio::{ActiveQueue, Interrupt, Memory, Ring};
use crate::disk::tests::full::small_file_system;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

mod attach;

/// Flags of a descriptor (virtio 1.2, section 2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Where tests put things in the 2 MiB of guest memory, which is two regions that meet in the middle.
const HEADER: u64 = 0x1_0000;
const STATUS: u64 = 0x1_1000;
const TABLE: u64 = 0x1_2000;
const DATA: u64 = 0x2_0000;
const BORDER: u64 = 0x10_0000;
const END: u64 = 0x20_0000;

const DISK_SIZE: u64 = 64 * BLOCK_SIZE;
const UNTOUCHED: u8 = 0xaa;

fn memory() -> Memory {
    let half = usize::try_from(BORDER).unwrap();
    Memory::from_ranges(&[(GuestAddress(0), half), (GuestAddress(BORDER), half)]).unwrap()
}

/// A disk whose first block is full of ones, below an empty layer.
fn disk() -> Disk {
    let base = tempfile::tempfile().unwrap();
    base.write_all_at(&[1; 4096], 0).unwrap();
    Disk::open(vec![base, tempfile::tempfile().unwrap()], DISK_SIZE, false).unwrap()
}

fn health() -> Health {
    Health::new().unwrap()
}

fn unlimited(disk: Disk) -> Backend {
    Backend::new(disk, "serial", DiskLimits::default())
}

fn requests() -> BlockQueue {
    BlockQueue::new(Some(unlimited(disk())), false, (0, health()))
}

/// A descriptor; `next` is the index of the one after it, if there is one.
fn descriptor(address: u64, length: u32, flags: u16, next: Option<u16>) -> RawDescriptor {
    let flags = if next.is_some() { flags | NEXT } else { flags };
    RawDescriptor::from(Descriptor::new(address, length, flags, next.unwrap_or(0)))
}

/// One chain of descriptors, each `(address, length, flags)`, linked in this order from index 0.
fn chain(parts: &[(u64, u32, u16)]) -> Vec<RawDescriptor> {
    let linked = |(index, &(address, length, flags)): (usize, &(u64, u32, u16))| {
        let next = u16::try_from(index + 1).unwrap();
        descriptor(address, length, flags, (usize::from(next) < parts.len()).then_some(next))
    };
    parts.iter().enumerate().map(linked).collect()
}

fn put_header(memory: &Memory, kind: u32, sector: u64) {
    memory.write_obj(kind, GuestAddress(HEADER)).unwrap();
    memory.write_obj(0u32, GuestAddress(HEADER + 4)).unwrap();
    memory.write_obj(sector, GuestAddress(HEADER + 8)).unwrap();
    memory.write_obj(UNTOUCHED, GuestAddress(STATUS)).unwrap();
}

fn status(memory: &Memory) -> u32 {
    u32::from(memory.read_obj::<u8>(GuestAddress(STATUS)).unwrap())
}

fn ring(driver: &MockSplitQueue<'_, Memory>) -> Ring {
    let (queue, notify) = (driver.create_queue().unwrap(), EventFd::new(EFD_NONBLOCK).unwrap());
    Ring::new(ActiveQueue { queue, notify }, 0)
}

/// Lets `requests` process the chain `descriptors`; returns the used length.
fn process(requests: &mut BlockQueue, memory: &Memory, descriptors: &[RawDescriptor]) -> Result<u32, QueueError> {
    let driver = MockSplitQueue::new(memory, 16);
    driver.add_desc_chains(descriptors, 0).unwrap();
    requests.process(memory, &mut ring(&driver))?;
    assert_eq!(driver.used().idx().load(), 1, "the request was not completed");
    let used = driver.used().ring().ref_at(0).unwrap().load();
    Ok(used.len())
}

/// A request in the usual three descriptors; returns its status.
fn request(requests: &mut BlockQueue, memory: &Memory, kind: u32, sector: u64, data: (u64, u32, u16)) -> u32 {
    put_header(memory, kind, sector);
    process(requests, memory, &chain(&[(HEADER, 16, 0), data, (STATUS, 1, WRITE)])).unwrap();
    status(memory)
}

fn fill(memory: &Memory, address: u64, length: usize, byte: u8) {
    memory.write_slice(&vec![byte; length], GuestAddress(address)).unwrap();
}

fn contents(memory: &Memory, address: u64, length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    memory.read_slice(&mut data, GuestAddress(address)).unwrap();
    data
}

#[test]
fn what_is_written_is_read_back_over_the_border_of_two_memory_regions() {
    let (memory, mut requests) = (memory(), requests());
    let address = BORDER - 1000;
    fill(&memory, address, 2048, 7);

    assert_eq!(request(&mut requests, &memory, VIRTIO_BLK_T_OUT, 3, (address, 2048, 0)), VIRTIO_BLK_S_OK);
    assert_eq!(request(&mut requests, &memory, VIRTIO_BLK_T_IN, 0, (DATA, 8192, WRITE)), VIRTIO_BLK_S_OK);

    let read = contents(&memory, DATA, 8192);
    assert_eq!(read[..1536], [1; 1536]);
    assert_eq!(read[1536..3584], [7; 2048]);
    assert_eq!(read[3584..4096], [1; 512]);
    assert_eq!(read[4096..], [0; 4096]);
}

#[test]
fn the_driver_may_cut_a_request_as_it_likes() {
    let (memory, mut requests) = (memory(), requests());
    put_header(&memory, VIRTIO_BLK_T_IN, 0);

    // The header in three pieces, one of them empty; the status as the last byte of the data.
    let parts = [(HEADER, 5, 0), (HEADER + 5, 0, 0), (HEADER + 5, 11, 0), (DATA, 100, WRITE), (DATA + 100, 413, WRITE)];
    let used = process(&mut requests, &memory, &chain(&parts)).unwrap();

    assert_eq!(used, 513);
    assert_eq!(contents(&memory, DATA, 513), [vec![1; 512], vec![0]].concat());
}

#[test]
fn an_indirect_table_is_followed() {
    let (memory, mut requests) = (memory(), requests());
    put_header(&memory, VIRTIO_BLK_T_IN, 0);
    for (at, descriptor) in (TABLE..).step_by(16).zip(chain(&[(HEADER, 16, 0), (DATA, 512, WRITE), (STATUS, 1, WRITE)]))
    {
        memory.write_obj(descriptor, GuestAddress(at)).unwrap();
    }

    let used = process(&mut requests, &memory, &[descriptor(TABLE, 48, INDIRECT, None)]).unwrap();

    assert_eq!((used, status(&memory)), (513, VIRTIO_BLK_S_OK));
    assert_eq!(contents(&memory, DATA, 512), vec![1; 512]);
}

#[test]
fn flush_and_serial_number_work() {
    let (memory, mut requests) = (memory(), requests());
    put_header(&memory, VIRTIO_BLK_T_FLUSH, 0);
    assert_eq!(process(&mut requests, &memory, &chain(&[(HEADER, 16, 0), (STATUS, 1, WRITE)])).unwrap(), 1);
    assert_eq!(status(&memory), VIRTIO_BLK_S_OK);

    assert_eq!(request(&mut requests, &memory, VIRTIO_BLK_T_GET_ID, 0, (DATA, 20, WRITE)), VIRTIO_BLK_S_OK);
    assert_eq!(contents(&memory, DATA, 20), [&b"serial"[..], &[0; 14]].concat());
}

#[test]
fn zeroing_hides_the_base_and_discard_never_shows_it() {
    let (memory, mut requests) = (memory(), requests());
    let range = |sector: u64, sectors: u32, flags: u32| {
        memory.write_obj(sector, GuestAddress(DATA)).unwrap();
        memory.write_obj(sectors, GuestAddress(DATA + 8)).unwrap();
        memory.write_obj(flags, GuestAddress(DATA + 12)).unwrap();
        (DATA, 16, 0)
    };

    let zeroes = request(&mut requests, &memory, VIRTIO_BLK_T_WRITE_ZEROES, 0, range(0, 8, 1));
    let discard = request(&mut requests, &memory, VIRTIO_BLK_T_DISCARD, 0, range(0, 8, 0));
    let unmap_discard = request(&mut requests, &memory, VIRTIO_BLK_T_DISCARD, 0, range(0, 8, 1));
    let unknown_flag = request(&mut requests, &memory, VIRTIO_BLK_T_WRITE_ZEROES, 0, range(0, 8, 2));
    let too_long = request(&mut requests, &memory, VIRTIO_BLK_T_DISCARD, 0, range(0, MAX_DISCARD_SECTORS + 1, 0));
    let over_the_end = request(&mut requests, &memory, VIRTIO_BLK_T_WRITE_ZEROES, 0, range(u64::MAX / 512, 8, 0));

    assert_eq!((zeroes, discard), (VIRTIO_BLK_S_OK, VIRTIO_BLK_S_OK));
    assert_eq!((unmap_discard, unknown_flag), (VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_S_UNSUPP));
    assert_eq!((too_long, over_the_end), (VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_IOERR));
    request(&mut requests, &memory, VIRTIO_BLK_T_IN, 0, (DATA, 4096, WRITE));
    assert_eq!(contents(&memory, DATA, 4096), vec![0; 4096]);
}

#[test]
fn requests_against_the_rules_get_an_error_status_and_no_data() {
    let (memory, mut requests) = (memory(), requests());
    fill(&memory, DATA, 512, UNTOUCHED);
    let cases = [
        ("beyond the disk", VIRTIO_BLK_T_IN, DISK_SIZE / 512, (DATA, 512, WRITE)),
        ("sector overflows", VIRTIO_BLK_T_IN, u64::MAX, (DATA, 512, WRITE)),
        ("not whole sectors", VIRTIO_BLK_T_IN, 0, (DATA, 511, WRITE)),
        ("read into readable memory", VIRTIO_BLK_T_IN, 0, (DATA, 512, 0)),
        ("write from writable memory", VIRTIO_BLK_T_OUT, 0, (DATA, 512, WRITE)),
        ("outside guest memory", VIRTIO_BLK_T_IN, 0, (END, 512, WRITE)),
        ("crosses the end of guest memory", VIRTIO_BLK_T_OUT, 0, (END - 100, 512, 0)),
        ("address overflows", VIRTIO_BLK_T_IN, 0, (u64::MAX, 512, WRITE)),
        ("flush with data", VIRTIO_BLK_T_FLUSH, 0, (DATA, 512, WRITE)),
    ];
    for (what, kind, sector, data) in cases {
        assert_eq!(request(&mut requests, &memory, kind, sector, data), VIRTIO_BLK_S_IOERR, "{what}");
    }
    assert_eq!(request(&mut requests, &memory, 77, 0, (DATA, 512, WRITE)), VIRTIO_BLK_S_UNSUPP);
    assert_eq!(contents(&memory, DATA, 512), vec![UNTOUCHED; 512]);
}

#[test]
fn a_short_header_and_readable_after_writable_are_refused() {
    let (memory, mut requests) = (memory(), requests());
    put_header(&memory, VIRTIO_BLK_T_IN, 0);
    process(&mut requests, &memory, &chain(&[(HEADER, 15, 0), (STATUS, 1, WRITE)])).unwrap();
    assert_eq!(status(&memory), VIRTIO_BLK_S_IOERR);

    put_header(&memory, VIRTIO_BLK_T_IN, 0);
    process(&mut requests, &memory, &chain(&[(DATA, 512, WRITE), (HEADER, 16, 0), (STATUS, 1, WRITE)])).unwrap();
    assert_eq!(status(&memory), VIRTIO_BLK_S_IOERR);
}

#[test]
fn more_data_than_a_request_may_have_is_refused() {
    let (memory, mut requests) = (memory(), requests());
    put_header(&memory, VIRTIO_BLK_T_OUT, 0);
    let count = SEG_MAX + 1;
    let mut parts = vec![(HEADER, 16, 0)];
    parts.extend((0..count).map(|_| (DATA, 512, 0)));
    parts.push((STATUS, 1, WRITE));
    for (at, descriptor) in (TABLE..).step_by(16).zip(chain(&parts)) {
        memory.write_obj(descriptor, GuestAddress(at)).unwrap();
    }

    process(&mut requests, &memory, &[descriptor(TABLE, (count + 2) * 16, INDIRECT, None)]).unwrap();

    assert_eq!(status(&memory), VIRTIO_BLK_S_IOERR);
}

#[test]
fn chains_without_a_status_byte_stop_the_queue() {
    let (memory, mut requests) = (memory(), requests());
    put_header(&memory, VIRTIO_BLK_T_IN, 0);
    let looped = [descriptor(HEADER, 16, 0, Some(1)), descriptor(DATA, 512, WRITE, Some(1))];
    let out_of_table = [descriptor(HEADER, 16, 0, Some(1)), descriptor(STATUS, 1, WRITE, Some(99))];
    let cases = [
        ("nothing writable", chain(&[(HEADER, 16, 0)])),
        ("only empty descriptors", chain(&[(HEADER, 16, 0), (STATUS, 0, WRITE)])),
        ("status outside guest memory", chain(&[(HEADER, 16, 0), (END, 1, WRITE)])),
        ("a loop", looped.to_vec()),
        ("an index outside the table", out_of_table.to_vec()),
        ("an indirect table outside guest memory", vec![descriptor(END, 48, INDIRECT, None)]),
        ("an indirect table of an odd size", vec![descriptor(TABLE, 47, INDIRECT, None)]),
    ];
    for (what, descriptors) in cases {
        let result = process(&mut requests, &memory, &descriptors);
        assert!(matches!(result, Err(QueueError::NoStatus)), "{what}: {result:?}");
    }
}

#[test]
fn an_available_index_from_nowhere_stops_the_queue() {
    let (memory, mut requests) = (memory(), requests());
    let driver = MockSplitQueue::new(&memory, 16);
    driver.avail().idx().store(17);

    assert!(matches!(requests.process(&memory, &mut ring(&driver)), Err(QueueError::Ring(_))));
}

#[test]
fn a_disk_that_is_read_only_says_so_and_refuses_writes() {
    let base = tempfile::tempfile().unwrap();
    base.write_all_at(&[1; 4096], 0).unwrap();
    let disk = Disk::open(vec![base], 4096, true).unwrap();
    let block = Block::new(disk, DiskLimits::default(), "", 0, health());
    assert_ne!(block.features() & (1 << VIRTIO_BLK_F_RO), 0);
    assert_eq!(block.features() & (1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES), 0);

    let base = tempfile::tempfile().unwrap();
    let backend = unlimited(Disk::open(vec![base], 4096, true).unwrap());
    let mut requests = BlockQueue::new(Some(backend), false, (0, health()));
    let memory = memory();
    assert_eq!(request(&mut requests, &memory, VIRTIO_BLK_T_OUT, 0, (DATA, 512, 0)), VIRTIO_BLK_S_IOERR);
    assert_eq!(request(&mut requests, &memory, VIRTIO_BLK_T_IN, 0, (DATA, 512, WRITE)), VIRTIO_BLK_S_OK);
}

#[test]
fn a_host_error_is_an_error_status_and_the_next_request_works() {
    // A sealed memory file refuses writes as a host without space does, and needs no privileges.
    let top = File::from(memfd_create(c"top", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    let base = tempfile::tempfile().unwrap();
    base.write_all_at(&[1; 4096], 0).unwrap();
    let disk = Disk::open(vec![base, top.try_clone().unwrap()], 8192, false).unwrap();
    fcntl(&top, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).unwrap();
    let health = health();
    let (memory, mut requests) = (memory(), BlockQueue::new(Some(unlimited(disk)), false, (3, health.clone())));

    for data in [(DATA, 512, 0), (DATA, 4096, 0)] {
        assert_eq!(request(&mut requests, &memory, VIRTIO_BLK_T_OUT, 8, data), VIRTIO_BLK_S_IOERR);
    }
    let failure = DiskFailure { disk: 3, layer: 1, operation: "write".into(), offset: Some(4096), errno: libc::EPERM };
    assert_eq!(health.take_failure(), Some((failure, 2)));
    assert!(health.waiting().is_none());
    assert_eq!(request(&mut requests, &memory, VIRTIO_BLK_T_IN, 0, (DATA, 512, WRITE)), VIRTIO_BLK_S_OK);
    assert_eq!(contents(&memory, DATA, 512), vec![1; 512]);
}

#[test]
fn configuration_space_ends_in_zeros_and_shows_the_capacity() {
    let block = Block::new(disk(), DiskLimits::default(), "serial", 0, health());
    let mut config = [0xff; 80];
    block.read_config(0, &mut config);
    assert_eq!(config[..8], (DISK_SIZE / 512).to_le_bytes());
    assert_eq!(config[60..], [0; 20]);
    let mut byte = [0xff];
    block.read_config(u64::MAX, &mut byte);
    assert_eq!(byte, [0]);
}

#[test]
fn a_running_device_completes_requests_stops_and_starts_again() {
    let memory = memory();
    let mut block = Block::new(disk(), DiskLimits::default(), "serial", 0, health());
    for _ in 0..2 {
        let driver = MockSplitQueue::new(&memory, 16);
        let (notify, interrupt) = activate(&mut block, &memory, &driver);

        put_header(&memory, VIRTIO_BLK_T_IN, 0);
        driver.add_desc_chains(&chain(&[(HEADER, 16, 0), (DATA, 512, WRITE), (STATUS, 1, WRITE)]), 0).unwrap();
        notify.write(1).unwrap();
        wait_until(|| interrupt.status() != 0);
        assert_eq!((driver.used().idx().load(), status(&memory)), (1, VIRTIO_BLK_S_OK));

        // A chain without a status, after which nothing more is touched.
        driver.add_desc_chains(&chain(&[(HEADER, 16, 0)]), 3).unwrap();
        notify.write(1).unwrap();
        wait_until(|| interrupt.is_reset_needed());
        block.reset();
    }
}

/// Sets the device going with the driver's queue.
fn activate(block: &mut Block, memory: &Memory, driver: &MockSplitQueue<'_, Memory>) -> (EventFd, Interrupt) {
    let notify = EventFd::new(EFD_NONBLOCK).unwrap();
    let interrupt = Interrupt::new(EventFd::new(EFD_NONBLOCK).unwrap());
    let queues = vec![ActiveQueue { queue: driver.create_queue().unwrap(), notify: notify.try_clone().unwrap() }];
    let (memory, features) = (memory.clone(), block.features());
    let activation = Activation { memory, queues, interrupt: interrupt.clone(), features, restored: false };
    block.activate(activation).unwrap();
    (notify, interrupt)
}

#[test]
fn a_write_without_room_on_the_host_waits_is_not_lost_by_a_suspension_and_is_done_when_there_is_room() {
    let Some((folder, _mounted)) = small_file_system(256) else { return };
    let filler = folder.path().join("filler");
    std::fs::write(&filler, [0; 200 * 1024]).unwrap();
    let top = File::create_new(folder.path().join("top")).unwrap();
    let open = || File::options().read(true).write(true).open(folder.path().join("top")).unwrap();
    drop(top);
    let (memory, health) = (memory(), health());
    let mut block = Block::new(
        Disk::open(vec![open()], DISK_SIZE, false).unwrap(),
        DiskLimits::default(),
        "serial",
        0,
        health.clone(),
    );
    let driver = MockSplitQueue::new(&memory, 16);
    fill(&memory, DATA, 128 * 1024, 7);
    put_header(&memory, VIRTIO_BLK_T_OUT, 8);
    driver.add_desc_chains(&chain(&[(HEADER, 16, 0), (DATA, 128 * 1024, 0), (STATUS, 1, WRITE)]), 0).unwrap();

    let (_notify, interrupt) = activate(&mut block, &memory, &driver);
    wait_until(|| health.waiting().is_some());
    assert_eq!(health.waiting().unwrap().errno, libc::ENOSPC);
    let suspended = block.suspend();
    assert_eq!(suspended[0].next_avail, 0, "the request is still to be done");
    assert!(health.waiting().is_none(), "a device that stands still waits for nothing");
    block.resume().unwrap();
    wait_until(|| health.waiting().is_some());
    assert_eq!((driver.used().idx().load(), status(&memory)), (0, u32::from(UNTOUCHED)));

    std::fs::remove_file(&filler).unwrap();
    wait_until(|| interrupt.status() != 0);
    assert_eq!((driver.used().idx().load(), status(&memory)), (1, VIRTIO_BLK_S_OK));
    wait_until(|| health.waiting().is_none());
    block.reset();
    let mut written = vec![0; 128 * 1024];
    open().read_exact_at(&mut written, 4096).unwrap();
    assert!(written.iter().all(|byte| *byte == 7));
}

#[test]
fn a_device_that_waits_for_room_is_reset_at_once() {
    let Some((folder, _mounted)) = small_file_system(64) else { return };
    let top = File::options().read(true).write(true).create_new(true).open(folder.path().join("top")).unwrap();
    let (memory, health) = (memory(), health());
    let mut block = Block::new(
        Disk::open(vec![top], DISK_SIZE, false).unwrap(),
        DiskLimits::default(),
        "serial",
        0,
        health.clone(),
    );
    let driver = MockSplitQueue::new(&memory, 16);
    put_header(&memory, VIRTIO_BLK_T_OUT, 0);
    driver.add_desc_chains(&chain(&[(HEADER, 16, 0), (DATA, 128 * 1024, 0), (STATUS, 1, WRITE)]), 0).unwrap();

    activate(&mut block, &memory, &driver);
    wait_until(|| health.waiting().is_some());
    block.reset();

    assert!(health.waiting().is_none());
    assert_eq!(driver.used().idx().load(), 0);
}

#[test]
fn a_request_over_a_limit_waits_and_keeps_neither_a_suspension_nor_a_reset_waiting() {
    // Of one a second, one passes at once and one is owed.
    let limits = DiskLimits { flushes_per_second: Some(1), ..DiskLimits::default() };
    let memory = memory();
    let mut block = Block::new(disk(), limits, "serial", 0, health());
    let driver = MockSplitQueue::new(&memory, 16);
    put_header(&memory, VIRTIO_BLK_T_FLUSH, 0);
    for first in [0, 2, 4] {
        driver.add_desc_chains(&chain(&[(HEADER, 16, 0), (STATUS, 1, WRITE)]), first).unwrap();
    }

    let began = Instant::now();
    activate(&mut block, &memory, &driver);
    wait_until(|| driver.used().idx().load() == 2);
    assert_eq!(block.suspend()[0].next_avail, 2);
    assert!(began.elapsed() < Duration::from_millis(500), "it had to wait");
    block.resume().unwrap();
    wait_until(|| driver.used().idx().load() == 3);
    assert!(began.elapsed() > Duration::from_millis(900), "it did not wait");

    // What a device owes, it owes after a reset, when it finds the same requests again.
    let began = Instant::now();
    block.reset();
    activate(&mut block, &memory, &driver);
    wait_until(|| driver.used().idx().load() == 1);
    assert!(began.elapsed() > Duration::from_millis(500), "it did not wait after the reset");
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain");
        std::thread::yield_now();
    }
}
