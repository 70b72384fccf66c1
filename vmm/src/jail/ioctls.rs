//! The numbers of the `ioctl` requests that a monitor makes, as `include/uapi/linux/kvm.h` has them; the KVM crate
//! keeps its own to itself.

use kvm_bindings as kvm;
use vmm_sys_util::ioctl::{_IOC_NONE, _IOC_READ, _IOC_WRITE, ioctl_expr};

/// What a vCPU's own thread asks for; first, because most often, to run.
pub(super) const VCPU: &[u64] = &[
    none(0x80),                           // KVM_RUN
    read::<kvm::kvm_regs>(0x81),          // KVM_GET_REGS
    write::<kvm::kvm_regs>(0x82),         // KVM_SET_REGS
    read::<kvm::kvm_sregs>(0x83),         // KVM_GET_SREGS
    write::<kvm::kvm_sregs>(0x84),        // KVM_SET_SREGS
    both::<kvm::kvm_msrs>(0x88),          // KVM_GET_MSRS
    write::<kvm::kvm_msrs>(0x89),         // KVM_SET_MSRS
    read::<kvm::kvm_fpu>(0x8c),           // KVM_GET_FPU
    write::<kvm::kvm_fpu>(0x8d),          // KVM_SET_FPU
    read::<kvm::kvm_lapic_state>(0x8e),   // KVM_GET_LAPIC
    write::<kvm::kvm_lapic_state>(0x8f),  // KVM_SET_LAPIC
    write::<kvm::kvm_cpuid2>(0x90),       // KVM_SET_CPUID2
    both::<kvm::kvm_cpuid2>(0x91),        // KVM_GET_CPUID2
    read::<kvm::kvm_mp_state>(0x98),      // KVM_GET_MP_STATE
    write::<kvm::kvm_mp_state>(0x99),     // KVM_SET_MP_STATE
    read::<kvm::kvm_vcpu_events>(0x9f),   // KVM_GET_VCPU_EVENTS
    write::<kvm::kvm_vcpu_events>(0xa0),  // KVM_SET_VCPU_EVENTS
    read::<kvm::kvm_debugregs>(0xa1),     // KVM_GET_DEBUGREGS
    write::<kvm::kvm_debugregs>(0xa2),    // KVM_SET_DEBUGREGS
    none(0xa2),                           // KVM_SET_TSC_KHZ
    none(0xa3),                           // KVM_GET_TSC_KHZ
    read::<kvm::kvm_xsave>(0xa4),         // KVM_GET_XSAVE
    write::<kvm::kvm_xsave>(0xa5),        // KVM_SET_XSAVE
    read::<kvm::kvm_xcrs>(0xa6),          // KVM_GET_XCRS
    write::<kvm::kvm_xcrs>(0xa7),         // KVM_SET_XCRS
    none(0xad),                           // KVM_KVMCLOCK_CTRL
    both::<kvm::kvm_nested_state>(0xbe),  // KVM_GET_NESTED_STATE
    write::<kvm::kvm_nested_state>(0xbf), // KVM_SET_NESTED_STATE
    read::<kvm::kvm_xsave>(0xcf),         // KVM_GET_XSAVE2
    PRE_FAULT_MEMORY,
    write::<kvm::kvm_device_attr>(0xe1), // KVM_SET_DEVICE_ATTR
    write::<kvm::kvm_device_attr>(0xe2), // KVM_GET_DEVICE_ATTR
    write::<kvm::kvm_device_attr>(0xe3), // KVM_HAS_DEVICE_ATTR
];

