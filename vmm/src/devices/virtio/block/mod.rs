//! The block device (virtio 1.2, section 5.2): a [`Disk`] behind one queue.
//!
//! ```text
//!   vCPU ──notify event──▶ worker thread ──▶ BlockQueue ──▶ Disk ──preadv/pwritev──▶ layers
//!                               │                │  ▲
//!                               └──interrupt     └──┴── guest memory: rings, headers, data, status bytes
//! ```
//!
//! * `queue`: takes chains off the queue, a batch at a time, and completes them. Needs no thread, so it can be tested
//!   and fuzzed as it is.
//! * `request`: one chain: where its header, data and status byte lie, and what it asks for.
//! * `limits`: how much a disk does in a second.
//! * `health`: what the host's own disk does to the machine, for the state driver.
//! * `worker`: what the thread between [`VirtioDevice::activate`] and [`VirtioDevice::reset`] does.
//!
//! Data moves between guest memory and the layers' page cache without a copy in between. Requests are carried out one after
//! another in the order of the queue, so a flush covers whatever was completed before it.
//!
//! Sectors have 512 bytes, as everywhere in virtio, and physical blocks 4096: a guest's file system then works in whole
//! blocks, and the rare partial one is completed from the layers below (see [`crate::disk`]).
//!
//! A request for which the host has no room (`ENOSPC`, `EDQUOT`) waits, with all behind it, and is tried again until there
//! is: the guest's file system would take an error for a broken disk. Meanwhile no vCPU runs (see `health`). Every other
//! failure is the request's own: a guest that asks for nonsense, and a host whose disk fails, both get `VIRTIO_BLK_S_IOERR`,
//! which a guest's programs see as `EIO`. (A guest whose own file system is full never gets here: its kernel says `ENOSPC`.)
//! Only a queue that makes no sense, or a chain without a place for its status, stops the device with `DEVICE_NEEDS_RESET`.
//!
//! # Without a disk
//! A device may have no disk, and get and lose one while it runs ([`Block::attach`], [`Block::detach`]). Without one its size is
//! zero, every request fails with `VIRTIO_BLK_S_IOERR`, and it has no thread until a driver makes a request nevertheless: see
//! [`VirtioDevice::notified`], which it takes that nothing but the register connects a notification with the queue's event.

mod health;
mod limits;
mod queue;
mod request;
#[cfg(test)]
mod tests;
mod worker;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandpiper_protocol::vmm::DiskLimits;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueState;

pub use self::health::Health;
pub use self::queue::{Backend, BlockQueue, QueueError, Status};
use self::worker::Service;
use super::worker::Worker;
use super::{ActivateError, Activation, Service as _, VirtioDevice, copy_config, rings};
use crate::disk::{BLOCK_SIZE, Disk, PushLayerError};

const QUEUE_SIZES: [u16; 1] = [256];

/// Virtio's unit of addresses and lengths on a disk.
pub const SECTOR_SIZE: u64 = 512;

/// Most data descriptors in a chain: with header and status they fill the queue.
pub const SEG_MAX: u32 = 254;

/// Longest data descriptor. With [`SEG_MAX`] it bounds what one request can make the device do.
pub const SIZE_MAX: u32 = 1 << 20;

/// Longest discard: cheap, but each block may be a hole of its own.
pub const MAX_DISCARD_SECTORS: u32 = 256 << 11;

/// Longest zeroing: where a layer below has data, it writes.
pub const MAX_WRITE_ZEROES_SECTORS: u32 = 64 << 11;

/// How long a disk that is taken out carries out what the driver has under way; more than that is a driver's that never stops.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// A virtio block device.
pub struct Block {
    /// Bytes; 0 without a disk.
    size: u64,
    features: u64,
    index: u32,
    health: Health,
    state: State,
}

enum State {
    Idle(Option<Backend>),
    Running(Running),
    /// The worker panicked and took the disk with it. Not reached unless this device has a bug.
    Lost,
}

struct Running {
    worker: Worker<Service>,
    /// Ends the worker's present batch after the request at hand.
    stop_flag: Arc<AtomicBool>,
}

impl Running {
    /// Waits for the request at hand and keeps the thread from the next one. `None` if the thread panicked.
    fn park(&mut self) -> Option<&mut Service> {
        self.stop_flag.store(true, Ordering::Relaxed);
        let service = self.worker.park();
        self.stop_flag.store(false, Ordering::Relaxed);
        service
    }
}

