//! Monitor processes: started so that they outlive the agent, and recognized again by the next one.
//!
//! A pid alone names nothing: it is given to another process as soon as its owner is gone. So a monitor is known by its
//! [`Identity`], pid and start time within one boot, and acted upon only through a pidfd that was opened first and
//! checked against the identity afterwards: from then on it cannot stand for another process.
//!
//! Each monitor carries the folder that it was idle in, in its environment ([`MARKER`]), so that one whose agent
//! was killed between starting it and writing that down is found nevertheless.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::jail::Jail;
use crate::jail::launch::{Launch, launch};

/// Environment variable of a monitor: the folder that it was idle in.
const MARKER: &str = "SANDPIPER_SANDBOX";

/// How long a killed process may take to disappear before a warning is written. It may be stuck in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A text that differs after every reboot.
///
/// # Errors
/// The kernel's file cannot be read.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// One process, never mistaken for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub pid: i32,
    /// Clock ticks since boot, field 22 of `/proc/<pid>/stat`.
    pub start_time: u64,
    /// Which boot these ticks count from.
    pub boot_id: String,
}

impl Identity {
    /// The process that has `pid` now; `None` when there is none, or only its remains.
    fn of(pid: i32, boot_id: &str) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let start_time = start_time(&stat)?;
        Some(Self { pid, start_time, boot_id: boot_id.to_owned() })
    }

    /// A pidfd of this very process; `None` when it is gone.
    ///
    /// # Errors
    /// Where the system has no descriptor for it.
    pub fn open(&self, boot_id: &str) -> io::Result<Option<OwnedFd>> {
        if self.boot_id != boot_id {
            return Ok(None);
        }
        let pidfd = match pidfd_open(self.pid) {
            Ok(pidfd) => pidfd,
            Err(Errno::ESRCH) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Checked after the pidfd was opened: what it stands for can no longer change.
        Ok((Self::of(self.pid, boot_id).as_ref() == Some(self)).then_some(pidfd))
    }
}

/// A monitor, as the record of its sandbox knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownMonitor {
    pub identity: Identity,
    /// Its id, which is also the name of its cgroup.
    #[serde(alias = "shell")]
    pub id: String,
    /// Its user; `None` without a jail.
    pub uid: Option<u32>,
}

/// Start time out of `/proc/<pid>/stat`; `None` for a zombie. The second field, the name, may hold spaces and brackets.
pub(crate) fn start_time(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    // The state is field 3, the start time field 22.
    fields.nth(18)?.parse().ok()
}

