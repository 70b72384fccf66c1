//! What keeps a monitor that a guest has taken over from doing harm.
//!
//! A guest that breaks out of its virtual machine does so into the monitor's process, by way of a device or of KVM. So
//! everything the monitor needs is given to it as descriptors, and before it looks at a single message it gives up the
//! rest ([`enter`]): the host's files, network and processes, its privileges, and last, thread by thread, the system
//! calls that its work does not need. What remains is a process that can talk through the descriptors it holds.
//!
//! ```text
//!   sandpiper-vmm --jail UID
//!     │ opens its own page map, and a userfaultfd, for snapshots (main)
//!     ▼
//!   enter ── namespaces ── empty root ── descriptors ── limits ── user, capabilities ── system calls
//!     │                                                                                     │
//!     ├──▶ main thread: the filter of Role::Driver                                          │
//!     └──▶ spawner: the same filter, starts all other threads, each of which installs its role's filter first
//! ```
//!
//! # Threads
//! A thread inherits the filters of the one that starts it, and filters only add up. A vCPU starts the threads of
//! devices when the guest's drivers set them up; if these were its own children, it would have to be allowed what any
//! of them is. So every thread is started by one that does nothing else ([`spawn`]).
//!
//! A filter takes longer to install than a thread to start. So those of devices are there before the machine ([`start_ahead`]), and
//! one that has done what it was [assigned](assign) waits for more, such as that of a device that was stopped for a snapshot.
//!
//! A system call that a filter does not allow ends the whole process with `SIGSYS`. Only `clone3`, whose flags lie in
//! memory where no filter sees them, fails as on an old kernel instead, so that the C library uses `clone`.
//!
//! Not jailed, as in tests, threads are only started.

mod confine;
mod filters;
mod ioctls;

use std::io;
use std::os::fd::RawFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use self::filters::Filters;
pub(crate) use self::ioctls::{PAGEMAP_SCAN, PRE_FAULT_MEMORY, UFFDIO_API, UFFDIO_REGISTER};

/// The smallest user id for a jailed monitor: those below belong to the host's own services.
pub const FIRST_UID: u32 = 1000;

/// Set once, by [`enter`].
static JAIL: OnceLock<Jail> = OnceLock::new();

/// Why a monitor could not be jailed. It has given up some of what it had and must not go on.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    #[error("A monitor is not jailed as user {0}: use one from {FIRST_UID} on that is nobody else's")]
    Uid(u32),
    #[error("Cannot {what}")]
    Step {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(
        "A monitor needs up to {needed} open files and may have {limit}: raise the agent's hard limit (ulimit -Hn)"
    )]
    Files { needed: u64, limit: u64 },
    #[error("Cannot compile the filter of system calls")]
    Compile(#[from] seccompiler::BackendError),
    #[error("Cannot install the filter of system calls")]
    Install(#[source] seccompiler::Error),
}

/// What a thread is for, which is what its system calls are limited by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Builds, saves and restores machines, and speaks with the agent.
    Driver,
    Vcpu,
    Block,
    Net,
    Vsock,
    Rng,
    Balloon,
    /// Fetches a restored machine's working set.
    Prefetch,
}

impl Role {
    const ALL: [Self; 8] =
        [Self::Driver, Self::Vcpu, Self::Block, Self::Net, Self::Vsock, Self::Rng, Self::Balloon, Self::Prefetch];

    /// The thread's name, as `ps -T` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Vcpu => "vcpu",
            Self::Block => "block",
            Self::Net => "net",
            Self::Vsock => "vsock",
            Self::Rng => "rng",
            Self::Balloon => "balloon",
            Self::Prefetch => "prefetch",
        }
    }
}

/// Gives up everything but the standard streams and the descriptors in `keep`, for good. Called by the main thread, as
/// root, while it is the only thread, and once.
///
/// # Errors
/// The user id is not one for monitors, or a step failed. Some privileges are gone then, and the process must end.
pub fn enter(uid: u32, keep: &[RawFd]) -> Result<(), JailError> {
    // The last number means "unchanged" to the kernel.
    if uid < FIRST_UID || uid == u32::MAX {
        return Err(JailError::Uid(uid));
    }
    confine::tame_allocator();
    let filters = Filters::compile()?;
    confine::confine(uid, keep)?;
    filters.restrict_main_thread()?;
    let spawner = start_spawner().map_err(|source| JailError::Step { what: "start a thread in the jail", source })?;
    // Nobody was here before: the second time, the filter would have ended the process long before this line.
    let _ = JAIL.set(Jail { filters, spawner, waiting: Mutex::default() });
    Ok(())
}

/// Starts a thread that can do what its role needs and nothing else.
///
/// # Errors
/// The host allows no further thread.
pub fn spawn<T: Send + 'static>(role: Role, work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    match JAIL.get() {
        Some(jail) => jail.spawn(role, work),
        None => named(role).spawn(work),
    }
}

