//! Random numbers for the guest: virtio device 4 (virtio 1.2 section 5.4), fed by the host kernel's generator.
//!
//! A small thread answers requests between `activate` and `reset`. A guest gets at most `WINDOW_BYTES` every
//! `WINDOW`, so reading from it in a loop costs the host next to nothing.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueState, QueueT};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::worker::{Work, Worker, log_failure};
use super::{ActivateError, Activation, Interrupt, Memory, VirtioDevice};
use crate::jail::Role;

const QUEUE_SIZES: [u16; 1] = [64];

/// Most bytes for one request; the driver is told how many it got.
pub const MAX_REQUEST: usize = 64 * 1024;

/// The rate. A request counts for at least [`REQUEST_COST`], because it costs more than its bytes.
pub const WINDOW: Duration = Duration::from_millis(100);
pub const WINDOW_BYTES: usize = 256 * 1024;
const REQUEST_COST: usize = 256;

const KILL: u64 = 0;
const NOTIFY: u64 = 1;

/// The device.
#[derive(Default)]
pub struct Rng {
    worker: Option<Worker<Service>>,
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
        self.reset();
        let service = Service::new(activation).map_err(ActivateError::Events)?;
        self.worker = Some(Worker::start(service).map_err(|(error, _)| error)?);
        Ok(())
    }

    fn suspend(&mut self) -> Vec<QueueState> {
        let service = self.worker.as_mut().and_then(Worker::park);
        service.map(|service| vec![service.queue.state()]).unwrap_or_default()
    }

    fn resume(&mut self) -> Result<(), ActivateError> {
        self.worker.as_mut().map_or(Ok(()), Worker::unpark)
    }

    fn reset(&mut self) {
        self.worker = None;
    }
}

/// What the device's thread does, one turn at a time, so that fuzzers can take the turns themselves.
pub struct Service {
    memory: Memory,
    queue: Queue,
    notify: EventFd,
    interrupt: Interrupt,
    window_end: Instant,
    left: usize,
}

impl Work for Service {
    const ROLE: Role = Role::Rng;

    /// Until `stop`, or until the guest breaks the queue.
    fn run(&mut self, stop: &EventFd) {
        let Ok(epoll) = Epoll::new() else { return self.interrupt.needs_reset() };
        let watch = |event: &EventFd, id| {
            epoll.ctl(ControlOperation::Add, event.as_raw_fd(), EpollEvent::new(EventSet::IN, id))
        };
        let watched = watch(stop, KILL).and_then(|()| watch(&self.notify, NOTIFY));
        if watched.is_err() {
            return self.interrupt.needs_reset();
        }
        if let Err(error) = self.serve(&epoll) {
            log_failure("random number", &error);
            self.interrupt.needs_reset();
        }
    }
}

impl Service {
    /// # Errors
    ///
    /// The activation is not that of a random number device.
    pub fn new(activation: Activation) -> io::Result<Self> {
        let Activation { memory, queues, interrupt, .. } = activation;
        let Some(active) = queues.into_iter().next() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a random number device has one queue"));
        };
        let mut queue = active.queue;
        // Not on offer.
        queue.set_event_idx(false);
        let window_end = Instant::now() + WINDOW;
        Ok(Self { memory, queue, notify: active.notify, interrupt, window_end, left: WINDOW_BYTES })
    }

    fn serve(&mut self, epoll: &Epoll) -> Result<(), QueueBroken> {
        // The driver may have filled the queue before the notifications were watched.
        loop {
            let timeout = if self.answer()? {
                None
            } else {
                // Used up: requests wait, and so do notifications, until the window ends.
                Some(self.window_end)
            };
            let events = if timeout.is_some() { EventSet::empty() } else { EventSet::IN };
            let notify = EpollEvent::new(events, NOTIFY);
            let watched = epoll.ctl(ControlOperation::Modify, self.notify.as_raw_fd(), notify);
            if watched.is_err() || !self.wait(epoll, timeout) {
                return Ok(());
            }
        }
    }

    /// Waits for a notification or until `end`. False if the device is to stop.
    fn wait(&self, epoll: &Epoll, end: Option<Instant>) -> bool {
        let millis = end.map_or(-1, |end| {
            let wait = end.saturating_duration_since(Instant::now()).as_millis() + 1;
            i32::try_from(wait).unwrap_or(i32::MAX)
        });
        let mut events = [EpollEvent::default(); 2];
        let count = match epoll.wait(millis, &mut events) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(_) => return false,
        };
        let mut go_on = true;
        for event in &events[..count] {
            match event.data() {
                KILL => go_on = false,
                _ => drop(self.notify.read()),
            }
        }
        go_on
    }

    /// Answers what is in the queue. False if the window's bytes ran out first.
    ///
    /// # Errors
    ///
    /// The driver corrupted the queue.
    pub fn answer(&mut self) -> Result<bool, QueueBroken> {
        let now = Instant::now();
        if now >= self.window_end {
            self.window_end = now + WINDOW;
            self.left = WINDOW_BYTES;
        }
        let mut used = false;
        let emptied = loop {
            if self.left == 0 {
                break false;
            }
            let Some(chain) = self.queue.iter(&self.memory)?.next() else { break true };
            let head = chain.head_index();
            let count = fill(&self.memory, chain);
            self.left = self.left.saturating_sub(count.max(REQUEST_COST));
            self.queue.add_used(&self.memory, head, u32::try_from(count).unwrap_or(0))?;
            used = true;
        };
        if used && self.queue.needs_notification(&self.memory)? {
            self.interrupt.used_buffer();
        }
        Ok(emptied)
    }
}

