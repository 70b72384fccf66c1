//! What a vCPU is before its first instruction: features, topology, model-specific registers, and the state in which a
//! 64-bit kernel is entered.

use kvm_bindings::{CpuId, Msrs, kvm_cpuid_entry2, kvm_fpu, kvm_msr_entry, kvm_regs, kvm_segment, kvm_xcrs};
use kvm_ioctls::{Kvm, VcpuFd};
use vm_memory::{Bytes, GuestMemoryError};

use crate::devices::virtio::Memory;
use crate::layout;

#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    #[error("KVM does not report its CPU features")]
    Supported(#[source] kvm_ioctls::Error),
    #[error("KVM rejects the features of vCPU {id}")]
    SetFeatures {
        id: u8,
        #[source]
        source: kvm_ioctls::Error,
    },
    #[error("KVM rejects the extended state of vCPU {id}")]
    SetExtendedState {
        id: u8,
        #[source]
        source: kvm_ioctls::Error,
    },
    #[error("KVM rejects the model-specific registers of vCPU {id}")]
    SetMsrs {
        id: u8,
        #[source]
        source: kvm_ioctls::Error,
    },
    #[error("KVM refuses model-specific register {msr:#x} of vCPU {id}")]
    RefusedMsr { id: u8, msr: u32 },
    #[error("KVM rejects the registers of the first vCPU")]
    SetRegisters(#[source] kvm_ioctls::Error),
    #[error("Cannot write the boot page tables to guest memory")]
    Tables(#[source] GuestMemoryError),
}

/// The features that KVM offers on this host: the same for all vCPUs, read once.
pub(crate) fn supported(kvm: &Kvm) -> Result<CpuId, CpuError> {
    let features = kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES);
    let mut features = features.map_err(CpuError::Supported)?;
    features.as_mut_slice().iter_mut().for_each(forget_who_answered);
    Ok(features)
}

/// Takes from a CPUID leaf which of the host's processors KVM was asked on: then the answer is the same every time, and a restore
/// sees that its vCPUs have the snapshot's features already. [`adapt`] fills this in.
fn forget_who_answered(leaf: &mut kvm_cpuid_entry2) {
    match leaf.function {
        0x1 => leaf.ebx &= 0x00ff_ffff,
        0xb | 0x1f => leaf.edx = 0,
        0x8000_001e => (leaf.eax, leaf.ebx, leaf.ecx) = (0, 0, 0),
        _ => {}
    }
}

/// Sets the features of vCPU `id` of `count` to those that KVM offers, as far as they are true for it.
pub(crate) fn set_features(vcpu: &VcpuFd, id: u8, count: u8, supported: &CpuId) -> Result<(), CpuError> {
    let mut features = supported.clone();
    for entry in features.as_mut_slice() {
        adapt(entry, id, count);
    }
    vcpu.set_cpuid2(&features).map_err(|source| CpuError::SetFeatures { id, source })
}

/// Sets the boot registers of vCPU `id`, which has its features: since Linux 6.13 KVM answers questions about registers
/// according to them.
pub(crate) fn configure(vcpu: &VcpuFd, id: u8, supported: &CpuId) -> Result<(), CpuError> {
    enable_extended_state(vcpu, supported.as_slice()).map_err(|source| CpuError::SetExtendedState { id, source })?;

    let entries = boot_msrs();
    let msrs = Msrs::from_entries(&entries)
        .map_err(|_| CpuError::SetMsrs { id, source: kvm_ioctls::Error::new(libc::E2BIG) })?;
    let taken = vcpu.set_msrs(&msrs).map_err(|source| CpuError::SetMsrs { id, source })?;
    match entries.get(taken) {
        Some(refused) => Err(CpuError::RefusedMsr { id, msr: refused.index }),
        None => Ok(()),
    }
}

/// Switches on all register state that the vCPU has (AVX and so on), as every 64-bit kernel does in its first
/// microseconds. For a guest on hardware that changes nothing; but a KVM that itself runs on QEMU's software CPU gets no
/// exit for the guest's `XSETBV`, would go on believing the reset value, and the guest would find its CPUID contradicting
/// itself and do without AVX.
fn enable_extended_state(vcpu: &VcpuFd, features: &[kvm_cpuid_entry2]) -> Result<(), kvm_ioctls::Error> {
    let Some(components) = extended_state(features) else { return Ok(()) };
    let mut registers = kvm_xcrs { nr_xcrs: 1, ..Default::default() };
    registers.xcrs[0].value = components;
    vcpu.set_xcrs(&registers)
}

/// The components of register state that XCR0 can switch on. `None` without XSAVE (processors before 2011, `noxsave`, or
/// a hypervisor that hides it): such a vCPU has no XCR0, and KVM refuses to set it, although leaf 0xd may be there, empty.
fn extended_state(features: &[kvm_cpuid_entry2]) -> Option<u64> {
    const XSAVE: u32 = 1 << 26;
    let leaf = |function, index| features.iter().find(|leaf| (leaf.function, leaf.index) == (function, index));
    let components = leaf(0xd, 0).filter(|_| leaf(0x1, 0).is_some_and(|leaf| leaf.ecx & XSAVE != 0))?;
    Some(u64::from(components.edx) << 32 | u64::from(components.eax))
}

/// Makes one CPUID leaf say what is true for this vCPU: who it is among how many, and that it is virtual. Performance
/// counters, power management and thermal sensors are the host's business; hardware virtualization is not passed on, for
/// what a guest cannot use cannot be used against the host.
fn adapt(leaf: &mut kvm_cpuid_entry2, id: u8, count: u8) {
    let id_bits = count.next_power_of_two().trailing_zeros();
    let (id, count) = (u32::from(id), u32::from(count));
    match (leaf.function, leaf.index) {
        (0x1, _) => {
            const TSC_DEADLINE: u32 = 1 << 24;
            const HYPERVISOR: u32 = 1 << 31;
            const PERFORMANCE_CAPABILITIES: u32 = 1 << 15;
            const VMX: u32 = 1 << 5;
            const SIBLINGS: u32 = 1 << 28;
            leaf.ebx = (leaf.ebx & 0x0000_ff00) | (id << 24) | (count << 16);
            leaf.ecx = (leaf.ecx | TSC_DEADLINE | HYPERVISOR) & !(PERFORMANCE_CAPABILITIES | VMX);
            leaf.edx = if count > 1 { leaf.edx | SIBLINGS } else { leaf.edx & !SIBLINGS };
        }
        // Caches: the first two levels are a core's own, the rest is shared by all.
        (0x4 | 0x8000_001d, _) if leaf.eax & 0x1f != 0 => {
            let level = (leaf.eax >> 5) & 0x7;
            let sharing = if level < 3 { 0 } else { count - 1 };
            let cores = if leaf.function == 0x4 { (count - 1).min(63) << 26 } else { 0 };
            leaf.eax = (leaf.eax & 0x3fff) | (sharing << 14) | cores;
        }
        // Turbo, sensors, energy hints.
        (0x6, _) => {
            const ALWAYS_RUNNING_APIC_TIMER: u32 = 1 << 2;
            leaf.eax &= ALWAYS_RUNNING_APIC_TIMER;
            leaf.ecx = 0;
        }
        // Performance counters: Intel's, AMD's sampling, AMD's.
        (0xa | 0x8000_001b | 0x8000_0022, _) => {
            leaf.eax = 0;
            leaf.ebx = 0;
            leaf.ecx = 0;
            leaf.edx = 0;
        }
        // Topology: one thread per core, one package.
        (0xb | 0x1f, index) => {
            const THREADS: u32 = 1;
            const CORES: u32 = 2;
            let (shift, number, level) = match index {
                0 => (0, 1, THREADS),
                1 => (id_bits, count, CORES),
                _ => (0, 0, 0),
            };
            leaf.eax = shift;
            leaf.ebx = number;
            leaf.ecx = index | (level << 8);
            leaf.edx = id;
        }
        (0x8000_0001, _) => {
            const SVM: u32 = 1 << 2;
            const INSTRUCTION_BASED_SAMPLING: u32 = 1 << 10;
            const CORE_COUNTERS: u32 = 1 << 23;
            const NORTHBRIDGE_COUNTERS: u32 = 1 << 24;
            const LAST_LEVEL_CACHE_COUNTERS: u32 = 1 << 28;
            const COUNTERS: u32 = CORE_COUNTERS | NORTHBRIDGE_COUNTERS | LAST_LEVEL_CACHE_COUNTERS;
            leaf.ecx &= !(SVM | INSTRUCTION_BASED_SAMPLING | COUNTERS);
        }
        // AMD's topology: cores in the package, width of their numbers.
        (0x8000_0008, _) => leaf.ecx = (count - 1) | (id_bits << 12),
        (0x8000_001e, _) => {
            leaf.eax = id;
            leaf.ebx = id;
            leaf.ecx = 0;
        }
        _ => {}
    }
}

/// The registers that firmware would have set.
fn boot_msrs() -> Vec<kvm_msr_entry> {
    const IA32_SYSENTER_CS: u32 = 0x174;
    const IA32_SYSENTER_ESP: u32 = 0x175;
    const IA32_SYSENTER_EIP: u32 = 0x176;
    const IA32_MISC_ENABLE: u32 = 0x1a0;
    const FAST_STRINGS: u64 = 1;
    const IA32_MTRR_DEF_TYPE: u32 = 0x2ff;
    const MTRR_ENABLED_WRITE_BACK: u64 = (1 << 11) | 6;
    const STAR: u32 = 0xc000_0081;
    const LSTAR: u32 = 0xc000_0082;
    const CSTAR: u32 = 0xc000_0083;
    const SYSCALL_MASK: u32 = 0xc000_0084;
    const KERNEL_GS_BASE: u32 = 0xc000_0102;
    let entry = |index, data| kvm_msr_entry { index, data, ..Default::default() };
    vec![
        entry(IA32_SYSENTER_CS, 0),
        entry(IA32_SYSENTER_ESP, 0),
        entry(IA32_SYSENTER_EIP, 0),
        entry(STAR, 0),
        entry(LSTAR, 0),
        entry(CSTAR, 0),
        entry(SYSCALL_MASK, 0),
        entry(KERNEL_GS_BASE, 0),
        entry(IA32_MISC_ENABLE, FAST_STRINGS),
        entry(IA32_MTRR_DEF_TYPE, MTRR_ENABLED_WRITE_BACK),
    ]
}

/// Writes the tables that 64-bit mode needs: the first GiB mapped to itself, and flat segments.
pub(crate) fn write_boot_tables(memory: &Memory) -> Result<(), CpuError> {
    const PRESENT_WRITABLE: u64 = 0x3;
    const LARGE: u64 = 0x80;
    let mut directory = [0u8; 4096];
    for (index, entry) in (0u64..).zip(directory.chunks_exact_mut(8)) {
        entry.copy_from_slice(&((index << 21) | PRESENT_WRITABLE | LARGE).to_le_bytes());
    }
    let write = || {
        memory.write_obj(layout::PDPT.0 | PRESENT_WRITABLE, layout::PML4)?;
        memory.write_obj(layout::PAGE_DIRECTORY.0 | PRESENT_WRITABLE, layout::PDPT)?;
        memory.write_slice(&directory, layout::PAGE_DIRECTORY)?;
        memory.write_obj(GDT, layout::GDT)
    };
    write().map_err(CpuError::Tables)
}

/// Null, 64-bit code, data, task state, all flat. A kernel replaces it at once; it is in memory for the case that
/// something is loaded from it before.
const GDT: [u64; 4] = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x008f_8b00_0000_ffff];

