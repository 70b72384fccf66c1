//! The second-level page tables: how a guest's addresses lead to memory of this process.

use std::io;
use std::os::fd::AsRawFd;

use kvm_bindings::kvm_pre_fault_memory;
use kvm_ioctls::VcpuFd;

use crate::jail::PRE_FAULT_MEMORY;

/// Maps whole pages as the guest's reading them would, and where they are this process's own so that it can write to them, too.
///
/// # Errors
/// KVM does not know how, which it does since Linux 6.11, or maps without second-level tables.
pub(super) fn map(vcpu: &VcpuFd, guest: u64, length: u64) -> io::Result<()> {
    let mut left = kvm_pre_fault_memory { gpa: guest, size: length, ..Default::default() };
    while left.size > 0 {
        // SAFETY: the kernel reads and writes one `kvm_pre_fault_memory`, which lives through the call; what of the guest's memory it
        // maps, the guest could have touched by itself.
        if unsafe { libc::ioctl(vcpu.as_raw_fd(), PRE_FAULT_MEMORY, &raw mut left) } != 0 {
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use kvm_ioctls::Kvm;
    use vm_memory::{GuestAddress, GuestMemoryBackend};

    use crate::devices::virtio::Memory;
    use crate::memory::{PAGE_SIZE, allocate, register};

    /// Whether this process has mapped the page.
    fn is_there(memory: &Memory, page: u64) -> bool {
        let host = memory.get_host_address(GuestAddress(page * PAGE_SIZE)).unwrap() as u64;
        let mut entry = [0; 8];
        File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, host / PAGE_SIZE * 8).unwrap();
        u64::from_ne_bytes(entry) >> 63 != 0
    }

    #[test]
    fn what_is_mapped_for_the_guest_is_there_before_it_asks() {
        let Ok(kvm) = Kvm::new() else {
            return println!("SKIPPED: second-level page tables ahead of the guest: there is no /dev/kvm");
        };
        let vm = kvm.create_vm().unwrap();
        let memory = allocate(8).unwrap();
        register(&vm, &memory).unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        let there = || [2, 3, 4, 5].map(|page| is_there(&memory, page));
        assert_eq!(there(), [false; 4]);

        if let Err(error) = map(&vcpu, 3 * PAGE_SIZE, 2 * PAGE_SIZE) {
            return println!("SKIPPED: second-level page tables ahead of the guest: not with this KVM: {error}");
        }

        assert_eq!(there(), [false, true, true, false]);
        assert!(map(&vcpu, 16 << 20, PAGE_SIZE).is_err(), "there is no memory");
    }
}
