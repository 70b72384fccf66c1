//! A driver's side of the balloon, well behaved and not, on real mappings.

use std::fs::File;
use std::io::Write;

use proptest::collection::vec;
use proptest::prelude::*;
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestRegionMmap, MmapRegion};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::*;
use crate::devices::virtio::driver_line::DriverLine;
use crate::devices::virtio::{ActiveQueue, Memory, Next};

/// `VRING_DESC_F_NEXT` and `VRING_DESC_F_WRITE`.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const REPORTING: u64 = 1 << VIRTIO_BALLOON_F_REPORTING;

const PAGE: u64 = 4096;
const PAGE_BYTES: usize = 4096;
const MEMORY: usize = 4 << 20;
/// Pages that the tests use begin here, after what the queues point to.
const PAGES: u64 = 1 << 20;
/// The queues are in memory of their own, which no page number can name: 32 bits of them end here, at 16 TiB.
const QUEUES: u64 = 1 << 44;
/// Where lists of page numbers are.
const LIST: u64 = 0x8_0000;
const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const REPORT: usize = 2;

/// Address, length, flags; a chain goes on where `NEXT` is set.
type Buffer = (u64, u32, u16);

struct Driver {
    memory: Memory,
    line: DriverLine,
}

impl Driver {
    /// Its memory is not zeros anywhere.
    fn new() -> Self {
        let driver = Self::with(vec![anonymous(0, MEMORY)]);
        driver.memory.write_slice(&vec![0xaa; MEMORY], GuestAddress(0)).expect("in memory");
        driver
    }

    /// In order of their addresses.
    fn with(mut regions: Vec<GuestRegionMmap<()>>) -> Self {
        regions.push(anonymous(QUEUES, 0x3000));
        let memory = Memory::from_regions(regions).expect("memory");
        Self { memory, line: DriverLine::new() }
    }

    /// A queue as the driver set it up, before any chain was taken off it.
    fn queue(number: usize) -> Queue {
        let mut queue = Queue::new(64).expect("a valid size");
        queue.try_set_desc_table_address(base(number)).expect("aligned");
        queue.try_set_avail_ring_address(GuestAddress(base(number).0 + AVAILABLE)).expect("aligned");
        queue.try_set_used_ring_address(GuestAddress(base(number).0 + USED)).expect("aligned");
        queue.set_ready(true);
        queue
    }

    fn activation(&self, features: u64) -> Activation {
        self.activation_of([INFLATE, DEFLATE, REPORT].map(Self::queue), features)
    }

    fn activation_of(&self, queues: [Queue; 3], features: u64) -> Activation {
        let active = |queue| ActiveQueue { queue, notify: EventFd::new(EFD_NONBLOCK).expect("an event") };
        let queues = queues.into_iter().map(active).collect();
        Activation { memory: self.memory.clone(), queues, interrupt: self.line.interrupt(), features, restored: false }
    }

    fn start(&self) -> Balloon {
        let mut balloon = Balloon::new();
        balloon.activate(self.activation(REPORTING)).expect("the device starts");
        balloon
    }

    /// Makes chains available, their descriptors from number `first` of the table on. Notifies nobody.
    fn add(&self, queue: usize, first: u16, buffers: &[Buffer]) {
        let at = |offset| GuestAddress(base(queue).0 + offset);
        let mut available: u16 = self.memory.read_obj(at(AVAILABLE + 2)).expect("in memory");
        let mut begins = true;
        for (number, (address, length, flags)) in (first..).zip(buffers) {
            let descriptor = RawDescriptor::from(Descriptor::new(*address, *length, *flags, number + 1));
            self.memory.write_obj(descriptor, at(u64::from(number) * 16)).expect("in memory");
            if begins {
                let entry = AVAILABLE + 4 + u64::from(available) * 2;
                self.memory.write_obj(number, at(entry)).expect("in memory");
                available += 1;
            }
            begins = flags & NEXT == 0;
        }
        self.memory.write_obj(available, at(AVAILABLE + 2)).expect("in memory");
    }

    fn list(&self, numbers: &[u32]) -> Buffer {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.memory.write_slice(&bytes, GuestAddress(LIST)).expect("in memory");
        (LIST, u32::try_from(bytes.len()).expect("short"), 0)
    }

    fn used(&self, queue: usize) -> u16 {
        self.memory.read_obj(GuestAddress(base(queue).0 + USED + 2)).expect("in memory")
    }

    /// Waits for `count` answers in all and returns the lengths that they claim.
    fn answers(&self, queue: usize, count: u16) -> Vec<u32> {
        while self.used(queue) < count {
            self.line.wait();
        }
        let length = |at: u16| GuestAddress(base(queue).0 + USED + 8 + u64::from(at) * 8);
        (0..count).map(|at| self.memory.read_obj(length(at)).expect("in memory")).collect()
    }

