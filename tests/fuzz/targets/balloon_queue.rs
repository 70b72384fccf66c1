//! The balloon against a hostile driver.
//!
//! The input is a program: each step's first byte says what happens, and the bytes after it how. Chains are answered one by
//! one, so that it is known what they name, up to the first step that writes to the rings or drops them.
//!
//! Beyond the absence of panics: host memory next to the guest's is as it was; a page of the guest is lost as a whole or not
//! at all; while it is known what was named, exactly that is lost; and the device becomes idle, or breaks.
#![no_main]

use std::collections::BTreeSet;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::{Driver, Input, SLOT, SLOTS};
use sandpiper_vmm::devices::virtio::balloon::Service;
use sandpiper_vmm::devices::virtio::{Memory, Next, RingError};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{Bytes, GuestAddress, GuestRegionMmap};

const PAGE: u64 = 4096;
/// Two regions with a gap (address, pages), each between pages of the host's own.
const REGIONS: [(u64, u64); 2] = [(0, 40), (0x4_0000, 8)];
/// Pages of the rings and slots, to which the program and the device write.
const OWN: u64 = 32;
const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const REPORT: usize = 2;
const WRITE: u16 = 2;
/// Feature bits: `EVENT_IDX`, `INDIRECT_DESC`, `REPORTING`.
const FEATURES: [u32; 3] = [29, 28, 5];
const REPORTING: u64 = 1 << 5;
/// Of one chain no more bytes are given back.
const MAX_REPORTED: u64 = 256 << 20;
/// What a page holds that nobody gave back.
const KEPT: u8 = 0xaa;

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let mut machine = Machine::new(input.byte());
    let end = machine.run(&mut input);
    machine.exact &= end.is_ok();
    machine.check();
});

struct Machine {
    arena: &'static Arena,
    driver: Driver,
    service: Service,
    reporting: bool,
    /// Numbers of the pages that were named, while that is known.
    named: BTreeSet<u64>,
    exact: bool,
}

impl Machine {
    fn new(settings: u8) -> Self {
        let arena = Arena::get();
        arena.fill();
        let driver = Driver::in_memory(arena.guest.clone(), 3);
        // The rings are clean.
        driver.put(0x1000, &[0; 3 * PAGE as usize]);
        let accepted = |(at, bit): (usize, &u32)| u64::from(settings >> at & 1) << bit;
        let features: u64 = FEATURES.iter().enumerate().map(accepted).sum();
        let service = Service::new(driver.activation(features)).expect("three queues");
        let reporting = features & REPORTING != 0;
        Self { arena, driver, service, reporting, named: BTreeSet::new(), exact: true }
    }

