//! The one place that waits for children.
//!
//! Every orphan of the machine becomes a child of PID 1, so PID 1 waits for *any* child, and two parts of it must never
//! wait for the same one. Whoever starts a process takes a [`Spawning`] first and claims the new process id with it;
//! the status then arrives through a channel. All other statuses are thrown away, which is what orphans need.
//!
//! A child may end before its id is claimed. While a [`Spawning`] exists, the statuses of unknown children are therefore
//! kept, with a running number that tells them from those of an earlier process with the same id.
//!
//! Children belong to the process, not to a runtime, so the registry is the process's too.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// A child that nobody has claimed yet, and when it was reaped.
struct Early {
    exit: Exit,
    number: u64,
}

struct Registry {
    waiting: BTreeMap<i32, oneshot::Sender<Exit>>,
    early: BTreeMap<i32, Early>,
    spawning: usize,
    reaped: u64,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { waiting: BTreeMap::new(), early: BTreeMap::new(), spawning: 0, reaped: 0 });

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to start one process whose exit status is wanted.
#[derive(Debug)]
pub struct Spawning {
    since: u64,
}

impl Spawning {
    /// To be called before the process is made.
    pub fn begin() -> Self {
        let mut registry = registry();
        registry.spawning += 1;
        Self { since: registry.reaped }
    }

    /// Asks for the status of the child `pid`, which was made after [`Self::begin`] and may have ended already.
    pub fn claim(self, pid: i32) -> oneshot::Receiver<Exit> {
        let (sender, receiver) = oneshot::channel();
        let mut registry = registry();
        match registry.early.remove(&pid).filter(|early| early.number > self.since) {
            // A receiver that is gone has no use for the status.
            Some(early) => drop(sender.send(early.exit)),
            None => drop(registry.waiting.insert(pid, sender)),
        }
        receiver
    }
}

impl Drop for Spawning {
    fn drop(&mut self) {
        let mut registry = registry();
        registry.spawning = registry.spawning.saturating_sub(1);
        if registry.spawning == 0 {
            registry.early.clear();
        }
    }
}

/// Sends `signal` to the process group that the claimed child `pid` leads. False if the child has ended: its id may mean
/// another process by now.
pub fn signal_group(pid: i32, signal: nix::sys::signal::Signal) -> bool {
    let registry = registry();
    // Still registered means not waited for, so the id cannot have been given to anyone else: the lock keeps it so.
    registry.waiting.contains_key(&pid) && nix::sys::signal::killpg(nix::unistd::Pid::from_raw(pid), signal).is_ok()
}

/// Starts waiting for children, for as long as the current runtime lives.
pub fn start() -> io::Result<()> {
    let mut ended = signal(SignalKind::child())?;
    tokio::spawn(async move {
        loop {
            // First once without a signal: a child may have ended before the handler was there.
            reap();
            if ended.recv().await.is_none() {
                return;
            }
        }
    });
    Ok(())
}

/// Whether any child is left; for PID 1, whether any process is, kernel threads aside.
pub(crate) fn has_children() -> bool {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `waitid` accepts a null pointer for the information it would give; WNOWAIT leaves every status in place.
    unsafe { libc::waitid(libc::P_ALL, 0, std::ptr::null_mut(), flags) == 0 }
}

/// Takes the status of every child that has ended. Never blocks.
fn reap() {
    let mut registry = registry();
    loop {
        let mut status = 0;
        // SAFETY: `waitpid` writes one int to the pointer, which is that of a live local variable.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        if pid <= 0 {
            return;
        }
        let exit = if libc::WIFEXITED(status) {
            Exit::Code(libc::WEXITSTATUS(status))
        } else {
            Exit::Signal(libc::WTERMSIG(status))
        };
        registry.reaped += 1;
        let number = registry.reaped;
        match registry.waiting.remove(&pid) {
            Some(sender) => drop(sender.send(exit)),
            None if registry.spawning > 0 => drop(registry.early.insert(pid, Early { exit, number })),
            None => {}
        }
    }
}
