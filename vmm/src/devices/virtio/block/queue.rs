//! From the queue to the disk and back, without a thread.
//!
//! A request that would exceed a limit, or for which the host has no room, is put back: the queue stands before it, as if it
//! had not been seen. So whoever saves the queue then saves it with the request still to be done. Doing it again does no
//! harm: the driver was not told of it, so it has left what is to be written as it is, and expects nothing of what is on the
//! disk there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sandpiper_protocol::vmm::{DiskFailure, DiskLimits};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP};
use virtio_queue::DescriptorChain;

use super::health::{Health, failure};
use super::limits::{Cost, Limits};
use super::request::{Operation, Parts, Refusal};
use crate::devices::virtio::{Memory, Ring, RingError};
use crate::disk::Disk;

/// Most requests between two looks at whether the driver wants an interrupt: the first of many need not wait for the last.
const REQUESTS_PER_BATCH: usize = 32;

/// A serial number as the guest gets it, padded with zero bytes.
type Serial = [u8; VIRTIO_BLK_ID_BYTES as usize];

/// Why a queue cannot be worked on any more, and the device needs a reset.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("The driver made a request without a writable status byte")]
    NoStatus,
}

/// How a call to [`BlockQueue::process`] leaves the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// There may be more requests, for which no notification will come.
    More,
    /// The driver will notify of the next request.
    Empty,
    /// The next request would exceed a limit before this time.
    Limited(Instant),
    /// The host had no room for the next request.
    NoRoom(DiskFailure),
}

/// A disk and what it may still do. It outlives a reset of the device, which would else be a way around the limits.
pub struct Backend {
    disk: Disk,
    serial: Serial,
    limits: Limits,
}

impl Backend {
    /// Of `serial`, which the guest is told, only the first 20 bytes count.
    pub fn new(disk: Disk, serial: &str, limits: DiskLimits) -> Self {
        Self { disk, serial: padded(serial), limits: Limits::new(limits) }
    }

    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    pub fn disk_mut(&mut self) -> &mut Disk {
        &mut self.disk
    }
}

/// What it takes to carry out a driver's requests on a disk, which may be missing: all of them fail then.
pub struct BlockQueue {
    backend: Option<Backend>,
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
    /// It is as if it had not been looked at, and this is why.
    PutBack(Status),
}

impl BlockQueue {
    /// For the disk with number `index`; with `write_through` every write is durable before it is completed.
    pub fn new(backend: Option<Backend>, write_through: bool, (index, health): (u32, Health)) -> Self {
        Self { backend, write_through, index, health, stop: Arc::new(AtomicBool::new(false)) }
    }

