//! The system calls of each role.
//!
//! The lists hold what the code of a role and, unseen, the C library and Rust's runtime call, from the start of a
//! thread to its end. None of them opens, executes, connects or signals anything outside of the process. Arguments are
//! looked at where this draws a line worth drawing: memory never becomes executable, new processes are threads, sockets
//! are pairs, and of the requests that descriptors take ([`ioctls`]) a role has its own.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use super::{JailError, Role, ioctls};

/// The flags with which the C library starts a thread (glibc, `sysdeps/unix/sysv/linux/createthread.c`).
const THREAD: libc::c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// The compiled filters of all roles.
pub(super) struct Filters {
    no_clone3: BpfProgram,
    /// In the order of [`Role::ALL`].
    roles: Vec<BpfProgram>,
}

impl Filters {
    /// For the present process.
    pub(super) fn compile() -> Result<Self, BackendError> {
        let process = std::process::id();
        let roles = Role::ALL.map(|role| Rules::of(role, process)?.compile()).into_iter().collect::<Result<_, _>>()?;
        Ok(Self { no_clone3: no_clone3()?, roles })
    }

    /// Restricts the main thread, and so every thread that is started from now on.
    pub(super) fn restrict_main_thread(&self) -> Result<(), JailError> {
        apply_filter(&self.no_clone3).map_err(JailError::Install)?;
        self.restrict_thread(Role::Driver).map_err(JailError::Install)
    }

    /// Restricts the calling thread to what its role needs.
    pub(super) fn restrict_thread(&self, role: Role) -> Result<(), seccompiler::Error> {
        let index = Role::ALL.iter().position(|other| *other == role);
        let program = index.and_then(|index| self.roles.get(index)).map_or(&[][..], Vec::as_slice);
        // Refuses an empty one.
        apply_filter(program)
    }
}

/// Has `clone3` fail as if the kernel did not know it; everything else is for the other filters to decide.
fn no_clone3() -> Result<BpfProgram, BackendError> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, unknown, ARCH.try_into()?)?.try_into()
}

/// Allowed system calls: any of the rules must hold; without a rule, always.
struct Rules(BTreeMap<c_long, Vec<SeccompRule>>);

impl Rules {
    fn of(role: Role, process: u32) -> Result<Self, BackendError> {
        let mut rules = Self::of_every_thread(process)?;
        match role {
            Role::Driver => rules.driver()?,
            Role::Vcpu => rules.vcpu()?,
            Role::Block => rules.block(),
            Role::Net => rules.net()?,
            Role::Vsock => rules.vsock()?,
            Role::Rng => rules.events(),
            Role::Balloon => rules.balloon(),
            Role::Prefetch => rules.prefetch(),
        }
        Ok(rules)
    }

