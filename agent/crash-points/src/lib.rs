//! Crash points: the places between two durable steps of an operation, each by its name, at which a test can have the agent
//! die as `kill -9` would have it die.
//!
//! Only programs with debug assertions, or built with the feature `enabled`, can be killed so; in any other,
//! [`CrashPoint::pass`] is empty. A test names a file in the environment ([`ARMED`]) of the agent. Once the name of a point is
//! written into it, the agent that next passes that point removes the file and kills itself: the file's absence says
//! that it was this point, and a supervisor that starts the agent anew does not have it die again.
//!
//! `agent/tests` holds a test for every point of this list and every operation that passes it.

/// Environment variable that names the file.
pub const ARMED: &str = "SANDPIPER_CRASH_POINT";

macro_rules! crash_points {
    ($($(#[$doc:meta])* $point:ident,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum CrashPoint {
            $($(#[$doc])* $point,)*
        }

        impl CrashPoint {
            pub const ALL: &[Self] = &[$(Self::$point,)*];
        }
    };
}

crash_points! {
    /// A create, restore, fork or resume has its files; a monitor may be there.
    StartFilesMade,
    /// The monitor's sockets and logs are in the sandbox's folders.
    StartMonitorMoved,
    /// The record names files and monitor.
    StartRecorded,
    /// The monitor runs the machine.
    StartRunning,
    /// The guest said that it is ready.
    StartGuestReady,
    /// A record that was written ahead has been ended, and not got its name.
    RecordEnded,
    /// The record says `ready`.
    StartReady,

    /// The record says that the sandbox is being paused.
    PauseRecorded,
    PauseFrozen,
    /// Files for state and memory are there, empty.
    PauseFilesMade,
    /// State and memory are in them.
    PauseWritten,
    PauseSynced,
    /// The record says `stopped`; the monitor lives.
    PauseStopped,
    PauseMonitorEnded,

    /// The checkpoint's folder is there under its hidden name.
    CheckpointDrafted,
    CheckpointFilesMade,
    /// The monitor has begun the memory layer.
    CheckpointCopied,
    /// The record names the new top layer.
    CheckpointRecorded,
    CheckpointFrozen,
    /// The monitor goes on with the new top layer.
    CheckpointSwitched,
    CheckpointThawed,
    /// All files are in the checkpoint's folder.
    CheckpointLinked,
    CheckpointSynced,
    /// The record says `ready` again.
    CheckpointReady,
    /// The manifest is in the hidden folder.
    CheckpointManifest,
    /// The folder has its name.
    CheckpointPublished,

    /// The folder of a checkpoint that is being deleted is hidden.
    CheckpointHidden,
    CheckpointRemoved,

    /// The source is written down for the forks, none of which is there.
    ForkWritten,
    /// All forks are ready.
    ForkMade,
    /// What they were made from is removed.
    ForkCleaned,

    /// The record says that the sandbox is being deleted.
    DeleteRecorded,
    DeleteMonitorEnded,
    /// The journal has the end of the sandbox's interval; its record is still there.
    DeleteCounted,
    /// The sandbox's sockets are gone, its files are not.
    DeleteSocketsRemoved,
    DeleteRemoved,

    /// A new volume is there under its hidden name.
    VolumeMade,
    VolumePublished,
    /// The record of a volume says which sandbox has it; that one's monitor has nothing of it.
    VolumeRecorded,
    /// The monitor has the disks of all volumes; the guest has not mounted them.
    VolumesAttached,
    /// A guest that is being written down has unmounted all; their disks are still there.
    VolumesUnmounted,
    /// The monitor has none of them any more; their records say that it has.
    VolumesDetached,
    /// They are back after a checkpoint, and mounted.
    VolumesRemounted,
    /// The record of a volume says that no sandbox has it.
    VolumeReleased,
    /// The folder of a volume that is being deleted is hidden.
    VolumeHidden,
    VolumeRemoved,
    /// A build is written down; nobody was told of it.
    BuildRecorded,
    /// The machine that builds runs; it has no disk but its own.
    BuilderRunning,
    /// A team's new cache has a file system, and no name yet.
    CacheFormatted,
    /// The guest of the machine has mounted all disks.
    BuilderMounted,
    /// The record of a build says `warming`.
    BuildWarming,
    /// Its record says how it ended.
    BuildEnded,

    /// A built version is there under its hidden name.
    VersionMade,
    /// The folder has its name; the version is pending.
    VersionPublished,
    /// Everybody may start from it; its build is not `ready` yet.
    VersionReleased,
    /// The folder of a version that is being deleted is hidden.
    VersionHidden,
    VersionRemoved,

    /// An upload is complete under its hidden name.
    UploadWritten,
    UploadPublished,
    /// The folder of an upload that is being deleted is hidden.
    UploadHidden,

    /// A guest has made the empty file system that volumes begin with; it has no name yet.
    BlankFormatted,
}

impl CrashPoint {
    /// Dies here if a test wants it so. Blocks for a moment in programs that tests may kill.
    #[cfg(any(debug_assertions, feature = "enabled"))]
    pub fn pass(self) {
        use nix::sys::signal::{Signal, raise};

        let Some(file) = std::env::var_os(ARMED) else { return };
        let is_armed = std::fs::read_to_string(&file).is_ok_and(|point| point.trim() == format!("{self:?}"));
        // Of several tasks that pass at the same time, one finds the file.
        if is_armed && std::fs::remove_file(&file).is_ok() {
            let _ = raise(Signal::SIGKILL);
        }
    }

    #[cfg(not(any(debug_assertions, feature = "enabled")))]
    #[inline(always)]
    pub fn pass(self) {}
}
