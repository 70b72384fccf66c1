//! The control socket: what is refused, and that a refusal changes nothing.

use std::os::fd::AsFd;

use super::support::{Guest, Monitor, file_with, kvm_is_usable};
use crate::payload::Payload;
use sandpiper_protocol::vmm::{ExitReason, FaultCode, MAX_MESSAGE, MachineState, Reply, Request};

fn looping() -> Guest {
    Guest::new(&Payload::new().loop_for_ever())
}

#[test]
fn what_is_no_request_is_answered_with_a_fault() {
    if !kvm_is_usable() {
        return;
    }
    let mut monitor = Monitor::start();
    let file = tempfile::tempfile().unwrap();
    let many: Vec<_> = (0..100).map(|_| file.as_fd()).collect();
    let long = vec![b'x'; MAX_MESSAGE + 1];
    let wrong: [(&[u8], &[_], u64); 7] = [
        (b"\xff\x00garbage", &[], 0),
        (b"{}", &[], 0),
        (b"{\"id\":7}", &[], 7),
        (b"{\"id\":8,\"request\":{\"op\":\"dance\"}}", &[file.as_fd()], 8),
        (b"{\"id\":9,\"request\":{\"op\":\"boot\",\"vcpus\":-1}}", &[], 9),
        (&long, &[], 0),
        (b"{\"id\":10,\"request\":{\"op\":\"status\"}}", &many, 0),
    ];

    for (bytes, fds, id) in wrong {
        let (replied, result) = monitor.agent.send_bytes(bytes, fds);
        let fault = result.expect_err("refused");
        assert_eq!((replied, fault.code), (id, FaultCode::Malformed), "{fault}");
    }

    let status = monitor.agent.request(Request::Status, &[]);
    assert!(matches!(status, Ok(Reply::Status { state: MachineState::Waiting, .. })));
}

#[test]
fn a_machine_that_cannot_be_built_is_refused_and_a_good_one_boots_after_it() {
    if !kvm_is_usable() {
        return;
    }
    let mut monitor = Monitor::start();
    let refused = |change: &dyn Fn(&mut Guest)| {
        let mut guest = Guest::new(&Payload::new().power_off());
        change(&mut guest);
        guest
    };
    let bad = [
        refused(&|guest| guest.config.vcpus = 0),
        refused(&|guest| guest.config.vcpus = 65),
        refused(&|guest| guest.config.memory_mib = 31),
        refused(&|guest| guest.config.memory_mib = u32::MAX),
        refused(&|guest| guest.config.kernel_args = "x".repeat(3000)),
        refused(&|guest| guest.config.kernel_args = "a\nb".into()),
        refused(&|guest| guest.kernel = file_with(b"not an ELF file")),
        refused(&|guest| guest.kernel = file_with(b"")),
    ];

    for guest in &bad {
        let fault = monitor.agent.boot(guest).expect_err("refused");
        assert_eq!(fault.code, FaultCode::BadConfig, "{fault}");
    }
    let mut short = looping();
    short.config.console = false;
    let fault = monitor.agent.boot(&short).expect_err("one descriptor too many");
    assert_eq!(fault.code, FaultCode::Malformed, "{fault}");

    let booted = monitor.agent.boot(&Guest::new(&Payload::new().power_off())).unwrap();
    let Reply::Booted(timings) = booted else { panic!("{booted:?}") };
    assert!(timings.process_start_us > 0);
    assert!(timings.boot_request_us >= timings.process_start_us);
    assert!(timings.first_instruction_us >= timings.boot_request_us);
    assert_eq!(timings.guest_init_us, 0);
    assert_eq!(monitor.end().0.reason, ExitReason::GuestPoweredOff);
}

#[test]
fn stop_ends_a_guest_that_never_exits() {
    if !kvm_is_usable() {
        return;
    }
    let mut monitor = Monitor::start();
    let mut guest = looping();
    guest.config.vcpus = 2;
    monitor.agent.boot(&guest).unwrap();
    let fault = monitor.agent.boot(&guest).expect_err("it runs already");
    assert_eq!(fault.code, FaultCode::InvalidState);

    assert!(matches!(monitor.agent.request(Request::Stop, &[]), Ok(Reply::Stopping)));

    let (record, code) = monitor.end();
    assert_eq!((record.reason, code), (ExitReason::Stopped, 0));
}

#[test]
fn a_machine_that_was_never_booted_can_be_stopped() {
    if !kvm_is_usable() {
        return;
    }
    let mut monitor = Monitor::start();
    assert!(matches!(monitor.agent.request(Request::Stop, &[]), Ok(Reply::Stopping)));
    assert_eq!(monitor.end().0.reason, ExitReason::Stopped);
}

#[test]
fn an_agent_that_comes_back_finds_its_machine() {
    if !kvm_is_usable() {
        return;
    }
    let mut monitor = Monitor::start();
    monitor.agent.boot(&looping()).unwrap();

    let mut second = monitor.connect();
    let running = |reply| matches!(reply, Ok(Reply::Status { state: MachineState::Running, .. }));
    assert!(running(second.request(Request::Status, &[])));
    assert!(running(monitor.agent.request(Request::Status, &[])), "the older connection still gets its replies");
    monitor.agent = monitor.connect();
    assert!(running(monitor.agent.request(Request::Status, &[])));

    assert!(matches!(second.request(Request::Stop, &[]), Ok(Reply::Stopping)));
    assert_eq!(monitor.end().0.reason, ExitReason::Stopped);
}
