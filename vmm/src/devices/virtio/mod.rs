//! Virtio devices, apart from how they are attached.
//!
//! A device here is transport-free: it knows its type, its features, its configuration space and what to do with its
//! queues. The transport ([`mmio`]) runs the register map and the status handshake, and calls:
//!
//! ```text
//!   new ──features, read_config──▶ (driver negotiates) ──activate──▶ running ──reset──▶ new
//!                                                                     │  ▲
//!                                                              suspend▼  │resume
//!                                                                   suspended ──reset──▶ new
//! ```
//!
//! * [`VirtioDevice::activate`] is called once per handshake, when the driver has set `DRIVER_OK` and the transport has
//!   checked every queue (size, alignment, inside guest memory). Only then does a device get to see guest memory: there is
//!   no way to touch it earlier. A device with its own thread starts it here.
//! * [`VirtioDevice::suspend`] stops the device where it stands, for a snapshot. A device of another process then goes on
//!   from there: it is activated with [`Activation::restored`], and its queues stand where the suspended one's stood.
//!   Notifications may have been lost in between, so a device that is activated or resumed looks at its queues by itself;
//!   the transport does the like for the driver by raising an interrupt again that the driver has not answered.
//! * [`VirtioDevice::reset`] must have stopped every use of guest memory and queues by the time it returns.
//!
//! What a device does between these is its [`Service`]: `event_loop` runs it, on a thread that `worker` starts and stops. Its
//! queues are [`Ring`]s, and the data that they carry are the buffers of `slices`.
//!
//! Whatever lies in guest memory is hostile. A malformed chain ends that request with an error status where the device
//! type has one; a queue that cannot be trusted any more is left alone and [`Interrupt::needs_reset`] is raised
//! (`DEVICE_NEEDS_RESET`, virtio 1.2 section 2.1.2). Nothing panics, nothing loops without bound.

pub mod balloon;
pub mod block;
pub(crate) mod bucket;
#[cfg(test)]
mod driver_line;
#[cfg(test)]
mod driver_queue;
mod event_loop;
pub mod mmio;
pub mod net;
mod ring;
pub mod rng;
mod slices;
pub mod vsock;
mod worker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use virtio_queue::{Queue, QueueState};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

pub use self::event_loop::{EventLoop, FIRST_SOURCE, LoopError, Next, Service};
pub use self::ring::{Ring, RingError};

/// Guest memory as devices see it: cheap to clone, all accesses checked.
pub type Memory = GuestMemoryMmap<()>;

/// See the module's documentation for when each method is called.
pub trait VirtioDevice: Send {
    /// Device type, virtio 1.2 section 5.
    fn device_type(&self) -> u32;

    /// Largest size of each queue, each a power of two.
    fn queue_sizes(&self) -> &[u16];

    /// How many of these, from the first on, a driver must set up; one after them may come to [`Self::activate`] not ready.
    fn required_queues(&self) -> usize {
        self.queue_sizes().len()
    }

    /// Feature bits on offer. `VIRTIO_F_VERSION_1` is the transport's to add.
    fn features(&self) -> u64;

    /// Copies configuration space from `offset`; bytes beyond its end read as zero.
    fn read_config(&self, offset: u64, data: &mut [u8]);