    /// The disk's number.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    /// Set it to end [`Self::process`] after the request at hand.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    pub fn backend(&self) -> Option<&Backend> {
        self.backend.as_ref()
    }

    pub fn backend_mut(&mut self) -> Option<&mut Backend> {
        self.backend.as_mut()
    }

    pub fn into_backend(self) -> Option<Backend> {
        self.backend
    }

    /// Requests are carried out on `backend` from now on, whatever was there before.
    pub fn insert(&mut self, backend: Backend) {
        self.backend = Some(backend);
    }

    /// Takes the disk out, if there is one, after carrying out what the driver has under way: over the limits if need be, but
    /// no request is begun after `deadline`, and none waits for room on the host. What is left fails when it is processed.
    ///
    /// # Errors
    /// As [`Self::process`]. The disk is taken out all the same.
    pub fn remove(&mut self, memory: &Memory, ring: &mut Ring, deadline: Instant) -> Result<(), QueueError> {
        if let Some(backend) = &mut self.backend {
            backend.limits = Limits::new(DiskLimits::default());
        }
        let carried_out = self.carry_out_all(memory, ring, Some(deadline));
        self.backend = None;
        carried_out.map(drop)
    }

    /// Completes as many requests as the queue holds, which is all that are available, unless the driver adds more
    /// meanwhile, or the disk cannot carry one out at present.
    ///
    /// # Errors
    /// As [`Self::process`].
    pub fn process_all(&mut self, memory: &Memory, ring: &mut Ring) -> Result<Status, QueueError> {
        self.carry_out_all(memory, ring, None)
    }

    fn carry_out_all(
        &mut self,
        memory: &Memory,
        ring: &mut Ring,
        deadline: Option<Instant>,
    ) -> Result<Status, QueueError> {
        // One more than it takes, which finds that nothing is left.
        for _ in 0..=usize::from(ring.size()).div_ceil(REQUESTS_PER_BATCH) {
            let status = self.carry_out_some(memory, ring, deadline)?;
            if status != Status::More || deadline.is_some_and(has_passed) {
                return Ok(status);
            }
        }
        Ok(Status::More)
    }

    /// Completes the requests that are available, at most 32 of them. That the driver may want an interrupt for them is left
    /// to the caller.
    ///
    /// # Errors
    ///
    /// The queue cannot be trusted any more; it must be left alone until the driver has reset the device.
    pub fn process(&mut self, memory: &Memory, ring: &mut Ring) -> Result<Status, QueueError> {
        self.carry_out_some(memory, ring, None)
    }

    fn carry_out_some(
        &mut self,
        memory: &Memory,
        ring: &mut Ring,
        deadline: Option<Instant>,
    ) -> Result<Status, QueueError> {
        ring.mute(memory)?;
        let mut parts = Parts::default();
        let mut completed = 0;
        while completed < REQUESTS_PER_BATCH && !self.stop.load(Ordering::Relaxed) && !deadline.is_some_and(has_passed)
        {
            let Some(chain) = ring.take(memory)? else { break };
            let head = chain.head_index();
            match self.complete(memory, chain, &mut parts)? {
                Outcome::Done(used) => ring.finish(memory, head, used)?,
                Outcome::PutBack(status) => {
                    ring.give_back(1);
                    return Ok(status);
                }
            }
            completed += 1;
        }
        let more = completed == REQUESTS_PER_BATCH || ring.listen(memory)?;
        Ok(if more { Status::More } else { Status::Empty })
    }

    /// Carries out one request and writes its status.
    fn complete<'m>(
        &mut self,
        memory: &'m Memory,
        chain: DescriptorChain<&Memory>,
        parts: &mut Parts<'m>,
    ) -> Result<Outcome, QueueError> {
        let status = parts.collect(memory, chain).map_err(|_| QueueError::NoStatus)?;
        let code = match &mut self.backend {
            None => VIRTIO_BLK_S_IOERR,
            Some(backend) => {
                let (cost, now) = (cost(parts, self.write_through), Instant::now());
                if let Some(time) = backend.limits.closed_until(cost, now) {
                    return Ok(Outcome::PutBack(Status::Limited(time)));
                }
                let code = match backend.carry_out(parts, self.write_through) {
                    Ok(()) => VIRTIO_BLK_S_OK,
                    Err(Refusal::Malformed) => VIRTIO_BLK_S_IOERR,
                    Err(Refusal::Unsupported) => VIRTIO_BLK_S_UNSUPP,
                    Err(Refusal::Disk(error)) => {
                        if let Some(failure) = failure(self.index, &error) {
                            if error.is_no_room() {
                                return Ok(Outcome::PutBack(Status::NoRoom(failure)));
                            }
                            self.health.failed(failure);
                        }
                        VIRTIO_BLK_S_IOERR
                    }
                };
                backend.limits.charge(cost, now);
                code
            }
        };
        status.copy_from(&code.to_le_bytes()[..1]);
        // The count covers the beginning without a gap: after a failed read the status is written, but not all before it.
        let data = parts.writable_length();
        let all = code == VIRTIO_BLK_S_OK || data == 0;
        Ok(Outcome::Done(if all { u32::try_from(data + 1).unwrap_or(0) } else { 0 }))
    }
}

impl Backend {
    fn carry_out(&mut self, parts: &Parts<'_>, write_through: bool) -> Result<(), Refusal> {
        let (operation, data) = parts.operation()?;
        let disk = &mut self.disk;
        let writes = matches!(operation, Operation::Write { .. } | Operation::WriteZeroes { .. });
        let done = match operation {
            Operation::Read { offset } => disk.read(offset, parts.writable()?),
            Operation::Write { offset } => disk.write(offset, data),
            Operation::Flush => disk.flush(),
            Operation::Discard { offset, length } => disk.discard(offset, length),
            Operation::WriteZeroes { offset, length } => disk.write_zeroes(offset, length),
            Operation::Identify => {
                let mut room = parts.writable()?;
                room.copy_from(&self.serial);
                let rest = room.remaining();
                room.fill_with_zeros(rest);
                Ok(())
            }
        };
        let done = if writes && write_through { done.and_then(|()| disk.flush()) } else { done };
        done.map_err(Refusal::Disk)
    }
}

/// What a request takes of the limits. One against the rules takes none of the disk.
fn cost(parts: &Parts<'_>, write_through: bool) -> Cost {
    match parts.operation() {
        Ok((Operation::Read { .. }, _)) => Cost { bytes: parts.writable_length(), flush: false },
        Ok((Operation::Write { .. }, data)) => Cost { bytes: data.remaining(), flush: write_through },
        Ok((Operation::WriteZeroes { length, .. }, _)) => Cost { bytes: length, flush: write_through },
        Ok((Operation::Flush, _)) => Cost { bytes: 0, flush: true },
        Ok((Operation::Discard { .. } | Operation::Identify, _)) | Err(_) => Cost::default(),
    }
}

fn has_passed(deadline: Instant) -> bool {
    Instant::now() >= deadline
}

fn padded(serial: &str) -> Serial {
    let mut padded = Serial::default();
    for (to, from) in padded.iter_mut().zip(serial.bytes()) {
        *to = from;
    }
    padded
}