/// Puts the first vCPU where a 64-bit kernel begins: long mode with paging, interrupts off, `rsi` = `boot_params`.
/// The others wait for the guest to start them.
pub(crate) fn enter_at(vcpu: &VcpuFd, entry: u64) -> Result<(), CpuError> {
    let registers = kvm_regs {
        rflags: 0x2,
        rip: entry,
        rsp: layout::BOOT_STACK,
        rbp: layout::BOOT_STACK,
        rsi: layout::ZERO_PAGE.0,
        ..Default::default()
    };
    let fpu = kvm_fpu { fcw: 0x37f, mxcsr: 0x1f80, ..Default::default() };
    let set = || {
        vcpu.set_fpu(&fpu)?;
        vcpu.set_regs(&registers)?;
        let mut special = vcpu.get_sregs()?;
        special.gdt.base = layout::GDT.0;
        special.gdt.limit = u16::try_from(size_of_val(&GDT) - 1).unwrap_or(u16::MAX);
        special.idt.base = 0;
        special.idt.limit = 0;
        special.cs = segment(1);
        let data = segment(2);
        special.ds = data;
        special.es = data;
        special.fs = data;
        special.gs = data;
        special.ss = data;
        special.tr = segment(3);
        const PROTECTED_MODE: u64 = 1;
        const EXTENSION_TYPE: u64 = 1 << 4;
        const PAGING: u64 = 1 << 31;
        const PHYSICAL_ADDRESS_EXTENSION: u64 = 1 << 5;
        const LONG_MODE_ENABLED_AND_ACTIVE: u64 = (1 << 8) | (1 << 10);
        special.cr0 = PROTECTED_MODE | EXTENSION_TYPE | PAGING;
        special.cr3 = layout::PML4.0;
        special.cr4 |= PHYSICAL_ADDRESS_EXTENSION;
        special.efer |= LONG_MODE_ENABLED_AND_ACTIVE;
        vcpu.set_sregs(&special)
    };
    set().map_err(CpuError::SetRegisters)
}