/// The driver corrupted the queue itself.
#[derive(Debug, thiserror::Error)]
#[error("The driver corrupted the queue")]
pub struct QueueBroken(#[from] virtio_queue::Error);

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
    use vmm_sys_util::eventfd::EFD_NONBLOCK;

    use super::super::ActiveQueue;
    use super::*;

    const WRITE: u32 = VRING_DESC_F_WRITE;
    const TIMEOUT_MS: i32 = 30_000;

    fn memory() -> Memory {
        Memory::from_ranges(&[(GuestAddress(0), 4 << 20)]).expect("memory")
    }

    /// Starts a device whose queue holds one request for each of `buffers` (address, length, flags).
    fn start(memory: &Memory, buffers: &[(u64, u32, u32)]) -> (Rng, Interrupt) {
        let driver = MockSplitQueue::create(memory, GuestAddress(0x1000), 64);
        let descriptors: Vec<RawDescriptor> = buffers
            .iter()
            .map(|(addr, len, flags)| Descriptor::new(*addr, *len, u16::try_from(*flags).expect("16 bits"), 0).into())
            .collect();
        driver.add_desc_chains(&descriptors, 0).expect("room in the queue");
        let notify = EventFd::new(EFD_NONBLOCK).expect("an event");
        let interrupt = Interrupt::new(EventFd::new(EFD_NONBLOCK).expect("an event"));
        let queue = driver.create_queue().expect("a valid queue");
        let mut rng = Rng::new();
        let queues = vec![ActiveQueue { queue, notify }];
        rng.activate(activation(memory, queues, &interrupt)).expect("the device starts");
        (rng, interrupt)
    }

    fn activation(memory: &Memory, queues: Vec<ActiveQueue>, interrupt: &Interrupt) -> Activation {
        let (memory, interrupt) = (memory.clone(), interrupt.clone());
        Activation { memory, queues, interrupt, features: 0, restored: false }
    }

    /// What the device wrote for each of its first `count` answers, in bytes.
    fn answers(memory: &Memory, interrupt: &Interrupt, count: u16) -> Vec<u32> {
        // Creating a mock queue clears its rings, so the layout is taken from one elsewhere.
        let elsewhere = self::memory();
        let used = MockSplitQueue::create(&elsewhere, GuestAddress(0x1000), 64).used_addr().0;
        while memory.read_obj::<u16>(GuestAddress(used + 2)).expect("in memory") < count {
            wait(interrupt);
        }
        let len = |at: u16| memory.read_obj(GuestAddress(used + 8 + u64::from(at) * 8)).expect("in memory");
        (0..count).map(len).collect()
    }

    fn wait(interrupt: &Interrupt) {
        let mut poll = libc::pollfd { fd: interrupt.event().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid `pollfd`.
        let ready = unsafe { libc::poll(&raw mut poll, 1, TIMEOUT_MS) };
        assert_eq!(ready, 1, "the device has nothing to say");
        let _ = interrupt.event().read();
    }

    #[test]
    fn a_request_is_filled() {
        let memory = memory();
        let (_rng, interrupt) = start(&memory, &[(0x10_0000, 64, WRITE)]);

        assert_eq!(answers(&memory, &interrupt, 1), [64]);

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

        let (_rng, interrupt) = start(&memory, &buffers);

        assert_eq!(answers(&memory, &interrupt, 6), [0, 0, 0, 0, 64 * 1024, 7]);
    }

    #[test]
    fn requests_beyond_the_rate_are_answered_later() {
        let memory = memory();
        let count = WINDOW_BYTES / MAX_REQUEST * 3;
        let buffers = vec![(0x10_0000, 64 * 1024, WRITE); count];

        let (_rng, interrupt) = start(&memory, &buffers);

        let answers = answers(&memory, &interrupt, u16::try_from(count).expect("few"));
        assert_eq!(answers, vec![64 * 1024; count]);
    }

    #[test]
    fn a_suspended_device_answers_later_and_its_queue_stands_where_it_stopped() {
        let memory = memory();
        let (mut rng, interrupt) = start(&memory, &[(0x10_0000, 64, WRITE)]);
        assert_eq!(answers(&memory, &interrupt, 1), [64]);

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
        let (mut rng, interrupt) = start(&memory, &[]);
        rng.reset();
        let driver = MockSplitQueue::create(&memory, GuestAddress(0x1000), 64);
        driver.avail().idx().store(1000);
        let queue = driver.create_queue().expect("a valid queue");
        let notify = EventFd::new(EFD_NONBLOCK).expect("an event");
        let queues = vec![ActiveQueue { queue, notify }];

        rng.activate(activation(&memory, queues, &interrupt)).expect("the device starts");

        while !interrupt.is_reset_needed() {
            wait(&interrupt);
        }
        rng.reset();
    }
}
