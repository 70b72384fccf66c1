//! From the tap to the guest.
//!
//! A frame's length is known only when it was read, and a frame that was read for too little room is cut off. So the room
//! that a read gets is as long as the longest frame: as many of the guest's buffers as that takes, where the driver lets a
//! frame be spread over several (`VIRTIO_NET_F_MRG_RXBUF`), and if it has not posted as many, the device's own buffer
//! behind them. A frame that reaches into that is held there until more is posted. What was not filled stays with the
//! queue, as if it had never been looked at.

use std::io;
use std::time::Instant;

use vm_memory::VolatileSlice;
use zerocopy::{FromZeros, IntoBytes};

use super::MAX_FRAME;
use super::header::{HEADER_LEN, Header, Offloads};
use super::limits::Limits;
use super::posted::Posted;
use super::tap::Tap;
use super::worker::{FRAMES_PER_BATCH, NetError};
use crate::devices::virtio::slices;
use crate::devices::virtio::{Interrupt, Memory, Next, Ring};

pub(super) struct Receive {
    ring: Ring,
    offloads: Offloads,
    limits: Limits,
    /// A frame may fill several chains.
    is_mergeable: bool,
    /// As long as a frame that is too long: byte `n` of a frame lies at `n`, if it lies here. Empty until a guest has posted too
    /// little for the longest frame, for most never do.
    spill: Box<[u8]>,
    held: Option<Held>,
    /// The tap has, or may have, a frame.
    is_readable: bool,
}

/// A frame that waits for room, in the device's own buffer.
struct Held {
    header: Header,
    length: usize,
}

/// Why a batch ended.
enum End {
    /// The tap is empty.
    Empty,
    /// The guest has posted too little.
    Starved,
    Limited(Instant),
    /// There may be more.
    Enough,
}

/// What became of one frame.
enum Outcome {
    /// It was delivered or lost.
    Done,
    /// There is none.
    Empty,
    /// It, or the next one, waits for room.
    Starved,
}

impl Receive {
    pub(super) fn new(ring: Ring, offloads: Offloads, limits: Limits, is_mergeable: bool) -> Self {
        Self { ring, offloads, limits, is_mergeable, spill: Box::default(), held: None, is_readable: true }
    }

    /// Where the bytes of a frame go for which `capacity` is not enough.
    fn spill(&mut self, capacity: usize) -> &mut [u8] {
        if capacity > MAX_FRAME {
            return &mut [];
        }
        if self.spill.is_empty() {
            self.spill = vec![0; MAX_FRAME + 1].into();
        }
        &mut self.spill[capacity..]
    }

    pub(super) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// There is something to read.
    pub(super) fn readable(&mut self) {
        self.is_readable = true;
    }

    /// Delivers what the tap has, within limits.
    pub(super) fn transfer(
        &mut self,
        tap: &Tap,
        memory: &Memory,
        interrupt: &Interrupt,
        now: Instant,
    ) -> Result<Next, NetError> {
        self.ring.mute(memory)?;
        let mut posted = Posted::default();
        let end = self.deliver_all(tap, memory, &mut posted, now)?;
        let looked_at = self.ring.taken();
        self.ring.give_back(posted.chains());
        self.ring.interrupt(memory, interrupt)?;
        Ok(match end {
            // More than was there when it was found too little.
            End::Starved if self.ring.listen_for_more(memory)? != looked_at => Next::Now,
            End::Starved | End::Empty => Next::Notified,
            End::Limited(until) => Next::At(until),
            End::Enough => Next::Now,
        })
    }

    fn deliver_all<'m>(
        &mut self,
        tap: &Tap,
        memory: &'m Memory,
        posted: &mut Posted<'m>,
        now: Instant,
    ) -> Result<End, NetError> {
        for _ in 0..FRAMES_PER_BATCH {
            if let Some(until) = self.limits.closed_until(now) {
                return Ok(End::Limited(until));
            }
            if self.held.is_none() && !self.is_readable {
                return Ok(End::Empty);
            }
            posted.top_up(&mut self.ring, memory, self.is_mergeable)?;
            let outcome = match self.held.take() {
                Some(held) => self.deliver_held(held, memory, posted)?,
                None => self.deliver_next(tap, memory, posted, now)?,
            };
            match outcome {
                Outcome::Done => {}
                Outcome::Empty => return Ok(End::Empty),
                Outcome::Starved => return Ok(End::Starved),
            }
        }
        Ok(End::Enough)
    }

    /// Reads a frame and delivers it.
    fn deliver_next(
        &mut self,
        tap: &Tap,
        memory: &Memory,
        posted: &mut Posted<'_>,
        now: Instant,
    ) -> Result<Outcome, NetError> {
        if posted.is_empty() {
            return Ok(Outcome::Starved);
        }
        let room = posted.room();
        let capacity = room.iter().map(VolatileSlice::len).sum::<usize>();
        let mut header = Header::new_zeroed();
        let length = match tap.read(&mut header, &room, self.spill(capacity)) {
            // A tap has no end and nothing without a header; whatever has is none.
            Ok(count) => count.checked_sub(HEADER_LEN).ok_or(NetError::Tap(io::ErrorKind::UnexpectedEof.into()))?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                return Ok(Outcome::Empty);
            }
            // The kernel could not say in a header what this frame is; it is gone.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(Outcome::Done),
            Err(error) => return Err(NetError::Tap(error)),
        };
        self.limits.charge(length, now);
        if length > MAX_FRAME {
            return Ok(Outcome::Done);
        }
        if length <= capacity {
            return self.finish(header, length, memory, posted);
        }
        slices::copy_to(&room, &mut self.spill[..capacity]);
        self.deliver_held(Held { header, length }, memory, posted)
    }

    /// Delivers a frame that lies in the device's own buffer, or keeps it there.
    fn deliver_held(&mut self, held: Held, memory: &Memory, posted: &mut Posted<'_>) -> Result<Outcome, NetError> {
        let room = posted.room();
        if room.iter().map(VolatileSlice::len).sum::<usize>() < held.length {
            // A driver that has posted all that it can, and still too little, would never get another frame.
            let may_grow = if self.is_mergeable {
                posted.is_everything() && posted.chains() < self.ring.size()
            } else {
                posted.is_empty()
            };
            if may_grow {
                self.held = Some(held);
                return Ok(Outcome::Starved);
            }
            return Ok(Outcome::Done);
        }
        slices::copy_from(&room, &self.spill[..held.length]);
        self.finish(held.header, held.length, memory, posted)
    }

    /// Hands the guest a frame whose bytes lie in its buffers.
    fn finish(
        &mut self,
        header: Header,
        length: usize,
        memory: &Memory,
        posted: &mut Posted<'_>,
    ) -> Result<Outcome, NetError> {
        if let Some(mut header) = self.offloads.for_guest(header) {
            let (front, filled) = posted.fill(HEADER_LEN + length);
            header.num_buffers = u16::try_from(filled.len()).unwrap_or(u16::MAX).into();
            front.copy_from(header.as_bytes());
            self.ring.finish_all(memory, &filled)?;
        }
        Ok(Outcome::Done)
    }
}
