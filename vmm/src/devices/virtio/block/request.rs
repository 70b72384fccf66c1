//! One descriptor chain: where its parts lie in guest memory, and what it asks for.
//!
//! The device-readable descriptors of a chain, put together, are a header of 16 bytes and what is to be written; the
//! device-writable ones are room for what is read, and, as their very last byte, the status. How the driver cuts this into
//! descriptors is its own business (virtio 1.2, section 2.7.4), so nothing here depends on it.

use std::ops::Deref;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::DescriptorChain;
use vm_memory::{GuestAddress, GuestMemoryBackend, VolatileSlice};

use super::{MAX_DISCARD_SECTORS, MAX_WRITE_ZEROES_SECTORS, SECTOR_SIZE, SEG_MAX, SIZE_MAX};
use crate::devices::virtio::Memory;
use crate::disk::{Buffers, DiskError};

/// `struct virtio_blk_req` before its data: type, reserved, sector.
const HEADER: usize = 16;

/// `struct virtio_blk_discard_write_zeroes`: sector, number of sectors, flags.
const RANGE: usize = 16;

/// Most descriptors in a chain.
const MAX_DESCRIPTORS: usize = SEG_MAX as usize + 2;

/// Most bytes of data in a chain that keeps to the limits in configuration space.
const MAX_DATA: u64 = SEG_MAX as u64 * SIZE_MAX as u64;

/// What a request asks for, checked for form but not against the disk's size.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read { offset: u64 },
    Write { offset: u64 },
    Flush,
    Identify,
    Discard { offset: u64, length: u64 },
    WriteZeroes { offset: u64, length: u64 },
}

/// Why a request is refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Against the rules, `VIRTIO_BLK_S_IOERR`.
    Malformed,
    /// By the rules, but nothing that this device does, `VIRTIO_BLK_S_UNSUPP`.
    Unsupported,
    /// Asked of the disk, which did not do it.
    Disk(DiskError),
}

/// The chain does not end well: nobody can say where its status byte is.
#[derive(Debug)]
pub(super) struct NoStatus;

/// The parts of one chain. Kept from chain to chain so that they allocate only once.
#[derive(Debug, Default)]
pub(super) struct Parts<'m> {
    readable: Vec<VolatileSlice<'m>>,
    /// Without the status byte.
    writable: Vec<VolatileSlice<'m>>,
    /// Whether the chain keeps the rules for descriptors, so that the two above are complete.
    well_formed: bool,
}

impl<'m> Parts<'m> {
    /// Finds the parts of `chain`; returns where its status byte goes.
    ///
    /// A chain that breaks a rule is still walked to its end, because only there is the byte that can say so. Walking ends:
    /// the iterator counts down from the table's size.
    pub(super) fn collect<M>(
        &mut self,
        memory: &'m Memory,
        chain: DescriptorChain<M>,
    ) -> Result<VolatileSlice<'m>, NoStatus>
    where
        M: Deref<Target = Memory>,
    {
        self.readable.clear();
        self.writable.clear();
        self.well_formed = true;
        let mut ended = false;
        let mut status = None;
        let mut bytes = 0u64;
        for (index, descriptor) in chain.enumerate() {
            ended = !descriptor.has_next();
            let (address, length) = (descriptor.addr(), descriptor.len());
            bytes += u64::from(length);
            let mut fits = index < MAX_DESCRIPTORS && bytes <= MAX_DATA + HEADER as u64 + 1;
            if descriptor.is_write_only() {
                if let Some(last) = length.checked_sub(1) {
                    status = address.0.checked_add(u64::from(last));
                }
                fits = fits && gather(memory, address, length, &mut self.writable);
            } else {
                // Everything readable comes first.
                fits = fits && status.is_none() && gather(memory, address, length, &mut self.readable);
            }
            self.well_formed &= fits;
        }
        // The iterator also ends at a loop, a table outside guest memory, or an index outside its table.
        let status = status.filter(|_| ended).ok_or(NoStatus)?;
        let status = memory.get_slice(GuestAddress(status), 1).map_err(|_| NoStatus)?;
        if self.well_formed {
            self.cut_status();
        }
        Ok(status)
    }