/// Why a disk got no new layer. It goes on with those it has, unless its thread is lost.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error(transparent)]
    Layer(#[from] PushLayerError),
    #[error("There is no such disk")]
    NotADisk,
    #[error("The disk's thread has failed")]
    Lost,
    #[error("Cannot resume the disk's thread")]
    Resume(#[source] ActivateError),
}

/// Why a device got no disk. It is as it was, unless its thread is lost.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("The device has a disk already")]
    Taken,
    #[error("The device's thread has failed")]
    Lost,
    #[error("Cannot start the device's thread")]
    Start(#[source] ActivateError),
}

/// A device lost its disk, but cannot go on without it.
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    #[error("The device's thread has failed")]
    Lost,
    #[error("Cannot resume the device's thread")]
    Resume(#[source] ActivateError),
}

impl Block {
    /// A device for `disk` that tells the guest `serial`, of which only the first 20 bytes count, and `health` of the host's
    /// failures, as those of disk number `index`.
    pub fn new(disk: Disk, limits: DiskLimits, serial: &str, index: u32, health: Health) -> Self {
        let (size, read_only) = (disk.size(), disk.is_read_only());
        Self::with(Some(Backend::new(disk, serial, limits)), size, read_only, (index, health))
    }

    /// A device without a disk. What it gets may be read-only, which its features do not tell.
    pub fn empty(index: u32, health: Health) -> Self {
        Self::with(None, 0, false, (index, health))
    }

    fn with(backend: Option<Backend>, size: u64, read_only: bool, (index, health): (u32, Health)) -> Self {
        let mut features = 1 << VIRTIO_RING_F_EVENT_IDX
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_BLK_F_SIZE_MAX
            | 1 << VIRTIO_BLK_F_SEG_MAX
            | 1 << VIRTIO_BLK_F_BLK_SIZE
            | 1 << VIRTIO_BLK_F_TOPOLOGY
            | 1 << VIRTIO_BLK_F_FLUSH;
        features |=
            if read_only { 1 << VIRTIO_BLK_F_RO } else { 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES };
        Self { size, features, index, health, state: State::Idle(backend) }
    }

    pub fn is_read_only(&self) -> bool {
        self.features & (1 << VIRTIO_BLK_F_RO) != 0
    }

    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Puts a disk into the device. One that is suspended stays so if `stay` says so.
    ///
    /// # Errors
    /// It has one, or its thread has failed or cannot be started.
    pub fn attach(&mut self, backend: Backend, stay: bool) -> Result<(), AttachError> {
        if !self.is_empty() {
            return Err(AttachError::Taken);
        }
        let size = backend.disk().size();
        match &mut self.state {
            State::Idle(idle) => *idle = Some(backend),
            State::Lost => return Err(AttachError::Lost),
            State::Running(running) => {
                running.park().ok_or(AttachError::Lost)?.requests_mut().insert(backend);
                if !stay && let Err(error) = running.worker.unpark() {
                    // Without a thread there is no disk.
                    let _ = running.park().map(Service::remove);
                    return Err(AttachError::Start(error));
                }
            }
        }
        self.size = size;
        Ok(())
    }

    /// Takes the disk out of the device, if there is one. What the driver has under way is carried out before, in a few
    /// seconds at most; later requests fail. One that is suspended stays so if `stay` says so.
    ///
    /// # Errors
    /// The thread has failed, or cannot be resumed for more requests. The disk is out.
    pub fn detach(&mut self, stay: bool) -> Result<(), DetachError> {
        self.size = 0;
        match &mut self.state {
            State::Idle(backend) => *backend = None,
            State::Lost => return Err(DetachError::Lost),
            State::Running(running) => {
                let all = running.park().map(Service::remove).ok_or(DetachError::Lost)?;
                if !all && !stay {
                    running.worker.unpark().map_err(DetachError::Resume)?;
                }
            }
        }
        Ok(())
    }

    /// Puts `file` on top of the disk, between two requests. A device that is suspended stays so if `stay` says so.
    ///
    /// # Errors
    /// There is no disk, or it is read-only; `file` is not an empty layer; or the thread has failed.
    pub fn push_layer(&mut self, file: File, stay: bool) -> Result<(), PushError> {
        match &mut self.state {
            State::Idle(backend) => push(backend.as_mut(), file),
            State::Lost => Err(PushError::Lost),
            State::Running(running) => {
                let pushed = push(running.park().ok_or(PushError::Lost)?.requests_mut().backend_mut(), file);
                if !stay {
                    running.worker.unpark().map_err(PushError::Resume)?;
                }
                pushed
            }
        }
    }

    /// Ends the worker, if there is one, and takes the disk back from it.
    fn stop(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Running(mut running) => {
                running.park();
                running.worker.stop().map_or(State::Lost, |service| State::Idle(service.into_requests().into_backend()))
            }
            state => state,
        };
    }
}

