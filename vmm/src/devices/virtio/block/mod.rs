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

use sandpiper_protocol::vmm::DiskLimits;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{QueueState, QueueT};

pub use self::health::Health;
pub use self::queue::{Backend, Batch, BlockQueue, Next, QueueError};
use self::worker::Service;
use super::worker::Worker;
use super::{ActivateError, Activation, VirtioDevice};
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

/// A serial number as the guest gets it, padded with zero bytes.
type Serial = [u8; VIRTIO_BLK_ID_BYTES as usize];

/// A virtio block device.
pub struct Block {
    config: [u8; 60],
    features: u64,
    serial: Serial,
    index: u32,
    health: Health,
    state: State,
}

enum State {
    Idle(Backend),
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

impl Block {
    /// A device for `disk` that tells the guest `serial`, of which only the first 20 bytes count, and `health` of the host's
    /// failures, as those of disk number `index`.
    pub fn new(disk: Disk, limits: DiskLimits, serial: &str, index: u32, health: Health) -> Self {
        let mut features = 1 << VIRTIO_RING_F_EVENT_IDX
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_BLK_F_SIZE_MAX
            | 1 << VIRTIO_BLK_F_SEG_MAX
            | 1 << VIRTIO_BLK_F_BLK_SIZE
            | 1 << VIRTIO_BLK_F_TOPOLOGY
            | 1 << VIRTIO_BLK_F_FLUSH;
        features |= if disk.is_read_only() {
            1 << VIRTIO_BLK_F_RO
        } else {
            1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES
        };
        let (config, serial) = (config_space(disk.size()), padded(serial));
        Self { config, features, serial, index, health, state: State::Idle(Backend::new(disk, limits)) }
    }

    pub fn is_read_only(&self) -> bool {
        self.features & (1 << VIRTIO_BLK_F_RO) != 0
    }

    /// Ends the worker, if there is one, and takes the disk back from it.
    fn stop(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Running(mut running) => {
                running.park();
                running.worker.stop().map_or(State::Lost, |service| State::Idle(service.requests.into_backend()))
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
        data.fill(0);
        let rest = usize::try_from(offset).ok().and_then(|offset| self.config.get(offset..)).unwrap_or_default();
        for (to, from) in data.iter_mut().zip(rest) {
            *to = *from;
        }
    }

    fn activate(&mut self, activation: Activation) -> Result<(), ActivateError> {
        self.stop();
        let State::Idle(backend) = std::mem::replace(&mut self.state, State::Lost) else {
            return Err(ActivateError::Thread(io::Error::other("the disk was lost when its thread panicked")));
        };
        let Activation { memory, queues, interrupt, features, .. } = activation;
        let Some(mut active) = queues.into_iter().next() else {
            self.state = State::Idle(backend);
            return Err(ActivateError::Events(io::Error::other("a block device has one queue, none was given")));
        };
        active.queue.set_event_idx(features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0);
        // A driver that knows no flush takes a completed write for durable (virtio 1.2, section 5.2.5.2).
        let write_through = features & (1 << VIRTIO_BLK_F_FLUSH) == 0;
        let requests = BlockQueue::new(backend, self.serial, write_through, (self.index, self.health.clone()));
        let stop_flag = requests.stop_flag();
        match Worker::start(Service { requests, memory, active, interrupt }) {
            Ok(worker) => {
                self.state = State::Running(Running { worker, stop_flag });
                Ok(())
            }
            Err((error, service)) => {
                self.state = State::Idle(service.requests.into_backend());
                Err(error)
            }
        }
    }

    fn suspend(&mut self) -> Vec<QueueState> {
        match &mut self.state {
            State::Running(running) => running.park().map(|service| vec![service.queue_state()]).unwrap_or_default(),
            State::Idle(_) | State::Lost => Vec::new(),
        }
    }

    fn resume(&mut self) -> Result<(), ActivateError> {
        match &mut self.state {
            State::Running(running) => running.worker.unpark(),
            State::Idle(_) | State::Lost => Ok(()),
        }
    }

    fn push_layer(&mut self, file: File, stay: bool) -> Result<(), PushError> {
        match &mut self.state {
            State::Idle(backend) => Ok(backend.disk_mut().push_layer(file)?),
            State::Lost => Err(PushError::Lost),
            State::Running(running) => {
                let pushed = running.park().ok_or(PushError::Lost)?.requests.disk_mut().push_layer(file);
                if !stay {
                    running.worker.unpark().map_err(PushError::Resume)?;
                }
                Ok(pushed?)
            }
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

fn padded(serial: &str) -> Serial {
    let mut padded = Serial::default();
    for (to, from) in padded.iter_mut().zip(serial.bytes()) {
        *to = from;
    }
    padded
}