    /// A thread's life: memory, locks, messages to standard error, its end, also a violent one.
    fn of_every_thread(process: u32) -> Result<Self, BackendError> {
        let mut rules = Self(BTreeMap::new());
        rules.allow(&[
            // Memory of its own and of the guest.
            libc::SYS_brk,
            libc::SYS_munmap,
            libc::SYS_mremap,
            libc::SYS_madvise,
            // Descriptors that it has.
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_close,
            // Locks and time.
            libc::SYS_futex,
            libc::SYS_sched_yield,
            libc::SYS_clock_gettime,
            libc::SYS_clock_nanosleep,
            libc::SYS_nanosleep,
            libc::SYS_restart_syscall,
            // Start and end of a thread; seeds of hash tables.
            libc::SYS_set_robust_list,
            libc::SYS_rseq,
            libc::SYS_sigaltstack,
            libc::SYS_sched_getaffinity,
            libc::SYS_getrandom,
            libc::SYS_exit,
            // Signals: kicks of vCPUs, and `abort`.
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_getpid,
            libc::SYS_gettid,
        ]);
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            rules.allow_if(call, &[bits(2, libc::PROT_EXEC, 0)?])?;
        }
        // One more descriptor for the same thing, and what is known of one: before it closes one, Rust's runtime asks,
        // where it is compiled with checks.
        for command in [libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL] {
            rules.allow_if(libc::SYS_fcntl, &[equal(1, command)?])?;
        }
        rules.allow_if(libc::SYS_prctl, &[equal(0, libc::PR_SET_NAME)?])?;
        rules.allow_if(libc::SYS_tgkill, &[number(0, process.into())?])?;
        Ok(rules)
    }

    /// Waiting for events.
    fn events(&mut self) {
        self.allow(&[libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_wait, libc::SYS_epoll_pwait]);
    }

    /// Besides running its vCPU, it serves accesses to registers, which may set devices up and take them down.
    fn vcpu(&mut self) -> Result<(), BackendError> {
        self.ioctls(ioctls::VCPU)?;
        self.events();
        self.ioctls(&[ioctls::NON_BLOCKING])?;
        self.allow(&[libc::SYS_eventfd2]);
        // Taking a vsock device down closes its connections.
        self.allow(&[libc::SYS_shutdown, libc::SYS_recvmsg, libc::SYS_recvfrom]);
        Ok(())
    }

    fn block(&mut self) {
        self.events();
        self.allow(&[
            libc::SYS_preadv,
            libc::SYS_pread64,
            libc::SYS_pwritev,
            libc::SYS_pwrite64,
            libc::SYS_fallocate,
            libc::SYS_fdatasync,
        ]);
    }

    fn net(&mut self) -> Result<(), BackendError> {
        self.events();
        self.ioctls(&[ioctls::TAP_OFFLOADS])?;
        self.allow(&[libc::SYS_readv, libc::SYS_writev]);
        Ok(())
    }

    fn vsock(&mut self) -> Result<(), BackendError> {
        self.events();
        self.ioctls(&[ioctls::NON_BLOCKING])?;
        self.allow(&[
            libc::SYS_accept4,
            libc::SYS_sendmsg,
            libc::SYS_recvmsg,
            libc::SYS_recvfrom,
            libc::SYS_shutdown,
            libc::SYS_getsockopt,
        ]);
        self.allow_if(libc::SYS_setsockopt, &[equal(2, libc::SO_SNDBUF)?])?;
        self.allow_if(libc::SYS_socketpair, &[equal(0, libc::AF_UNIX)?])
    }

    fn balloon(&mut self) {
        self.events();
        self.allow(&[libc::SYS_fallocate]);
    }

    fn prefetch(&mut self) {
        self.allow(&[libc::SYS_pread64, libc::SYS_preadv, libc::SYS_mincore]);
    }

    /// Everything that any thread does, for it starts them all; and what setting up, saving and restoring takes.
    fn driver(&mut self) -> Result<(), BackendError> {
        self.vcpu()?;
        self.block();
        self.net()?;
        self.vsock()?;
        self.balloon();
        self.prefetch();
        self.ioctls(ioctls::MACHINE)?;
        self.ioctls(&[ioctls::PAGEMAP_SCAN, ioctls::UFFDIO_REGISTER])?;
        self.allow(&[
            // What it is given is looked at.
            libc::SYS_fstat,
            libc::SYS_newfstatat,
            libc::SYS_statx,
            libc::SYS_fstatfs,
            libc::SYS_lseek,
            libc::SYS_ftruncate,
            libc::SYS_fsync,
            libc::SYS_dup,
            libc::SYS_uname,
            libc::SYS_exit_group,
            // Always fails, and is not fatal so that the C library goes on with `clone`.
            libc::SYS_clone3,
        ]);
        self.allow_if(libc::SYS_clone, &[equal(0, THREAD)?])?;
        // More filters for the threads it starts.
        self.allow_if(libc::SYS_prctl, &[equal(0, libc::PR_SET_NO_NEW_PRIVS)?])?;
        self.allow_if(libc::SYS_seccomp, &[number(0, libc::SECCOMP_SET_MODE_FILTER.into())?])
    }

    fn ioctls(&mut self, requests: &[u64]) -> Result<(), BackendError> {
        let conditions = requests.iter().map(|request| number(1, *request)).collect::<Result<Vec<_>, _>>()?;
        self.allow_if(libc::SYS_ioctl, &conditions)
    }

    fn allow(&mut self, calls: &[c_long]) {
        for call in calls {
            self.0.insert(*call, Vec::new());
        }
    }

    /// Allows `call` where one of `conditions` holds, or one that was named before. It is not one of the calls that are
    /// allowed anyway.
    fn allow_if(&mut self, call: c_long, conditions: &[SeccompCondition]) -> Result<(), BackendError> {
        let rules = self.0.entry(call).or_default();
        for condition in conditions {
            rules.push(SeccompRule::new(vec![condition.clone()])?);
        }
        Ok(())
    }

    fn compile(self) -> Result<BpfProgram, BackendError> {
        SeccompFilter::new(self.0, SeccompAction::KillProcess, SeccompAction::Allow, ARCH.try_into()?)?.try_into()
    }
}