fn pidfd_open(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = Errno::result(result)?;
    let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor (close-on-exec) for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn send_kill(pidfd: BorrowedFd<'_>) -> Result<(), Errno> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the third argument may be null; the others are integers.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, none, 0) };
    match Errno::result(result) {
        Ok(_) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// What a new monitor is given.
pub(crate) struct Spawn<'a> {
    pub(crate) vmm: &'a Path,
    /// Id of the monitor, for people who look at the list of processes.
    pub(crate) name: &'a str,
    /// Folder that it is idle in, for [`MARKER`].
    pub(crate) folder: &'a Path,
    /// Listening `SOCK_SEQPACKET` socket.
    pub(crate) control: BorrowedFd<'a>,
    /// File for the exit record.
    pub(crate) exit_record: BorrowedFd<'a>,
    /// `/dev/kvm`, opened.
    pub(crate) kvm: BorrowedFd<'a>,
    /// Standard error.
    pub(crate) log: File,
    /// Without one, the monitor is a process like any other of the agent's user.
    pub(crate) jail: Option<Jail<'a>>,
}

/// Starts a monitor in a session of its own, so that neither a terminal nor the agent's end reaches it. Blocks.
pub(crate) fn spawn(spawn: Spawn<'_>, boot_id: &str) -> io::Result<(Identity, OwnedFd)> {
    let inherited = [spawn.control, spawn.exit_record, spawn.kvm];
    let program = CString::new(spawn.vmm.as_os_str().as_bytes())?;
    let mut arguments = vec![program.clone()];
    let options = ["--control-fd", "--exit-fd", "--kvm-fd"].into_iter().zip(&inherited);
    for (option, value) in options
        .map(|(option, fd)| (option, fd.as_raw_fd().to_string()))
        .chain(spawn.jail.as_ref().map(|jail| ("--jail", jail.uid.to_string())))
        .chain([("--name", spawn.name.to_owned())])
    {
        arguments.extend([CString::new(option)?, CString::new(value)?]);
    }
    let marker = [MARKER.as_bytes(), b"=", spawn.folder.as_os_str().as_bytes()].concat();
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let (pid, pidfd) = launch(&Launch {
        program: &program,
        arguments: &arguments,
        environment: &[CString::new(marker)?],
        streams: [null.as_fd(), null.as_fd(), spawn.log.as_fd()],
        inherited: &inherited,
        cgroup: spawn.jail.map(|jail| jail.cgroup),
    })?;
    // Nobody has waited for the child, so the pid is still its own. One that has ended already is a zombie without a
    // start time of use; it needs none to be waited for.
    let identity = Identity::of(pid, boot_id).unwrap_or(Identity { pid, start_time: 0, boot_id: boot_id.to_owned() });
    Ok((identity, pidfd))
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    Signaled(nix::sys::signal::Signal),
    /// It was another agent's child: its status is not ours to have.
    Unknown,
}

/// A monitor, watched by a pidfd. Dropping it leaves the process alone.
#[derive(Debug)]
pub struct MonitorProcess {
    pidfd: AsyncFd<OwnedFd>,
}

impl MonitorProcess {
    /// Watches the process of `pidfd`.
    ///
    /// # Errors
    /// Where the runtime cannot watch the descriptor.
    pub fn watch(pidfd: OwnedFd) -> io::Result<Self> {
        // SAFETY: `OwnedFd` reports the same descriptor all its life and keeps it open, also while registered.
        Ok(Self { pidfd: unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }? })
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        has_ended(self.pidfd.get_ref().as_fd())
    }

    /// Waits until the process has ended; takes its remains away if it is a child of ours. May be dropped and called again.
    ///
    /// # Errors
    /// Where the descriptor cannot be watched.
    pub async fn ended(&self) -> io::Result<Ended> {
        // The guard keeps the readiness: an ended process stays ended.
        let _ready = self.pidfd.readable().await?;
        match waitid(Id::PIDFd(self.pidfd.get_ref().as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG) {
            Ok(WaitStatus::Exited(_, status)) => Ok(Ended::Exited(status)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Ok(Ended::Signaled(signal)),
            _ => Ok(Ended::Unknown),
        }
    }

    /// Kills the process and waits for its end, however long that takes.
    ///
    /// # Errors
    /// Where the signal cannot be sent.
    pub async fn kill(&self) -> io::Result<()> {
        send_kill(self.pidfd.get_ref().as_fd())?;
        while tokio::time::timeout(KILL_TIMEOUT, self.ended()).await.is_err() {
            tracing::error!("a killed monitor has not ended yet; it may be stuck in the kernel");
        }
        Ok(())
    }
}

/// Whether the process of `pidfd` has ended.
pub fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let ready = poll(&mut [PollFd::new(pidfd, PollFlags::POLLIN)], PollTimeout::ZERO);
    ready.is_ok_and(|ready| ready > 0)
}

/// Kills the process of `pidfd` and waits for its end, for a while. For clean-up, outside the runtime: blocks.
///
/// # Errors
/// Where the signal cannot be sent, or the process has not ended in time.
pub fn kill_blocking(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    send_kill(pidfd)?;
    let timeout = PollTimeout::try_from(KILL_TIMEOUT).unwrap_or(PollTimeout::MAX);
    let ready = poll(&mut [PollFd::new(pidfd, PollFlags::POLLIN)], timeout)?;
    // Only a child can be waited for; of others init takes care.
    let _ = waitid(Id::PIDFd(pidfd), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
    if ready == 0 { Err(io::Error::new(io::ErrorKind::TimedOut, "A killed monitor does not end")) } else { Ok(()) }
}

/// All monitors that were idle in a folder of one of `folders`, as (id, identity). Blocks.
///
/// # Errors
/// Where `/proc` cannot be listed, or the boot id not be read.
pub fn find_monitors(folders: &[PathBuf]) -> io::Result<Vec<(String, Identity)>> {
    let boot_id = boot_id()?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // Identity first: if the process is replaced meanwhile, it does not fit what is read next, and is not killed.
        let Some(identity) = Identity::of(pid, &boot_id) else { continue };
        // Processes come and go, and kernel threads have no environment: whatever cannot be read is not a monitor.
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { continue };
        if let Some(id) = marked(&environment, folders) {
            found.push((id, identity));
        }
    }
    Ok(found)
}

fn marked(environment: &[u8], parents: &[PathBuf]) -> Option<String> {
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"="))?;
    let folder = Path::new(std::ffi::OsStr::from_bytes(value));
    let is_known = parents.iter().any(|parent| folder.parent() == Some(parent));
    is_known.then(|| folder.file_name()?.to_str().map(str::to_owned))?
}

