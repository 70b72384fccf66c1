//! The random number device against a hostile driver.
//!
//! The input is a program: each step's first byte says what happens, and the bytes after it how.
//!
//! Beyond the absence of panics: no answer is longer than its buffers and than one may be, what is not to be written to
//! stays as it was, and within a window of the rate no more is given than it allows.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use sandpiper_fuzz::{Driver, Input, SLOT, SLOTS};
use sandpiper_vmm::devices::virtio::Next;
use sandpiper_vmm::devices::virtio::rng::{MAX_REQUEST, Service, WINDOW, WINDOW_BYTES};
use vm_memory::{Bytes, GuestAddress};

const QUEUE: usize = 0;
const WRITE: u16 = 2;
/// What no writable buffer of a request reaches.
const READ_ONLY: u64 = 0x3_0000;

fuzz_target!(|input: &[u8]| run(input));

fn run(input: &[u8]) {
    let mut input = Input(input);
    let begun = Instant::now();
    let mut driver = Driver::new(1);
    let mut service = Service::new(driver.activation(0)).expect("one queue");
    let (mut given, mut hostile) = (0, false);
    while !input.is_empty() {
        match input.byte() % 8 {
            0..=3 => {
                let wanted = request(&mut driver, &mut input);
                let Ok(next) = service.answer(Instant::now()) else { return };
                if hostile {
                    continue;
                }
                if matches!(next, Next::At(_)) {
                    // Used up: the answer comes in the next window.
                    return;
                }
                let answer = driver.last_answer(QUEUE).expect("an answer") as usize;
                assert!(answer <= wanted.min(MAX_REQUEST), "{answer} bytes for {wanted}");
                given += answer;
                if begun.elapsed() < WINDOW {
                    assert!(given <= WINDOW_BYTES + MAX_REQUEST, "{given} bytes in one window");
                }
                let byte: u8 = driver.memory.read_obj(GuestAddress(READ_ONLY)).expect("in memory");
                assert_eq!(byte, 0, "a buffer was written that is only to be read");
            }
            4 => {
                driver.scribble(&mut input);
                hostile = true;
            }
            _ if service.answer(Instant::now()).is_err() => return,
            _ => {}
        }
    }
}

/// Offers one to three buffers; returns how many bytes of them are writable.
fn request(driver: &mut Driver, input: &mut Input<'_>) -> usize {
    let shape = input.byte();
    let slot = SLOTS + u64::from(shape % 8) * SLOT;
    let length = match input.byte() {
        255 => u32::from_le_bytes(input.number()),
        short => u32::from(short) * 16,
    };
    match shape >> 3 & 3 {
        0 => driver.publish(QUEUE, &[(slot, length, WRITE)]),
        1 => driver.publish(QUEUE, &[(READ_ONLY, 16, 0), (slot, length, WRITE)]),
        2 => {
            driver.publish(QUEUE, &[(slot, length, WRITE), (slot, length, WRITE), (slot, length, WRITE)]);
            return length as usize * 3;
        }
        _ => driver.publish(QUEUE, &[(u64::from_le_bytes(input.number()) | 1 << 40, length, WRITE)]),
    }
    length as usize
}
