//! One machine from outside: the monitor that runs it, and the lines to the monitor and to the guest.
//!
//! * A **monitor** is the `sandpiper-vmm` process that runs one microVM. It outlives the agent: it has a session of its
//!   own, holds its files as descriptors, and its two sockets have paths. [`process`] starts and recognizes monitors.
//! * The **jail** is what a monitor is put into: a PID namespace, a cgroup with limits, a user of its own.
//! * [`control`] is the connection on which the agent asks a monitor for something.
//! * The **link** ([`link`]) is the line that PID 1 of the guest opens to the agent, and opens again whenever it breaks.
//! * A [`Machine`] merges all that these can report.
//! * The **pool** ([`pool`]) keeps monitors that are started and jailed and belong to no machine yet.
//! * [`console`] follows a guest's serial port.
//!
//! Nothing here knows of sandboxes' records: who starts a machine says what it is made of.

#![warn(clippy::missing_errors_doc)]

pub mod console;
pub mod control;
mod error;
mod jail;
pub mod link;
mod machine;
mod metrics;
mod paths;
pub mod pool;
pub mod process;
mod untrusted;
mod usage;

pub use self::error::MachineError;
pub use self::jail::cgroup::Cgroups;
pub use self::machine::{Machine, MachineEvent, Termination, Unanswered};
pub use self::metrics::DiskMetrics;
pub use self::paths::MachinePaths;
pub use self::untrusted::{MAX_TEXT, sanitize, sanitize_to};
pub use self::usage::MonitorUsage;
