//! A device that gets a disk and loses it again, while its driver goes on.

use std::thread;

use super::*;
use crate::devices::virtio::driver_queue::{DriverQueue, QUEUE_SIZE};

const CAPACITY: std::ops::Range<usize> = 0..8;

fn sectors(block: &Block) -> u64 {
    let mut config = [0xff; 60];
    block.read_config(0, &mut config);
    u64::from_le_bytes(config[CAPACITY].try_into().unwrap())
}

/// A disk whose only layer is `top`.
fn backend(top: &File, limits: DiskLimits) -> Backend {
    Backend::new(Disk::open(vec![top.try_clone().unwrap()], DISK_SIZE, false).unwrap(), "volume", limits)
}

/// An active device without a disk, and what it takes to drive it.
struct Driven<'m> {
    block: Block,
    driver: MockSplitQueue<'m, Memory>,
    memory: &'m Memory,
    notify: EventFd,
    interrupt: Interrupt,
    next: u16,
}

impl<'m> Driven<'m> {
    fn new(memory: &'m Memory, health: Health) -> Self {
        let mut block = Block::empty(1, health);
        let driver = MockSplitQueue::new(memory, 16);
        let (notify, interrupt) = activate(&mut block, memory, &driver);
        Self { block, driver, memory, notify, interrupt, next: 0 }
    }

    /// Makes a request available.
    fn post(&mut self, kind: u32, sector: u64, data: (u64, u32, u16)) {
        put_header(self.memory, kind, sector);
        let first = self.next;
        self.next = (first + 3) % 15;
        let parts = [(HEADER, 16, 0), data, (STATUS, 1, WRITE)];
        let mut descriptors = chain(&parts);
        for (index, descriptor) in descriptors.iter_mut().enumerate() {
            let (address, length, flags) = parts[index];
            let after = first + u16::try_from(index).unwrap() + 1;
            *descriptor = super::descriptor(address, length, flags, (index < 2).then_some(after));
        }
        self.driver.add_desc_chains(&descriptors, first).unwrap();
    }

    /// As a write to the register does while nothing else connects it with the event.
    fn notify(&mut self) {
        self.notify.write(1).unwrap();
        self.block.notified().unwrap();
    }

    /// Makes a request and waits for its status.
    fn request(&mut self, kind: u32, sector: u64, data: (u64, u32, u16)) -> u32 {
        let before = self.driver.used().idx().load();
        self.post(kind, sector, data);
        self.notify();
        let driver = &self.driver;
        wait_until(|| driver.used().idx().load() != before);
        status(self.memory)
    }
}

#[test]
fn without_a_disk_every_request_fails_and_the_size_is_zero() {
    let memory = memory();
    let mut driven = Driven::new(&memory, health());
    assert_eq!(sectors(&driven.block), 0);

    fill(&memory, DATA, 512, UNTOUCHED);
    for (kind, data) in [
        (VIRTIO_BLK_T_IN, (DATA, 512, WRITE)),
        (VIRTIO_BLK_T_OUT, (DATA, 512, 0)),
        (VIRTIO_BLK_T_FLUSH, (DATA, 0, WRITE)),
        (VIRTIO_BLK_T_GET_ID, (DATA, 20, WRITE)),
        (77, (DATA, 512, WRITE)),
    ] {
        assert_eq!(driven.request(kind, 0, data), VIRTIO_BLK_S_IOERR, "{kind}");
    }
    assert_eq!(contents(&memory, DATA, 512), vec![UNTOUCHED; 512]);
    assert!(!driven.interrupt.is_reset_needed());
}

#[test]
fn a_disk_comes_and_goes_and_the_next_one_is_another() {
    let memory = memory();
    let mut driven = Driven::new(&memory, health());
    for byte in 1..4 {
        let top = tempfile::tempfile().unwrap();
        top.write_all_at(&[byte; 4096], 0).unwrap();
        driven.block.attach(backend(&top, DiskLimits::default()), false).unwrap();
        assert_eq!(sectors(&driven.block), DISK_SIZE / 512);
        assert!(matches!(driven.block.attach(backend(&top, DiskLimits::default()), false), Err(AttachError::Taken)));
        assert_eq!(driven.request(VIRTIO_BLK_T_IN, 0, (DATA, 512, WRITE)), VIRTIO_BLK_S_OK);
        assert_eq!(contents(&memory, DATA, 512), vec![byte; 512]);
        assert_eq!(driven.request(VIRTIO_BLK_T_GET_ID, 0, (DATA, 20, WRITE)), VIRTIO_BLK_S_OK);
        assert_eq!(contents(&memory, DATA, 6), b"volume");

        driven.block.detach(false).unwrap();
        driven.block.detach(false).unwrap();
        assert_eq!(sectors(&driven.block), 0);
        assert_eq!(driven.request(VIRTIO_BLK_T_IN, 0, (DATA, 512, WRITE)), VIRTIO_BLK_S_IOERR);
        assert_eq!(links_to(&top), 1, "the device holds on to a layer");
    }
}

#[test]
fn what_is_under_way_is_carried_out_before_the_disk_goes_whatever_the_limits() {
    let limits = DiskLimits { operations_per_second: Some(1), ..DiskLimits::default() };
    let (memory, top) = (memory(), tempfile::tempfile().unwrap());
    let mut driven = Driven::new(&memory, health());
    driven.block.attach(backend(&top, limits), false).unwrap();
    // The first passes at once, and the second owes; at most those are done before the others are there.
    fill(&memory, DATA, 512, 7);
    for _ in 0..5 {
        driven.post(VIRTIO_BLK_T_OUT, 3, (DATA, 512, 0));
    }
    driven.notify();

    driven.block.detach(false).unwrap();

    assert_eq!((driven.driver.used().idx().load(), status(&memory)), (5, VIRTIO_BLK_S_OK));
    assert_ne!(driven.interrupt.status(), 0, "the driver was not told");
    let mut written = [0; 512];
    top.read_exact_at(&mut written, 3 * 512).unwrap();
    assert_eq!(written, [7; 512]);
}

