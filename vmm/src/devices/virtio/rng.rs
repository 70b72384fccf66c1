//! Random numbers for the guest: virtio device 4 (virtio 1.2 section 5.4), fed by the host kernel's generator.
//!
//! A small thread answers requests between `activate` and `reset`. A guest gets at most `WINDOW_BYTES` every
//! `WINDOW`, so reading from it in a loop costs the host next to nothing.

use std::io;
use std::time::{Duration, Instant};

use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use virtio_queue::{DescriptorChain, QueueState};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::epoll::Epoll;

use super::worker::Threaded;
use super::{ActivateError, Activation, Interrupt, Memory, Next, Ring, RingError, VirtioDevice, rings};
use crate::jail::Role;

const QUEUE_SIZES: [u16; 1] = [64];

/// Most bytes for one request; the driver is told how many it got.
pub const MAX_REQUEST: usize = 64 * 1024;

/// The rate. A request counts for at least [`REQUEST_COST`], because it costs more than its bytes.
pub const WINDOW: Duration = Duration::from_millis(100);
pub const WINDOW_BYTES: usize = 256 * 1024;
const REQUEST_COST: usize = 256;

/// The device.
#[derive(Default)]
pub struct Rng {
    thread: Threaded<Service>,
}

impl Rng {
    pub fn new() -> Rng {
        Self::default()
    }
}

impl VirtioDevice for Rng {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_RNG
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        0
    }

    /// There is no configuration space.
    fn read_config(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        self.thread.activate(|| Service::new(activation))
    }

    fn suspend(&mut self) -> Vec<QueueState> {
        self.thread.suspend()
    }

    fn resume(&mut self) -> Result<(), ActivateError> {
        self.thread.resume()
    }

    fn reset(&mut self) {
        self.thread.reset();
    }
}

/// What the device's thread works with.
pub struct Service {
    memory: Memory,
    ring: Ring,
    interrupt: Interrupt,
    window_end: Instant,
    /// Bytes that are left of this window.
    left: usize,
}

impl super::Service for Service {
    const ROLE: Role = Role::Rng;
    type Error = RingError;

    fn queues(&self) -> impl Iterator<Item = &Ring> {
        [&self.ring].into_iter()
    }

    fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    fn process(&mut self, _epoll: &Epoll, now: Instant) -> Result<Next, RingError> {
        self.answer(now)
    }
}

impl Service {
    /// # Errors
    ///
    /// The activation is not that of a random number device.
    pub fn new(activation: Activation) -> io::Result<Self> {
        let Activation { memory, queues, interrupt, features, .. } = activation;
        let [ring] = rings(queues, features)?;
        Ok(Self { memory, ring, interrupt, window_end: Instant::now() + WINDOW, left: WINDOW_BYTES })
    }

    /// Answers what is in the queue at the time `now`; [`Next::At`] the window's end if its bytes ran out first.
    ///
    /// # Errors
    ///
    /// The driver corrupted the queue.
    pub fn answer(&mut self, now: Instant) -> Result<Next, RingError> {
        if now >= self.window_end {
            self.window_end = now + WINDOW;
            self.left = WINDOW_BYTES;
        }
        self.ring.mute(&self.memory)?;
        let emptied = self.answer_all()?;
        self.ring.interrupt(&self.memory, &self.interrupt)?;
        Ok(match emptied {
            false => Next::At(self.window_end),
            true if self.ring.listen(&self.memory)? => Next::Now,
            true => Next::Notified,
        })
    }

    /// False if the window's bytes ran out before the queue was empty.
    fn answer_all(&mut self) -> Result<bool, RingError> {
        while self.left > 0 {
            let Some(chain) = self.ring.take(&self.memory)? else { return Ok(true) };
            let head = chain.head_index();
            let count = fill(&self.memory, chain);
            self.left = self.left.saturating_sub(count.max(REQUEST_COST));
            self.ring.finish(&self.memory, head, u32::try_from(count).unwrap_or(0))?;
        }
        Ok(false)
    }
}

/// Fills the writable buffers of `chain`, up to the first that lies outside memory, and returns how many bytes that were.
fn fill(memory: &Memory, chain: DescriptorChain<&Memory>) -> usize {
    let mut random = [0; 4096];
    let mut filled = 0;
    for descriptor in chain.writable() {
        let mut at = descriptor.addr();
        let mut left = (descriptor.len() as usize).min(MAX_REQUEST - filled);
        while left > 0 {
            let count = left.min(random.len());
            let part = &mut random[..count];
            if getrandom(part).is_err() || memory.write_slice(part, at).is_err() {
                return filled;
            }
            filled += count;
            left -= count;
            at = GuestAddress(at.0.saturating_add(count as u64));
        }
    }
    filled
}

