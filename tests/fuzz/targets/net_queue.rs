//! The network device against a hostile driver, with a socket for a tap.
//!
//! The input is a program: each step's first byte says what happens, and the bytes after it how. Most chains lie in memory
//! and most headers ask for something that can be had, so that they get far; none has to be well formed. Everything runs
//! on one thread, the device works between the steps.
//!
//! Beyond the absence of panics: no frame comes out of the tap that is longer or shorter than one may be, and the device
//! becomes idle, or breaks, when nothing changes any more.
#![no_main]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use sandpiper_fuzz::{Driver, Input, SLOT, SLOTS};
use sandpiper_protocol::vmm::NetLimits;
use sandpiper_vmm::devices::virtio::Next;
use sandpiper_vmm::devices::virtio::net::{NetError, Service, Tap};

/// `EVENT_IDX` and what a network driver may accept, in the order of the settings' bits.
const FEATURES: [u32; 8] = [29, 15, 0, 1, 7, 8, 11, 12];
const HEADER: usize = 12;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

fuzz_target!(|input: &[u8]| run(input));

fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut machine = Machine::new(input.byte());
    while !input.is_empty() {
        match input.byte() % 12 {
            0..=2 => machine.send(&mut input),
            3..=5 => machine.post(&mut input),
            6 => machine.driver.scribble(&mut input),
            7 | 8 => machine.host_sends(&mut input),
            9 => machine.host_receives(),
            _ if machine.transfer().is_err() => return,
            _ => {}
        }
    }
    // What is left is bounded: no step comes, no frame moves on the host.
    for _ in 0..4096 {
        match machine.transfer() {
            Ok(Next::Now) => {}
            Ok(_) | Err(_) => return,
        }
    }
    panic!("the device does not become idle");
}

struct Machine {
    driver: Driver,
    service: Service,
    host: OwnedFd,
}

impl Machine {
    fn new(settings: u8) -> Self {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (tap, host) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("sockets");
        let driver = Driver::new(2);
        let accepted = |(at, bit): (usize, &u32)| u64::from(settings >> at & 1) << bit;
        let features = FEATURES.iter().enumerate().map(accepted).sum();
        let tap = Tap::new(File::from(tap)).expect("flags");
        let service = Service::new(tap, NetLimits::default(), driver.activation(features)).expect("two queues");
        Self { driver, service, host }
    }

    fn transfer(&mut self) -> Result<Next, NetError> {
        self.service.readable();
        self.service.transfer(Instant::now())
    }

    /// A frame behind a header from the input, in one to three buffers.
    fn send(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let mut header: [u8; HEADER] = input.number();
        if shape & 0x80 == 0 {
            // Flags and types that exist, and small numbers.
            header[0] &= 1;
            header[1] = [0, 1, 4, 0x81][usize::from(header[1] % 4)];
            for high in [3, 5, 7, 9] {
                header[high] = 0;
            }
        }
        let slot = SLOTS + u64::from(shape % 8) * SLOT;
        self.driver.put(slot, &header);
        let len = u32::from(input.byte()) * 16;
        match shape >> 3 & 3 {
            0 => self.driver.publish(TRANSMIT, &[(slot, 12 + len, 0)]),
            1 => self.driver.publish(TRANSMIT, &[(slot, 12, 0), (slot + 12, len, 0)]),
            2 => self.driver.publish(TRANSMIT, &[(slot, 5, 0), (slot + 5, 50, 0), (SLOTS, len * 32, 0)]),
            _ => self.driver.publish(TRANSMIT, &[(slot, u32::from(input.byte()), u16::from(input.byte() & 7))]),
        }
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let slot = SLOTS + (8 + u64::from(shape % 8)) * SLOT;
        match shape >> 3 & 3 {
            0 => self.driver.publish(RECEIVE, &[(slot, 1526, 2)]),
            1 => self.driver.publish(RECEIVE, &[(slot, u32::from(input.byte()) * 16, 2)]),
            2 => self.driver.publish(RECEIVE, &[(slot, 3, 2), (slot + 3, u32::from(input.byte()) * 8, 2)]),
            _ => self.driver.publish(RECEIVE, &[(slot, u32::from(input.byte()), u16::from(input.byte() & 7))]),
        }
    }

    fn host_sends(&mut self, input: &mut Input<'_>) {
        let mut bytes = vec![0x55; HEADER + usize::from(input.byte()) * 300];
        bytes[..HEADER].fill(0);
        bytes[0] = input.byte() % 4;
        bytes[1] = input.byte() % 6;
        // A full socket takes no more.
        let _ = send(self.host.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL);
    }

    fn host_receives(&mut self) {
        let mut bytes = vec![0; 100_000];
        while let Ok(count) = recv(self.host.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            assert!((HEADER + 14..=HEADER + 14 + 65_535).contains(&count), "{count}");
        }
    }
}
