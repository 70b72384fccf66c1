//! Packets as they lie in guest memory.
//!
//! A packet is a header and its data, spread over the buffers of one descriptor chain in whatever way the driver liked:
//! Linux uses one buffer for both when it receives, two when it sends, and up to 18 when a process sends with
//! `MSG_ZEROCOPY`. (The `virtio-vsock` crate takes the first two shapes only, so headers are parsed here.)

use virtio_queue::DescriptorChain;
use vm_memory::{GuestMemory, Permissions, VolatileSlice};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::super::Memory;

/// `struct virtio_vsock_hdr`, virtio 1.2 section 5.10.6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    pub(super) src_cid: U64,
    pub(super) dst_cid: U64,
    pub(super) src_port: U32,
    pub(super) dst_port: U32,
    pub(super) len: U32,
    pub(super) kind: U16,
    pub(super) op: U16,
    pub(super) flags: U32,
    pub(super) buf_alloc: U32,
    pub(super) fwd_cnt: U32,
}

pub(super) const HEADER_LEN: usize = size_of::<Header>();

/// `VIRTIO_VSOCK_TYPE_STREAM`, the only type of socket here.
pub(super) const TYPE_STREAM: u16 = 1;

/// Flags of [`op::SHUTDOWN`]: the sender will not receive, will not send, any more.
pub(super) const SHUTDOWN_RECEIVE: u32 = 1;
pub(super) const SHUTDOWN_SEND: u32 = 2;
pub(super) const SHUTDOWN_BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// `VIRTIO_VSOCK_OP_*`
pub(super) mod op {
    pub(crate) const REQUEST: u16 = 1;
    pub(crate) const RESPONSE: u16 = 2;
    pub(crate) const RST: u16 = 3;
    pub(crate) const SHUTDOWN: u16 = 4;
    pub(crate) const RW: u16 = 5;
    pub(crate) const CREDIT_UPDATE: u16 = 6;
    pub(crate) const CREDIT_REQUEST: u16 = 7;
}

/// The two ports of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ports {
    pub(super) host: u32,
    pub(super) guest: u32,
}

/// Most buffers that one packet may be spread over. More than any driver uses; it keeps the lists for `sendmsg` short.
const MAX_SLICES: usize = 64;

/// What a chain is for, and so which of its buffers may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    FromGuest,
    ToGuest,
}

/// A chain that is no packet: the wrong kind of buffer, too many of them, outside memory, or too short for a header.
#[derive(Debug)]
pub(super) struct Malformed;

/// A packet's place in guest memory. The header's bytes are split off; the guest can change either at any time, so each
/// byte is read once.
#[derive(Debug)]
pub(super) struct Buffer<'m> {
    head: u16,
    header: Slices<'m>,
    pub(super) data: Slices<'m>,
}

impl<'m> Buffer<'m> {
    /// Collects the buffers of `chain`.
    pub(super) fn new(
        memory: &'m Memory,
        chain: DescriptorChain<&'m Memory>,
        direction: Direction,
    ) -> Result<Self, Malformed> {
        let head = chain.head_index();
        let access = match direction {
            Direction::FromGuest => Permissions::Read,
            Direction::ToGuest => Permissions::Write,
        };
        let mut data = Slices::default();
        for descriptor in chain {
            if descriptor.is_write_only() != (direction == Direction::ToGuest) {
                return Err(Malformed);
            }
            let slices =
                memory.get_slices(descriptor.addr(), descriptor.len() as usize, access).map_err(|_| Malformed)?;
            for slice in slices {
                data.push(slice.map_err(|_| Malformed)?)?;
            }
        }
        let header = data.split_front(HEADER_LEN);
        if header.len() < HEADER_LEN {
            return Err(Malformed);
        }
        Ok(Self { head, header, data })
    }

    /// Index of the chain, for the used ring.
    pub(super) fn head(&self) -> u16 {
        self.head
    }

    pub(super) fn read_header(&self) -> Header {
        let mut header = Header::new_zeroed();
        self.header.copy_to(header.as_mut_bytes());
        header
    }

    pub(super) fn write_header(&self, header: &Header) {
        self.header.copy_from(header.as_bytes());
    }
}

/// Pieces of guest memory that are one string of bytes.
#[derive(Debug, Default)]
pub(super) struct Slices<'m> {
    pieces: Vec<VolatileSlice<'m>>,
    len: usize,
}

impl<'m> Slices<'m> {
    fn push(&mut self, slice: VolatileSlice<'m>) -> Result<(), Malformed> {
        if slice.is_empty() {
            return Ok(());
        }
        if self.pieces.len() == MAX_SLICES {
            return Err(Malformed);
        }
        // At most MAX_SLICES pieces of 4 GiB: no overflow.
        self.len += slice.len();
        self.pieces.push(slice);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn pieces(&self) -> &[VolatileSlice<'m>] {
        &self.pieces
    }

    /// Removes the first `count` bytes (or all there are) and returns them.
    pub(super) fn split_front(&mut self, count: usize) -> Slices<'m> {
        let mut front = Slices::default();
        let mut left = count;
        let mut whole = 0;
        for piece in &mut self.pieces {
            if left == 0 {
                break;
            }
            match piece.split_at(left) {
                Ok((head, tail)) if !tail.is_empty() => {
                    front.pieces.push(head);
                    *piece = tail;
                    left = 0;
                }
                // The piece ends here or earlier: it moves over entirely.
                _ => {
                    front.pieces.push(*piece);
                    left -= piece.len();
                    whole += 1;
                }
            }
        }
        self.pieces.drain(..whole);
        front.len = count - left;
        self.len -= front.len;
        front
    }

    /// Copies to `target` from the start, as much as either has.
    pub(super) fn copy_to(&self, target: &mut [u8]) {
        let mut at = 0;
        for piece in &self.pieces {
            at += piece.copy_to(&mut target[at..]);
        }
    }

    fn copy_from(&self, source: &[u8]) {
        let mut left = source;
        for piece in &self.pieces {
            let (now, later) = left.split_at(left.len().min(piece.len()));
            piece.copy_from(now);
            left = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    fn slices<'m>(memory: &'m Memory, ranges: &[(u64, usize)]) -> Slices<'m> {
        let mut slices = Slices::default();
        for (addr, len) in ranges {
            for slice in memory.get_slices(GuestAddress(*addr), *len, Permissions::Write).expect("in memory") {
                slices.push(slice.expect("in memory")).expect("few enough");
            }
        }
        slices
    }

    #[test]
    fn split_front_cuts_within_and_between_pieces() {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory");
        memory.write_slice(b"abcdefgh", GuestAddress(0)).expect("in memory");
        let mut all = slices(&memory, &[(0, 3), (3, 3), (6, 2)]);

        let cuts: Vec<Vec<u8>> = [1, 2, 4, 9]
            .iter()
            .map(|count| {
                let front = all.split_front(*count);
                let mut bytes = vec![0; front.len()];
                front.copy_to(&mut bytes);
                bytes
            })
            .collect();

        assert_eq!(cuts, [&b"a"[..], b"bc", b"defg", b"h"]);
        assert!(all.is_empty());
        assert_eq!(all.pieces().len(), 0);
    }

    #[test]
    fn a_header_spread_over_pieces_is_read_and_written_whole() {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory");
        let buffer =
            Buffer { head: 0, header: slices(&memory, &[(0, 1), (100, 42), (200, 1)]), data: Slices::default() };
        let header = Header { src_cid: 2.into(), fwd_cnt: 0xdead_beef.into(), ..Header::new_zeroed() };

        buffer.write_header(&header);

        assert_eq!(buffer.read_header(), header);
    }
}
