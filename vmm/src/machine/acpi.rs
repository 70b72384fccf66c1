//! ACPI tables: how the guest finds its CPUs, devices and power switch.
//!
//! Hardware-reduced ACPI (no timer, no PIC, no fixed hardware), so a guest skips a PC's legacy: power-off and reset are
//! registers in port space ([`AcpiPower`]), and every device is in the DSDT, so none needs a kernel argument.
//!
//! With hardware-reduced ACPI Linux has no legacy interrupts either: COM1 gets its line from `_CRS`, as an
//! edge-triggered one, or a process that writes to the console would wait for ever. What ACPI itself has to tell the
//! guest comes as the interrupt of a Generic Event Device (ACPI 6.5 section 5.6.9): only that the generation id changed.

use acpi_tables::aml::{
    Arg, Device, EISAName, Equal, IO, If, Interrupt, Memory32Fixed, Method, Name, Notify, Package, Path,
    ResourceTemplate,
};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use vm_memory::{Bytes, GuestAddress};

use crate::devices::power::AcpiPower;
use crate::devices::pvpanic::PvPanic;
use crate::devices::serial::Console;
use crate::devices::virtio::Memory;
use crate::devices::vmgenid::VmGenId;
use crate::layout;

const OEM: [u8; 6] = *b"SANDPI";
const OEM_TABLE: [u8; 8] = *b"SANDPIPR";
const REVISION: u32 = 1;
/// Revision 2 of a DSDT has integers of 64 bits.
const DSDT_REVISION: u8 = 2;
const TABLE_HEADER: u32 = 36;
/// Room for all tables.
const TABLES_SIZE: u64 = layout::GENERATION_ID.0 - layout::ACPI.0;

/// The first of the values that a notification of a device's own meaning can have.
const GENERATION_CHANGED: u8 = 0x80;

/// ACPI 6.5 section 5.2.9.3: what a PC would have and this machine has not.
const BOOT_ARCHITECTURE: u16 = NO_VGA | NO_MSI | NO_ASPM | NO_CMOS_CLOCK;
const NO_VGA: u16 = 1 << 2;
const NO_MSI: u16 = 1 << 3;
const NO_ASPM: u16 = 1 << 4;
const NO_CMOS_CLOCK: u16 = 1 << 5;

/// What the tables describe.
pub(crate) struct Contents<'a> {
    pub(crate) vcpus: u8,
    pub(crate) console: bool,
    pub(crate) virtio: &'a [VirtioWindow],
}

/// One virtio-mmio device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VirtioWindow {
    pub(crate) base: u32,
    pub(crate) gsi: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum AcpiError {
    #[error("The ACPI tables do not fit into their {} KiB", TABLES_SIZE >> 10)]
    TooLarge,
    #[error("Cannot write the ACPI tables to guest memory")]
    Write(#[source] vm_memory::GuestMemoryError),
}

/// Writes the tables to guest memory, the root pointer at [`layout::ACPI`].
pub(crate) fn write(memory: &Memory, contents: &Contents<'_>) -> Result<(), AcpiError> {
    let mut area = Area { bytes: vec![0; Rsdp::len()] };
    let dsdt = area.append(&DsdtBytes(dsdt(contents)));
    let fadt = area.append(&fadt(dsdt));
    let madt = area.append(&madt(contents.vcpus));
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = area.append(&xsdt);

    let mut root = Vec::new();
    Rsdp::new(OEM, xsdt).to_aml_bytes(&mut root);
    area.bytes[..root.len()].copy_from_slice(&root);

    if area.bytes.len() as u64 > TABLES_SIZE {
        return Err(AcpiError::TooLarge);
    }
    memory.write_slice(&area.bytes, layout::ACPI).map_err(AcpiError::Write)
}

/// Tables one after another, from [`layout::ACPI`] on.
struct Area {
    bytes: Vec<u8>,
}

impl Area {
    /// Adds a table and returns its guest address.
    fn append(&mut self, table: &dyn Aml) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        let GuestAddress(start) = layout::ACPI;
        let address = start + self.bytes.len() as u64;
        table.to_aml_bytes(&mut self.bytes);
        address
    }
}

struct DsdtBytes(Sdt);

impl Aml for DsdtBytes {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(self.0.as_slice());
    }
}