    /// Which of the first pages from [`PAGES`] on hold nothing but `byte`.
    fn pages_of<const COUNT: usize>(&self, byte: u8) -> [bool; COUNT] {
        std::array::from_fn(|page| self.page(page as u64) == [byte; PAGE_BYTES])
    }

    fn page(&self, page: u64) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        self.memory.read_slice(&mut bytes, GuestAddress(PAGES + page * PAGE)).expect("in memory");
        bytes
    }
}

/// Where a queue has its rings, behind the 64 descriptors that it begins with.
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;

fn base(queue: usize) -> GuestAddress {
    GuestAddress(QUEUES + queue as u64 * 0x1000)
}

fn anonymous(address: u64, length: usize) -> GuestRegionMmap<()> {
    GuestRegionMmap::from_range(GuestAddress(address), length, None).expect("memory")
}

fn private(image: File) -> GuestRegionMmap<()> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
    let offset = vm_memory::FileOffset::new(image, 0);
    let mapping = MmapRegion::build(Some(offset), MEMORY, protection, flags).expect("a mapping");
    GuestRegionMmap::new(mapping, GuestAddress(0)).expect("a region")
}

fn number_of(page: u32) -> u32 {
    u32::try_from(PAGES / PAGE).expect("small") + page
}

#[test]
fn reported_pages_are_dropped_and_others_stay() {
    let driver = Driver::new();
    driver.add(
        REPORT,
        0,
        &[(PAGES, 4096, WRITE | NEXT), (PAGES + 2 * PAGE, 8192, WRITE), (PAGES + 5 * PAGE, 4096, WRITE)],
    );

    let _balloon = driver.start();

    assert_eq!(driver.answers(REPORT, 2), [0, 0]);
    assert_eq!(driver.pages_of(0), [true, false, true, true, false, true]);
    assert_eq!(driver.pages_of(0xaa), [false, true, false, false, true, false]);
}

#[test]
fn of_a_reported_range_only_whole_pages_are_dropped() {
    let driver = Driver::new();
    let ranges = [(PAGES + 100, 8192), (PAGES + 4 * PAGE, 4095), (PAGES + 6 * PAGE + 1, 4095), (PAGES + 8 * PAGE, 0)];
    let buffers = ranges.map(|(address, length)| (address, length, WRITE));
    driver.add(REPORT, 0, &buffers);

    let _balloon = driver.start();

    driver.answers(REPORT, 4);
    assert_eq!(driver.pages_of(0), [false, true, false, false, false, false, false, false, false]);
    assert_eq!(driver.pages_of(0xaa), [true, false, true, true, true, true, true, true, true]);
}

#[test]
fn what_is_not_guest_memory_is_not_touched() {
    let driver = Driver::new();
    let end = MEMORY as u64;
    let buffers = [
        (end - 2 * PAGE, 0x10_0000, WRITE),
        (end, 4096, WRITE),
        (0xffff_ffff_ffff_f000, 4096, WRITE),
        (u64::MAX, u32::MAX, WRITE),
        (0x1234_5678_9abc_d000, u32::MAX, WRITE),
        // Readable, so not a range that the device may have.
        (PAGES, 4096, 0),
    ];
    driver.add(REPORT, 0, &buffers);

    let _balloon = driver.start();

    driver.answers(REPORT, 6);
    let last: [u8; 3] =
        [3, 2, 1].map(|page| driver.memory.read_obj(GuestAddress(end - page * PAGE)).expect("in memory"));
    assert_eq!(last, [0xaa, 0, 0]);
    assert_eq!(driver.pages_of(0xaa), [true]);
}

#[test]
fn a_range_across_the_gap_is_dropped_on_both_sides() {
    let driver = Driver::with(vec![anonymous(0, MEMORY), anonymous(5 << 20, 1 << 20)]);
    let (below, above) = (GuestAddress(MEMORY as u64 - PAGE), GuestAddress(5 << 20));
    driver.memory.write_obj(1u8, below).expect("in memory");
    driver.memory.write_obj(1u8, above).expect("in memory");
    driver.add(REPORT, 0, &[(below.0, 2 << 20, WRITE)]);

    let _balloon = driver.start();

    driver.answers(REPORT, 1);
    let after = [below, above].map(|address| driver.memory.read_obj::<u8>(address).expect("in memory"));
    assert_eq!(after, [0, 0]);
}

