//! Volumes: the file systems on the extra disks, mounted where the host says.
//!
//! ```text
//!   mount    the disk has its size ─▶ nothing of before uses it ─▶ mounted, the outer ones first ─▶ once: given to the user
//!   unmount  written out ─▶ unmounted, the inner ones first ─▶ the kernel has let go of the disks
//!              │ something uses one                               │ something keeps one
//!              ├──────────────────────────────────────────────────┘
//!              ├─ not forced: all are mounted as before, and who uses it is told
//!              │  (as it is where the host has not waited for the end)
//!              └─ forced: shut down, which leaves it clean on its disk; detached; the slot is held
//! ```
//!
//! Either all of a message is done or none of it. While a volume is away, for a snapshot, an empty folder that nobody can
//! write to is in its place: what a program wrote there would be hidden by the volume, and lost, when it comes back.
//!
//! A volume may come from another sandbox, whose root could write anything to its disk: device nodes and set-user-id bits
//! mean nothing on it, and of what its superblock asks for on errors nothing is done. What the kernel makes of it harms this
//! guest at most.
//!
//! All of this may wait for disks, so none of it is done on the runtime.

mod device;
mod format;
mod holders;
mod late;
mod place;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

pub(crate) use device::Slots;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use sandpiper_durable::Interrupted;
use sandpiper_protocol::guest::{DAMAGED_VOLUME, GuestMount, REFUSED_MOUNT};
use sandpiper_protocol::volume::{PathError, check_mount_path};

use crate::mountinfo;
use crate::users::{self, LookupError};
use device::Disk;
use late::within;

/// For what the host asks of a guest that runs. What a program wrote to a volume before is written out within it.
const LIMIT: Duration = Duration::from_secs(20);

const FLAGS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);

/// Blocks that become free are given back to the host. On errors the volume becomes read-only, whatever its superblock says.
const OPTIONS: &str = "data=ordered,errors=remount-ro,discard";

/// Mounts that are taken off one place, or of one volume, before it is called held.
const MAX_MOUNTS: usize = 64;

/// `_IOR('X', 125, __u32)` of the kernel's `fs/ext4/ext4.h`, and its `EXT4_GOING_FLAGS_DEFAULT`: everything is written down first.
const EXT4_IOC_SHUTDOWN: libc::Ioctl = 0x8004_587D_u32 as libc::Ioctl;
const WRITE_DOWN: u32 = 0;

