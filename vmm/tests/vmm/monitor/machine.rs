//! Machines with payload guests: what the guest sees, and how its end is reported.

use super::support::{Guest, Monitor, kvm_is_usable};
use crate::payload::Payload;
use sandpiper_protocol::vmm::{DiskConfig, ExitReason, Reply, Request};

/// Boots `guest`, waits for its end.
fn run(guest: &Guest) -> (ExitReason, String) {
    let mut monitor = Monitor::start();
    monitor.agent.boot(guest).unwrap();
    let (record, code) = monitor.end();
    assert_eq!(code, i32::from(record.reason == ExitReason::Failed));
    (record.reason, record.message)
}

#[test]
fn a_guest_powers_itself_off() {
    if !kvm_is_usable() {
        return;
    }
    let (reason, message) = run(&Guest::new(&Payload::new().power_off()));
    assert_eq!(reason, ExitReason::GuestPoweredOff, "{message}");
}

#[test]
fn a_panic_is_reported_in_the_kernels_own_words_although_a_reset_follows() {
    if !kvm_is_usable() {
        return;
    }
    let payload = Payload::new()
        .print("Kernel panic - not syncing: out of sand\r\n")
        .print_in(0x505)
        .out(0x505, 1)
        .out(0x64, 0xfe);
    let guest = Guest::new(&payload);
    let (reason, message) = run(&guest);
    assert_eq!(reason, ExitReason::GuestPanicked);
    assert!(message.contains("Kernel panic - not syncing: out of sand"), "{message}");
    assert!(guest.output().ends_with(b"\n\x01"), "the panic port says which event it takes");
}

#[test]
fn resets_are_told_from_power_offs() {
    if !kvm_is_usable() {
        return;
    }
    let keyboard = run(&Guest::new(&Payload::new().out(0x64, 0xfe)));
    assert_eq!(keyboard.0, ExitReason::GuestReset, "{}", keyboard.1);
    let acpi = run(&Guest::new(&Payload::new().out(0x602, 1)));
    assert_eq!(acpi.0, ExitReason::GuestReset, "{}", acpi.1);
}

#[test]
fn a_triple_fault_is_a_reset() {
    if !kvm_is_usable() {
        return;
    }
    let (reason, message) = run(&Guest::new(&Payload::new().triple_fault()));
    assert_eq!(reason, ExitReason::GuestReset, "{message}");
    assert!(message.contains("triple fault"), "{message}");
}

#[test]
fn serial_output_is_in_the_consoles_file() {
    if !kvm_is_usable() {
        return;
    }
    let guest = Guest::new(&Payload::new().print("hello from the guest\n").power_off());
    run(&guest);
    assert_eq!(guest.output(), b"hello from the guest\n");
}

#[test]
fn without_a_console_there_is_no_serial_port() {
    if !kvm_is_usable() {
        return;
    }
    let mut guest = Guest::new(&Payload::new().print("nobody hears this").power_off());
    guest.config.console = false;
    guest.console = None;
    assert_eq!(run(&guest).0, ExitReason::GuestPoweredOff);
}

#[test]
fn virtio_windows_hold_disks_first_then_vsock_rng_and_balloon_and_last_the_slots() {
    if !kvm_is_usable() {
        return;
    }
    const WINDOWS: u64 = 0xd000_0000;
    let device = |index: u64, register: u64| WINDOWS + index * 0x1000 + register;
    let payload = Payload::new()
        .map(WINDOWS)
        .print_word(device(0, 0))
        .print_word(device(0, 8))
        .print_word(device(1, 8))
        .print_word(device(2, 8))
        .print_word(device(3, 8))
        .print_word(device(4, 8))
        .print_word(device(13, 8))
        .print_word(device(14, 8))
        .print_word(device(17, 8))
        .print_word(device(17, 0x100))
        .power_off();
    let mut guest = Guest::new(&payload);
    guest.config.disks.push(DiskConfig { serial: "root".into(), size: 4096, layers: 1, read_only: false });
    guest.layers.push(tempfile::tempfile().unwrap());

    let (reason, message) = run(&guest);

    assert_eq!(reason, ExitReason::GuestPoweredOff, "{message}");
    let output = guest.output();
    assert_eq!(&output[..4], b"virt");
    let ids: Vec<_> = output[4..].chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect();
    assert_eq!(ids, [2, 19, 4, 5, u32::MAX, u32::MAX, 2, 2, 0]);
}

