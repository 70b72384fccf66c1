//! Making a process, as `posix_spawn` does it and with what that lacks: another user, a terminal, a folder, a control
//! group.
//!
//! The child is made with `CLONE_VM | CLONE_VFORK` (`clone3(2)`): it borrows this process's memory, on a stack of its
//! own, until it executes its program, and the thread that made it waits that long. No page tables are copied, which is
//! what makes a start fast, and the child reports what failed by writing it where the parent reads it. In return, the
//! code between the two calls ([`Plan::run`]) may only make raw system calls and touch what was prepared for it: no
//! allocation, no lock, no libc function with a state, because all of these belong to the other threads too.
//!
//! It is made in its control group (`CLONE_INTO_CGROUP`). One that were moved there later would have run outside it,
//! and would wait for the move: the kernel lets all processors pass by first (an RCU grace period).

use std::arch::asm;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::boot::CHILD_OPEN_FILES;

/// What to start. Everything is ready to be given to the kernel.
pub(super) struct Command<'a> {
    /// Full paths to try in this order.
    pub(super) programs: &'a [CString],
    pub(super) arguments: &'a [CString],
    pub(super) environment: &'a [CString],
    pub(super) folder: &'a CStr,
    pub(super) stdin: BorrowedFd<'a>,
    pub(super) stdout: BorrowedFd<'a>,
    pub(super) stderr: BorrowedFd<'a>,
    /// Whether standard input is a terminal that the process is to own.
    pub(super) terminal: bool,
    /// The folder of the control group to begin in; `None` for this process's own.
    pub(super) group: Option<BorrowedFd<'a>>,
    /// Whom to become; `None` to stay the same user.
    pub(super) user: Option<Identity<'a>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Identity<'a> {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: &'a [u32],
}

