//! From the guest to the tap.

use std::time::Instant;

use virtio_queue::DescriptorChain;
use zerocopy::{FromZeros, IntoBytes};

use super::header::{HEADER_LEN, Header, Offloads};
use super::limits::Limits;
use super::tap::Tap;
use super::worker::{FRAMES_PER_BATCH, NetError};
use super::{MAX_FRAME, MIN_FRAME};
use crate::devices::virtio::slices::{Direction, Slices};
use crate::devices::virtio::{Interrupt, Memory, Next, Ring};

pub(super) struct Transmit {
    ring: Ring,
    offloads: Offloads,
    limits: Limits,
}

/// Why a batch ended.
enum End {
    /// The queue is empty.
    Empty,
    Limited(Instant),
    /// There may be more.
    Enough,
}

impl Transmit {
    pub(super) fn new(ring: Ring, offloads: Offloads, limits: Limits) -> Self {
        Self { ring, offloads, limits }
    }

    pub(super) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Sends what the guest has made available, within limits.
    pub(super) fn transfer(
        &mut self,
        tap: &Tap,
        memory: &Memory,
        interrupt: &Interrupt,
        now: Instant,
    ) -> Result<Next, NetError> {
        self.ring.mute(memory)?;
        let end = self.send_all(tap, memory, now)?;
        self.ring.interrupt(memory, interrupt)?;
        Ok(match end {
            End::Empty if self.ring.listen(memory)? => Next::Now,
            End::Empty => Next::Notified,
            End::Limited(until) => Next::At(until),
            End::Enough => Next::Now,
        })
    }

    fn send_all(&mut self, tap: &Tap, memory: &Memory, now: Instant) -> Result<End, NetError> {
        for _ in 0..FRAMES_PER_BATCH {
            if let Some(until) = self.limits.closed_until(now) {
                return Ok(End::Limited(until));
            }
            let Some(chain) = self.ring.take(memory)? else { return Ok(End::Empty) };
            let head = chain.head_index();
            let length = self.send(tap, memory, chain)?;
            // What is lost has cost as much.
            self.limits.charge(length, now);
            self.ring.finish(memory, head, 0)?;
        }
        Ok(End::Enough)
    }

    /// Sends one frame, or loses it if it is none or the tap does not take it. Returns its length.
    fn send(&self, tap: &Tap, memory: &Memory, chain: DescriptorChain<&Memory>) -> Result<usize, NetError> {
        let Ok(mut frame) = Slices::of_chain(memory, chain, Direction::FromGuest) else { return Ok(0) };
        let front = frame.split_front(HEADER_LEN);
        if front.len() < HEADER_LEN || !(MIN_FRAME..=MAX_FRAME).contains(&frame.len()) {
            return Ok(0);
        }
        // Copied, so that the guest cannot change it after it was checked.
        let mut header = Header::new_zeroed();
        front.copy_to(header.as_mut_bytes());
        let Some(header) = self.offloads.for_tap(header, frame.len()) else { return Ok(0) };
        match tap.write(&header, frame.pieces()) {
            // Its device was deleted.
            Err(error) if error.raw_os_error() == Some(libc::EBADFD) => Err(NetError::Tap(error)),
            // Taken; or the kernel has found more in it than was looked for here, is out of memory, or the device is down.
            Ok(_) | Err(_) => Ok(frame.len()),
        }
    }
}