    fn run(&mut self, input: &mut Input<'_>) -> Result<(), RingError> {
        while !input.is_empty() {
            match input.byte() % 8 {
                0..=2 => self.inflate(input),
                3..=5 => self.report(input),
                6 => self.driver.publish(DEFLATE, &[(SLOTS, u32::from(input.byte()) * 4, 0)]),
                _ => {
                    self.driver.scribble(input);
                    self.exact = false;
                }
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Numbers of pages, in buffers that may be cut anywhere.
    fn inflate(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let slot = SLOTS + u64::from(shape % 16) * SLOT;
        let numbers = shape >> 4;
        for at in 0..numbers {
            let number = match input.byte() {
                255 => u32::from_le_bytes(input.number()),
                near => near.into(),
            };
            self.driver.put(slot + u64::from(at) * 4, &number.to_le_bytes());
        }
        let length = u32::from(numbers) * 4 + u32::from(input.byte() % 4);
        let cut = u32::from(input.byte()).min(length);
        let mut list = vec![0; length as usize];
        self.driver.memory.read_slice(&mut list, GuestAddress(slot)).expect("a slot");
        match input.byte() % 4 {
            0 => {
                self.driver.publish(INFLATE, &[(slot, u32::MAX, u16::from(input.byte() & 7))]);
                self.exact = false;
            }
            1 => self.driver.publish(INFLATE, &[(slot, length, 0)]),
            _ => self.driver.publish(INFLATE, &[(slot, cut, 0), (slot + u64::from(cut), length - cut, 0)]),
        }
        let (list, _) = list.as_chunks();
        list.iter().for_each(|number| self.name(u32::from_le_bytes(*number).into()));
    }

    /// A range that is said to be free.
    fn report(&mut self, input: &mut Input<'_>) {
        let start = match input.number() {
            [0xff, 0xff] => u64::from_le_bytes(input.number()),
            near => u64::from(u16::from_le_bytes(near)) * 16,
        };
        let length = match input.number() {
            [0xff, 0xff] => u32::from_le_bytes(input.number()),
            near => u32::from(u16::from_le_bytes(near)) * 8,
        };
        let shape = input.byte();
        let flags = if shape >= 0xf0 { u16::from(shape & 7) } else { WRITE };
        self.driver.publish(REPORT, &[(start, length, flags)]);
        self.exact &= flags == WRITE;
        if self.reporting {
            let end = start.saturating_add(u64::from(length).min(MAX_REPORTED));
            let pages = |(address, pages): (u64, u64)| address / PAGE..address / PAGE + pages;
            let whole = |page: &u64| page * PAGE >= start && (page + 1) * PAGE <= end;
            REGIONS.into_iter().flat_map(pages).filter(whole).for_each(|page| self.name(page));
        }
    }

    fn name(&mut self, page: u64) {
        self.named.insert(page);
        // Without its rings a device does whatever zeros say.
        self.exact &= page >= OWN;
    }

    /// Nothing changes any more, so what is left is bounded.
    fn settle(&mut self) -> Result<(), RingError> {
        for _ in 0..4096 {
            if self.service.answer()? != Next::Now {
                return Ok(());
            }
        }
        panic!("the device does not become idle");
    }

    fn check(&self) {
        let mut pages = self.arena.pages();
        let mut next = || pages.next().expect("a page of the arena");
        let is_all = |page: &[u8], byte: u8| page == [byte; PAGE as usize];
        for (address, count) in REGIONS {
            assert!(is_all(next(), KEPT), "the host's page before {address:#x} was touched");
            for number in address / PAGE..address / PAGE + count {
                let page = next();
                if number < OWN {
                    continue;
                }
                let lost = is_all(page, 0);
                assert!(lost || is_all(page, KEPT), "page {number} is lost in part");
                assert!(!self.exact || lost == self.named.contains(&number), "page {number}: lost is {lost}");
            }
        }
        assert!(is_all(next(), KEPT), "the host's page after the guest's was touched");
    }
}

/// Guest memory in a larger mapping of the host's: a page before each region and one at the end are not the guest's.
struct Arena {
    start: *mut u8,
    length: usize,
    guest: Memory,
}

// SAFETY: inputs are run one after the other, on one thread, and the device has none of its own.
unsafe impl Sync for Arena {}
// SAFETY: as above.
unsafe impl Send for Arena {}

impl Arena {
    fn get() -> &'static Self {
        static ARENA: OnceLock<Arena> = OnceLock::new();
        ARENA.get_or_init(Self::map)
    }

    fn map() -> Self {
        let length = (REGIONS.iter().map(|(_, pages)| pages + 1).sum::<u64>() + 1) * PAGE;
        let (kind, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses; it stays to the end of the process.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length as usize, access, kind, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let mut next = PAGE;
        let regions = REGIONS.map(|(address, pages)| {
            // SAFETY: the mapping is larger than the sum of the regions and of a page before each.
            let pointer = unsafe { start.byte_add(next as usize) };
            next += (pages + 1) * PAGE;
            let builder = MmapRegionBuilder::new((pages * PAGE) as usize).with_mmap_prot(access).with_mmap_flags(kind);
            // SAFETY: these pages are mapped for ever, and only this region is told of them.
            let builder = unsafe { builder.with_raw_mmap_pointer(pointer.cast()) };
            GuestRegionMmap::new(builder.build().expect("a region"), GuestAddress(address)).expect("an address")
        });
        let length = length as usize;
        Self { start: start.cast(), length, guest: Memory::from_regions(regions.into()).expect("regions in order") }
    }

    fn fill(&self) {
        // SAFETY: the whole mapping, which nobody else looks at: no device is at work on it.
        unsafe { self.start.write_bytes(KEPT, self.length) };
    }

    fn pages(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: the whole mapping; the device is at rest while it is looked at.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, self.length) };
        bytes.chunks(PAGE as usize)
    }
}