/// Has such a thread that waits do `work`, or a new one.
///
/// # Errors
/// The host allows no further thread.
pub fn assign<T: Send + 'static>(role: Role, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Task<T>> {
    let (result, receiver) = mpsc::sync_channel(1);
    let job = move |is_free: &dyn Fn()| {
        let done = work();
        is_free();
        // Nobody waits for it any more, maybe.
        let _ = result.send(done);
    };
    match JAIL.get() {
        Some(jail) => jail.give(role, Box::new(job))?,
        None => drop(named(role).spawn(move || job(&|| {}))?),
    }
    Ok(Task(receiver))
}

/// Starts a thread for each of these roles that waits, so that [`assign`] need not start one. Only in the jail, where that takes
/// longest, for the filter; one that cannot be had now is started when it is needed.
pub fn start_ahead(roles: &[Role]) {
    if let Some(jail) = JAIL.get() {
        for waiting in roles.iter().map_while(|role| jail.start(*role).ok()) {
            jail.lock().push(waiting);
        }
    }
}

/// What a thread was given to do.
#[derive(Debug)]
pub struct Task<T>(Receiver<T>);

impl<T> Task<T> {
    /// Waits until it is done; `None` if it panicked.
    pub fn join(self) -> Option<T> {
        self.0.recv().ok()
    }
}

fn named(role: Role) -> thread::Builder {
    thread::Builder::new().name(role.name().into())
}

/// Work of the thread that starts the others.
type Start = Box<dyn FnOnce() + Send>;
/// Work of one that waits, which calls what it is given when it can be given more.
type Job = Box<dyn FnOnce(&dyn Fn()) + Send>;

/// What is left to be done in the jail: starting threads.
struct Jail {
    filters: Filters,
    spawner: Sender<Start>,
    /// Threads that do nothing.
    waiting: Mutex<Vec<Waiting>>,
}

/// A thread that has its role's filter, and waits for work.
struct Waiting {
    role: Role,
    jobs: Sender<Job>,
}

impl Jail {
    fn spawn<T: Send + 'static>(
        &'static self,
        role: Role,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let gone = || io::Error::other("the thread that starts threads has ended");
        let restricted = move || {
            if let Err(error) = self.filters.restrict_thread(role) {
                // Better no monitor than one with a thread that may do more than it should.
                eprintln!("sandpiper-vmm: cannot restrict the thread {}, so the monitor aborts: {error}", role.name());
                std::process::abort();
            }
            work()
        };
        let (reply, started) = mpsc::sync_channel(1);
        let start = move || {
            // Whoever asked waits below.
            let _ = reply.send(named(role).spawn(restricted));
        };
        self.spawner.send(Box::new(start)).map_err(|_| gone())?;
        started.recv().map_err(|_| gone())?
    }

    /// Starts a thread that waits, and waits again when it has done something.
    fn start(&'static self, role: Role) -> io::Result<Waiting> {
        let (jobs, receiver) = mpsc::channel::<Job>();
        let again = jobs.clone();
        self.spawn(role, move || {
            for job in receiver {
                job(&|| self.lock().push(Waiting { role, jobs: again.clone() }));
            }
        })?;
        Ok(Waiting { role, jobs })
    }

    fn give(&'static self, role: Role, job: Job) -> io::Result<()> {
        let found = {
            let mut waiting = self.lock();
            let index = waiting.iter().position(|waiting| waiting.role == role);
            index.map(|index| waiting.swap_remove(index))
        };
        let thread = found.map_or_else(|| self.start(role), Ok)?;
        thread.jobs.send(job).map_err(|_| io::Error::other("a thread that waits has ended"))
    }

    /// The list is whole whoever panicked.
    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start_spawner() -> io::Result<Sender<Start>> {
    let (spawner, starts): (Sender<Start>, Receiver<Start>) = mpsc::channel();
    thread::Builder::new().name("spawner".into()).spawn(move || starts.into_iter().for_each(|start| start()))?;
    Ok(spawner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_the_host_are_refused_before_anything_is_given_up() {
        for uid in [0, 999, u32::MAX] {
            assert!(matches!(enter(uid, &[]), Err(JailError::Uid(refused)) if refused == uid));
        }
    }

    #[test]
    fn a_thread_outside_of_a_jail_is_named_after_its_role() {
        let name = || thread::current().name().map(str::to_owned);
        assert_eq!(spawn(Role::Vsock, name).unwrap().join().unwrap().as_deref(), Some("vsock"));
        assert_eq!(assign(Role::Net, name).unwrap().join().flatten().as_deref(), Some("net"));
    }

    #[test]
    fn work_that_panics_has_no_result() {
        assert_eq!(assign(Role::Rng, || assert_eq!(1, 2)).unwrap().join(), None);
    }
}