    /// What the chain asks for, and what is left of its readable part: the data to write.
    pub(super) fn operation(&self) -> Result<(Operation, Buffers<'_, 'm>), Refusal> {
        if !self.well_formed {
            return Err(Refusal::Malformed);
        }
        let mut readable = Buffers::new(&self.readable).map_err(|_| Refusal::Malformed)?;
        let mut header = [0; HEADER];
        if readable.copy_to(&mut header) != HEADER {
            return Err(Refusal::Malformed);
        }
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let sector = u64::from_le_bytes(sector);
        let (written, read) = (readable.remaining(), self.writable_length());
        // Every operation moves data in one direction at most.
        let only = |data: u64, other: u64| if other == 0 { Ok(data) } else { Err(Refusal::Malformed) };
        let operation = match u32::from_le_bytes([t0, t1, t2, t3]) {
            VIRTIO_BLK_T_IN => Operation::Read { offset: whole_sectors(sector, only(read, written)?)? },
            VIRTIO_BLK_T_OUT => Operation::Write { offset: whole_sectors(sector, only(written, read)?)? },
            VIRTIO_BLK_T_FLUSH if written == 0 && read == 0 => Operation::Flush,
            VIRTIO_BLK_T_GET_ID if written == 0 => Operation::Identify,
            kind @ (VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES) => {
                let mut range = [0; RANGE];
                if only(written, read)? != RANGE as u64 || readable.copy_to(&mut range) != RANGE {
                    return Err(Refusal::Malformed);
                }
                range_operation(kind, range)?
            }
            VIRTIO_BLK_T_FLUSH | VIRTIO_BLK_T_GET_ID => return Err(Refusal::Malformed),
            _ => return Err(Refusal::Unsupported),
        };
        Ok((operation, readable))
    }

    /// Room for data to read.
    pub(super) fn writable(&self) -> Result<Buffers<'_, 'm>, Refusal> {
        Buffers::new(&self.writable).map_err(|_| Refusal::Malformed)
    }

    pub(super) fn writable_length(&self) -> u64 {
        self.writable.iter().map(|slice| slice.len() as u64).sum()
    }

    /// Takes the last byte off the writable part: it is the status.
    fn cut_status(&mut self) {
        if let Some(last) = self.writable.pop()
            && let Ok(data) = last.subslice(0, last.len().saturating_sub(1))
            && !data.is_empty()
        {
            self.writable.push(data);
        }
    }
}

/// Appends the slices of a descriptor, more than one where it crosses memory regions; false if it leaves guest memory.
fn gather<'m>(memory: &'m Memory, address: GuestAddress, length: u32, slices: &mut Vec<VolatileSlice<'m>>) -> bool {
    let Ok(length) = usize::try_from(length) else { return false };
    for slice in memory.get_slices(address, length) {
        match slice {
            Ok(slice) => slices.push(slice),
            Err(_) => return false,
        }
    }
    true
}

/// The offset in bytes of `sector`, for data of `length` bytes.
fn whole_sectors(sector: u64, length: u64) -> Result<u64, Refusal> {
    if !length.is_multiple_of(SECTOR_SIZE) {
        return Err(Refusal::Malformed);
    }
    sector.checked_mul(SECTOR_SIZE).ok_or(Refusal::Malformed)
}

/// A discard or a zeroing (virtio 1.2, section 5.2.6.2).
fn range_operation(kind: u32, range: [u8; RANGE]) -> Result<Operation, Refusal> {
    let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, flags @ ..] = range;
    let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
    let discard = kind == VIRTIO_BLK_T_DISCARD;
    // Unmapping is what a zeroing does anyway where it can: the disk is thin, a block that is allocated promises nothing.
    let known_flags = if discard { 0 } else { VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP };
    if u32::from_le_bytes(flags) & !known_flags != 0 {
        return Err(Refusal::Unsupported);
    }
    if sectors > if discard { MAX_DISCARD_SECTORS } else { MAX_WRITE_ZEROES_SECTORS } {
        return Err(Refusal::Malformed);
    }
    let offset = sector.checked_mul(SECTOR_SIZE).ok_or(Refusal::Malformed)?;
    let length = u64::from(sectors) * SECTOR_SIZE;
    Ok(if discard { Operation::Discard { offset, length } } else { Operation::WriteZeroes { offset, length } })
}
