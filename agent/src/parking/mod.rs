//! Machines that wait for a sandbox, one step before they are its own: restored from a warm snapshot, their guest on its link,
//! nobody's yet.
//!
//! ```text
//!   a create that found a warm snapshot ── claim ──▶ one waits ──▶ it becomes the sandbox's, and is told who it is
//!                                            │
//!                                            └─────▶ none waits: the snapshot is restored
//!      demand ◀── every claim
//!        │
//!        └──▶ upkeep::parking ── restores, parks ──▶ and ends those that are too many
//! ```
//!
//! * One runs nothing of a tenant's, and is used once. What a warm snapshot had running is stopped in it.
//! * Its network slot lets nothing pass until it enforces the sandbox's policy; only then is the guest told its address.
//! * No record names it: an agent that starts kills those of its predecessor like every such monitor.
//! * There are as many of a [`Kind`] as were asked for in the last minute, one for a while longer, and no more than the host has
//!   room for. Like an idle monitor one holds none of the host's capacity: its guest, which waits, has touched a few MiB of its
//!   memory. What it would hold as a sandbox has to be free all the same, and when it is not any more, it goes.

mod lot;
mod machine;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandpiper_protocol::vmm::{DiskLimits, NetLimits};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::lot::Lot;
pub(crate) use self::machine::{Parked, remove};
use crate::capacity::Capacity;
use crate::config;

/// Which sandboxes a machine can be given to: those of one warm snapshot whose devices have the same limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    /// The warm snapshot's key.
    pub(crate) warm: String,
    pub(crate) memory_mb: u32,
    pub(crate) net_limits: NetLimits,
    pub(crate) disk_limits: DiskLimits,
}

/// The parked machines of this host. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(crate) struct Parking {
    inner: Arc<Inner>,
}

struct Inner {
    lot: Mutex<Lot<Parked>>,
    capacity: Capacity,
    claimed: Notify,
}

impl Parking {
    pub(crate) fn new(config: config::Parking, capacity: Capacity) -> Self {
        let lot = Lot::new(config.max as usize, Duration::from_secs(config.keep_seconds));
        Self { inner: Arc::new(Inner { lot: Mutex::new(lot), capacity, claimed: Notify::new() }) }
    }

    /// A machine of this kind, if one waits. Whether or not: there will be more.
    pub(crate) fn claim(&self, kind: &Kind) -> Option<Parked> {
        let claimed = self.lock().claim(kind, Instant::now());
        self.inner.claimed.notify_one();
        claimed
    }

    /// Waits until somebody has claimed a machine.
    pub(crate) async fn claimed(&self) {
        self.inner.claimed.notified().await;
    }

    /// The kind that most needs one more.
    pub(crate) fn lacking(&self) -> Option<Kind> {
        let spare_mb = self.inner.capacity.spare_mb();
        self.lock().lacking(Instant::now(), spare_mb)
    }

    pub(crate) fn park(&self, kind: &Kind, parked: Parked) {
        self.lock().park(kind, parked);
    }

    /// Takes out those that have ended, those of a kind that cannot be made any more, and those that are too many.
    pub(crate) fn take_surplus(&self, can_be_made: impl Fn(&Kind) -> bool) -> Vec<Parked> {
        let spare_mb = self.inner.capacity.spare_mb();
        let mut lot = self.lock();
        let mut surplus = lot.take(Parked::has_ended);
        surplus.extend(lot.take_kinds(|kind| !can_be_made(kind)));
        surplus.extend(lot.take_surplus(Instant::now(), spare_mb));
        surplus
    }

    /// Takes out all.
    pub(crate) fn take_all(&self) -> Vec<Parked> {
        self.lock().take(|_| true)
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.lock().count()
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, Lot<Parked>> {
        self.inner.lot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