/// What the child did not get through.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpawnError {
    #[error("The process cannot be created")]
    Clone(#[source] io::Error),
    #[error("The process cannot be put into its control group")]
    Group(#[source] io::Error),
    #[error("The process cannot be set up")]
    SetUp(#[source] io::Error),
    #[error("The process cannot become its user")]
    User(#[source] io::Error),
    #[error("The working folder cannot be entered")]
    Folder(#[source] io::Error),
    #[error("The program cannot be executed")]
    Execute(#[source] io::Error),
}

/// Steps of the child, as it reports them.
const SET_UP: c_int = 1;
const USER: c_int = 2;
const FOLDER: c_int = 3;
const EXECUTE: c_int = 4;

/// Highest signal number of the kernel.
const LAST_SIGNAL: c_int = 64;

/// Bytes of the kernel's signal set.
const SIGNAL_SET: usize = 8;

/// Of `linux/sched.h`; libc gives it a type that is too small for it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Bytes of the child's stack: it calls nothing that is deep.
const STACK: usize = 64 * 1024;

/// A command in the form that the child uses: pointers and numbers.
struct Plan {
    programs: Vec<*const c_char>,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    folder: *const c_char,
    stdio: [RawFd; 3],
    terminal: bool,
    /// uid, gid, number of groups, first group.
    user: Option<(u32, u32, usize, *const u32)>,
    failed_step: AtomicI32,
    failed_errno: AtomicI32,
}

/// Starts a process as the leader of a new session and process group, and returns its id once its program runs.
/// Blocks for as long as the kernel takes to load it.
pub(super) fn spawn(command: &Command<'_>) -> Result<i32, SpawnError> {
    let plan = Plan {
        programs: pointers(command.programs),
        arguments: pointers(command.arguments),
        environment: pointers(command.environment),
        folder: command.folder.as_ptr(),
        stdio: [command.stdin.as_raw_fd(), command.stdout.as_raw_fd(), command.stderr.as_raw_fd()],
        terminal: command.terminal,
        user: command.user.map(|user| (user.uid, user.gid, user.groups.len(), user.groups.as_ptr())),
        failed_step: AtomicI32::new(0),
        failed_errno: AtomicI32::new(0),
    };
    // Not zeroed: the child touches only its end, and each page that a clone writes to is a copy of its own.
    let mut stack = Box::<[u128]>::new_uninit_slice(STACK / size_of::<u128>());
    // No signal may run one of our handlers in the child, where it would work on our memory.
    let mask = block_signals();
    let base = stack.as_mut_ptr().cast::<c_void>();
    // SAFETY: `clone_args` is plain data for which all zeros is a valid value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CHILD_FLAGS;
    arguments.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
    arguments.stack = base.expose_provenance() as u64;
    arguments.stack_size = STACK as u64;
    if let Some(group) = command.group {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = u64::from(group.as_raw_fd().unsigned_abs());
    }
    // SAFETY: the child runs `in_child` on `stack`, which is of its own and outlives it, because CLONE_VFORK stops this
    // thread until the child has executed a program or exited; so do `plan` and everything it points to. `in_child`
    // keeps to what the module's documentation says. Elements of 16 bytes align the stack's end as functions want it.
    let made = unsafe { clone(&arguments, in_child, (&raw const plan).cast_mut().cast()) };
    restore_signals(&mask);
    drop(stack);
    let pid = made.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY | libc::ENODEV | libc::ENOENT | libc::EOPNOTSUPP) if command.group.is_some() => {
            SpawnError::Group(error)
        }
        _ => SpawnError::Clone(error),
    })?;
    let error = || io::Error::from_raw_os_error(plan.failed_errno.load(Ordering::Acquire));
    match plan.failed_step.load(Ordering::Acquire) {
        0 => Ok(pid),
        USER => Err(SpawnError::User(error())),
        FOLDER => Err(SpawnError::Folder(error())),
        EXECUTE => Err(SpawnError::Execute(error())),
        _ => Err(SpawnError::SetUp(error())),
    }
}

/// What the child shares with this process, and that this thread waits.
const CHILD_FLAGS: u64 = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;

/// Makes a process that calls `child` with `argument` on the stack that `arguments` names, and exits with what it
/// returns. libc has no function for this call, and none could be called here: the child would return into its parent's
/// stack.
///
/// # Safety
/// `arguments` names a stack that is the child's until it executes a program or exits, and whose end is aligned to 16
/// bytes; `child` may be called with `argument` in a process that shares this one's memory.
unsafe fn clone(
    arguments: &libc::clone_args,
    child: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> io::Result<i32> {
    let result: i64;
    // SAFETY: in this process the code is one system call, which changes the registers that are said to change and
    // leaves the stack alone. The child begins behind the call with a copy of the registers and an empty stack, as the
    // caller promised, calls the function with its argument by the rules of the C ABI, and never leaves the block.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp", // the outermost frame
            "mov rdi, r12",
            "call r13",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") ptr::from_ref(arguments),
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") argument,
            in("r13") child,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    i32::try_from(result)
        .ok()
        .filter(|pid| *pid > 0)
        .ok_or_else(|| io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EIO)))
}

/// Pointers to strings, and the null that ends such a list.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are live local variables that `sigfillset` and `pthread_sigmask` fill; zero is a valid value.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: the set was filled by `pthread_sigmask` above and is only read.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

/// The child's first function. Returning from it exits.
extern "C" fn in_child(plan: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to a `Plan` that lives until this process has executed or exited.
    let plan = unsafe { &*plan.cast::<Plan>() };
    // SAFETY: called in the child of `clone`, whose parent thread waits.
    let step = unsafe { plan.run() };
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    plan.failed_errno.store(errno, Ordering::Release);
    plan.failed_step.store(step, Ordering::Release);
    127
}

impl Plan {
    /// Becomes the program; returns the step that failed, with the reason in `errno`.
    ///
    /// # Safety
    /// Only in the child that [`spawn`] makes: it replaces descriptors, signal handlers and the user of this process.
    unsafe fn run(&self) -> c_int {
        // SAFETY: none of these calls takes a pointer but to `self`, to live local variables, or to what `spawn`
        // prepared: null-terminated lists of null-terminated strings. They change this process only, whose descriptor
        // table, signal handlers and credentials are copies; raw calls are used where libc would change every thread's.
        unsafe {
            if libc::setsid() < 0 || !self.take_stdio() {
                return SET_UP;
            }
            if self.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return SET_UP;
            }
            let limit = libc::rlimit { rlim_cur: CHILD_OPEN_FILES.soft, rlim_max: CHILD_OPEN_FILES.hard };
            // An ordinary process (a test's) may not raise its limit, and goes on with what it has.
            libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, &raw const limit, ptr::null::<libc::rlimit>());
            if let Some((uid, gid, count, groups)) = self.user
                && (libc::syscall(libc::SYS_setgroups, count, groups) < 0
                    || libc::syscall(libc::SYS_setresgid, gid, gid, gid) < 0
                    || libc::syscall(libc::SYS_setresuid, uid, uid, uid) < 0)
            {
                return USER;
            }
            if libc::chdir(self.folder) < 0 {
                return FOLDER;
            }
            reset_signals();
            self.execute();
            EXECUTE
        }
    }

    /// Makes the three streams descriptors 0 to 2 and all others close on execution.
    ///
    /// # Safety
    /// As for [`Self::run`].
    unsafe fn take_stdio(&self) -> bool {
        let [stdin, stdout, stderr] = self.stdio;
        // SAFETY: descriptors of this process only. The sources are above 2, as 0 to 2 are open for as long as any Rust
        // program runs, so no call overwrites what a later one copies.
        unsafe {
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            libc::dup2(stdin, 0) >= 0 && libc::dup2(stdout, 1) >= 0 && libc::dup2(stderr, 2) >= 0
        }
    }

    /// Tries each program. Like a shell, remembers that one was there but not allowed.
    ///
    /// # Safety
    /// As for [`Self::run`].
    unsafe fn execute(&self) {
        let mut refused = false;
        for program in &self.programs {
            if program.is_null() {
                break;
            }
            // SAFETY: a null-terminated string and two null-terminated lists of such, prepared by `spawn`.
            unsafe { libc::execve(*program, self.arguments.as_ptr(), self.environment.as_ptr()) };
            // SAFETY: the address of `errno` is valid for as long as the thread is.
            match unsafe { *libc::__errno_location() } {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => refused = true,
                _ => return,
            }
        }
        if refused {
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = libc::EACCES };
        }
    }
}

