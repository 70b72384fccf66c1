//! What a jailed monitor is, as the host's `/proc` shows it.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::support::{Guest, Monitor, UID, jails_are_possible, wait_for};
use sandpiper_protocol::vmm::Request;

/// A monitor whose guest has set all its devices up.
fn running() -> (Monitor, Guest) {
    let guest = Guest::new();
    let mut monitor = Monitor::start(&[]);
    monitor.boot(&guest);
    // The last thing that the guest does.
    drop(monitor.guest_connection());
    (monitor, guest)
}

/// The value of a field of a `status` file.
fn field<'s>(status: &'s str, name: &str) -> &'s str {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

#[test]
fn every_thread_is_an_unprivileged_user_under_a_filter() {
    if !jails_are_possible() {
        return;
    }
    let (monitor, _guest) = running();

    // A device's thread may be younger than the guest's first instruction, and has its maker's name at first.
    wait_for("every thread to have its name", || {
        let threads = monitor.threads();
        let named = |name: &&str| threads.iter().any(|thread| thread.1 == *name);
        ["sandpiper-vmm", "spawner", "vcpu", "block", "net", "vsock"].iter().all(named)
    });
    let ids = [0; 4].map(|_| UID.to_string()).join("\t");
    for (id, name) in &monitor.threads() {
        let status = monitor.proc(&format!("task/{id}/status"));
        assert_eq!((field(&status, "Uid"), field(&status, "Gid")), (&*ids, &*ids), "{name}");
        assert_eq!(field(&status, "Groups"), "", "{name}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(&status, set), "0000000000000000", "{name}: {set}");
        }
        assert_eq!(field(&status, "NoNewPrivs"), "1", "{name}");
        assert_eq!(field(&status, "Seccomp"), "2", "{name}");
    }
}

/// The main thread has two filters (see `no_clone3`), and every thread the filter of its role besides.
#[test]
fn threads_have_a_filter_of_their_own() {
    if !jails_are_possible() {
        return;
    }
    let (monitor, _guest) = running();
    let devices = ["block", "net", "vsock"].map(|name| (name, "3"));
    for (name, filters) in [("sandpiper-vmm", "2"), ("spawner", "2"), ("vcpu", "3")].into_iter().chain(devices) {
        let status = monitor.proc(&format!("task/{}/status", monitor.thread(name)));
        assert_eq!(field(&status, "Seccomp_filters"), filters, "{name}");
    }
}

#[test]
fn its_namespaces_are_its_own_and_its_root_is_empty() {
    if !jails_are_possible() {
        return;
    }
    let (monitor, _guest) = running();

    let namespace = |process: &str, kind: &str| fs::read_link(format!("/proc/{process}/ns/{kind}")).unwrap();
    let pid = monitor.pid().to_string();
    for kind in ["mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        assert_ne!(namespace(&pid, kind), namespace("self", kind), "{kind}");
    }
    let status = monitor.proc("status");
    assert_eq!(field(&status, "NSpid").split_whitespace().last(), Some("1"));

    let root = format!("/proc/{pid}/root/");
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    let error = File::create(format!("{root}file")).expect_err("it is read-only");
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    let mounts = monitor.proc("mountinfo");
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    assert!(mounts.contains(" / / ro,nosuid,nodev,noexec"), "{mounts}");
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));
    // Its own loopback, and that is down.
    let interfaces = monitor.proc("net/dev");
    assert_eq!(interfaces.lines().filter(|line| line.contains(':')).count(), 1, "{interfaces}");
}

#[test]
fn descriptors_are_the_named_ones_and_none_is_a_folder() {
    if !jails_are_possible() {
        return;
    }
    let secret = File::open("/etc/passwd").unwrap();
    let folder = File::open("/").unwrap();
    let mut monitor = Monitor::start(&[secret.as_raw_fd(), folder.as_raw_fd()]);

    // Whoever answers is in its jail, and has accepted the connection.
    monitor.request(Request::Status, &[]);

    let fds = fs::read_dir(format!("/proc/{}/fd", monitor.pid())).unwrap();
    let open = fds.map(|fd| fs::read_link(fd.unwrap().path()).unwrap().into_os_string().into_string().unwrap());
    let open: Vec<_> = open.collect();
    let standard = |fd: &&String| !["/dev/null", "pipe:", "/dev/pts", "/dev/tty"].iter().any(|s| fd.starts_with(s));
    let own: Vec<_> = open.iter().filter(standard).collect();
    let is_open = |name: &str| own.iter().any(|fd| fd.contains(name));
    assert!(is_open("/dev/kvm") && is_open("/pagemap") && is_open("(deleted)"), "{own:?}");
    assert!(!is_open("/etc/passwd") && !own.iter().any(|fd| *fd == "/"), "{own:?}");
    // KVM, page map, exit record, two sockets; epoll and the events of the end and of disks; where the kernel has it, what notes
    // writes. Standard error may be a file.
    assert!((7..=9).contains(&own.len()), "{own:?}");
}

#[test]
fn limits_are_low() {
    if !jails_are_possible() {
        return;
    }
    let (monitor, _guest) = running();
    let limits = monitor.proc("limits");
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(limit("Max core file size"), ["0", "0"]);
    assert_eq!(limit("Max locked memory"), ["0", "0"]);
    let files: Vec<u64> = limit("Max open files").iter().map(|limit| limit.parse().unwrap()).collect();
    assert!(files[0] == files[1] && (1200..=4096).contains(&files[0]), "{files:?}");
}

#[test]
fn nobody_is_jailed_as_a_user_of_the_host() {
    if !jails_are_possible() {
        return;
    }
    let null = File::open("/dev/null").unwrap();
    for uid in ["0", "999", "4294967295", "-1", "root"] {
        let [control, exit] = [(); 2].map(|()| null.try_clone().unwrap());
        let (control_fd, exit_fd) = (control.as_raw_fd(), exit.as_raw_fd());
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandpiper-vmm"));
        command
            .args(["--control-fd", &control_fd.to_string(), "--exit-fd", &exit_fd.to_string(), "--jail", uid])
            .env_clear();
        let inherit = move || {
            for fd in [control_fd, exit_fd] {
                // SAFETY: F_SETFD takes integers only.
                unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
            }
            Ok(())
        };
        // SAFETY: the closure only calls fcntl, which is async-signal-safe.
        let output = unsafe { command.pre_exec(inherit) }.output().unwrap();

        assert_eq!(output.status.code(), Some(2), "{uid}");
        let message = String::from_utf8(output.stderr).unwrap();
        let expected = ["not jailed as user", "--jail needs the number of a user"];
        assert!(expected.iter().any(|text| message.contains(text)), "{uid}: {message}");
    }
}