/// Processes that look like monitors, for tests of this crate and others.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::*;
    use std::process::Command;

    /// A process that looks like a monitor that was idle in `folder`, ended with the test.
    pub struct Sleeper(pub std::process::Child);

    impl Sleeper {
        /// Starts it.
        pub fn start(folder: &Path) -> Self {
            Self(Command::new("sleep").arg("1000").env(MARKER, folder).spawn().unwrap())
        }

        /// What it is known by.
        pub fn identity(&self) -> Identity {
            Identity::of(self.0.id().try_into().unwrap(), &boot_id().unwrap()).unwrap()
        }

        /// Whether it has not ended.
        pub fn is_running(&self) -> bool {
            self.identity_now().is_some()
        }

        fn identity_now(&self) -> Option<Identity> {
            Identity::of(self.0.id().try_into().unwrap(), &boot_id().unwrap())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Sleeper;
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_an_awkward_name() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(start_time(stat), Some(777));
        assert_eq!(start_time("42 (gone) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20"), None);
    }

    #[test]
    fn a_process_is_not_mistaken_for_another_with_its_pid() {
        let sleeper = Sleeper::start(Path::new("/nowhere"));
        let boot_id = boot_id().unwrap();
        let identity = sleeper.identity();

        assert!(identity.open(&boot_id).unwrap().is_some());
        let recycled = Identity { start_time: identity.start_time + 1, ..identity.clone() };
        assert!(recycled.open(&boot_id).unwrap().is_none());
        assert!(identity.open("another boot").unwrap().is_none());
    }

    #[test]
    fn monitors_are_found_by_the_folder_in_their_environment() {
        let folder = tempfile::tempdir().unwrap();
        let sleeper = Sleeper::start(&folder.path().join("sbxone"));
        let identity = sleeper.identity();

        // The environment is that of `sleep` only once it was executed.
        let found = loop {
            let found = find_monitors(&["/nowhere/else".into(), folder.path().to_owned()]).unwrap();
            if !found.is_empty() {
                break found;
            }
            std::thread::yield_now();
        };

        assert_eq!(found, [("sbxone".to_owned(), identity)]);
        assert_eq!(find_monitors(&["/nowhere/else".into()]).unwrap(), []);
    }

    #[tokio::test]
    async fn a_killed_process_is_reported_with_its_signal() {
        let sleeper = Sleeper::start(Path::new("/nowhere"));
        let pidfd = sleeper.identity().open(&boot_id().unwrap()).unwrap().unwrap();
        let process = MonitorProcess::watch(pidfd).unwrap();

        send_kill(process.pidfd.get_ref().as_fd()).unwrap();

        assert_eq!(process.ended().await.unwrap(), Ended::Signaled(nix::sys::signal::Signal::SIGKILL));
        assert_eq!(process.ended().await.unwrap(), Ended::Unknown);
        assert!(!sleeper.is_running());
    }

    #[test]
    fn a_monitor_is_told_its_descriptors_and_marked_with_its_folder() {
        use std::io::{Read, Seek};
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let vmm = folder.path().join("vmm");
        std::fs::write(&vmm, "#!/bin/sh\necho \"$@\" >&2\ncat /proc/$$/environ >&2\n").unwrap();
        std::fs::set_permissions(&vmm, std::fs::Permissions::from_mode(0o755)).unwrap();
        let [control, exit_record, kvm] = [(); 3].map(|()| tempfile::tempfile().unwrap());
        let mut log = tempfile::tempfile().unwrap();

        let spawn = Spawn {
            vmm: &vmm,
            name: "monone",
            folder: Path::new("/monitors/monone"),
            control: control.as_fd(),
            exit_record: exit_record.as_fd(),
            kvm: kvm.as_fd(),
            log: log.try_clone().unwrap(),
            jail: None,
        };
        let boot_id = boot_id().unwrap();
        let (identity, pidfd) = super::spawn(spawn, &boot_id).unwrap();

        let status = waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED).unwrap();
        assert_eq!(status, WaitStatus::Exited(nix::unistd::Pid::from_raw(identity.pid), 0));
        let mut text = String::new();
        log.rewind().unwrap();
        log.read_to_string(&mut text).unwrap();
        let [control, exit_record, kvm] = [control.as_raw_fd(), exit_record.as_raw_fd(), kvm.as_raw_fd()];
        let arguments = format!("--control-fd {control} --exit-fd {exit_record} --kvm-fd {kvm} --name monone\n");
        assert_eq!(text, arguments + "SANDPIPER_SANDBOX=/monitors/monone\0");
    }
}
