//! The block device against a hostile driver: the input decides every byte of the rings, the descriptors, the headers and
//! the data.
//!
//! An input starts with eight bytes of settings, which [`Settings`] reads. What follows is a program of small records that
//! put descriptors, headers and available entries into guest memory; the records make it likely that chains are well
//! formed for the most part, and none of them is obliged to be. Whatever is left over is copied to the data area.
//!
//! The settings may say that the disk is taken out and another put in while the driver goes on making requests.
//!
//! After processing, beyond the absence of panics and endless loops: a disk opened again from its files reads the same as
//! the one that was used, one that was taken out is as it was then, and the base layer has not changed.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use nix::sys::memfd::{MFdFlags, memfd_create};
use sandpiper_fuzz::{Input, put};
use sandpiper_protocol::vmm::DiskLimits;
use sandpiper_vmm::devices::virtio::block::{Backend, BlockQueue, Health, Status};
use sandpiper_vmm::devices::virtio::{ActiveQueue, Memory, Ring};
use sandpiper_vmm::disk::{BLOCK_SIZE, Buffers, Disk};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, VolatileSlice};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Two regions that meet, and one apart.
const REGIONS: [(u64, usize); 3] = [(0, 0x8000), (0x8000, 0x8000), (0x2_0000, 0x4000)];
const DESCRIPTORS: u64 = 0x0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Headers of 16 bytes and ranges for discards, sixteen slots of 32 bytes.
const HEADERS: u64 = 0x3000;
/// Indirect tables, four of 64 descriptors.
const TABLES: u64 = 0x4000;
const DATA: u64 = 0x6000;

/// `VIRTIO_RING_F_EVENT_IDX`.
const EVENT_IDX: u64 = 1 << 29;

const BLOCKS: u64 = 16;
const BASE_BLOCKS: u64 = 5;

fuzz_target!(|input: &[u8]| run(input));

fn run(input: &[u8]) {
    let mut input = Input(input);
    let settings = Settings::read(&mut input);
    let memory = clean_memory();
    let available = Program { memory, queue_size: settings.queue_size }.lay_out(&mut input);
    let _ = memory.write_slice(&input.0[..input.0.len().min(0x1000)], GuestAddress(DATA));

    let disks = [settings.layers(), settings.layers()];
    let open = |disk: usize| open(&disks[disk], settings.read_only);
    let backend = |disk| Backend::new(open(disk), "fuzz", DiskLimits::default());
    let health = Health::new().expect("an event");
    let mut requests = BlockQueue::new(Some(backend(0)), settings.write_through, (0, health));
    let mut ring = settings.ring();
    let mut left = [0, 1].map(|disk| content(&open(disk)));
    let mut next = 1;

    // A queue of at most 64 entries is done after three batches, unless the requests themselves rewrite the rings.
    for round in 0..ROUNDS {
        if round == 0 || settings.changes != 0 {
            let posted = if settings.changes == 0 { available } else { available * (round + 1) / ROUNDS };
            put(memory, AVAILABLE + 2, &posted.wrapping_add(settings.extra_available).to_le_bytes());
        }
        if settings.changes >> round & 1 == 1 {
            if requests.backend().is_some() {
                let _ = requests.remove(memory, &mut ring, Instant::now() + Duration::from_secs(1));
                left[1 - next] = content(&open(1 - next));
            } else {
                assert!(content(&open(next)) == left[next], "a disk has changed while it was out");
                requests.insert(backend(next));
                next = 1 - next;
            }
        }
        match requests.process(memory, &mut ring) {
            Ok(status) if status == Status::More || settings.changes != 0 => {}
            _ => break,
        }
    }

    if let Some(backend) = requests.backend() {
        left[1 - next] = content(backend.disk());
    }
    drop(requests);
    for (disk, left) in left.iter().enumerate() {
        assert!(content(&open(disk)) == *left, "the layers' files do not agree with their maps");
    }
    assert!(base_is_intact(), "the base layer was written to");
}

const ROUNDS: u16 = 8;