    /// Writes to configuration space; without effect for devices that have nothing writable.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    /// What the driver has written to configuration space, in a form of the device's own, for a snapshot: empty for devices
    /// that have nothing writable.
    fn save_config(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes over what [`Self::save_config`] gave in another process, before the device is activated. What is not of its
    /// form is ignored.
    fn restore_config(&mut self, _saved: &[u8]) {}

    /// Starts the device on queues that the transport has checked. It is not active before, or after [`Self::reset`].
    ///
    /// # Errors
    /// Its thread cannot be started, or its events cannot be watched; it is not active then.
    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError>;

    /// Stops every use of guest memory and of what is behind the device until [`Self::resume`], and returns the queues as
    /// they stand: as many as [`Self::queue_sizes`], or none if the device is not active or its thread was lost. No request
    /// that was taken off a queue is left unanswered. Suspending twice changes nothing.
    fn suspend(&mut self) -> Vec<QueueState>;

    /// Goes on after [`Self::suspend`]; without effect on a device that is not active.
    ///
    /// # Errors
    /// As [`Self::activate`].
    fn resume(&mut self) -> Result<(), ActivateError>;

    /// A notification came as a write to the register, because nothing connects the register with the queue's event, which
    /// has been raised. For devices that have no thread at times.
    ///
    /// # Errors
    /// As [`Self::activate`].
    fn notified(&mut self) -> Result<(), ActivateError> {
        Ok(())
    }

    fn reset(&mut self);
}

/// Copies configuration space `config` to `data`, from `offset` on; beyond its end are zeros.
fn copy_config(config: &[u8], offset: u64, data: &mut [u8]) {
    let rest = usize::try_from(offset).ok().and_then(|offset| config.get(offset..)).unwrap_or_default();
    let count = rest.len().min(data.len());
    data.fill(0);
    data[..count].copy_from_slice(&rest[..count]);
}

/// What a running device works with.
pub struct Activation {
    pub memory: Memory,
    /// As many as [`VirtioDevice::queue_sizes`], in its order.
    pub queues: Vec<ActiveQueue>,
    pub interrupt: Interrupt,
    /// The features that the driver accepted.
    pub features: u64,
    /// The driver has used the device before, in another process, and knows nothing of the change.
    pub restored: bool,
}

/// The queues of an activation, of which a device needs `N`.
///
/// # Errors
/// `InvalidInput` if there are not as many.
fn rings<const N: usize>(queues: Vec<ActiveQueue>, features: u64) -> io::Result<[Ring; N]> {
    let wrong = |queues: Vec<_>| {
        let message = format!("the device has {N} queues, and was given {}", queues.len());
        io::Error::new(io::ErrorKind::InvalidInput, message)
    };
    Ok(<[_; N]>::try_from(queues).map_err(wrong)?.map(|active| Ring::new(active, features)))
}

/// A queue that the driver set up, and the event that its notification raises.
pub struct ActiveQueue {
    pub queue: Queue,
    pub notify: EventFd,
}

#[derive(Debug, thiserror::Error)]
pub enum ActivateError {
    #[error("Cannot start the device's thread")]
    Thread(#[source] io::Error),
    #[error("Cannot watch the device's events")]
    Events(#[source] io::Error),
}

/// How a device gets the driver's attention: a status word the driver reads, and an event that KVM turns into an
/// interrupt.
#[derive(Clone)]
pub struct Interrupt {
    status: Arc<AtomicU32>,
    event: Arc<EventFd>,
}

impl Interrupt {
    /// `InterruptStatus` bits, virtio 1.2 section 4.2.2.
    const USED_BUFFER: u32 = 1;
    const CONFIG_CHANGE: u32 = 2;

    /// Set in the status word beside the bits above: the device asked for a reset. The transport shows it to the driver
    /// in the `Status` register.
    const NEEDS_RESET: u32 = 1 << 31;

    pub fn new(event: EventFd) -> Self {
        Self { status: Arc::new(AtomicU32::new(0)), event: Arc::new(event) }
    }

    /// Buffers were used. The caller has checked that the driver wants to know.
    pub fn used_buffer(&self) {
        self.raise(Self::USED_BUFFER);
    }

    /// Configuration space changed.
    pub fn config_change(&self) {
        self.raise(Self::CONFIG_CHANGE);
    }

    /// The device cannot go on until the driver resets it.
    pub fn needs_reset(&self) {
        self.raise(Self::CONFIG_CHANGE | Self::NEEDS_RESET);
    }

    /// The `InterruptStatus` register.
    pub fn status(&self) -> u32 {
        self.status.load(Ordering::SeqCst) & (Self::USED_BUFFER | Self::CONFIG_CHANGE)
    }

    /// The `InterruptACK` register.
    pub fn acknowledge(&self, bits: u32) {
        self.status.fetch_and(!(bits & (Self::USED_BUFFER | Self::CONFIG_CHANGE)), Ordering::SeqCst);
    }

    pub fn is_reset_needed(&self) -> bool {
        self.status.load(Ordering::SeqCst) & Self::NEEDS_RESET != 0
    }

    /// Back to nothing pending, as after a reset.
    pub fn clear(&self) {
        self.status.store(0, Ordering::SeqCst);
    }

    /// Everything that is pending, for a snapshot.
    fn pending(&self) -> u32 {
        self.status.load(Ordering::SeqCst)
    }

    /// Raises it if the driver has not acknowledged all: what was raised while the machine was being written down may be in
    /// no interrupt controller.
    fn raise_again(&self) {
        if self.pending() != 0 {
            self.raise(0);
        }
    }

    /// Makes `pending` pending. Nothing is raised.
    fn restore(&self, pending: u32) {
        self.status.store(pending, Ordering::SeqCst);
    }

    fn raise(&self, bits: u32) {
        self.status.fetch_or(bits, Ordering::SeqCst);
        // The counter of an event can only be full after 2^64 - 2 unread writes: nothing to handle.
        let _ = self.event.write(1);
    }
}
