//! A live monitor is made to do what its code never does, as an attacker inside of it would.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;

use nix::errno::Errno;

use super::support::{Guest, Monitor, jails_are_possible};

/// Has the thread called `name` of a running monitor do a system call with these arguments; how the monitor ended.
fn outcome(name: &str, call: libc::c_long, arguments: [u64; 3]) -> Option<i32> {
    let guest = Guest::new();
    let mut monitor = Monitor::start(&[]);
    monitor.boot(&guest);
    drop(monitor.guest_connection());

    let thread = monitor.thread(name);
    let instruction = system_call_instruction(&monitor);
    let stopped = Stopped::stop(thread);
    let mut registers = stopped.registers();
    // No call is to be started anew.
    registers.orig_rax = u64::MAX;
    registers.rip = instruction;
    registers.rax = call.try_into().unwrap();
    [registers.rdi, registers.rsi, registers.rdx] = arguments;
    stopped.go_on_with(&registers);

    let (status, record) = monitor.end();
    assert!(record.is_none(), "{record:?}");
    status.signal()
}

/// Where the kernel's own code in the process's memory has a `syscall` instruction.
fn system_call_instruction(monitor: &Monitor) -> u64 {
    let maps = monitor.proc("maps");
    let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let (start, rest) = vdso.split_once('-').unwrap();
    let (end, _) = rest.split_once(' ').unwrap();
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
    let mut code = vec![0; usize::try_from(end - start).unwrap()];
    File::open(format!("/proc/{}/mem", monitor.pid())).unwrap().read_exact_at(&mut code, start).unwrap();
    start + code.windows(2).position(|bytes| bytes == [0x0f, 0x05]).unwrap() as u64
}

/// A thread that is stopped by `ptrace`.
struct Stopped(libc::pid_t);

impl Stopped {
    fn stop(thread: libc::pid_t) -> Self {
        ptrace(libc::PTRACE_SEIZE, thread, 0);
        ptrace(libc::PTRACE_INTERRUPT, thread, 0);
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer.
        let stopped = Errno::result(unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) }).unwrap();
        assert!(stopped == thread && libc::WIFSTOPPED(status));
        Self(thread)
    }

    fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: all fields are integers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, self.0, (&raw mut registers) as usize);
        registers
    }

    fn go_on_with(self, registers: &libc::user_regs_struct) {
        ptrace(libc::PTRACE_SETREGS, self.0, std::ptr::from_ref(registers) as usize);
        ptrace(libc::PTRACE_DETACH, self.0, 0);
    }
}

fn ptrace(request: libc::c_uint, thread: libc::pid_t, data: usize) {
    // SAFETY: `data` is 0 or the address of the registers that the request reads or writes, which live until it
    // returns.
    Errno::result(unsafe { libc::ptrace(request, thread, 0, data) }).unwrap();
}

fn openat(name: &str) -> Option<i32> {
    outcome(name, libc::SYS_openat, [libc::AT_FDCWD.cast_unsigned().into(), 0, 0])
}

#[test]
fn a_vcpu_that_opens_a_file_ends_the_monitor() {
    if jails_are_possible() {
        assert_eq!(openat("vcpu"), Some(libc::SIGSYS));
    }
}

#[test]
fn a_vsock_thread_that_opens_a_file_ends_the_monitor() {
    if jails_are_possible() {
        assert_eq!(openat("vsock"), Some(libc::SIGSYS));
    }
}

#[test]
fn a_disks_thread_that_opens_a_file_ends_the_monitor() {
    if jails_are_possible() {
        assert_eq!(openat("block"), Some(libc::SIGSYS));
    }
}

#[test]
fn a_network_thread_that_opens_a_file_ends_the_monitor() {
    if jails_are_possible() {
        assert_eq!(openat("net"), Some(libc::SIGSYS));
    }
}

/// Of the requests that a tap takes it makes one.
#[test]
fn a_network_thread_that_gives_its_tap_another_owner_ends_the_monitor() {
    if jails_are_possible() {
        let nobody = [u64::MAX, libc::TUNSETOWNER, 0];
        assert_eq!(outcome("net", libc::SYS_ioctl, nobody), Some(libc::SIGSYS));
    }
}

#[test]
fn the_main_thread_that_opens_a_file_ends_the_monitor() {
    if jails_are_possible() {
        assert_eq!(openat("sandpiper-vmm"), Some(libc::SIGSYS));
    }
}

#[test]
fn the_spawner_that_makes_a_process_ends_the_monitor() {
    if jails_are_possible() {
        let fork = [libc::SIGCHLD.cast_unsigned().into(), 0, 0];
        assert_eq!(outcome("spawner", libc::SYS_clone, fork), Some(libc::SIGSYS));
    }
}

/// What the driver may do and a vCPU may not.
#[test]
fn a_vcpu_that_starts_a_thread_ends_the_monitor() {
    if jails_are_possible() {
        assert_eq!(outcome("vcpu", libc::SYS_clone3, [0, 0, 0]), Some(libc::SIGSYS));
    }
}

#[test]
fn a_disks_thread_that_sends_a_message_ends_the_monitor() {
    if jails_are_possible() {
        assert_eq!(outcome("block", libc::SYS_sendmsg, [0, 0, 0]), Some(libc::SIGSYS));
    }
}
