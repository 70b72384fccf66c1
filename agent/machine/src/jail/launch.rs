//! Starting a process in a new PID namespace and in a cgroup, with a pidfd from the beginning.
//!
//! The standard library can do neither. Between `clone3` and `execve` the child is a copy of one thread of a process
//! with many: any lock, the allocator's too, may be held by a thread that is not there to release it. So all that the
//! child needs is prepared before, and it makes system calls only.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::pipe2;

use super::cgroup::Cgroup;

/// Signals of Linux are numbered from 1 to this.
const LAST_SIGNAL: libc::c_int = 64;

/// A process to start.
pub(crate) struct Launch<'a> {
    pub(crate) program: &'a CStr,
    /// The first is the program's name for itself.
    pub(crate) arguments: &'a [CString],
    /// `NAME=value`; there is nothing else in its environment.
    pub(crate) environment: &'a [CString],
    /// Standard input, output and error.
    pub(crate) streams: [BorrowedFd<'a>; 3],
    /// Keep their numbers. Not standard streams of this process.
    pub(crate) inherited: &'a [BorrowedFd<'a>],
    /// With it, the process is also the first of a new PID namespace.
    pub(crate) cgroup: Option<&'a Cgroup>,
}

/// How far a child came.
#[derive(Clone, Copy)]
enum Step {
    StartSession,
    JoinCgroup,
    SetUpDescriptors,
    ChangeFolder,
    Execute,
}

impl Step {
    const ALL: [(Self, &'static str); 5] = [
        (Self::StartSession, "start a session"),
        (Self::JoinCgroup, "join its cgroup"),
        (Self::SetUpDescriptors, "set up its descriptors"),
        (Self::ChangeFolder, "change to the root folder"),
        (Self::Execute, "execute the program"),
    ];
}

/// Starts the process in a session of its own, in the root folder, with all signals as by default. Returns its pid and
/// its pidfd, which is close-on-exec; it is a child of this process. Blocks until the program runs.
pub(crate) fn launch(launch: &Launch<'_>) -> io::Result<(i32, OwnedFd)> {
    let (report, report_writer) = pipe2(OFlag::O_CLOEXEC)?;
    // Above the standard streams, so that none of them is overwritten before it was copied.
    let streams = [duplicate(launch.streams[0])?, duplicate(launch.streams[1])?, duplicate(launch.streams[2])?];
    let arguments = pointers(launch.arguments);
    let environment = pointers(launch.environment);
    let inherited: Vec<RawFd> = launch.inherited.iter().map(AsRawFd::as_raw_fd).collect();
    let cgroups: Vec<RawFd> =
        launch.cgroup.iter().flat_map(|cgroup| cgroup.entry()).map(|entry| entry.as_raw_fd()).collect();
    let plan = Plan {
        program: launch.program.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        streams: [streams[0].as_raw_fd(), streams[1].as_raw_fd(), streams[2].as_raw_fd()],
        inherited: &inherited,
        cgroups: &cgroups,
    };

    let mut pidfd: libc::c_int = -1;
    let namespaces = if launch.cgroup.is_some() { libc::CLONE_NEWPID } else { 0 };
    // SAFETY: all zeroes is a valid `clone_args`: nothing is asked for.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = u64::from((libc::CLONE_PIDFD | namespaces).cast_unsigned());
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    // No handler of this process may run in the child, which forgets them before it lets signals in again.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: `args` has the size that is told, and `pidfd` is a valid place for the descriptor. Without CLONE_VM the
    // child has a copy of this memory, this stack included, and there it does nothing but `Plan::run`.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    if pid == 0 {
        // SAFETY: this is the child, and everything that `plan` points to was copied with the rest.
        unsafe { plan.run(report_writer.as_raw_fd()) };
    }
    let pid = Errno::result(pid);
    mask.thread_set_mask()?;
    drop(report_writer);
    let pid = i32::try_from(pid?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };

    let mut failure = Vec::new();
    File::from(report).read_to_end(&mut failure)?;
    match understand(&failure) {
        None => Ok((pid, pidfd)),
        Some(error) => {
            // It has ended: take its remains away.
            let _ = waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED);
            Err(error)
        }
    }
}

fn duplicate(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fd = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(libc::STDERR_FILENO + 1))?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What `execve` takes: pointers to the texts, and a null.
fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

/// The error that a child reported; `None` if it reported none.
fn understand(report: &[u8]) -> Option<io::Error> {
    let (step, errno) = report.split_first()?;
    let step = Step::ALL.iter().find(|(known, _)| *known as u8 == *step).map_or("start", |(_, text)| text);
    let errno = errno.try_into().map_or(0, i32::from_ne_bytes);
    let error = io::Error::from_raw_os_error(errno);
    Some(io::Error::new(error.kind(), format!("Cannot {step}: {error}")))
}

/// Everything that the child needs, made before it exists.
struct Plan<'a> {
    program: *const libc::c_char,
    arguments: *const *const libc::c_char,
    environment: *const *const libc::c_char,
    streams: [RawFd; 3],
    inherited: &'a [RawFd],
    /// Opened for writing.
    cgroups: &'a [RawFd],
}