fn getrandom(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // SAFETY: pointer and length are those of `rest`, which nothing else uses meanwhile.
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => filled += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use virtio_bindings::virtio_ring::VRING_DESC_F_WRITE;
    use virtio_queue::desc::RawDescriptor;
    use virtio_queue::desc::split::Descriptor;
    use virtio_queue::mock::MockSplitQueue;
    use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

    use super::super::ActiveQueue;
    use super::super::driver_line::DriverLine;
    use super::*;

    const WRITE: u32 = VRING_DESC_F_WRITE;

    fn memory() -> Memory {
        Memory::from_ranges(&[(GuestAddress(0), 4 << 20)]).expect("memory")
    }

    /// Starts a device whose queue holds one request for each of `buffers` (address, length, flags).
    fn start(memory: &Memory, buffers: &[(u64, u32, u32)]) -> (Rng, DriverLine) {
        let driver = MockSplitQueue::create(memory, GuestAddress(0x1000), 64);
        let descriptors: Vec<RawDescriptor> = buffers
            .iter()
            .map(|(addr, len, flags)| Descriptor::new(*addr, *len, u16::try_from(*flags).expect("16 bits"), 0).into())
            .collect();
        driver.add_desc_chains(&descriptors, 0).expect("room in the queue");
        let notify = EventFd::new(EFD_NONBLOCK).expect("an event");
        let line = DriverLine::new();
        let queue = driver.create_queue().expect("a valid queue");
        let mut rng = Rng::new();
        let queues = vec![ActiveQueue { queue, notify }];
        rng.activate(activation(memory, queues, &line)).expect("the device starts");
        (rng, line)
    }

    fn activation(memory: &Memory, queues: Vec<ActiveQueue>, line: &DriverLine) -> Activation {
        let (memory, interrupt) = (memory.clone(), line.interrupt());
        Activation { memory, queues, interrupt, features: 0, restored: false }
    }

    /// What the device wrote for each of its first `count` answers, in bytes.
    fn answers(memory: &Memory, line: &DriverLine, count: u16) -> Vec<u32> {
        // Creating a mock queue clears its rings, so the layout is taken from one elsewhere.
        let elsewhere = self::memory();
        let used = MockSplitQueue::create(&elsewhere, GuestAddress(0x1000), 64).used_addr().0;
        while memory.read_obj::<u16>(GuestAddress(used + 2)).expect("in memory") < count {
            line.wait();
        }
        let len = |at: u16| memory.read_obj(GuestAddress(used + 8 + u64::from(at) * 8)).expect("in memory");
        (0..count).map(len).collect()
    }

    #[test]
    fn a_request_is_filled() {
        let memory = memory();
        let (_rng, line) = start(&memory, &[(0x10_0000, 64, WRITE)]);

        assert_eq!(answers(&memory, &line, 1), [64]);

        let mut bytes = [0; 65];
        memory.read_slice(&mut bytes, GuestAddress(0x10_0000)).expect("in memory");
        assert_ne!(bytes[..32], [0; 32]);
        assert_ne!(bytes[..32], bytes[32..64]);
        assert_eq!(bytes[64], 0);
    }

    #[test]
    fn odd_requests_get_what_can_be_had() {
        let memory = memory();
        let buffers = [
            (0x10_0000, 64, 0),
            (0x10_0000, 0, WRITE),
            (0xffff_0000_0000, 64, WRITE),
            (u64::MAX, u32::MAX, WRITE),
            (0x10_0000, u32::MAX, WRITE),
            (0x10_0000, 7, WRITE),
        ];

        let (_rng, line) = start(&memory, &buffers);

        assert_eq!(answers(&memory, &line, 6), [0, 0, 0, 0, 64 * 1024, 7]);
    }

    #[test]
    fn requests_beyond_the_rate_are_answered_later() {
        let memory = memory();
        let count = WINDOW_BYTES / MAX_REQUEST * 3;
        let buffers = vec![(0x10_0000, 64 * 1024, WRITE); count];

        let (_rng, line) = start(&memory, &buffers);

        let answers = answers(&memory, &line, u16::try_from(count).expect("few"));
        assert_eq!(answers, vec![64 * 1024; count]);
    }

    #[test]
    fn a_suspended_device_answers_later_and_its_queue_stands_where_it_stopped() {
        let memory = memory();
        let (mut rng, line) = start(&memory, &[(0x10_0000, 64, WRITE)]);
        assert_eq!(answers(&memory, &line, 1), [64]);

        let queues = rng.suspend();
        assert_eq!(rng.suspend(), queues);

        assert_eq!((queues[0].next_avail, queues[0].next_used), (1, 1));
        rng.resume().expect("the device goes on");
        rng.reset();
        assert!(rng.suspend().is_empty());
    }

    #[test]
    fn a_broken_queue_needs_a_reset_and_reset_ends_the_thread() {
        let memory = memory();
        let (mut rng, line) = start(&memory, &[]);
        rng.reset();
        let driver = MockSplitQueue::create(&memory, GuestAddress(0x1000), 64);
        driver.avail().idx().store(1000);
        let queue = driver.create_queue().expect("a valid queue");
        let notify = EventFd::new(EFD_NONBLOCK).expect("an event");
        let queues = vec![ActiveQueue { queue, notify }];

        rng.activate(activation(&memory, queues, &line)).expect("the device starts");

        line.wait_for_needs_reset();
        rng.reset();
    }
}