#[test]
fn a_request_without_room_on_the_host_fails_when_the_disk_goes() {
    let Some((folder, _mounted)) = small_file_system(64) else { return };
    let top = File::options().read(true).write(true).create_new(true).open(folder.path().join("top")).unwrap();
    let (memory, health) = (memory(), health());
    let mut driven = Driven::new(&memory, health.clone());
    driven.block.attach(backend(&top, DiskLimits::default()), false).unwrap();
    driven.post(VIRTIO_BLK_T_OUT, 0, (DATA, 128 * 1024, 0));
    driven.notify();
    wait_until(|| health.waiting().is_some());

    driven.block.detach(false).unwrap();

    assert!(health.waiting().is_none());
    assert_eq!((driven.driver.used().idx().load(), status(&memory)), (1, VIRTIO_BLK_S_IOERR));
}

#[test]
fn a_suspended_device_without_a_disk_leaves_nothing_in_its_queue() {
    let memory = memory();
    let mut driven = Driven::new(&memory, health());
    driven.post(VIRTIO_BLK_T_IN, 0, (DATA, 512, WRITE));

    let suspended = driven.block.suspend();

    assert_eq!((suspended[0].next_avail, status(&memory)), (1, VIRTIO_BLK_S_IOERR));
    driven.block.resume().unwrap();
    assert_eq!(driven.request(VIRTIO_BLK_T_IN, 0, (DATA, 512, WRITE)), VIRTIO_BLK_S_IOERR);
}

#[test]
fn a_disk_that_comes_to_a_suspended_device_is_there_when_it_goes_on() {
    let (memory, top) = (memory(), tempfile::tempfile().unwrap());
    top.write_all_at(&[5; 4096], 0).unwrap();
    let mut driven = Driven::new(&memory, health());
    driven.block.suspend();
    driven.block.attach(backend(&top, DiskLimits::default()), true).unwrap();
    driven.post(VIRTIO_BLK_T_IN, 0, (DATA, 512, WRITE));
    driven.block.resume().unwrap();
    let driver = &driven.driver;
    wait_until(|| driver.used().idx().load() == 1);
    assert_eq!((status(&memory), contents(&memory, DATA, 1)), (VIRTIO_BLK_S_OK, vec![5]));

    driven.block.suspend();
    driven.block.detach(true).unwrap();
    driven.block.resume().unwrap();
    assert_eq!(driven.request(VIRTIO_BLK_T_IN, 0, (DATA, 512, WRITE)), VIRTIO_BLK_S_IOERR);
}

#[test]
fn a_disk_stays_over_a_reset_of_its_device() {
    let (memory, top) = (memory(), tempfile::tempfile().unwrap());
    let mut block = Block::empty(1, health());
    block.attach(backend(&top, DiskLimits::default()), false).unwrap();
    for _ in 0..2 {
        let driver = MockSplitQueue::new(&memory, 16);
        put_header(&memory, VIRTIO_BLK_T_IN, 0);
        driver.add_desc_chains(&chain(&[(HEADER, 16, 0), (DATA, 512, WRITE), (STATUS, 1, WRITE)]), 0).unwrap();
        activate(&mut block, &memory, &driver);
        wait_until(|| driver.used().idx().load() == 1);
        assert_eq!(status(&memory), VIRTIO_BLK_S_OK);
        block.reset();
    }
}

/// Each request writes the first sector, and is made again as soon as there is room in the queue.
#[test]
fn a_driver_that_never_stops_keeps_no_disk_and_breaks_nothing() {
    let (memory, health) = (memory(), health());
    let mut queue = DriverQueue::new(0x3_0000);
    put_header(&memory, VIRTIO_BLK_T_OUT, 0);
    let parts = chain(&[(HEADER, 16, 0), (DATA, 512, 0), (STATUS, 1, WRITE)]);
    for (at, descriptor) in (queue.table()..).step_by(16).zip(parts) {
        memory.write_obj(descriptor, GuestAddress(at)).unwrap();
    }
    let mut block = Block::empty(1, health);
    let interrupt = Interrupt::new(EventFd::new(EFD_NONBLOCK).unwrap());
    let activation = Activation {
        memory: memory.clone(),
        queues: vec![queue.active()],
        interrupt: interrupt.clone(),
        features: block.features(),
        restored: false,
    };
    block.activate(activation).unwrap();

    let tops = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut under_way = 0;
            while !stop.load(Ordering::Relaxed) {
                if under_way < QUEUE_SIZE {
                    queue.publish(&memory, 0);
                    under_way += 1;
                }
                while queue.take_used(&memory).is_some() {
                    under_way -= 1;
                }
            }
        });
        for top in tops.iter().cycle().take(200) {
            block.attach(backend(top, DiskLimits::default()), false).unwrap();
            block.notified().unwrap();
            block.detach(false).unwrap();
            assert_eq!(links_to(top), 1);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(!interrupt.is_reset_needed());
    block.reset();
}

/// How many of this process's descriptors are of this file.
fn links_to(file: &File) -> usize {
    use std::os::unix::fs::MetadataExt;
    let of = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let wanted = of(file.metadata().unwrap());
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    descriptors.filter(|entry| std::fs::metadata(entry.path()).is_ok_and(|found| of(found) == wanted)).count()
}
