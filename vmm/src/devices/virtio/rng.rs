//! Random numbers for the guest: virtio device 4 (virtio 1.2 section 5.4), fed by the host kernel's generator.
//!
//! A small thread answers requests between `activate` and `reset`. A guest gets at most `WINDOW_BYTES` every
//! `WINDOW`, so reading from it in a loop costs the host next to nothing.

use std::io;
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{ActivateError, Activation, Interrupt, Memory, VirtioDevice};

const QUEUE_SIZES: [u16; 1] = [64];

/// Most bytes for one request; the driver is told how many it got.
const MAX_REQUEST: usize = 64 * 1024;

/// The rate. A request counts for at least [`REQUEST_COST`], because it costs more than its bytes.
const WINDOW: Duration = Duration::from_millis(100);
const WINDOW_BYTES: usize = 256 * 1024;
const REQUEST_COST: usize = 256;

const KILL: u64 = 0;
const NOTIFY: u64 = 1;

/// The device.
#[derive(Default)]
pub struct Rng {
    running: Option<Running>,
}

struct Running {
    kill: EventFd,
    thread: JoinHandle<()>,
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
        let kill = EventFd::new(EFD_NONBLOCK).map_err(ActivateError::Events)?;
        let mut worker = Worker::new(activation, &kill).map_err(ActivateError::Events)?;
        let thread = std::thread::Builder::new()
            .name("rng".into())
            .spawn(move || worker.run())
            .map_err(ActivateError::Thread)?;
        self.running = Some(Running { kill, thread });
        Ok(())
    }

    fn reset(&mut self) {
        if let Some(Running { kill, thread }) = self.running.take() {
            // The counter of an event cannot overflow from one write, and a thread that panicked is gone, too.
            let _ = kill.write(1);
            let _ = thread.join();
        }
    }
}

impl Drop for Rng {
    fn drop(&mut self) {
        self.reset();
    }
}

struct Worker {
    memory: Memory,
    queue: Queue,
    notify: EventFd,
    interrupt: Interrupt,
    epoll: Epoll,
    window_end: Instant,
    left: usize,
    // The registration of `kill` ends when the last descriptor of that event is closed.
    _kill: EventFd,
}

impl Worker {
    fn new(activation: Activation, kill: &EventFd) -> io::Result<Self> {
        let Activation { memory, queues, interrupt, .. } = activation;
        let Some(active) = queues.into_iter().next() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a random number device has one queue"));
        };
        let kill = kill.try_clone()?;
        let epoll = Epoll::new()?;
        epoll.ctl(ControlOperation::Add, kill.as_raw_fd(), EpollEvent::new(EventSet::IN, KILL))?;
        let mut queue = active.queue;
        // Not on offer.
        queue.set_event_idx(false);
        Ok(Self {
            memory,
            queue,
            notify: active.notify,
            interrupt,
            epoll,
            window_end: Instant::now() + WINDOW,
            left: WINDOW_BYTES,
            _kill: kill,
        })
    }

    /// Until `kill`, or until the guest breaks the queue.
    fn run(&mut self) {
        if let Err(QueueBroken) = self.serve() {
            self.interrupt.needs_reset();
        }
    }

    fn serve(&mut self) -> Result<(), QueueBroken> {
        if self.watch(ControlOperation::Add, EventSet::IN).is_err() {
            return Ok(());
        }
        // The driver may have filled the queue before the notifications were watched.
        loop {
            let timeout = if self.answer()? {
                None
            } else {
                // Used up: requests wait, and so do notifications, until the window ends.
                Some(self.window_end)
            };
            let events = if timeout.is_some() { EventSet::empty() } else { EventSet::IN };
            if self.watch(ControlOperation::Modify, events).is_err() || !self.wait(timeout) {
                return Ok(());
            }
        }
    }

    fn watch(&self, operation: ControlOperation, events: EventSet) -> io::Result<()> {
        self.epoll.ctl(operation, self.notify.as_raw_fd(), EpollEvent::new(events, NOTIFY))
    }

    /// Waits for a notification or until `end`. False if the device is to stop.
    fn wait(&self, end: Option<Instant>) -> bool {
        let millis = end.map_or(-1, |end| {
            let wait = end.saturating_duration_since(Instant::now()).as_millis() + 1;
            i32::try_from(wait).unwrap_or(i32::MAX)
        });
        let mut events = [EpollEvent::default(); 2];
        let count = match self.epoll.wait(millis, &mut events) {
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
    fn answer(&mut self) -> Result<bool, QueueBroken> {
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

/// The driver broke the queue itself.
struct QueueBroken;

impl From<virtio_queue::Error> for QueueBroken {
    fn from(_: virtio_queue::Error) -> Self {
        QueueBroken
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

    use super::super::ActiveQueue;
    use super::*;

    const WRITE: u32 = VRING_DESC_F_WRITE;
    const PATIENCE_MS: i32 = 30_000;

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
        rng.activate(Activation { memory: memory.clone(), queues, interrupt: interrupt.clone(), features: 0 })
            .expect("the device starts");
        (rng, interrupt)
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
        let ready = unsafe { libc::poll(&raw mut poll, 1, PATIENCE_MS) };
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
    fn a_broken_queue_needs_a_reset_and_reset_ends_the_thread() {
        let memory = memory();
        let (mut rng, interrupt) = start(&memory, &[]);
        rng.reset();
        let driver = MockSplitQueue::create(&memory, GuestAddress(0x1000), 64);
        driver.avail().idx().store(1000);
        let queue = driver.create_queue().expect("a valid queue");
        let notify = EventFd::new(EFD_NONBLOCK).expect("an event");
        let queues = vec![ActiveQueue { queue, notify }];

        rng.activate(Activation { memory: memory.clone(), queues, interrupt: interrupt.clone(), features: 0 })
            .expect("the device starts");

        while !interrupt.is_reset_needed() {
            wait(&interrupt);
        }
        rng.reset();
    }
}
