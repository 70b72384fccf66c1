//! Bringing the guest to rest for a snapshot, and waking it.
//!
//! ```text
//!                 processes       disks
//!   freeze   1.                   written out, while everything still runs (this is what takes long)
//!            2.   stopped
//!            3.                   frozen, the ones on top of others first; or only written out, once more
//!   thaw     1.                   thawed, in the opposite order
//!            2.   released
//!   wake     1.                   thawed
//!            2.   ─ the guest is told who it is now ─
//!            3.   released
//! ```
//!
//! Of a machine whose memory goes with its disk, the disks need not be frozen. They are written out all the same, for a boot
//! from the disk alone, which then is one as after a power cut.
//!
//! A freeze that fails is undone. A wake that fails leaves the processes stopped: after a restore they would run as
//! somebody else. Waiting for a thaw that never comes is limited ([`keeper`]).
//!
//! A frozen file system stops whoever writes to it, in the kernel and for as long as it is frozen; that may be every
//! thread that works for the data plane. What thaws therefore has a thread to itself, and keeps open what it needs.

mod disks;
mod keeper;
mod processes;

use std::io;

pub(crate) use disks::{Mounted, find};
pub(crate) use keeper::Keeper;
pub(crate) use processes::Stopper;

use crate::identity::IdentityError;
use processes::StopError;

/// What the data plane has started.
pub(crate) trait Processes: Send + 'static {
    /// Stops all, and waits until they have stopped. May be called again.
    fn stop(&mut self) -> Result<(), StopError>;
    /// Lets go on what [`Self::stop`] stopped, also when it failed half-way.
    fn release(&mut self) -> io::Result<()>;
}

/// What is to come to rest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    /// Everything that runs.
    pub(crate) processes: bool,
    /// The disks: nothing more is written to them.
    pub(crate) disks: bool,
    /// Not only until there was no word from the host for long.
    pub(crate) stays: bool,
}

/// A file system that is written to.
pub(crate) trait Disk: Send + Sized + 'static {
    /// Writes out what was written before.
    fn write_out(&self) -> io::Result<()>;
    /// Writes everything out and lets nothing more be written. False if it was frozen already, by somebody else.
    fn freeze(&self) -> io::Result<bool>;
    fn thaw(&self) -> io::Result<()>;
    /// Where it is mounted, for messages.
    fn place(&self) -> String;
}

