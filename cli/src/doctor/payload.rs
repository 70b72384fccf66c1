//! A virtual machine of 64 KiB that runs what a Linux kernel does early in its start and emulated KVMs are known to
//! lack: a breakpoint taken through the guest's own interrupt table, and a locked 16-byte exchange.

use std::sync::mpsc;
use std::time::Duration;

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

/// How far the payload got.
pub(super) enum Trial {
    /// To its end.
    Complete,
    /// It ran, but not to its end.
    Incomplete(String),
}

const MEMORY: usize = 0x1_0000;
const PAGE_TABLES: u64 = 0x1000;
const GDT: u64 = 0x4000;
const IDT: u64 = 0x5000;
const STACK_TOP: u64 = 0x8000;
const CODE: u64 = 0x8000;
const BREAKPOINT_HANDLER: u64 = 0x8100;
const SCRATCH: u64 = 0x9000;
const DONE_PORT: u16 = 0x10;

/// `int3; lock cmpxchg16b [rdi]; mov al, 1; out 0x10, al; hlt`
const PAYLOAD: &[u8] = &[0xcc, 0xf0, 0x48, 0x0f, 0xc7, 0x0f, 0xb0, 0x01, 0xe6, 0x10, 0xf4];
/// `iretq`
const HANDLER: &[u8] = &[0x48, 0xcf];

/// Runs the payload; an error says why not even a virtual machine could be made. The trial has its own thread: a KVM that
/// never comes back leaves that thread behind, and this process is about to end.
pub(super) fn run() -> Result<Trial, String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(trial()));
    receiver
        .recv_timeout(Duration::from_secs(10))
        .unwrap_or_else(|_| Ok(Trial::Incomplete("the payload did not end within 10 s".into())))
}

fn trial() -> Result<Trial, String> {
    let kvm = Kvm::new().map_err(|error| match error.errno() {
        libc::ENOENT => "there is no /dev/kvm".to_owned(),
        libc::EACCES => "no permission to open /dev/kvm".to_owned(),
        _ => format!("cannot open /dev/kvm: {error}"),
    })?;
    let told = |what: &str, error: kvm_ioctls::Error| format!("{what}: {error}");
    let vm = kvm.create_vm().map_err(|error| told("cannot create a virtual machine", error))?;
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY)]).map_err(|error| error.to_string())?;
    write_guest(&memory).map_err(|error| error.to_string())?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: MEMORY as u64,
        userspace_addr: memory.get_host_address(GuestAddress(0)).map_err(|error| error.to_string())? as u64,
    };
    // SAFETY: the region is the whole mapping of `memory`, which outlives `vm` and its one vCPU: all three are locals of
    // this function and `memory` is declared before `vcpu`.
    unsafe { vm.set_user_memory_region(region) }.map_err(|error| told("cannot give it memory", error))?;
    let mut vcpu = vm.create_vcpu(0).map_err(|error| told("cannot create a vCPU", error))?;
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(|error| told("cannot read CPUID", error))?;
    vcpu.set_cpuid2(&cpuid).map_err(|error| told("cannot set CPUID", error))?;
    enter_long_mode(&vcpu).map_err(|error| told("cannot set registers", error))?;

    Ok(match vcpu.run() {
        Ok(VcpuExit::IoOut(DONE_PORT, [1])) => Trial::Complete,
        Ok(VcpuExit::InternalError) => Trial::Incomplete("KVM cannot emulate an instruction that Linux needs".into()),
        Ok(exit) => Trial::Incomplete(format!("the payload ended with {exit:?}")),
        Err(error) => Trial::Incomplete(format!("the payload ended with an error: {error}")),
    })
}

/// Code, its interrupt table, and page tables that map the first 2 MiB onto themselves.
fn write_guest(memory: &GuestMemoryMmap) -> Result<(), vm_memory::GuestMemoryError> {
    const PRESENT_WRITABLE: u64 = 0b11;
    const HUGE: u64 = 1 << 7;
    for (table, entry) in [
        (PAGE_TABLES, (PAGE_TABLES + 0x1000) | PRESENT_WRITABLE),
        (PAGE_TABLES + 0x1000, (PAGE_TABLES + 0x2000) | PRESENT_WRITABLE),
        (PAGE_TABLES + 0x2000, PRESENT_WRITABLE | HUGE),
    ] {
        memory.write_obj(entry, GuestAddress(table))?;
    }
    // Null, 64-bit code (selector 8), data (selector 16).
    for (index, descriptor) in [0, 0x00af_9a00_0000_ffff_u64, 0x00cf_9200_0000_ffff].into_iter().enumerate() {
        memory.write_obj(descriptor, GuestAddress(GDT + 8 * index as u64))?;
    }
    // Vector 3, a 64-bit interrupt gate: offset 15..0, selector, type and present, offset 31..16.
    let gate = (BREAKPOINT_HANDLER & 0xffff) | 8 << 16 | 0x8e00 << 32 | (BREAKPOINT_HANDLER >> 16) << 48;
    memory.write_obj(gate, GuestAddress(IDT + 3 * 16))?;
    memory.write_slice(PAYLOAD, GuestAddress(CODE))?;
    memory.write_slice(HANDLER, GuestAddress(BREAKPOINT_HANDLER))
}

fn enter_long_mode(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    let code = kvm_segment {
        base: 0,
        limit: 0xf_ffff,
        selector: 8,
        type_: 11,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: 16, type_: 3, l: 0, db: 1, ..code };
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.ss, sregs.fs, sregs.gs) = (data, data, data, data, data);
    (sregs.gdt.base, sregs.gdt.limit) = (GDT, 3 * 8 - 1);
    (sregs.idt.base, sregs.idt.limit) = (IDT, 32 * 16 - 1);
    sregs.cr3 = PAGE_TABLES;
    sregs.cr4 |= 1 << 5; // PAE
    sregs.cr0 |= 1 << 31 | 1; // paging, protection
    sregs.efer |= 1 << 10 | 1 << 8; // long mode active and enabled
    vcpu.set_sregs(&sregs)?;
    let mut regs = vcpu.get_regs()?;
    (regs.rip, regs.rsp, regs.rdi, regs.rflags) = (CODE, STACK_TOP, SCRATCH, 2);
    vcpu.set_regs(&regs)
}