#[test]
fn a_page_of_a_restored_machine_reads_as_in_its_image_again() {
    let mut image = tempfile::tempfile().expect("a file");
    image.write_all(&vec![0x11; MEMORY]).expect("room");
    let driver = Driver::with(vec![private(image)]);
    driver.memory.write_obj(0xaau8, GuestAddress(PAGES)).expect("in memory");
    driver.add(REPORT, 0, &[(PAGES, 4096, WRITE)]);

    let _balloon = driver.start();

    assert_eq!(driver.answers(REPORT, 1), [0]);
    assert_eq!(driver.pages_of(0x11), [true]);
}

#[test]
fn inflating_drops_the_listed_pages_in_any_order() {
    let driver = Driver::new();
    let list = driver.list(&[number_of(3), number_of(2), number_of(0), number_of(2), number_of(5)]);
    driver.add(INFLATE, 0, &[list]);

    let _balloon = driver.start();

    assert_eq!(driver.answers(INFLATE, 1), [0]);
    assert_eq!(driver.pages_of(0), [true, false, true, true, false, true, false]);
    assert_eq!(driver.pages_of(0xaa), [false, true, false, false, true, false, true]);
}

#[test]
fn a_list_may_be_cut_anywhere_and_name_pages_that_are_not_there() {
    let driver = Driver::new();
    let (at, ..) = driver.list(&[number_of(0), u32::MAX, number_of(2), 0xffff, number_of(4)]);
    // Twenty bytes in buffers of 3, 6 and 10, and a writable one that does not count: the last number is not complete.
    driver.add(INFLATE, 0, &[(at, 3, NEXT), (at + 3, 6, NEXT), (PAGES + PAGE, 4096, WRITE | NEXT), (at + 9, 10, 0)]);

    let _balloon = driver.start();

    driver.answers(INFLATE, 1);
    assert_eq!(driver.pages_of(0), [true, false, true, false, false]);
    assert_eq!(driver.pages_of(0xaa), [false, true, false, true, true]);
}

#[test]
fn deflating_changes_nothing() {
    let driver = Driver::new();
    let list = driver.list(&[number_of(0)]);
    driver.add(DEFLATE, 0, &[list]);

    let _balloon = driver.start();

    assert_eq!(driver.answers(DEFLATE, 1), [0]);
    assert_eq!(driver.pages_of(0xaa), [true]);
}

#[test]
fn of_one_chain_no_more_is_dropped_than_the_limit() {
    let driver = Driver::with(vec![anonymous(0, 258 << 20)]);
    let (within, beyond) = (GuestAddress((257 << 20) - PAGE), GuestAddress(257 << 20));
    driver.memory.write_obj(1u8, within).expect("in memory");
    driver.memory.write_obj(1u8, beyond).expect("in memory");
    driver.add(REPORT, 0, &[(1 << 20, 100 << 20, WRITE | NEXT), (101 << 20, 157 << 20, WRITE)]);

    let _balloon = driver.start();

    driver.answers(REPORT, 1);
    let bytes = [within, beyond].map(|address| driver.memory.read_obj::<u8>(address).expect("in memory"));
    assert_eq!(bytes, [0, 1]);
}

#[test]
fn of_one_list_no_more_numbers_are_read_than_the_limit() {
    let driver = Driver::new();
    let mut numbers = vec![number_of(0); 4096];
    numbers.push(number_of(1));
    let list = driver.list(&numbers);
    driver.add(INFLATE, 0, &[list]);

    let _balloon = driver.start();

    driver.answers(INFLATE, 1);
    assert_eq!(driver.pages_of(0), [true, false]);
}

#[test]
fn a_suspended_device_goes_on_where_it_stood() {
    let driver = Driver::new();
    driver.add(REPORT, 0, &[(PAGES, 4096, WRITE)]);
    let mut balloon = driver.start();
    driver.answers(REPORT, 1);

    let states = balloon.suspend();
    driver.add(REPORT, 1, &[(PAGES + PAGE, 4096, WRITE)]);

    let positions: Vec<_> = states.iter().map(|state| (state.next_avail, state.next_used)).collect();
    assert_eq!(positions, [(0, 0), (0, 0), (1, 1)]);
    assert_eq!(balloon.suspend(), states);
    assert_eq!((driver.used(REPORT), driver.pages_of(0)), (1, [true, false]));

    balloon.resume().expect("the thread starts again");
    driver.answers(REPORT, 2);
    assert_eq!(driver.pages_of(0), [true, true]);
}