/// The hidden part of segment `index` of [`GDT`], as loading its selector would fill it.
fn segment(index: u8) -> kvm_segment {
    let descriptor = GDT[usize::from(index)];
    let bit = |position: u32| u8::from(descriptor >> position & 1 == 1);
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector: u16::from(index) * 8,
        type_: u8::try_from(descriptor >> 40 & 0xf).unwrap_or_default(),
        s: bit(44),
        dpl: 0,
        present: bit(47),
        avl: 0,
        l: bit(53),
        db: bit(54),
        g: bit(55),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapted(function: u32, index: u32, id: u8, count: u8) -> kvm_cpuid_entry2 {
        let mut leaf =
            kvm_cpuid_entry2 { function, index, eax: 0x121, ebx: 0xaa00_0800, ecx: 0x8024, ..Default::default() };
        adapt(&mut leaf, id, count);
        leaf
    }

    #[test]
    fn extended_state_is_switched_on_only_where_there_is_xsave() {
        let leaf = |function, ecx, eax| kvm_cpuid_entry2 { function, ecx, eax, edx: 1, ..Default::default() };
        let with = |ecx, eax| extended_state(&[leaf(0x1, ecx, 0), leaf(0xd, 0, eax)]);
        assert_eq!(with(1 << 26, 7), Some(1 << 32 | 7));
        assert_eq!(with(0, 7), None, "leaf 0xd alone says nothing");
        assert_eq!(extended_state(&[leaf(0x1, 1 << 26, 0)]), None);
    }

    #[test]
    fn every_vcpu_knows_its_own_number() {
        assert_eq!(adapted(0x1, 0, 5, 8).ebx, 0x0508_0800);
        assert_eq!(adapted(0xb, 1, 5, 8).edx, 5);
        assert_eq!(adapted(0x8000_001e, 0, 5, 8).eax, 5);
    }

    #[test]
    fn which_processor_answered_is_forgotten_and_no_vcpu_sees_that() {
        let leaf = |function| kvm_cpuid_entry2 { function, ..Default::default() };
        let answers = |id: u32| {
            [
                kvm_cpuid_entry2 { ebx: id << 24 | 0x800, ..leaf(0x1) },
                kvm_cpuid_entry2 { edx: id, ..leaf(0xb) },
                kvm_cpuid_entry2 { edx: id, ..leaf(0x1f) },
                kvm_cpuid_entry2 { eax: id, ebx: id, ecx: id, ..leaf(0x8000_001e) },
            ]
        };
        let changed = |mut leaves: [kvm_cpuid_entry2; 4], change: fn(&mut kvm_cpuid_entry2)| {
            leaves.iter_mut().for_each(change);
            leaves
        };
        let forgotten = |id| changed(answers(id), forget_who_answered);
        let seen = |leaves| changed(leaves, |leaf| adapt(leaf, 3, 4));

        assert_eq!(forgotten(7), forgotten(9));
        assert_eq!(seen(forgotten(7)), seen(answers(7)));
    }

    #[test]
    fn topology_is_one_package_of_single_threaded_cores() {
        let threads = adapted(0xb, 0, 1, 6);
        assert_eq!((threads.eax, threads.ebx, threads.ecx), (0, 1, 0x100));
        let cores = adapted(0xb, 1, 1, 6);
        assert_eq!((cores.eax, cores.ebx, cores.ecx), (3, 6, 0x201));
        assert_eq!(adapted(0x8000_0008, 0, 0, 6).ecx, 5 | 3 << 12);
    }

    #[test]
    fn the_guest_knows_that_it_is_virtual_and_has_no_counters() {
        let leaf = adapted(0x1, 0, 0, 1);
        assert_eq!(leaf.ecx, 1 << 31 | 1 << 24 | 1 << 2);
        assert_eq!(leaf.edx & 1 << 28, 0);
        assert_eq!(adapted(0xa, 0, 0, 1).eax, 0);
        assert_eq!(adapted(0x8000_0001, 0, 0, 1).ecx, 0x8020, "no SVM");
        assert_eq!(adapted(0x8000_0022, 0, 0, 1).eax, 0);
        let mut amd = kvm_cpuid_entry2 { function: 0x8000_0001, ecx: u32::MAX, ..Default::default() };
        adapt(&mut amd, 0, 1);
        assert_eq!(!amd.ecx, 1 << 2 | 1 << 10 | 1 << 23 | 1 << 24 | 1 << 28);
    }
}
