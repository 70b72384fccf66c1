//! Packets as they lie in guest memory.
//!
//! A packet is a header and its data, spread over the buffers of one descriptor chain in whatever way the driver liked:
//! Linux uses one buffer for both when it receives, two when it sends, and up to 18 when a process sends with
//! `MSG_ZEROCOPY`. (The `virtio-vsock` crate takes the first two shapes only, so headers are parsed here.)

use virtio_queue::DescriptorChain;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::super::Memory;
use super::super::slices::{Direction, Malformed, Slices};

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

/// A packet's place in guest memory. The header's bytes are split off; the guest can change either at any time, so each
/// byte is read once.
#[derive(Debug)]
pub(super) struct Buffer<'m> {
    head: u16,
    header: Slices<'m>,
    pub(super) data: Slices<'m>,
}

impl<'m> Buffer<'m> {
    /// Collects the buffers of `chain`, which must have room for a header.
    pub(super) fn new(
        memory: &'m Memory,
        chain: DescriptorChain<&'m Memory>,
        direction: Direction,
    ) -> Result<Self, Malformed> {
        let head = chain.head_index();
        let mut data = Slices::of_chain(memory, chain, direction)?;
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

#[cfg(test)]
mod tests {
    use vm_memory::{GuestAddress, GuestMemory, Permissions};

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
    fn a_header_spread_over_pieces_is_read_and_written_whole() {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 0x1000)]).expect("memory");
        let buffer =
            Buffer { head: 0, header: slices(&memory, &[(0, 1), (100, 42), (200, 1)]), data: Slices::default() };
        let header = Header { src_cid: 2.into(), fwd_cnt: 0xdead_beef.into(), ..Header::new_zeroed() };

        buffer.write_header(&header);

        assert_eq!(buffer.read_header(), header);
    }
}