struct Settings {
    queue_size: u16,
    event_idx: bool,
    read_only: bool,
    write_through: bool,
    stacked: u8,
    /// Added to the number of available entries, so that it may be too large.
    extra_available: u16,
    next_avail: u16,
    /// The rounds before which the disk is taken out, or the other one put in.
    changes: u8,
}

impl Settings {
    fn read(input: &mut Input<'_>) -> Self {
        let (size, flags, stacked) = (input.byte(), input.byte(), input.byte());
        let (extra, next) = (input.number::<2>(), input.number::<2>());
        let changes = input.byte();
        let odd = flags & 0x80 != 0;
        Self {
            queue_size: 1 << (size % 7),
            event_idx: flags & 1 != 0,
            read_only: flags & 2 != 0,
            write_through: flags & 4 != 0,
            stacked: stacked % 3,
            extra_available: if odd { u16::from_le_bytes(extra) } else { 0 },
            next_avail: if odd { u16::from_le_bytes(next) } else { 0 },
            changes,
        }
    }

    /// The base and one or more empty layers on it.
    fn layers(&self) -> Vec<File> {
        let mut layers = vec![base().try_clone().expect("duplicate the base")];
        layers.extend((0..=self.stacked).map(|_| memory_file()));
        layers
    }

    fn ring(&self) -> Ring {
        let mut queue = Queue::new(64).expect("a queue");
        queue.set_size(self.queue_size);
        queue.set_desc_table_address(Some(DESCRIPTORS as u32), Some(0));
        queue.set_avail_ring_address(Some(AVAILABLE as u32), Some(0));
        queue.set_used_ring_address(Some(USED as u32), Some(0));
        queue.set_next_avail(self.next_avail);
        queue.set_ready(true);
        let notify = EventFd::new(EFD_NONBLOCK).expect("an event");
        Ring::new(ActiveQueue { queue, notify }, if self.event_idx { EVENT_IDX } else { 0 })
    }
}

/// Interprets records.
struct Program<'a> {
    memory: &'a Memory,
    queue_size: u16,
}

impl Program<'_> {
    /// Writes what the records say into guest memory; returns how many heads they made available.
    fn lay_out(&self, input: &mut Input<'_>) -> u16 {
        let mut available = 0u16;
        for _ in 0..96 {
            if input.is_empty() {
                break;
            }
            match input.byte() % 8 {
                0 | 1 => self.usual_chain(input, &mut available),
                2 | 3 => self.descriptor(input),
                4 => self.header(input),
                5 => {
                    let head = u16::from_le_bytes(input.number());
                    self.offer(head, &mut available);
                }
                6 => self.poke(input),
                _ => break,
            }
        }
        available
    }

    /// Header, data and status in consecutive descriptors, perhaps in an indirect table.
    fn usual_chain(&self, input: &mut Input<'_>, available: &mut u16) {
        let (first, shape) = (u16::from(input.byte() % 64), input.byte());
        let slot = u64::from(shape % 16);
        let indirect = shape & 0x10 != 0;
        let pieces = 1 + u16::from(shape >> 5);
        let table = if indirect { TABLES + slot % 4 * 1024 } else { DESCRIPTORS };
        let start = if indirect { 0 } else { first };
        self.header_at(HEADERS + slot * 32, input);
        self.put_descriptor(table, start, HEADERS + slot * 32, 16, 1, start + 1);
        for piece in 0..pieces {
            let (address, length) = (address(input), u32::from(u16::from_le_bytes(input.number())));
            let flags = 1 | u16::from(input.byte() & 2);
            self.put_descriptor(table, start + 1 + piece, address, length, flags, start + 2 + piece);
        }
        self.put_descriptor(table, start + 1 + pieces, HEADERS + slot * 32 + 31, 1, 2, 0);
        if indirect {
            self.put_descriptor(DESCRIPTORS, first, table, 16 * u32::from(pieces + 2), 4, 0);
        }
        self.offer(first, available);
    }

    /// One descriptor with whatever the input says.
    fn descriptor(&self, input: &mut Input<'_>) {
        let index = u16::from(input.byte() % 64);
        let (address, length) = (address(input), u32::from_le_bytes(input.number()));
        let (flags, next) = (u16::from_le_bytes(input.number()), u16::from_le_bytes(input.number()));
        self.put_descriptor(DESCRIPTORS, index, address, length, flags, next);
    }

    fn header(&self, input: &mut Input<'_>) {
        let slot = u64::from(input.byte() % 16);
        self.header_at(HEADERS + slot * 32, input);
    }

    /// A request's header with a type of some use, and after it what a discard would take for its range.
    fn header_at(&self, address: u64, input: &mut Input<'_>) {
        const KINDS: [u32; 8] = [0, 1, 4, 8, 11, 13, 14, 1 << 31];
        let kind = KINDS[usize::from(input.byte() % 8)];
        let sector = match input.byte() {
            255 => u64::from_le_bytes(input.number()),
            sector => u64::from(sector),
        };
        put(self.memory, address, &kind.to_le_bytes());
        put(self.memory, address + 8, &sector.to_le_bytes());
        put(
            self.memory,
            DATA + u64::from(input.byte()),
            &[input.byte(), 0, 0, 0, 0, 0, 0, 0, input.byte(), 0, 0, 0, input.byte() & 3, 0, 0, 0],
        );
    }

    fn poke(&self, input: &mut Input<'_>) {
        let (address, bytes) = (address(input), input.number::<4>());
        put(self.memory, address, &bytes);
    }

    fn put_descriptor(&self, table: u64, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        let at = table + u64::from(index) * 16;
        put(self.memory, at, &address.to_le_bytes());
        put(self.memory, at + 8, &length.to_le_bytes());
        put(self.memory, at + 12, &flags.to_le_bytes());
        put(self.memory, at + 14, &next.to_le_bytes());
    }

    fn offer(&self, head: u16, available: &mut u16) {
        let slot = u64::from(*available % self.queue_size);
        put(self.memory, AVAILABLE + 4 + slot * 2, &head.to_le_bytes());
        *available = available.wrapping_add(1);
    }
}

