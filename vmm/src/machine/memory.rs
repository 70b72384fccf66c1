//! Guest memory: anonymous, private, charged only when touched.

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use super::layout;
use crate::devices::virtio::Memory;

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("Cannot map {mib} MiB of guest memory")]
    Map {
        mib: u32,
        #[source]
        source: vm_memory::mmap::FromRangesError,
    },
    #[error("Guest memory of {mib} MiB is too large for this machine's addresses")]
    TooLarge { mib: u32 },
    #[error("KVM does not take guest memory at {address:#x}")]
    Register {
        address: u64,
        #[source]
        source: kvm_ioctls::Error,
    },
}

/// Maps `mib` MiB, laid out as [`layout::ram`] says.
pub(crate) fn allocate(mib: u32) -> Result<Memory, MemoryError> {
    let ranges = layout::ram(u64::from(mib) << 20)
        .into_iter()
        .map(|(address, length)| Ok((address, usize::try_from(length).map_err(|_| MemoryError::TooLarge { mib })?)))
        .collect::<Result<Vec<(GuestAddress, usize)>, MemoryError>>()?;
    // Private, anonymous and without reserve: vm-memory's flags when no file is named.
    Memory::from_ranges(&ranges).map_err(|source| MemoryError::Map { mib, source })
}

/// Gives the memory to KVM.
///
/// Called before the interrupt controllers exist: with them, KVM waits out a grace period of their bus on every new slot
/// (7 ms instead of 0.1 ms).
pub(crate) fn register(vm: &VmFd, memory: &Memory) -> Result<(), MemoryError> {
    for (slot, region) in (0..).zip(memory.iter()) {
        let guest_phys_addr = region.start_addr().0;
        let entry = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
        };
        // SAFETY: the range is a mapping of exactly this region, and it lives as long as the VM can use it: `Machine`
        // declares its VM and vCPUs before its memory, so they are dropped first, and every user of the descriptor
        // afterwards would need a vCPU.
        unsafe { vm.set_user_memory_region(entry) }
            .map_err(|source| MemoryError::Register { address: guest_phys_addr, source })?;
    }
    Ok(())
}