/// Why volumes are not as the host wants them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("The path {path:?} of a volume {source}")]
    Path { path: String, source: PathError },
    #[error("There is no extra disk {0} in a sandbox")]
    NoSlot(u8),
    #[error("The extra disk {0} is mounted already, or asked for twice")]
    Taken(u8),
    #[error("The extra disk {0} did not get its size within {1} s")]
    NoDisk(u8, u64),
    #[error("The extra disk {0} is still used by processes that had files of an earlier volume open: end them first")]
    Held(u8),
    #[error("The extra disk {slot} cannot be read: {source}")]
    Disk { slot: u8, source: io::Error },
    #[error("{REFUSED_MOUNT} {path}: {reason}")]
    Place { path: String, reason: String },
    #[error("{DAMAGED_VOLUME}: the kernel cannot mount what is to be at {path}: {source}")]
    Damaged { path: String, source: io::Error },
    #[error("The volume of {path} cannot be mounted: {source}")]
    Mount { path: String, source: io::Error },
    #[error("The volume at {path} cannot be written out: {source}")]
    Sync { path: String, source: io::Error },
    #[error("The volume at {path} is in use by {who}: close its files, or force it")]
    Busy { path: String, who: String },
    #[error("{error}; and the volume of {path} could not be mounted again: {again}")]
    Lost { error: Box<VolumeError>, path: String, again: Box<VolumeError> },
    #[error("{0}")]
    User(#[from] LookupError),
    #[error("No file system can be made: {0}")]
    Format(String),
    #[error("The volumes are still being mounted or unmounted: try again in a moment")]
    Underway,
    #[error("Writing the volumes out, or mounting them, takes longer than {} s: try again in a moment", LIMIT.as_secs())]
    Slow,
    #[error("Mounting or unmounting volumes failed: {0}")]
    Task(#[from] Interrupted),
}

/// Whose a folder that is made, and a new volume, is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The volumes of this guest, for whoever has them done something.
#[derive(Debug, Clone)]
pub(crate) struct Volumes {
    slots: Slots,
    table: Arc<Mutex<Table>>,
}

impl Volumes {
    pub(crate) fn new(slots: Slots) -> Self {
        Self { slots, table: Arc::default() }
    }

    /// Mounts what a guest that has become another one is to have, and nothing else of what it had. New folders and volumes
    /// are those of the user called `owner`. Blocks.
    pub(crate) fn begin(&self, mounts: &[GuestMount], owner: &str) -> Result<(), VolumeError> {
        let mut table = self.lock()?;
        table.put_back();
        if mounts.is_empty() {
            return Ok(());
        }
        let user = users::lookup(owner)?;
        table.owner = Owner { uid: user.uid, gid: user.gid };
        table.mount(&self.slots, mounts)
    }

    /// Mounts volumes again that were unmounted.
    pub(crate) async fn mount(&self, mounts: Vec<GuestMount>) -> Result<(), VolumeError> {
        let volumes = self.clone();
        let mount = move || {
            let mut table = volumes.lock()?;
            table.put_back();
            table.mount(&volumes.slots, &mounts)
        };
        // Heard or not: the host looks for what is mounted before it does anything else with them.
        within(LIMIT, move |answer| {
            let _ = answer.give(mount());
        })
        .await
    }

    /// Unmounts all volumes. Returns the slots whose disk is still used, which happens only with `force`.
    pub(crate) async fn unmount(&self, force: bool) -> Result<Vec<u8>, VolumeError> {
        let volumes = self.clone();
        within(LIMIT, move |answer| {
            let mut table = match volumes.lock() {
                Ok(table) => table,
                Err(error) => {
                    let _ = answer.give(Err(error));
                    return;
                }
            };
            let mounts = table.mounts();
            let unmounted = table.unmount(force, || answer.is_late());
            let changed = unmounted.is_ok();
            if !answer.give(unmounted) && changed {
                // The host takes them for mounted. What cannot be mounted again is busy, or the kernel's log says why.
                table.put_back();
                let _ = table.mount(&volumes.slots, &mounts);
            }
        })
        .await
    }

    /// Makes an empty file system on an extra disk that holds only zeros.
    pub(crate) async fn format(&self, slot: u8) -> Result<(), VolumeError> {
        format::format(self.slots.disk(slot)?).await
    }

    /// Fails where something else goes on, rather than wait for it: it may wait for a disk that is gone.
    fn lock(&self) -> Result<MutexGuard<'_, Table>, VolumeError> {
        match self.table.try_lock() {
            Ok(table) => Ok(table),
            Err(TryLockError::WouldBlock) => Err(VolumeError::Underway),
            Err(TryLockError::Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
        }
    }
}

/// What is mounted.
#[derive(Debug, Default)]
struct Table {
    owner: Owner,
    /// In the order of mounting: one that lies in another comes after it.
    mounted: Vec<Mounted>,
    /// Places of volumes that are away, and the devices of the empty file systems there.
    away: Vec<(String, u64)>,
}

#[derive(Debug, Clone)]
struct Mounted {
    disk: Disk,
    path: String,
    /// What files of it are on.
    device: u64,
}

impl Table {
    fn mount(&mut self, slots: &Slots, mounts: &[GuestMount]) -> Result<(), VolumeError> {
        let mut wanted: Vec<&GuestMount> = mounts.iter().filter(|mount| !self.has(mount)).collect();
        // A place in another volume is there only once that one is.
        wanted.sort_by_key(|mount| mount.path.split('/').count());
        let before = self.mounted.len();
        let result = wanted.into_iter().try_for_each(|mount| self.mount_one(slots, mount));
        if result.is_err() {
            for mounted in self.mounted.split_off(before).into_iter().rev() {
                // Nobody has had the time to use it; should somebody have, it is not to be there for others.
                let _ = umount2(mounted.path.as_str(), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
            }
        }
        result
    }

    fn has(&self, mount: &GuestMount) -> bool {
        self.mounted.iter().any(|mounted| mounted.disk.slot == mount.slot && mounted.path == mount.path)
    }

    fn mount_one(&mut self, slots: &Slots, mount: &GuestMount) -> Result<(), VolumeError> {
        let GuestMount { slot, path } = mount;
        check_mount_path(path).map_err(|source| VolumeError::Path { path: path.clone(), source })?;
        let disk = slots.disk(*slot)?;
        if self.mounted.iter().any(|mounted| mounted.disk.slot == *slot || mounted.path == *path) {
            return Err(VolumeError::Taken(*slot));
        }
        disk.appears()?;
        if !disk.is_released() {
            return Err(VolumeError::Held(*slot));
        }
        let unreadable = |source| VolumeError::Disk { slot: *slot, source };
        disk.forget().map_err(unreadable)?;
        let device = disk.number().map_err(unreadable)?;
        let mounted = Mounted { disk, path: path.clone(), device };
        mounted.attach(self.owner)?;
        let given = mounted.root().and_then(|root| Ok(place::give(&root, self.owner)?));
        self.mounted.push(mounted);
        given.map_err(|source| VolumeError::Damaged { path: path.clone(), source })
    }

    fn mounts(&self) -> Vec<GuestMount> {
        let mounts = self.mounted.iter().map(|one| GuestMount { slot: one.disk.slot, path: one.path.clone() });
        mounts.collect()
    }

    /// Unmounts all, unless `is_late` once they are written out, which may take long.
    fn unmount(&mut self, force: bool, is_late: impl Fn() -> bool) -> Result<Vec<u8>, VolumeError> {
        for mounted in &self.mounted {
            // Unmounting writes it out too, but with the place gone already for those who use it.
            let synced = mounted.root().and_then(|root| Ok(nix::unistd::syncfs(&root)?));
            if !force {
                synced.map_err(|source| VolumeError::Sync { path: mounted.path.clone(), source })?;
            }
        }
        if is_late() {
            return Err(VolumeError::Slow);
        }
        let mut gone = Vec::new();
        let mut held = Vec::new();
        while let Some(mounted) = self.mounted.pop() {
            let slot = mounted.disk.slot;
            let is_released = if force { mounted.force_away() } else { mounted.detach() };
            gone.push(mounted);
            match is_released {
                Ok(true) => {}
                Ok(false) => held.push(slot),
                Err(error) => return Err(self.undo(gone, error)),
            }
        }
        self.keep_places(&gone);
        Ok(held)
    }

    /// Mounts again what was unmounted, in the opposite order, because of `error`.
    fn undo(&mut self, gone: Vec<Mounted>, error: VolumeError) -> VolumeError {
        let mut error = error;
        for mounted in gone.into_iter().rev() {
            // The one that could not be unmounted is still there.
            let present = mounted.is_there()
                || match mounted.attach(self.owner) {
                    Ok(()) => true,
                    Err(again) => {
                        let path = mounted.path.clone();
                        error = VolumeError::Lost { error: Box::new(error), path, again: Box::new(again) };
                        false
                    }
                };
            if present {
                self.mounted.push(mounted);
            }
        }
        error
    }

    /// Lets nobody write where the volumes were. Where that fails, their folders are as any other.
    fn keep_places(&mut self, gone: &[Mounted]) {
        let is_in = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
        for Mounted { path, .. } in gone {
            if gone.iter().any(|other| is_in(path, &other.path)) {
                continue;
            }
            let Ok(folder) = place::ensure(path, self.owner) else { continue };
            let flags = FLAGS | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
            let target = place::path_of(&folder);
            if mount(Some("volume-away"), target.as_str(), Some("tmpfs"), flags, Some("mode=0755,size=4k")).is_ok()
                && let Ok(device) = place::device_at(path)
            {
                self.away.push((path.clone(), device));
            }
        }
    }

    fn put_back(&mut self) {
        for (path, device) in self.away.drain(..) {
            if place::device_at(&path) == Ok(device) {
                let _ = umount2(path.as_str(), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
            }
        }
    }
}

impl Mounted {
    /// Mounts it, over what may be there. Folders that are missing are made for `owner`.
    fn attach(&self, owner: Owner) -> Result<(), VolumeError> {
        let refused = |error| VolumeError::Place { path: self.path.clone(), reason: place::explain(error) };
        let folder = place::ensure(&self.path, owner).map_err(refused)?;
        self.mount_on(&folder).map_err(|error| {
            let (path, source) = (self.path.clone(), error.into());
            // Everything else that could be wrong was looked at before: what is left is on the disk.
            match error {
                Errno::EPERM | Errno::EBUSY | Errno::ENOMEM | Errno::ENODEV => VolumeError::Mount { path, source },
                _ => VolumeError::Damaged { path, source },
            }
        })?;
        if self.is_there() {
            return Ok(());
        }
        // Somebody has moved the folders between the two calls.
        self.detach_everywhere();
        let reason = "a folder in it has changed meanwhile".to_owned();
        Err(VolumeError::Place { path: self.path.clone(), reason })
    }

    /// Whether it is what is at its path now.
    fn is_there(&self) -> bool {
        place::device_at(&self.path) == Ok(self.device)
    }

    /// Its root, which keeps it from being unmounted.
    fn root(&self) -> io::Result<OwnedFd> {
        if !self.is_there() {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "something else is mounted over it"));
        }
        Ok(place::open(&self.path)?)
    }

    /// Unmounts it; true, as it is an error if anything keeps it.
    fn detach(&self) -> Result<bool, VolumeError> {
        let busy = || VolumeError::Busy { path: self.path.clone(), who: holders::describe(&self.path, self.numbers()) };
        let unmounted = self.is_there() && umount2(self.path.as_str(), MntFlags::UMOUNT_NOFOLLOW).is_ok();
        if unmounted && self.disk.is_released() { Ok(true) } else { Err(busy()) }
    }

    /// Takes it away from whoever uses it. Whether the kernel has let go of its disk.
    fn force_away(&self) -> Result<bool, VolumeError> {
        let unmounted = self.is_there() && umount2(self.path.as_str(), MntFlags::UMOUNT_NOFOLLOW).is_ok();
        if unmounted && self.disk.is_released() {
            return Ok(true);
        }
        self.shut_down();
        self.detach_everywhere();
        Ok(self.disk.is_released())
    }

    /// Has the file system write itself down and then do nothing more. Nothing that goes wrong keeps the disk: without
    /// this, the journal holds what was synced.
    fn shut_down(&self) {
        let mut root = self.root();
        if root.is_err() {
            // Unmounted here and in use elsewhere, or covered: mounting the disk again gives the same file system.
            root = self.mount_over().and_then(|()| self.root());
        }
        if let Ok(root) = root {
            let how = WRITE_DOWN;
            // SAFETY: the request reads one u32, a live local variable.
            unsafe { libc::ioctl(root.as_raw_fd(), EXT4_IOC_SHUTDOWN, &raw const how) };
        }
    }

    fn mount_over(&self) -> io::Result<()> {
        let folder = place::ensure(&self.path, Owner::default())?;
        Ok(self.mount_on(&folder)?)
    }

    fn mount_on(&self, folder: &OwnedFd) -> nix::Result<()> {
        mount(Some(&self.disk.node), place::path_of(folder).as_str(), Some("ext4"), FLAGS, Some(OPTIONS))
    }

    /// Takes it off its place and any other where it, or a folder of it, is mounted too.
    fn detach_everywhere(&self) {
        for _ in 0..MAX_MOUNTS {
            let Some(place) = self.last_place() else { return };
            // What is mounted over it goes first.
            if umount2(&place, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).is_err() {
                return;
            }
        }
    }

    fn last_place(&self) -> Option<PathBuf> {
        let list = std::fs::read("/proc/thread-self/mountinfo").ok()?;
        let list = String::from_utf8_lossy(&list);
        mountinfo::parse(&list).rfind(|line| line.device == self.numbers()).map(|line| line.place)
    }

    /// Major and minor number of its device.
    fn numbers(&self) -> (u32, u32) {
        (libc::major(self.device), libc::minor(self.device))
    }
}
