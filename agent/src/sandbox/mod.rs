//! The sandboxes of this host.
//!
//! # Dramatis Personae
//!
//! * A **sandbox** is one microVM with an id, a disk of its own and a deadline.
//! * Its **record** (`record`) is what the agent knows of it, one file, synced. It exists before anything else of the
//!   sandbox and after everything else of it. Environment variables in it are sealed (`seal`).
//! * Its **monitor** is the `sandpiper-vmm` process that runs the microVM. It outlives the agent: it has a session of its
//!   own, holds its files as descriptors, and its two sockets have paths. `process` starts and recognizes monitors,
//!   `monitor` talks to one, `machine` merges all that one can report.
//! * The **link** (`link`) is the line that PID 1 of the guest opens to the agent, and opens again whenever it breaks.
//! * Its **supervisor** (`supervisor`) is the task that owns all of these: it alone changes the record, one thing after
//!   another, and everybody else sees a copy of it (a watch) or sends it a [`Command`].
//! * The **registry** ([`Sandboxes`]) knows every supervisor by id and by route token, and takes requests.
//! * **Reconciliation** (`reconcile`) is what a starting agent does with what an earlier one left.
//!
//! # Life of a sandbox
//!
//! ```text
//!                     start failed, DELETE
//!              ┌──────────────────────────────────────────────┐
//!              │                                              ▼
//!   POST ──▶ creating ──guest is ready──▶ ready ──DELETE──▶ stopping ──▶ (gone)
//!                                          │ ▲   deadline                  ▲
//!                                          │ └─ agent restarted: adopted   │
//!                        guest or monitor  │                               │
//!                             ended        ▼                               │
//!                                       failed ───────────DELETE───────────┘
//! ```
//!
//! * `creating`: the record exists; folders, layers, sockets and the monitor come into being in that order (`start`, `bring_up`).
//!   The state ends when the guest says that its data plane serves. If it does not within the boot time-out, if anything
//!   fails, or if the sandbox is deleted meanwhile, everything is taken back and the create is answered with the reason.
//!   The client going away changes nothing: the create ends one way or the other.
//! * `ready`: the supervisor watches the process (a pidfd), the control connection, the link and the deadline.
//! * `failed`: the guest or the monitor ended unasked. Process, disk and sockets are freed at once; the record, with the
//!   error, stays until DELETE.
//! * `stopping`: written before the first thing is taken away, so that an agent that is killed half-way has its successor
//!   finish. The sandbox is gone when its process and all its files are.
//!
//! An agent that is asked to end leaves sandboxes running, unless it was told otherwise; the next one adopts them.

mod bring_up;
mod console;
mod create;
mod ending;
mod link;
mod machine;
mod monitor;
mod process;
mod reconcile;
mod record;
mod registry;
mod seal;
mod start;
mod supervisor;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::paths::Paths;
use crate::templates::Store;

pub(crate) use self::create::{CreateError, check_lifecycle, check_port, check_timeout};
pub(crate) use self::record::Record;
pub(crate) use self::registry::{ChangeError, Sandboxes};
pub(crate) use self::seal::Sealer;
pub(crate) use self::start::StartError;
pub(crate) use self::supervisor::{Command, DeleteCause};

/// Prefix of a sandbox's id.
pub(crate) const ID_PREFIX: &str = "sbx";

/// What every supervisor needs of its surroundings.
pub(crate) struct Context {
    pub(crate) config: Arc<Config>,
    pub(crate) paths: Paths,
    pub(crate) templates: Store,
    pub(crate) logs: Logs,
    pub(crate) metrics: Metrics,
    pub(crate) sealer: Sealer,
    pub(crate) boot_id: String,
    /// Supervisors end without touching their sandboxes.
    pub(crate) leave: CancellationToken,
}
