//! From the queue to the disk and back, without a thread.
//!
//! A request that would be over a limit, or for which the host has no room, is put back: the queue stands before it, as if it had not been seen. So
//! whoever saves the queue then saves it with the request still to be done. Doing it again does no harm: the driver was
//! not told of it, so it has left what is to be written as it is, and expects nothing of what is on the disk there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sandpiper_protocol::vmm::{DiskFailure, DiskLimits};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP};
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};

use super::Serial;
use super::health::{Health, failure};
use super::limits::{Cost, Limits};
use super::request::{Operation, Parts, Refusal};
use crate::devices::virtio::Memory;
use crate::disk::{Disk, DiskError};

/// Most requests between two looks at whether the driver wants an interrupt: the first of many need not wait for the last.
const BATCH: usize = 32;

/// Why a queue cannot be worked on any more, and the device needs a reset.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error("The queue is not ready, or not inside guest memory")]
    Invalid,
    #[error("A request has no writable status byte")]
    NoStatus,
    #[error("The queue's rings are inconsistent")]
    Ring(#[source] virtio_queue::Error),
}

/// What one call to [`BlockQueue::process`] leaves to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The driver wants to be told of the requests just completed.
    pub notify: bool,
    pub next: Next,
}

/// When to call again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// There may be more requests, for which no notification will come.
    Now,
    /// When the driver notifies.
    Notified,
    /// Then: before, a limit would be exceeded.
    At(Instant),
    /// When there may be room: the host had none for the next request.
    Room(DiskFailure),
}

/// A disk and what it may still do. It outlives a reset of the device, which would else be a way around the limits.
pub struct Backend {
    disk: Disk,
    limits: Limits,
}

impl Backend {
    pub fn new(disk: Disk, limits: DiskLimits) -> Self {
        Self { disk, limits: Limits::new(limits) }
    }

    pub fn disk_mut(&mut self) -> &mut Disk {
        &mut self.disk
    }
}

/// A disk and what it takes to carry out a driver's requests on it.
pub struct BlockQueue {
    backend: Backend,
    serial: Serial,
    write_through: bool,
    /// The disk's number, and who is told of the host's failures.
    index: u32,
    health: Health,
    stop: Arc<AtomicBool>,
}

/// What became of a request.
enum Outcome {
    /// It is answered: so many bytes of its writable part are certainly written.
    Done(u32),
    /// It is as if it had not been looked at; when to do so again.
    PutBack(Next),
}

impl BlockQueue {
    /// For the disk with number `index`. `serial` is padded with zero bytes; with `write_through` every write is durable before it
    /// is completed.
    pub fn new(backend: Backend, serial: Serial, write_through: bool, (index, health): (u32, Health)) -> Self {
        Self { backend, serial, write_through, index, health, stop: Arc::new(AtomicBool::new(false)) }
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    /// Set it to end [`Self::process`] after the request at hand.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    pub fn disk(&self) -> &Disk {
        &self.backend.disk
    }

    pub fn disk_mut(&mut self) -> &mut Disk {
        &mut self.backend.disk
    }

    pub fn into_backend(self) -> Backend {
        self.backend
    }

    /// Completes the requests that are available, at most 32 of them.
    ///
    /// # Errors
    ///
    /// The queue cannot be trusted any more; it must be left alone until the driver has reset the device.
    pub fn process(&mut self, memory: &Memory, queue: &mut Queue) -> Result<Batch, QueueError> {
        // With all three rings inside guest memory, the queue finds no chain only when there is none.
        if !queue.is_valid(memory) {
            return Err(QueueError::Invalid);
        }
        queue.disable_notification(memory).map_err(QueueError::Ring)?;
        let mut parts = Parts::default();
        let mut completed = 0;
        let mut next = None;
        while completed < BATCH && !self.stop.load(Ordering::Relaxed) {
            let Some(chain) = queue.iter(memory).map_err(QueueError::Ring)?.next() else { break };
            let head = chain.head_index();
            match self.complete(memory, chain, &mut parts)? {
                Outcome::Done(used) => queue.add_used(memory, head, used).map_err(QueueError::Ring)?,
                Outcome::PutBack(again) => {
                    queue.set_next_avail(queue.next_avail().wrapping_sub(1));
                    next = Some(again);
                    break;
                }
            }
            completed += 1;
        }
        let notify = completed > 0 && queue.needs_notification(memory).map_err(QueueError::Ring)?;
        let next = match next {
            Some(next) => next,
            None if completed == BATCH || queue.enable_notification(memory).map_err(QueueError::Ring)? => Next::Now,
            None => Next::Notified,
        };
        Ok(Batch { notify, next })
    }