/// What building, saving and restoring a machine takes besides its vCPUs.
pub(super) const MACHINE: &[u64] = &[
    none(0x00),                                      // KVM_GET_API_VERSION
    none(0x01),                                      // KVM_CREATE_VM
    both::<kvm::kvm_msr_list>(0x02),                 // KVM_GET_MSR_INDEX_LIST
    none(0x03),                                      // KVM_CHECK_EXTENSION
    none(0x04),                                      // KVM_GET_VCPU_MMAP_SIZE
    both::<kvm::kvm_cpuid2>(0x05),                   // KVM_GET_SUPPORTED_CPUID
    both::<kvm::kvm_msr_list>(0x0a),                 // KVM_GET_MSR_FEATURE_INDEX_LIST
    none(0x41),                                      // KVM_CREATE_VCPU
    write::<kvm::kvm_userspace_memory_region>(0x46), // KVM_SET_USER_MEMORY_REGION
    none(0x47),                                      // KVM_SET_TSS_ADDR
    write::<u64>(0x48),                              // KVM_SET_IDENTITY_MAP_ADDR
    none(0x60),                                      // KVM_CREATE_IRQCHIP
    write::<kvm::kvm_irq_level>(0x61),               // KVM_IRQ_LINE
    both::<kvm::kvm_irqchip>(0x62),                  // KVM_GET_IRQCHIP
    read::<kvm::kvm_irqchip>(0x63),                  // KVM_SET_IRQCHIP
    write::<kvm::kvm_irq_routing>(0x6a),             // KVM_SET_GSI_ROUTING
    write::<kvm::kvm_irqfd>(0x76),                   // KVM_IRQFD
    write::<kvm::kvm_pit_config>(0x77),              // KVM_CREATE_PIT2
    write::<kvm::kvm_ioeventfd>(0x79),               // KVM_IOEVENTFD
    write::<kvm::kvm_clock_data>(0x7b),              // KVM_SET_CLOCK
    read::<kvm::kvm_clock_data>(0x7c),               // KVM_GET_CLOCK
    read::<kvm::kvm_pit_state2>(0x9f),               // KVM_GET_PIT2
    write::<kvm::kvm_pit_state2>(0xa0),              // KVM_SET_PIT2
    write::<kvm::kvm_enable_cap>(0xa3),              // KVM_ENABLE_CAP
];

/// `KVM_PRE_FAULT_MEMORY`.
pub(crate) const PRE_FAULT_MEMORY: u64 = both::<kvm::kvm_pre_fault_memory>(0xd5);

/// `PAGEMAP_SCAN` (`include/uapi/linux/fs.h`): which pages of memory were written.
pub(crate) const PAGEMAP_SCAN: u64 = 0xc060_6610;

/// `UFFDIO_API` and `UFFDIO_REGISTER` (`include/uapi/linux/userfaultfd.h`): which pages of memory are written.
pub(crate) const UFFDIO_API: u64 = 0xc018_aa3f;
pub(crate) const UFFDIO_REGISTER: u64 = 0xc020_aa00;

/// `FIONBIO`: makes a descriptor non-blocking. The C library's type for it is signed on some systems.
pub(super) const NON_BLOCKING: u64 = 0x5421;

/// `TUNSETOFFLOAD` (`include/uapi/linux/if_tun.h`): what a tap's frames may leave undone.
pub(super) const TAP_OFFLOADS: u64 = 0x4004_54d0;

/// `KVMIO`.
const KVM: u32 = 0xae;

const fn none(number: u32) -> u64 {
    ioctl_expr(_IOC_NONE, KVM, number, 0)
}

const fn read<T>(number: u32) -> u64 {
    ioctl_expr(_IOC_READ, KVM, number, size::<T>())
}

const fn write<T>(number: u32) -> u64 {
    ioctl_expr(_IOC_WRITE, KVM, number, size::<T>())
}

const fn both<T>(number: u32) -> u64 {
    ioctl_expr(_IOC_READ | _IOC_WRITE, KVM, number, size::<T>())
}

#[expect(clippy::cast_possible_truncation, reason = "checked in the same line, when the program is compiled")]
const fn size<T>() -> u32 {
    assert!(size_of::<T>() < 1 << 14, "the kernel's limit");
    size_of::<T>() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as `strace` prints them.
    #[test]
    fn the_numbers_are_the_kernels() {
        assert_eq!(VCPU[0], 0xae80);
        assert!(VCPU.contains(&0x4008_ae89), "KVM_SET_MSRS");
        assert!(VCPU.contains(&0x9000_aea4), "KVM_GET_XSAVE");
        assert_eq!(PRE_FAULT_MEMORY, 0xc040_aed5);
        assert!(MACHINE.contains(&0x4020_ae46), "KVM_SET_USER_MEMORY_REGION");
        assert!(MACHINE.contains(&0xc208_ae62), "KVM_GET_IRQCHIP");
        assert!(MACHINE.contains(&0x4040_ae79), "KVM_IOEVENTFD");
    }
}