#[test]
fn a_hostile_driver_gets_nowhere_but_to_needs_reset() {
    if !kvm_is_usable() {
        return;
    }
    const RNG: u64 = 0xd000_1000;
    // The handshake, with a queue outside memory; then a look at the status, a reset, and another look.
    let payload = Payload::new()
        .map(0xd000_0000)
        .store_word(RNG + 0x70, 1)
        .store_word(RNG + 0x70, 3)
        .store_word(RNG + 0x24, 1)
        .store_word(RNG + 0x20, 1)
        .store_word(RNG + 0x70, 0xb)
        .store_word(RNG + 0x30, 0)
        .store_word(RNG + 0x38, 16)
        .store_word(RNG + 0x80, 0xffff_fff0)
        .store_word(RNG + 0x84, 0xffff_ffff)
        .store_word(RNG + 0x44, 1)
        .store_word(RNG + 0x70, 0xf)
        .print_word(RNG + 0x70)
        .store_word(RNG + 0x50, 0)
        .store_word(RNG + 0x50, 0xffff)
        .store_word(RNG + 0x30, 0xffff_ffff)
        .store_word(RNG + 0x38, 0xffff_ffff)
        .store_byte(RNG + 0x70, 0xff)
        .store_word(RNG + 0x70, 0)
        .print_word(RNG + 0x70)
        .power_off();
    let guest = Guest::new(&payload);

    let (reason, message) = run(&guest);

    assert_eq!(reason, ExitReason::GuestPoweredOff, "{message}");
    assert_eq!(guest.output(), [0x4f, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn memory_beyond_the_gap_begins_at_four_gib() {
    if !kvm_is_usable() {
        return;
    }
    const FOUR_GIB: u64 = 4 << 30;
    let payload = Payload::new()
        .map(FOUR_GIB)
        .store_word(FOUR_GIB, u32::from_le_bytes(*b"high"))
        .print_word(FOUR_GIB)
        .power_off();
    let mut guest = Guest::new(&payload);
    guest.config.memory_mib = 3 * 1024 + 64;
    let (reason, message) = run(&guest);
    assert_eq!(reason, ExitReason::GuestPoweredOff, "{message}");
    assert_eq!(guest.output(), b"high");
}

#[test]
fn many_vcpus_wait_for_the_first_and_end_with_it() {
    if !kvm_is_usable() {
        return;
    }
    let mut guest = Guest::new(&Payload::new().print("one").power_off());
    guest.config.vcpus = 64;
    assert_eq!(run(&guest).0, ExitReason::GuestPoweredOff);
    assert_eq!(guest.output(), b"one");
}

#[test]
fn a_monitor_takes_little_memory_of_its_own() {
    if !kvm_is_usable() {
        return;
    }
    let mut monitor = Monitor::start();
    let mut guest = Guest::new(&Payload::new().print("up\n").loop_for_ever());
    guest.config.memory_mib = 256;
    monitor.agent.boot(&guest).unwrap();
    while guest.output() != b"up\n" {
        std::thread::yield_now();
    }

    let kib = monitor.anonymous_kib(256);

    println!("anonymous memory of the monitor: {kib} KiB");
    assert!(kib <= 3 * 1024, "{kib} KiB");
    assert!(matches!(monitor.agent.request(Request::Stop, &[]), Ok(Reply::Stopping)));
    monitor.end();
}