impl VirtioDevice for Block {
    fn device_type(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        copy_config(&config_space(self.size), offset, data);
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        self.stop();
        let State::Idle(backend) = std::mem::replace(&mut self.state, State::Lost) else {
            return Err(ActivateError::Thread(io::Error::other("the disk was lost when its thread panicked")));
        };
        let Activation { memory, queues, interrupt, features, .. } = activation;
        let ring = match rings(queues, features) {
            Ok([ring]) => ring,
            Err(error) => {
                self.state = State::Idle(backend);
                return Err(ActivateError::Events(error));
            }
        };
        // A driver that knows no flush takes a completed write for durable (virtio 1.2, section 5.2.5.2).
        let write_through = features & (1 << VIRTIO_BLK_F_FLUSH) == 0;
        // Without a disk a thread has something to do only if the driver has asked for something: of a machine that was just
        // restored, perhaps before its devices were started.
        let idle = backend.is_none() && ring.notify().read().is_err();
        let requests = BlockQueue::new(backend, write_through, (self.index, self.health.clone()));
        let stop_flag = requests.stop_flag();
        let service = Service::new(requests, memory, ring, interrupt);
        match if idle { Worker::parked(service) } else { Worker::start(service) } {
            Ok(worker) => {
                self.state = State::Running(Running { worker, stop_flag });
                Ok(())
            }
            Err((error, service)) => {
                self.state = State::Idle(service.into_requests().into_backend());
                Err(error)
            }
        }
    }

    fn notified(&mut self) -> Result<(), ActivateError> {
        match &mut self.state {
            State::Running(running) => running.worker.unpark(),
            State::Idle(_) | State::Lost => Ok(()),
        }
    }

    fn suspend(&mut self) -> Vec<QueueState> {
        let empty = self.is_empty();
        let State::Running(running) = &mut self.state else { return Vec::new() };
        let Some(service) = running.park() else { return Vec::new() };
        if empty {
            // Nobody would look at what is left: neither after a resumption nor in another process.
            service.process_all();
        }
        service.queue_states()
    }

    fn resume(&mut self) -> Result<(), ActivateError> {
        match &mut self.state {
            State::Running(running) if self.size > 0 => running.worker.unpark(),
            State::Running(_) | State::Idle(_) | State::Lost => Ok(()),
        }
    }

    fn reset(&mut self) {
        self.stop();
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.stop();
    }
}

fn push(backend: Option<&mut Backend>, file: File) -> Result<(), PushError> {
    Ok(backend.ok_or(PushError::NotADisk)?.disk_mut().push_layer(file)?)
}

/// `struct virtio_blk_config` up to `write_zeroes_may_unmap` and its padding (virtio 1.2, section 5.2.4), little-endian.
fn config_space(disk_size: u64) -> [u8; 60] {
    const PHYSICAL_BLOCK_EXPONENT: u8 = 3;
    const SECTORS_PER_BLOCK: u16 = 1 << PHYSICAL_BLOCK_EXPONENT;
    const { assert!(SECTOR_SIZE << PHYSICAL_BLOCK_EXPONENT == BLOCK_SIZE) };
    let mut config = [0; 60];
    let mut put = |offset: usize, bytes: &[u8]| config[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0, &(disk_size / SECTOR_SIZE).to_le_bytes()); // capacity
    put(8, &SIZE_MAX.to_le_bytes());
    put(12, &SEG_MAX.to_le_bytes());
    put(20, &512u32.to_le_bytes()); // blk_size
    put(24, &[PHYSICAL_BLOCK_EXPONENT, 0]); // and alignment_offset
    put(26, &SECTORS_PER_BLOCK.to_le_bytes()); // min_io_size
    put(34, &1u16.to_le_bytes()); // num_queues
    put(36, &MAX_DISCARD_SECTORS.to_le_bytes());
    put(40, &1u32.to_le_bytes()); // max_discard_seg
    put(44, &u32::from(SECTORS_PER_BLOCK).to_le_bytes()); // discard_sector_alignment
    put(48, &MAX_WRITE_ZEROES_SECTORS.to_le_bytes());
    put(52, &1u32.to_le_bytes()); // max_write_zeroes_seg
    put(56, &[1]); // write_zeroes_may_unmap
    config
}