    /// Carries out one request and writes its status.
    fn complete<'m>(
        &mut self,
        memory: &'m Memory,
        chain: DescriptorChain<&Memory>,
        parts: &mut Parts<'m>,
    ) -> Result<Outcome, QueueError> {
        let status = parts.collect(memory, chain).map_err(|_| QueueError::NoStatus)?;
        let (cost, now) = (self.cost(parts), Instant::now());
        if let Some(time) = self.backend.limits.closed_until(cost, now) {
            return Ok(Outcome::PutBack(Next::At(time)));
        }
        let code = match self.carry_out(parts) {
            Ok(()) => VIRTIO_BLK_S_OK,
            Err(Refusal::Malformed) => VIRTIO_BLK_S_IOERR,
            Err(Refusal::Unsupported) => VIRTIO_BLK_S_UNSUPP,
            Err(Refusal::Disk(error)) => {
                if let Some(failure) = failure(self.index, &error) {
                    if error.is_no_room() {
                        return Ok(Outcome::PutBack(Next::Room(failure)));
                    }
                    self.health.failed(failure);
                }
                VIRTIO_BLK_S_IOERR
            }
        };
        self.backend.limits.charge(cost, now);
        status.copy_from(&code.to_le_bytes()[..1]);
        // The count covers the beginning without a gap: after a failed read the status is written, but not all before it.
        let data = parts.writable_length();
        let all = code == VIRTIO_BLK_S_OK || data == 0;
        Ok(Outcome::Done(if all { u32::try_from(data + 1).unwrap_or(0) } else { 0 }))
    }

    /// What a request takes of the limits. One against the rules takes none of the disk.
    fn cost(&self, parts: &Parts<'_>) -> Cost {
        match parts.operation() {
            Ok((Operation::Read { .. }, _)) => Cost { bytes: parts.writable_length(), flush: false },
            Ok((Operation::Write { .. }, data)) => Cost { bytes: data.remaining(), flush: self.write_through },
            Ok((Operation::WriteZeroes { length, .. }, _)) => Cost { bytes: length, flush: self.write_through },
            Ok((Operation::Flush, _)) => Cost { bytes: 0, flush: true },
            Ok((Operation::Discard { .. } | Operation::Identify, _)) | Err(_) => Cost::default(),
        }
    }

    fn carry_out(&mut self, parts: &Parts<'_>) -> Result<(), Refusal> {
        let (operation, data) = parts.operation()?;
        let done = match operation {
            Operation::Read { offset } => self.backend.disk.read(offset, parts.writable()?),
            Operation::Write { offset } => self.backend.disk.write(offset, data).and_then(|()| self.after_write()),
            Operation::Flush => self.backend.disk.flush(),
            Operation::Discard { offset, length } => self.backend.disk.discard(offset, length),
            Operation::WriteZeroes { offset, length } => {
                self.backend.disk.write_zeroes(offset, length).and_then(|()| self.after_write())
            }
            Operation::Identify => {
                let mut room = parts.writable()?;
                room.copy_from(&self.serial);
                let rest = room.remaining();
                room.fill_with_zeros(rest);
                Ok(())
            }
        };
        done.map_err(Refusal::Disk)
    }

    fn after_write(&mut self) -> Result<(), DiskError> {
        if self.write_through { self.backend.disk.flush() } else { Ok(()) }
    }
}