#[test]
fn another_process_goes_on_from_a_suspended_device() {
    let driver = Driver::new();
    driver.add(REPORT, 0, &[(PAGES, 4096, WRITE)]);
    let mut first = driver.start();
    first.write_config(4, &7u32.to_le_bytes());
    driver.answers(REPORT, 1);
    let (states, config) = (first.suspend(), first.save_config());
    drop(first);
    driver.add(REPORT, 1, &[(PAGES + PAGE, 4096, WRITE)]);

    let queues = std::array::from_fn(|number| Queue::try_from(states[number]).expect("a valid queue"));
    let mut second = Balloon::new();
    second.restore_config(&config);
    let activation = Activation { restored: true, ..driver.activation_of(queues, REPORTING) };
    second.activate(activation).expect("the device starts");

    driver.answers(REPORT, 2);
    assert_eq!(driver.pages_of(0), [true, true]);
    assert_eq!(actual(&second), 7);
}

#[test]
fn a_driver_without_reporting_has_two_queues() {
    let driver = Driver::new();
    let mut queues = [INFLATE, DEFLATE, REPORT].map(Driver::queue);
    queues[REPORT].set_ready(false);
    let list = driver.list(&[number_of(0)]);
    driver.add(INFLATE, 0, &[list]);
    let mut balloon = Balloon::new();

    balloon.activate(driver.activation_of(queues, 0)).expect("the device starts");

    driver.answers(INFLATE, 1);
    assert_eq!(driver.pages_of(0), [true]);
    assert_eq!(balloon.suspend().len(), 3);
}

#[test]
fn of_configuration_space_only_what_the_driver_has_is_writable() {
    let mut balloon = Balloon::new();
    balloon.write_config(0, &[0xff; 6]);
    balloon.write_config(7, &[0x12, 0x34]);
    balloon.write_config(u64::MAX, &[1, 2]);

    let mut config = [0xee; 12];
    balloon.read_config(0, &mut config);

    assert_eq!(config, [0, 0, 0, 0, 0xff, 0xff, 0, 0x12, 0, 0, 0, 0]);
    balloon.restore_config(&[1, 2, 3]);
    assert_eq!(actual(&balloon), 0x1200_ffff);
    balloon.reset();
    assert_eq!(actual(&balloon), 0);
}

fn actual(balloon: &Balloon) -> u32 {
    let mut bytes = [0; 4];
    balloon.read_config(4, &mut bytes);
    u32::from_le_bytes(bytes)
}

#[test]
fn a_broken_queue_needs_a_reset_and_reset_ends_the_thread() {
    let driver = Driver::new();
    driver.memory.write_obj(1000u16, GuestAddress(base(REPORT).0 + AVAILABLE + 2)).expect("in memory");

    let mut balloon = driver.start();

    driver.line.wait_for_needs_reset();
    balloon.reset();
    assert_eq!(balloon.suspend(), []);
}

prop_compose! {
    /// A descriptor as a hostile driver might write it: indirect or not, within memory or not, to anywhere.
    fn descriptor()(
        address in prop_oneof![0..MEMORY as u64 + 8192, any::<u64>(), Just(LIST)],
        length in prop_oneof![0..0x2000u32, any::<u32>(), Just(256), Just(1024)],
        flags in 0..8u16,
        next in 0..70u16,
    ) -> RawDescriptor {
        Descriptor::new(address, length, flags, next).into()
    }
}

proptest! {
    #[test]
    fn garbage_is_answered_chain_by_chain_up_to_one_that_is_not_in_the_table(
        descriptors in vec(descriptor(), 64),
        heads in vec(prop_oneof![100 => 0..64u16, 1 => 64..=u16::MAX], 1..64),
        table in vec(descriptor(), 64),
    ) {
        let driver = Driver::new();
        let count = u16::try_from(heads.len()).expect("few");
        let write = |descriptors: &[RawDescriptor], to: GuestAddress| {
            for (number, descriptor) in (0..).zip(descriptors) {
                driver.memory.write_obj(*descriptor, GuestAddress(to.0 + number * 16)).expect("in memory");
            }
        };
        write(&table, GuestAddress(LIST));
        for queue in [INFLATE, DEFLATE, REPORT] {
            write(&descriptors, base(queue));
            let available = base(queue).0 + AVAILABLE;
            for (entry, head) in (0..).zip(&heads) {
                driver.memory.write_obj(*head, GuestAddress(available + 4 + entry * 2)).expect("in memory");
            }
            driver.memory.write_obj(count, GuestAddress(available + 2)).expect("in memory");
        }
        let mut service = Service::new(driver.activation(REPORTING)).expect("a service");

        let rounds = (0..1000).map(|_| service.answer()).take_while(|next| matches!(next, Ok(Next::Now))).count();

        let answerable = heads.iter().take_while(|head| **head < 64).count();
        prop_assert_eq!(rounds, answerable);
        prop_assert_eq!([INFLATE, DEFLATE, REPORT].map(|queue| usize::from(driver.used(queue))), [answerable; 3]);
    }
}
