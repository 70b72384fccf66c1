//! Loading a kernel and what it is told.
//!
//! The kernel is an uncompressed ELF `vmlinux`, entered at its ELF entry in 64-bit mode with `boot_params` (Linux's
//! "64-bit boot protocol"), not through its PVH entry: PVH enters in 32-bit mode without paging, and the kernel then
//! spends its first instructions building page tables to get where this entry already is, and on copying the start
//! information into the very `boot_params` that we write here. Anything else in ELF form works too: the entry runs in
//! 64-bit mode with the first GiB mapped to itself and a small stack, which is how the tests' payload guests start.

use std::fs::File;

use linux_loader::loader::KernelLoader;
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use linux_loader::loader::elf::Elf;
use sandpiper_protocol::guest::ROOT_OPTIONS;
use sandpiper_protocol::vmm::MachineConfig;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

use crate::devices::virtio::Memory;
use crate::layout;

#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error(
        "The kernel cannot be loaded: it must be an uncompressed 64-bit ELF file that fits into the guest's memory"
    )]
    Load(#[source] linux_loader::loader::Error),
    #[error("The kernel ends at {end:#x}, beyond the guest's memory")]
    TooLarge { end: u64 },
    #[error("The kernel arguments are {length} bytes long, {} is the most", layout::COMMAND_LINE_SIZE - 1)]
    LongArguments { length: usize },
    #[error("The kernel arguments contain something other than printable ASCII")]
    BadArguments,
    #[error("Cannot write the boot parameters to guest memory")]
    Write(#[source] GuestMemoryError),
}

/// Loads `kernel` and returns its entry.
pub(crate) fn load_kernel(memory: &Memory, kernel: &mut File, memory_mib: u32) -> Result<u64, BootError> {
    let start = Some(GuestAddress(layout::HIGH_RAM));
    let loaded = Elf::load(memory, None, kernel, start).map_err(BootError::Load)?;
    let end = (u64::from(memory_mib) << 20).min(layout::GAP);
    if loaded.kernel_end > end || loaded.kernel_load.0 >= end {
        return Err(BootError::TooLarge { end: loaded.kernel_end.max(loaded.kernel_load.0) });
    }
    Ok(loaded.kernel_load.0)
}

/// Writes the arguments and `boot_params`. ACPI tables are written elsewhere; their address is told here.
pub(crate) fn write_parameters(memory: &Memory, config: &MachineConfig) -> Result<(), BootError> {
    let mut arguments = command_line(config)?.into_bytes();
    arguments.push(0);
    memory.write_slice(&arguments, layout::COMMAND_LINE).map_err(BootError::Write)?;

    let mut parameters = boot_params::default();
    parameters.hdr.type_of_loader = 0xff;
    parameters.hdr.boot_flag = 0xaa55;
    parameters.hdr.header = u32::from_le_bytes(*b"HdrS");
    parameters.hdr.kernel_alignment = 0x100_0000;
    parameters.hdr.cmd_line_ptr = u32::try_from(layout::COMMAND_LINE.0).unwrap_or_default();
    parameters.hdr.cmdline_size = u32::try_from(arguments.len()).unwrap_or_default();
    parameters.acpi_rsdp_addr = layout::ACPI.0;
    let map = memory_map(u64::from(config.memory_mib) << 20);
    for (entry, target) in map.iter().zip(parameters.e820_table.iter_mut()) {
        *target = *entry;
    }
    parameters.e820_entries = u8::try_from(map.len()).unwrap_or_default();
    memory.write_obj(parameters, layout::ZERO_PAGE).map_err(BootError::Write)
}

/// What the kernel may use as memory.
fn memory_map(ram: u64) -> Vec<boot_e820_entry> {
    const RAM: u32 = 1;
    const RESERVED: u32 = 2;
    let entry = |addr, size, kind| boot_e820_entry { addr, size, r#type: kind };
    let mut map = vec![entry(0, layout::LOW_RAM_END, RAM), entry(layout::ACPI.0, layout::ACPI_SIZE, RESERVED)];
    for (GuestAddress(start), length) in layout::ram(ram) {
        let usable = start.max(layout::HIGH_RAM);
        map.push(entry(usable, start + length - usable, RAM));
    }
    map
}

/// The monitor's arguments, then the caller's, of which the kernel takes the last where they differ.
fn command_line(config: &MachineConfig) -> Result<String, BootError> {
    if !config.kernel_args.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        return Err(BootError::BadArguments);
    }
    let mut line = String::from(
        // A reset is one port write, and a panic resets at once: the monitor reports it. There is no PCI bus to look for,
        // no timer chip to check and no clock better than KVM's; the host's random numbers are trusted as its memory is.
        "reboot=k panic=-1 \
         nomodule \
         pci=off \
         random.trust_cpu=on \
         no_timer_check tsc=reliable \
         cryptomgr.notests \
         rcupdate.rcu_expedited=1 ",
    );
    // The guest kernel keeps no slot for a serial port unless it is told to.
    line.push_str(if config.console { "console=ttyS0 8250.nr_uarts=1 loglevel=7 " } else { "quiet loglevel=0 " });
    if let Some(root) = config.disks.first() {
        line.push_str(&format!("root=/dev/vda rootfstype=ext4 rootflags={ROOT_OPTIONS} "));
        line.push_str(if root.read_only { "ro " } else { "rw " });
    }
    line.push_str("init=/sbin/sandpiper-init ");
    line.push_str(&config.kernel_args);
    let line = line.trim_end().to_owned();
    if line.len() >= layout::COMMAND_LINE_SIZE {
        return Err(BootError::LongArguments { length: line.len() });
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandpiper_protocol::vmm::DiskLimits;

    fn config(kernel_args: &str) -> MachineConfig {
        let kernel_args = kernel_args.to_owned();
        MachineConfig {
            vcpus: 1,
            memory_mib: 64,
            kernel_args,
            disks: vec![],
            disk_limits: DiskLimits::default(),
            net: None,
            console: false,
        }
    }

    #[test]
    fn the_callers_arguments_come_last() {
        let line = command_line(&config("loglevel=4 quiet")).unwrap();
        assert!(line.ends_with("init=/sbin/sandpiper-init loglevel=4 quiet"), "{line}");
        assert!(!line.contains("ttyS0"));
    }

    #[test]
    fn arguments_that_a_kernel_cannot_take_are_refused() {
        assert!(matches!(command_line(&config("a\nb")), Err(BootError::BadArguments)));
        assert!(matches!(command_line(&config("a\0b")), Err(BootError::BadArguments)));
        assert!(matches!(command_line(&config(&"x".repeat(2048))), Err(BootError::LongArguments { .. })));
    }

    #[test]
    fn the_memory_map_names_every_byte_of_ram_but_the_reserved_ones() {
        let (small, large) = (64 << 20, 5 << 30);
        let flat = |ram| memory_map(ram).iter().map(|entry| (entry.addr, entry.size, entry.r#type)).collect::<Vec<_>>();
        assert_eq!(flat(small), [(0, 0x9_fc00, 1), (0xe_0000, 0x2_0000, 2), (0x10_0000, small - 0x10_0000, 1)]);
        assert_eq!(flat(large)[2..], [(0x10_0000, layout::GAP - 0x10_0000, 1), (4 << 30, 2 << 30, 1)]);
    }
}