/// Mostly in or near guest memory, sometimes anywhere.
fn address(input: &mut Input<'_>) -> u64 {
    match u16::from_le_bytes(input.number()) {
        0xffff => u64::from_le_bytes(input.number()),
        near => u64::from(near) * 3,
    }
}

/// Guest memory, all zeros.
fn clean_memory() -> &'static Memory {
    static MEMORY: OnceLock<Memory> = OnceLock::new();
    let memory = MEMORY.get_or_init(|| {
        Memory::from_ranges(&REGIONS.map(|(start, length)| (GuestAddress(start), length))).expect("guest memory")
    });
    for (start, length) in REGIONS {
        put(memory, start, &vec![0; length]);
    }
    memory
}

fn memory_file() -> File {
    File::from(memfd_create(c"layer", MFdFlags::MFD_CLOEXEC).expect("a memory file"))
}

fn base() -> &'static File {
    static BASE: OnceLock<File> = OnceLock::new();
    BASE.get_or_init(|| {
        let file = memory_file();
        file.write_all_at(&base_content(), 0).expect("write the base");
        file
    })
}

fn base_content() -> Vec<u8> {
    (0..BASE_BLOCKS * BLOCK_SIZE).map(|at| (at % 251 + 1) as u8).collect()
}

fn base_is_intact() -> bool {
    let mut found = vec![0; (BASE_BLOCKS * BLOCK_SIZE) as usize];
    base().read_exact_at(&mut found, 0).is_ok() && found == base_content()
}

fn open(layers: &[File], read_only: bool) -> Disk {
    let files = layers.iter().map(|file| file.try_clone().expect("duplicate a layer")).collect();
    Disk::open(files, BLOCKS * BLOCK_SIZE, read_only).expect("open the disk")
}

fn content(disk: &Disk) -> Vec<u8> {
    let mut bytes = vec![0; (BLOCKS * BLOCK_SIZE) as usize];
    let slices = [VolatileSlice::from(&mut bytes[..])];
    disk.read(0, Buffers::new(&slices).expect("one buffer")).expect("read the disk");
    bytes
}
