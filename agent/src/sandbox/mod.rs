//! The sandboxes of this host.
//!
//! # Dramatis Personae
//!
//! * A **sandbox** is one microVM with an id, a disk of its own and a deadline. It may be stopped: then it is files only.
//! * Its **record** (`record`) is what the agent knows of it, one file, synced. It names everything of the sandbox.
//!   Environment variables in it are sealed (`seal`).
//! * Its **files** ([`sandpiper_images::layers`]) are the layers of its disk, and of its memory where it was restored from a
//!   snapshot.
//! * Its **machine** ([`sandpiper_machine`]) is a monitor process and the lines to it and to the guest. [`crate::launch`]
//!   makes one, and says what it holds of the host.
//! * Its **supervisor** (`supervisor`) is the task that owns all of these: it alone changes the record, one thing after
//!   another, and everybody else sees a copy of it (a watch) or sends it a [`Command`].
//! * The **service** ([`crate::service`]) knows every supervisor by id and by route token, and takes requests.
//! * Its **network** (`ops::network`) is a slot, a network namespace that enforces what the sandbox may reach, while it runs.
//! * A **reservation** ([`crate::capacity`]) is what a machine holds of the host's memory, and of what its team may hold here.
//! * **Reconciliation** (`reconcile`) is what a starting agent does with what an earlier one left.
//! * **Upkeep** ([`crate::upkeep`]) is what goes on in the background: merging layers, measuring and checking them, making
//!   warm snapshots.
//!
//! # Life of a sandbox
//!
//! ```text
//!                  start failed, DELETE
//!           ┌──────────────────────────────────────────┐
//!           │                                          ▼
//!  POST ─▶ creating ──guest is ready──▶ ready ──DELETE, deadline──▶ stopping ──▶ (gone)
//!                                       ▲ │ ▲ ▲                                ▲
//!                        checkpointing ◀┘ │ │ └── failed to pause ──┐          │
//!                                         │ │                       │          │
//!                   guest or monitor      │ │      pause, deadline  │          │
//!                   ended                 │ └─────────────────────▶ stopping   │ DELETE,
//!                       ┌─────────────────┘                         (pausing)  │ deadline
//!                       │                                           │          │
//!                       │ disk only              ready ◀── restoring ◀── stopped ──┘
//!                       │                                  └── failed ──▲ ▲
//!                       └────────────────────────────────────────────────┘
//! ```
//!
//! * `creating`: the folder, its files, a monitor and the record come into being (`ops::start`). The state ends when the
//!   guest says that its data plane serves. If it does not within the boot time-out, if anything fails, or if the sandbox is
//!   deleted meanwhile, everything is taken back and the create fails with the reason. The client going away changes
//!   nothing: the create ends one way or the other.
//!   A sandbox of a template goes on from its warm snapshot ([`crate::upkeep::warm`]), or boots where there is none; one of a checkpoint goes
//!   on from that.
//! * `ready`: the supervisor watches the process (a pidfd), the control connection, the link and the deadline.
//! * `checkpointing` (`ops::checkpoint`): for the moment in which a new layer is put on top of the disk. Requests pass.
//! * `stopping`, on the way to `stopped` (`ops::pause`): state and memory are written down. If that fails, it is `ready` again.
//! * `stopped`: a record and files. It survives the agent and the host. When the guest or the monitor ended unasked, or the
//!   host did, the files are the disk alone, with everything in it that the guest had flushed; the record says what happened
//!   (`error`) until the sandbox is resumed, and its deadline still holds: with `kill` it is removed then.
//! * `restoring` (`ops::resume`): as `creating`, from its own snapshot; if that fails, it is `stopped` again.
//! * `failed`: of earlier agents, which kept nothing of a sandbox that ended unasked but its record. It goes at its deadline.
//! * `stopping`, on the way to its end: written before the first thing is taken away, so that an agent that is killed
//!   half-way has its successor finish. The sandbox is gone when its process and all its files are.
//!
//! An agent that is asked to end leaves sandboxes running, unless it was told otherwise; the next one adopts them.

mod command;
mod context;
mod delete_cause;
pub(crate) mod ending;
mod errors;
mod life;
pub(crate) mod ops;
pub(crate) mod reconcile;
mod record;
mod record_file;
mod seal;
mod start_error;
mod supervisor;

pub(crate) use self::command::{Answer, Command, SnapshotOrder};
pub(crate) use self::context::Context;
pub(crate) use self::delete_cause::DeleteCause;
pub(crate) use self::errors::{ChangeError, OperationError};
pub(crate) use self::life::Creation;
pub(crate) use self::ops::start::Attempt;
pub(crate) use self::record::{MAX_PORTS, Record};
pub(crate) use self::seal::Sealer;
pub(crate) use self::start_error::StartError;
pub(crate) use self::supervisor::Supervisor;