fn fadt(dsdt: u64) -> impl Aml {
    let register = |offset: u16| {
        GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, u64::from(AcpiPower::BASE + offset))
    };
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    fadt.iapc_boot_arch = BOOT_ARCHITECTURE.into();
    fadt.reset_reg = register(AcpiPower::RESET);
    fadt.reset_value = AcpiPower::RESET_VALUE;
    fadt.sleep_control_reg = register(AcpiPower::SLEEP_CONTROL);
    fadt.sleep_status_reg = register(AcpiPower::SLEEP_STATUS);
    fadt.finalize()
}

fn madt(vcpus: u8) -> impl Aml {
    let mut madt = MADT::new(OEM, OEM_TABLE, REVISION, LocalInterruptController::Address(layout::LOCAL_APIC));
    for id in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, layout::IO_APIC, 0));
    madt
}

fn dsdt(contents: &Contents<'_>) -> Sdt {
    let mut aml = Vec::new();
    let sleep_type = AcpiPower::SLEEP_TYPE_S5;
    Name::new("_S5_".into(), &Package::new(vec![&sleep_type, &sleep_type])).to_aml_bytes(&mut aml);

    let panic_port = PvPanic::PORT;
    Device::new(
        "_SB_.PEVT".into(),
        vec![
            &Name::new("_HID".into(), &"QEMU0001"),
            &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&IO::new(panic_port, panic_port, 1, 1)])),
        ],
    )
    .to_aml_bytes(&mut aml);

    generation_id(&mut aml);

    if contents.console {
        Device::new(
            "_SB_.COM1".into(),
            vec![
                &Name::new("_HID".into(), &EISAName::new("PNP0501")),
                &Name::new("_UID".into(), &0u8),
                &Name::new(
                    "_CRS".into(),
                    &ResourceTemplate::new(vec![
                        &edge_interrupt(Console::GSI),
                        &IO::new(Console::PORT, Console::PORT, 1, 8),
                    ]),
                ),
            ],
        )
        .to_aml_bytes(&mut aml);
    }

    for (index, window) in (0u8..).zip(contents.virtio) {
        Device::new(
            format!("_SB_.VI{index:02X}").as_str().into(),
            vec![
                &Name::new("_HID".into(), &"LNRO0005"),
                &Name::new("_UID".into(), &index),
                &Name::new("_CCA".into(), &1u8),
                &Name::new(
                    "_CRS".into(),
                    &ResourceTemplate::new(vec![
                        &Memory32Fixed::new(true, window.base, layout::VIRTIO_MMIO_WINDOW),
                        &edge_interrupt(window.gsi),
                    ]),
                ),
            ],
        )
        .to_aml_bytes(&mut aml);
    }

    let mut dsdt = Sdt::new(*b"DSDT", TABLE_HEADER, DSDT_REVISION, OEM, OEM_TABLE, REVISION);
    dsdt.append_slice(&aml);
    dsdt
}

/// The generation id, and the Generic Event Device through which the guest is told of a new one.
///
/// Linux takes the device by the first of its compatible ids, Windows and others by the second, which is older and
/// longer than ACPI allows.
fn generation_id(aml: &mut Vec<u8>) {
    let GuestAddress(address) = layout::GENERATION_ID;
    let (low, high) = (address & 0xffff_ffff, address >> 32);
    Device::new(
        "_SB_.VGEN".into(),
        vec![
            &Name::new("_HID".into(), &"SNDP0001"),
            &Name::new("_CID".into(), &Package::new(vec![&"VMGENCTR", &"VM_Gen_Counter"])),
            &Name::new("_DDN".into(), &"VM_Gen_Counter"),
            &Name::new("ADDR".into(), &Package::new(vec![&low, &high])),
        ],
    )
    .to_aml_bytes(aml);

    Device::new(
        "_SB_.GED_".into(),
        vec![
            &Name::new("_HID".into(), &"ACPI0013"),
            &Name::new("_UID".into(), &0u8),
            &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&edge_interrupt(VmGenId::GSI)])),
            &Method::new(
                "_EVT".into(),
                1,
                true,
                vec![&If::new(
                    &Equal::new(&Arg(0), &VmGenId::GSI),
                    vec![&Notify::new(&Path::new("\\_SB_.VGEN"), &GENERATION_CHANGED)],
                )],
            ),
        ],
    )
    .to_aml_bytes(aml);
}

