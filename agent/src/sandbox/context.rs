//! What every supervisor needs of its surroundings.

use std::sync::Arc;

use sandpiper_images::layers::digest::Visits;
use sandpiper_images::layers::usage::Usage;
use sandpiper_images::snapshots::{Checkpoints, Warm};
use sandpiper_images::templates::Store;
use sandpiper_network::Network;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::seal::Sealer;
use crate::capacity::{Allowances, Capacity, Demand, Full, Reservation};
use crate::config::Config;
use crate::helpers::Helpers;
use crate::intervals::Intervals;
use crate::launch::Launcher;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::parking::Parking;
use crate::paths::Paths;
use crate::revision::Revision;
use crate::samples::Samples;
use crate::turns::Turns;
use crate::volumes::Volumes;

/// What every supervisor needs of its surroundings.
pub(crate) struct Context {
    pub(crate) config: Arc<Config>,
    pub(crate) paths: Paths,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) volumes: Volumes,
    pub(crate) helpers: Helpers,
    pub(crate) templates: Store,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) warm: Warm,
    pub(crate) parking: Parking,
    pub(crate) turns: Turns,
    pub(crate) capacity: Capacity,
    pub(crate) allowances: Allowances,
    pub(crate) usage: Usage,
    pub(crate) logs: Logs,
    pub(crate) samples: Samples,
    pub(crate) intervals: Intervals,
    pub(crate) metrics: Metrics,
    pub(crate) sealer: Sealer,
    pub(crate) boot_id: String,
    /// Who reads or fills which layers at the moment.
    pub(crate) visits: Visits,
    /// Layers came, went or are in use again: for what goes on in the background.
    pub(crate) changed: watch::Sender<()>,
    /// Of what lists of sandboxes show.
    pub(crate) revision: Revision,
    /// GiB of the root disks of all plans, as the API process said last.
    pub(crate) root_disks: watch::Sender<Vec<u32>>,
    /// Supervisors end without touching their sandboxes.
    pub(crate) leave: CancellationToken,
}

impl Context {
    /// The network of this host; `None` if it is turned off.
    pub(crate) fn network(&self) -> Option<&Network> {
        self.launcher.network()
    }

    /// Reserves what a sandbox's machine needs, whose time can be counted.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn reserve(&self, demand: &Demand) -> Result<Reservation, Full> {
        if self.intervals.is_full() {
            let reason =
                "The journal of what ran here is full, since no API process has fetched it for long; start one";
            return Err(Full::Host(reason.to_owned()));
        }
        self.capacity.reserve(demand)
    }
}