/// Gives every signal its default action and unblocks all: an ignored signal (Rust ignores SIGPIPE) or a blocked one
/// would stay so in the program.
///
/// # Safety
/// Only in the child that [`spawn`] makes.
unsafe fn reset_signals() {
    // The kernel's `struct sigaction`, at most 32 bytes on what is built for; all zeros is SIG_DFL with no flags.
    let default_action = [0_u64; 4];
    let no_signal = [0_u8; SIGNAL_SET];
    for number in 1..=LAST_SIGNAL {
        // SAFETY: the kernel reads one `struct sigaction` from a live local variable. It refuses the two that have no
        // other action, which is as well.
        unsafe {
            let none = ptr::null_mut::<c_void>();
            libc::syscall(libc::SYS_rt_sigaction, number, default_action.as_ptr(), none, SIGNAL_SET);
        }
    }
    // SAFETY: the kernel reads a set of SIGNAL_SET bytes from a live local variable.
    unsafe {
        let none = ptr::null_mut::<c_void>();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, no_signal.as_ptr(), none, SIGNAL_SET);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::testing::Hierarchy;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsFd, OwnedFd};

    /// What `/bin/sh -c script` writes, which is not waited for afterwards: the process of the tests is no PID 1.
    fn output(script: &str, group: Option<&OwnedFd>) -> Result<String, SpawnError> {
        let text = |text: &str| CString::new(text).unwrap();
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let null = File::open("/dev/null").unwrap();
        let started = spawn(&Command {
            programs: &[text("/bin/sh")],
            arguments: &[text("sh"), text("-c"), text(script)],
            environment: &[text("PATH=/usr/bin:/bin")],
            folder: c"/",
            stdin: null.as_fd(),
            stdout: write.as_fd(),
            stderr: write.as_fd(),
            terminal: false,
            group: group.map(AsFd::as_fd),
            user: None,
        });
        drop(write);
        let mut output = String::new();
        started.map(|_| File::from(read).read_to_string(&mut output))?.unwrap();
        Ok(output)
    }

    #[test]
    fn a_process_begins_in_its_group_and_keeps_what_it_starts_there() {
        let groups = Hierarchy::new("spawn");
        let group = groups.user().unwrap();

        let inside = output("cat /proc/self/cgroup; sh -c 'grep ^0:: /proc/self/cgroup'", Some(&group)).unwrap();
        let outside = output("cat /proc/self/cgroup", None).unwrap();

        assert_eq!(inside.matches("/user\n").count(), 2, "{inside}");
        assert_eq!(outside, std::fs::read_to_string("/proc/self/cgroup").unwrap());
    }

    #[test]
    fn a_group_that_takes_no_process_is_named_as_the_reason() {
        let groups = Hierarchy::new("spawn-refused");
        let group = groups.user().unwrap();
        std::fs::remove_dir(groups.user_folder()).unwrap();

        let removed = output("true", Some(&group)).unwrap_err();

        assert!(matches!(removed, SpawnError::Group(_)), "{removed:?}");
    }
}