/// Consumed, edge-triggered, active high, not shared.
fn edge_interrupt(gsi: u32) -> Interrupt {
    Interrupt::new(true, true, false, false, gsi)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    /// Follows the pointers as a guest would, checking every signature and checksum, and returns the DSDT.
    fn read_back(memory: &Memory) -> Vec<u8> {
        let mut root = [0; 36];
        memory.read_slice(&mut root, layout::ACPI).unwrap();
        assert_eq!(&root[..8], b"RSD PTR ");
        assert_eq!(root.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        let xsdt = table(memory, u64::from_le_bytes(root[24..32].try_into().unwrap()), b"XSDT");
        let fadt = table(memory, u64::from_le_bytes(xsdt[36..44].try_into().unwrap()), b"FACP");
        table(memory, u64::from_le_bytes(xsdt[44..52].try_into().unwrap()), b"APIC");
        table(memory, u64::from_le_bytes(fadt[140..148].try_into().unwrap()), b"DSDT")
    }

    fn table(memory: &Memory, address: u64, signature: &[u8; 4]) -> Vec<u8> {
        let length: u32 = memory.read_obj(GuestAddress(address + 4)).unwrap();
        let mut bytes = vec![0; length as usize];
        memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
        assert_eq!(&bytes[..4], signature);
        assert_eq!(bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0, "checksum");
        bytes
    }

    #[test]
    fn a_guest_finds_valid_tables_with_every_device() {
        let memory = memory::allocate(32).unwrap();
        let windows: Vec<_> = (0..4).map(|n| VirtioWindow { base: 0xd000_0000 + n * 0x1000, gsi: 6 + n }).collect();

        write(&memory, &Contents { vcpus: 64, console: false, virtio: &windows }).unwrap();

        let dsdt = read_back(&memory);
        let count = |needle: &[u8]| dsdt.windows(needle.len()).filter(|window| *window == needle).count();
        assert_eq!(count(b"LNRO0005"), 4);
        assert_eq!(count(b"QEMU0001"), 1);
        assert_eq!(count(b"COM1"), 0);
    }

    #[test]
    fn a_guest_finds_its_generation_id_and_the_event_that_tells_of_a_new_one() {
        let memory = memory::allocate(32).unwrap();
        write(&memory, &Contents { vcpus: 1, console: false, virtio: &[] }).unwrap();

        let dsdt = read_back(&memory);
        let count = |needle: &[u8]| dsdt.windows(needle.len()).filter(|window| *window == needle).count();
        // A name, its package of two strings, and one of two integers: a double word, then zero.
        assert_eq!(count(b"_CID\x12\x1c\x02\x0dVMGENCTR\0\x0dVM_Gen_Counter\0"), 1);
        assert_eq!(count(b"ADDR\x12\x08\x02\x0c\x00\xf0\x0f\x00\x00"), 1);
        assert_eq!(count(b"ACPI0013"), 1);
        // An extended interrupt descriptor: consumer, edge-triggered, active high, exclusive, one number.
        assert_eq!(count(b"\x89\x06\x00\x03\x01\x05\x00\x00\x00"), 1);
        // A serialized method of one argument: if that is 5, notify the device with 0x80.
        assert_eq!(count(b"_EVT\x09\xa0\x12\x93\x68\x0a\x05\x86\\\x2e_SB_VGEN\x0a\x80"), 1);
    }

    #[test]
    fn the_largest_tables_leave_the_generation_id_alone() {
        let memory = memory::allocate(32).unwrap();
        let id = 0x0123_4567_89ab_cdef_u128 << 64 | 1;
        memory.write_obj(id, layout::GENERATION_ID).unwrap();
        let gsis = layout::FIRST_VIRTIO_GSI..layout::GSI_COUNT;
        let windows: Vec<_> = gsis.map(|gsi| VirtioWindow { base: 0xd000_0000 + gsi * 0x1000, gsi }).collect();

        write(&memory, &Contents { vcpus: 64, console: true, virtio: &windows }).unwrap();

        assert_eq!(memory.read_obj::<u128>(layout::GENERATION_ID).unwrap(), id);
    }

    #[test]
    fn the_serial_port_is_there_only_with_a_console() {
        let memory = memory::allocate(32).unwrap();
        write(&memory, &Contents { vcpus: 1, console: true, virtio: &[] }).unwrap();
        assert!(read_back(&memory).windows(4).any(|window| window == b"COM1"));
    }
}