/// Why the guest was not frozen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FreezeError {
    #[error("The root file system is still being grown to its disk: try again in a moment")]
    Growing,
    #[error("{0}")]
    Disks(disks::FindError),
    #[error("Writing out what the sandbox has written took longer than {0} s: try again in a moment")]
    Slow(u64),
    #[error("{0}")]
    Processes(#[from] StopError),
    #[error("The file system at {place} cannot be frozen: {source}")]
    Disk { place: String, source: io::Error },
    #[error("The file system at {place} cannot be written out: {source}")]
    WriteOut { place: String, source: io::Error },
    #[error("{0}")]
    Gone(#[from] keeper::Gone),
}

/// Why the guest does not run on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WakeError {
    #[error("The file system at {place} cannot be thawed: {source}")]
    Disk { place: String, source: io::Error },
    #[error("{0}")]
    Identity(#[from] IdentityError),
    #[error("The stopped processes cannot be resumed: {0}")]
    Processes(io::Error),
    #[error("{0}")]
    Gone(#[from] keeper::Gone),
}

/// What is frozen at present.
#[derive(Debug)]
pub(crate) struct Freezer<P, D> {
    processes: P,
    /// The frozen ones, in the order in which they were.
    disks: Vec<D>,
}

impl<P: Processes, D: Disk> Freezer<P, D> {
    fn new(processes: P) -> Self {
        Self { processes, disks: Vec::new() }
    }

    /// Freezes `disks` in the order given, or writes them out, after everything that runs. Blocks, as all of this does.
    fn freeze(&mut self, disks: Vec<D>, rest: Rest) -> Result<(), FreezeError> {
        let frozen = self.try_freeze(disks, rest);
        if frozen.is_err() {
            // Tried for everything, and the first failure is the one to tell.
            let _ = self.thaw();
        }
        frozen
    }

    fn try_freeze(&mut self, disks: Vec<D>, rest: Rest) -> Result<(), FreezeError> {
        if rest.processes {
            self.processes.stop()?;
        }
        for disk in disks {
            if !rest.disks {
                disk.write_out().map_err(|source| FreezeError::WriteOut { place: disk.place(), source })?;
                continue;
            }
            match disk.freeze() {
                Ok(true) => self.disks.push(disk),
                Ok(false) => {}
                Err(source) => return Err(FreezeError::Disk { place: disk.place(), source }),
            }
        }
        Ok(())
    }

    /// Undoes a freeze; nothing happens if there was none.
    fn thaw(&mut self) -> Result<(), WakeError> {
        let thawed = self.thaw_disks();
        self.processes.release().map_err(WakeError::Processes)?;
        thawed
    }

    /// Undoes a freeze, with `identify` between the disks, which it needs, and the processes, which need it.
    fn wake(&mut self, identify: impl FnOnce() -> Result<(), IdentityError>) -> Result<(), WakeError> {
        self.thaw_disks()?;
        identify()?;
        self.processes.release().map_err(WakeError::Processes)
    }

    /// Thaws what can be; the rest stays to be tried again.
    fn thaw_disks(&mut self) -> Result<(), WakeError> {
        let mut failed = Ok(());
        let mut left = Vec::new();
        for disk in self.disks.drain(..).rev() {
            if let Err(source) = disk.thaw() {
                failed = Err(WakeError::Disk { place: disk.place(), source });
                left.push(disk);
            }
        }
        left.reverse();
        self.disks = left;
        failed
    }
}

/// A machine that only writes down what is done to it.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Debug, Clone, Default)]
    pub(crate) struct Journal {
        lines: Arc<Mutex<Vec<String>>>,
        /// The line whose step fails.
        fails: Option<&'static str>,
    }

    impl Journal {
        pub(crate) fn new(fails: Option<&'static str>) -> Self {
            Self { fails, ..Self::default() }
        }

        pub(crate) fn add(&self, line: impl Into<String>) -> io::Result<()> {
            let line = line.into();
            let fails = self.fails == Some(line.as_str());
            self.lines.lock().unwrap().push(line);
            if fails { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
        }

        /// What was done since the last call.
        pub(crate) fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.lines.lock().unwrap())
        }
    }

    /// Everything is to come to rest.
    pub(crate) const ALL: Rest = Rest { processes: true, disks: true, stays: false };

    pub(crate) struct FakeProcesses(pub(crate) Journal);

    impl Processes for FakeProcesses {
        fn stop(&mut self) -> Result<(), StopError> {
            self.0.add("stop").map_err(|source| StopError::Group { group: "/user".into(), source })
        }

        fn release(&mut self) -> io::Result<()> {
            self.0.add("release")
        }
    }

    pub(crate) struct FakeDisk {
        pub(crate) name: &'static str,
        pub(crate) is_frozen: bool,
        pub(crate) journal: Journal,
    }

    impl Disk for FakeDisk {
        fn write_out(&self) -> io::Result<()> {
            self.journal.add(format!("write out {}", self.name))
        }

        fn freeze(&self) -> io::Result<bool> {
            self.journal.add(format!("freeze {}", self.name)).map(|()| !self.is_frozen)
        }

        fn thaw(&self) -> io::Result<()> {
            self.journal.add(format!("thaw {}", self.name))
        }

        fn place(&self) -> String {
            self.name.to_owned()
        }
    }

    pub(crate) fn disk(name: &'static str, journal: &Journal) -> FakeDisk {
        FakeDisk { name, is_frozen: false, journal: journal.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;

    fn freezer(fails: Option<&'static str>) -> (Freezer<FakeProcesses, FakeDisk>, Vec<FakeDisk>, Journal) {
        let journal = Journal::new(fails);
        let disks = vec![disk("/inner", &journal), disk("/", &journal)];
        (Freezer::new(FakeProcesses(journal.clone())), disks, journal)
    }

    #[test]
    fn processes_stop_before_the_disks_and_go_on_after_them() {
        let (mut freezer, disks, journal) = freezer(None);

        freezer.freeze(disks, ALL).unwrap();
        assert_eq!(journal.take(), ["stop", "freeze /inner", "freeze /"]);
        freezer.thaw().unwrap();
        assert_eq!(journal.take(), ["thaw /", "thaw /inner", "release"]);
        freezer.thaw().unwrap();
        assert_eq!(journal.take(), ["release"], "there is no disk to thaw a second time");
    }

    #[test]
    fn without_processes_only_the_disks_are_frozen() {
        let (mut freezer, disks, journal) = freezer(None);

        freezer.freeze(disks, Rest { processes: false, ..ALL }).unwrap();

        assert_eq!(journal.take(), ["freeze /inner", "freeze /"]);
    }

    #[test]
    fn disks_that_stay_as_they_are_are_written_out_behind_the_last_process() {
        let (mut freezer, disks, journal) = freezer(None);

        freezer.freeze(disks, Rest { disks: false, ..ALL }).unwrap();
        assert_eq!(journal.take(), ["stop", "write out /inner", "write out /"]);
        freezer.thaw().unwrap();
        assert_eq!(journal.take(), ["release"]);

        let (mut freezer, disks, journal) = self::freezer(Some("write out /inner"));
        let error = freezer.freeze(disks, Rest { disks: false, ..ALL }).unwrap_err();
        assert!(error.to_string().starts_with("The file system at /inner cannot be written out: "), "{error}");
        assert_eq!(journal.take(), ["stop", "write out /inner", "release"]);
    }

    #[test]
    fn a_freeze_that_fails_is_undone() {
        let (mut freezer, disks, journal) = freezer(Some("freeze /"));
        let error = freezer.freeze(disks, ALL).unwrap_err();
        assert!(error.to_string().starts_with("The file system at / cannot be frozen: "), "{error}");
        assert_eq!(journal.take(), ["stop", "freeze /inner", "freeze /", "thaw /inner", "release"]);

        let (mut freezer, disks, journal) = self::freezer(Some("stop"));
        freezer.freeze(disks, ALL).unwrap_err();
        assert_eq!(journal.take(), ["stop", "release"]);
    }

    #[test]
    fn what_somebody_else_froze_stays_frozen() {
        let (mut freezer, mut disks, journal) = freezer(None);
        disks[0].is_frozen = true;

        freezer.freeze(disks, Rest { processes: false, ..ALL }).unwrap();
        freezer.thaw().unwrap();

        assert_eq!(journal.take(), ["freeze /inner", "freeze /", "thaw /", "release"]);
    }

    #[test]
    fn processes_go_on_only_once_the_guest_knows_who_it_is() {
        let (mut freezer, disks, journal) = freezer(None);
        freezer.freeze(disks, ALL).unwrap();
        journal.take();

        let refused = freezer.wake(|| {
            journal.add("identify").map_err(IdentityError::Clock)?;
            Err(IdentityError::Clock(io::ErrorKind::PermissionDenied.into()))
        });
        assert!(matches!(refused, Err(WakeError::Identity(_))));
        assert_eq!(journal.take(), ["thaw /", "thaw /inner", "identify"]);

        freezer.wake(|| journal.add("identify").map_err(IdentityError::Clock)).unwrap();
        assert_eq!(journal.take(), ["identify", "release"]);
    }

    #[test]
    fn a_disk_that_does_not_thaw_is_tried_again_and_holds_up_nobody_else() {
        let (mut freezer, disks, journal) = freezer(Some("thaw /"));
        freezer.freeze(disks, ALL).unwrap();
        journal.take();

        assert!(matches!(freezer.thaw(), Err(WakeError::Disk { .. })));
        assert_eq!(journal.take(), ["thaw /", "thaw /inner", "release"]);
        assert!(matches!(freezer.wake(|| Ok(())), Err(WakeError::Disk { .. })));
        assert_eq!(journal.take(), ["thaw /"]);
    }
}