impl Plan<'_> {
    /// Becomes the program, or reports why not and ends. Only makes system calls.
    ///
    /// # Safety
    /// Called in a child that shares no memory with its parent, by its only thread; the pointers are valid.
    unsafe fn run(&self, report: RawFd) -> ! {
        // SAFETY: as this function's own.
        let step = unsafe { self.execute() };
        let errno = Errno::last_raw().to_ne_bytes();
        let message = [step as u8, errno[0], errno[1], errno[2], errno[3]];
        // SAFETY: the buffer is as long as is told. `_exit` runs nothing of the parent's.
        unsafe {
            libc::write(report, message.as_ptr().cast(), message.len());
            libc::_exit(127)
        }
    }

    /// Returns only when something fails: the step at which `errno` was set.
    ///
    /// # Safety
    /// As for [`Self::run`].
    unsafe fn execute(&self) -> Step {
        // SAFETY: all of these are async-signal-safe (signal-safety(7)) and take integers, or pointers that are valid
        // by this function's contract or to a local.
        unsafe {
            if libc::setsid() < 0 {
                return Step::StartSession;
            }
            for cgroup in self.cgroups {
                // The process that writes.
                if libc::write(*cgroup, c"0".as_ptr().cast(), 1) != 1 {
                    return Step::JoinCgroup;
                }
            }
            for (number, stream) in (0..).zip(self.streams) {
                if libc::dup2(stream, number) < 0 {
                    return Step::SetUpDescriptors;
                }
            }
            for fd in self.inherited {
                if libc::fcntl(*fd, libc::F_SETFD, 0) < 0 {
                    return Step::SetUpDescriptors;
                }
            }
            if libc::chdir(c"/".as_ptr()) < 0 {
                return Step::ChangeFolder;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            for signal in 1..=LAST_SIGNAL {
                // Refused for those that have no other action, and those that the C library keeps to itself.
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            libc::execve(self.program, self.arguments, self.environment);
        }
        Step::Execute
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::WaitStatus;

    /// Runs `script` in a shell, with `inherited`; its output, and how it ended.
    fn run(script: &str, inherited: &[BorrowedFd<'_>], cgroup: Option<&Cgroup>) -> (String, WaitStatus) {
        let null = File::open("/dev/null").unwrap();
        let mut output = tempfile::tempfile().unwrap();
        let arguments = [c"sh".to_owned(), c"-c".to_owned(), CString::new(script).unwrap()];
        let environment = [c"PATH=/usr/bin:/bin".to_owned(), c"WHAT=tested".to_owned()];
        let (_, pidfd) = launch(&Launch {
            program: c"/bin/sh",
            arguments: &arguments,
            environment: &environment,
            streams: [null.as_fd(), output.as_fd(), output.as_fd()],
            inherited,
            cgroup,
        })
        .unwrap();
        let status = waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED).unwrap();
        let mut text = String::new();
        io::Seek::rewind(&mut output).unwrap();
        output.read_to_string(&mut text).unwrap();
        (text, status)
    }

    #[test]
    fn a_process_has_its_arguments_environment_and_streams_and_a_session_of_its_own() {
        let script = "echo $WHAT $PWD; cut -d' ' -f6 /proc/self/stat; echo $$ >&2; exit 7";
        let (output, status) = run(script, &[], None);
        let lines: Vec<_> = output.lines().collect();
        assert_eq!(lines[0], "tested /");
        assert_eq!(lines[1], lines[2], "its session is named after it");
        assert!(matches!(status, WaitStatus::Exited(_, 7)), "{status:?}");
    }

    #[test]
    fn named_descriptors_keep_their_numbers_and_others_stay_behind() {
        let (kept, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let (kept_fd, other_fd) = (kept.as_raw_fd(), other.as_raw_fd());
        let script = format!("test -e /proc/self/fd/{kept_fd} && ! test -e /proc/self/fd/{other_fd}");
        let (output, status) = run(&script, &[kept.as_fd()], None);
        assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?} {output}");
        // The parent's own stays close-on-exec.
        let flags = fcntl(&kept, FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }

    #[test]
    fn no_signal_is_blocked_and_a_broken_pipe_not_ignored() {
        let (output, _) = run("grep -E '^Sig(Blk|Ign)' /proc/$$/status | cut -f2", &[], None);
        let masks: Vec<_> = output.lines().map(|mask| u64::from_str_radix(mask, 16).unwrap()).collect();
        assert_eq!(masks[0], 0);
        // Rust's runtime ignores it in this process.
        assert_eq!(masks[1] >> (libc::SIGPIPE - 1) & 1, 0);
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_an_error_that_says_so() {
        let null = File::open("/dev/null").unwrap();
        let launched = launch(&Launch {
            program: c"/nowhere/program",
            arguments: &[],
            environment: &[],
            streams: [null.as_fd(); 3],
            inherited: &[],
            cgroup: None,
        });
        let error = launched.expect_err("it does not exist");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().starts_with("Cannot execute the program: "), "{error}");
    }

    #[test]
    fn with_a_cgroup_it_is_the_first_of_its_namespace_and_in_the_group() {
        let Some((cgroups, id)) = super::super::cgroup::tests::for_one("launch") else { return };
        let limits = super::super::cgroup::Limits { cpus: 1, memory_bytes: 64 << 20, tasks: 16 };
        let cgroup = cgroups.create(&id, &limits).unwrap();

        let (output, status) = run("echo $$; cat /proc/self/cgroup", &[], Some(&cgroup));

        assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?} {output}");
        assert!(output.starts_with("1\n"), "{output}");
        assert!(output.contains(&format!("/{id}\n")), "{output}");
        cgroups.remove(&id).unwrap();
    }
}
