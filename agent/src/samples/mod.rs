//! What every sandbox took of the host over the last day: CPU, memory, disk, network, every [`INTERVAL`].
//!
//! ```text
//!   [sampler], one task ──reading──▶ [series], one per sandbox ──sample──▶ [file]: samples-<span>, …
//!                                        ▲                                   │
//!                 GET /sandboxes/{id}/metrics ◀──── [window]: thinned out ◀──┘
//! ```
//!
//! * All of it is the host's view: the CPU time and the memory of the monitor's process, the layers of the sandbox's disk, the
//!   bytes at its tap. No guest is asked, so an idle one is not woken; what a guest calls free memory is not known here.
//! * A **sample** is the rate since the one before. The first of a machine, or of an agent, has none before it and only begins.
//! * A sample is written at once, to a file in the sandbox's folder: nothing is held in memory but the counters of the last
//!   reading, an agent that is killed loses none, and what is deleted with the sandbox is everything. A file has the samples
//!   of a **span** of six hours; those of a day and the present span are kept, half a MiB at most. A sandbox that is stopped
//!   has those of the day before it was.
//! * Nobody relies on them as on a record: they are not synced, and one that cannot be written is lost.

mod file;
mod sampler;
mod series;
mod window;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandpiper_protocol::ids::SandboxId;

pub(crate) use self::sampler::sample;
#[cfg(test)]
pub(crate) use self::sampler::sample_all;
use self::series::Series;
pub(crate) use self::window::{Window, thin};

/// From one sample to the next.
const INTERVAL: Duration = Duration::from_secs(5);

/// What a sandbox took of the host, from the sample before to this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Seconds since 1970.
    pub(crate) at: u32,
    /// Thousandths of one CPU.
    pub(crate) cpu: u32,
    pub(crate) memory_kib: u32,
    pub(crate) disk_kib: u32,
    /// Bytes a second, as the guest sees them.
    pub(crate) received: u32,
    pub(crate) sent: u32,
}

/// The series of all sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    series: Mutex<HashMap<SandboxId, Arc<Series>>>,
}

impl Samples {
    /// Makes a sandbox's series known, whose files are in `folder`.
    pub(crate) fn open(&self, id: SandboxId, folder: PathBuf) {
        self.lock().insert(id, Arc::new(Series::new(folder)));
    }

    /// The series of a sandbox that is here.
    pub(crate) fn find(&self, id: &SandboxId) -> Option<Arc<Series>> {
        self.lock().get(id).cloned()
    }

    /// Forgets the series of a sandbox of which nothing is left.
    pub(crate) fn forget(&self, id: &SandboxId) {
        self.lock().remove(id);
    }

    /// The data under this lock is changed in one step, so it is whole even after a panic elsewhere.
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Series>>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
