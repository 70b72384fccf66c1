//! What a monitor that its guest has taken over could reach: nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use support::{Host, wait_until};

tests! {
    shared: [
        every_thread_of_a_monitor_is_without_privileges_and_filtered,
        a_monitor_sees_no_file_no_process_and_no_network_of_its_host,
        a_monitor_is_limited_in_memory_processors_and_threads,
        a_monitor_that_makes_a_forbidden_system_call_dies_of_it_and_the_sandbox_says_so,
    ],
    alone: [],
}

async fn every_thread_of_a_monitor_is_without_privileges_and_filtered() {
    let host = Host::shared();
    let sandbox = host.sandbox().await;
    let monitor = host.monitor_of(&sandbox.id).expect("the sandbox has a monitor");

    let threads: Vec<PathBuf> =
        fs::read_dir(format!("/proc/{monitor}/task")).unwrap().map(|entry| entry.unwrap().path()).collect();

    assert!(threads.len() > 2, "{threads:?}");
    for thread in threads {
        let status = fs::read_to_string(thread.join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
            line.unwrap_or_else(|| panic!("{name} in {status}")).split_whitespace().collect::<Vec<_>>()
        };
        for ids in [field("Uid"), field("Gid")] {
            assert!(ids.len() == 4 && ids.iter().all(|id| *id != "0" && *id == ids[0]), "{ids:?}: {status}");
        }
        assert_eq!(field("Groups"), Vec::<&str>::new(), "{status}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(set), ["0000000000000000"], "{set}: {status}");
        }
        assert_eq!((field("NoNewPrivs"), field("Seccomp")), (vec!["1"], vec!["2"]), "{status}");
    }
}

async fn a_monitor_sees_no_file_no_process_and_no_network_of_its_host() {
    let host = Host::shared();
    let (sandbox, other) = tokio::join!(host.sandbox(), host.sandbox());
    let monitor = host.monitor_of(&sandbox.id).expect("the sandbox has a monitor");
    let neighbour = host.monitor_of(&other.id).expect("the sandbox has a monitor");

    let root: Vec<_> = fs::read_dir(format!("/proc/{monitor}/root/")).unwrap().collect();
    assert!(root.is_empty(), "{root:?}");

    for namespace in ["mnt", "pid", "net", "ipc", "uts"] {
        let link = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).unwrap();
        let links = ["self".to_owned(), monitor.to_string(), neighbour.to_string()].map(|process| link(&process));
        assert_eq!(BTreeSet::from(links.clone()).len(), 3, "{namespace}: {links:?}");
    }

    let interfaces = fs::read_to_string(format!("/proc/{monitor}/net/dev")).unwrap();
    let names: Vec<_> =
        interfaces.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
    assert_eq!(names, ["lo"]);

    let uid = |pid: Pid| {
        fs::read_to_string(format!("/proc/{pid}/status"))
            .unwrap()
            .lines()
            .find(|line| line.starts_with("Uid"))
            .map(str::to_owned)
    };
    assert_ne!(uid(monitor), uid(neighbour), "two monitors are one user");
}

async fn a_monitor_is_limited_in_memory_processors_and_threads() {
    let host = Host::shared();
    let sandbox = host.sandbox().await;
    let monitor = host.monitor_of(&sandbox.id).expect("the sandbox has a monitor");

    let groups = fs::read_to_string(format!("/proc/{monitor}/cgroup")).unwrap();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = Path::new("/sys/fs/cgroup").join(own.unwrap_or_else(|| panic!("a cgroup of version 2 in {groups:?}")));

    assert_eq!(host.traces_of(&sandbox.id).cgroups, std::slice::from_ref(&own));
    let limit = |name: &str| {
        let text = fs::read_to_string(own.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let first = text.split_whitespace().next().unwrap_or_default().to_owned();
        first.parse::<u64>().unwrap_or_else(|_| panic!("{name} limits nothing: {text:?}"))
    };
    let memory = limit("memory.max");
    assert!((256 << 20..512 << 20).contains(&memory), "{memory} bytes for a guest of 256 MiB");
    assert!(limit("cpu.max") > 0 && limit("pids.max") > 0);
}

async fn a_monitor_that_makes_a_forbidden_system_call_dies_of_it_and_the_sandbox_says_so() {
    let host = Host::shared();
    let (sandbox, other) = tokio::join!(host.sandbox(), host.sandbox());
    let traces = host.traces_of(&sandbox.id);

    make_call(traces.monitor.expect("the sandbox has a monitor"), libc::SYS_socket.unsigned_abs());

    let error = wait_until("the sandbox fails", || async {
        let shown = host.client.show(&sandbox.id).await.map_err(|error| error.to_string())?;
        shown.error.ok_or(format!("it is {}", shown.state))
    })
    .await;
    assert_eq!(error.code, "forbidden_system_call", "{}", error.message);
    traces.process_is_gone().await;
    assert_eq!(other.out("echo untouched").await, "untouched\n");
}

/// Has the main thread of a process make a system call, as its guest might, had it taken the process over.
fn make_call(process: Pid, number: u64) {
    // A tracer is one thread, and the tracee waits in a system call for somebody to talk to it.
    ptrace::seize(process, ptrace::Options::empty()).expect("the monitor can be traced");
    ptrace::interrupt(process).expect("the monitor can be interrupted");
    waitpid(process, Some(WaitPidFlag::__WALL)).expect("the monitor stops");
    let mut registers = ptrace::getregs(process).expect("the registers are read");
    // Back to the instruction that it waits in, two bytes long, with another number and nothing to be begun again.
    registers.rip -= 2;
    registers.rax = number;
    registers.orig_rax = u64::MAX;
    ptrace::setregs(process, registers).expect("the registers are set");
    ptrace::detach(process, None).expect("the monitor goes on");
}