/// Argument `index` is `value`, as the kernel sees it: an `int`, whatever is in the upper half of the register.
fn number(index: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn equal(index: u8, value: libc::c_int) -> Result<SeccompCondition, BackendError> {
    number(index, value.unsigned_abs().into())
}

/// Of argument `index`, the bits in `mask` are `value`.
fn bits(index: u8, mask: libc::c_int, value: u64) -> Result<SeccompCondition, BackendError> {
    let mask = SeccompCmpOp::MaskedEq(mask.unsigned_abs().into());
    SeccompCondition::new(index, SeccompCmpArgLen::Qword, mask, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    /// The longest program that Linux takes (`BPF_MAXINSNS`).
    const MAX_INSTRUCTIONS: usize = 4096;

    #[test]
    fn every_role_has_a_filter_that_the_kernel_takes() {
        let filters = Filters::compile().unwrap();
        assert_eq!(filters.roles.len(), Role::ALL.len());
        for program in &filters.roles {
            assert!((1..=MAX_INSTRUCTIONS).contains(&program.len()), "{}", program.len());
        }
    }

    /// Threads have the driver's filter and their own.
    #[test]
    fn the_driver_may_do_what_any_thread_may() {
        let driver = Rules::of(Role::Driver, 1).unwrap().0;
        for role in Role::ALL {
            for (call, rules) in Rules::of(role, 1).unwrap().0 {
                let allowed = driver.get(&call).unwrap_or_else(|| panic!("{role:?}: {call}"));
                let same = allowed.is_empty() == rules.is_empty() && rules.iter().all(|rule| allowed.contains(rule));
                assert!(same, "{role:?}: {call}");
            }
        }
    }

    #[test]
    fn what_leads_out_of_the_process_is_in_no_list() {
        let driver = Rules::of(Role::Driver, 1).unwrap().0;
        let out = [
            libc::SYS_open,
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_fork,
            libc::SYS_vfork,
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_sendto,
            libc::SYS_kill,
            libc::SYS_tkill,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_pidfd_getfd,
            libc::SYS_bpf,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_perf_event_open,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_mount,
            libc::SYS_memfd_create,
            libc::SYS_personality,
        ];
        for call in out {
            assert!(!driver.contains_key(&call), "{call}");
        }
    }

    /// How a child that restricts itself to `role` and then does `call` ends.
    fn outcome(role: Role, call: fn() -> libc::c_long) -> WaitStatus {
        // SAFETY: the child compiles a filter, which allocates: glibc makes its allocator work in the child of a
        // process with threads. It ends by `_exit` or by the filter.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => waitpid(child, None).unwrap(),
            ForkResult::Child => {
                let restricted = Filters::compile().is_ok_and(|filters| filters.restrict_thread(role).is_ok());
                let result = call();
                // SAFETY: ends only this thread, the child's only one, with the system call that every role has.
                unsafe { libc::syscall(libc::SYS_exit, if !restricted { 2 } else { i32::from(result < 0) }) };
                unreachable!()
            }
        }
    }

    fn is_killed(status: WaitStatus) -> bool {
        matches!(status, WaitStatus::Signaled(_, Signal::SIGSYS, _))
    }

    fn map(protection: libc::c_int) -> libc::c_long {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, used by nobody.
        unsafe { libc::syscall(libc::SYS_mmap, 0, 4096, protection, flags, -1, 0) }
    }

    #[test]
    fn memory_is_never_executable() {
        assert!(matches!(outcome(Role::Driver, || map(libc::PROT_READ)), WaitStatus::Exited(_, 0)));
        assert!(is_killed(outcome(Role::Driver, || map(libc::PROT_READ | libc::PROT_EXEC))));
    }

    #[test]
    fn only_pairs_of_unix_sockets_can_be_made() {
        fn pair(family: libc::c_int) -> libc::c_long {
            let mut pair = [0; 2];
            // SAFETY: the kernel writes two descriptors to the array.
            unsafe { libc::syscall(libc::SYS_socketpair, family, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) }
        }
        assert!(matches!(outcome(Role::Vsock, || pair(libc::AF_UNIX)), WaitStatus::Exited(_, 0)));
        assert!(is_killed(outcome(Role::Vsock, || pair(libc::AF_TIPC))));
        assert!(is_killed(outcome(Role::Block, || pair(libc::AF_UNIX))));
    }

    #[test]
    fn a_process_signals_itself_only() {
        fn signal(process: u32) -> libc::c_long {
            // SAFETY: signal 0 is only checked for.
            unsafe { libc::syscall(libc::SYS_tgkill, process, libc::syscall(libc::SYS_gettid), 0) }
        }
        assert!(matches!(outcome(Role::Vcpu, || signal(std::process::id())), WaitStatus::Exited(_, 0)));
        assert!(is_killed(outcome(Role::Vcpu, || signal(std::os::unix::process::parent_id()))));
    }

    #[test]
    fn requests_of_the_driver_are_not_the_vcpus() {
        fn create_vm() -> libc::c_long {
            // SAFETY: a request without a result in memory, to a descriptor that does not exist.
            unsafe { libc::syscall(libc::SYS_ioctl, -1, ioctls::MACHINE[1], 0) }
        }
        assert!(matches!(outcome(Role::Driver, create_vm), WaitStatus::Exited(_, 1)));
        assert!(is_killed(outcome(Role::Vcpu, create_vm)));
        assert!(is_killed(outcome(Role::Vsock, create_vm)));
    }

    /// A tap can be given to others, be renamed, or be made part of another device.
    #[test]
    fn of_a_tap_only_the_offloads_can_be_set() {
        fn request(request: libc::Ioctl) -> libc::c_long {
            // SAFETY: requests that take an integer or fail on the descriptor, which does not exist.
            unsafe { libc::syscall(libc::SYS_ioctl, -1, request, 0) }
        }
        assert!(matches!(outcome(Role::Net, || request(libc::TUNSETOFFLOAD)), WaitStatus::Exited(_, 1)));
        for call in [|| request(libc::TUNSETIFF), || request(libc::TUNSETPERSIST), || request(libc::TUNSETSNDBUF)] {
            assert!(is_killed(outcome(Role::Net, call)));
        }
        assert!(is_killed(outcome(Role::Block, || request(libc::TUNSETOFFLOAD))));
        assert!(is_killed(outcome(Role::Vcpu, || request(libc::TUNSETOFFLOAD))));
    }

    #[test]
    fn children_are_threads() {
        fn fork() -> libc::c_long {
            // SAFETY: would make a process that shares nothing.
            unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) }
        }
        assert!(is_killed(outcome(Role::Driver, fork)));
    }
}
