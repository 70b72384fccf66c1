//! The monitor: one process, one microVM.
//!
//! From the outside in:
//!
//! * [`process`]: the control socket, the one thread that changes anything, the exit record.
//! * [`machine`]: memory, vCPUs, boot, tables; what a machine is while it runs.
//! * [`memory`], [`snapshot`]: the guest's memory, and machines as files.
//! * [`devices`]: what the guest sees besides CPUs and memory.
//! * [`disk`]: what is behind a block device: layers.
//! * [`exit`]: the one end of a machine, which many may report.
//! * [`jail`]: what a monitor, and each of its threads, is still allowed to do.

pub mod devices;
pub mod disk;
pub mod exit;
pub mod jail;
pub mod machine;
pub mod memory;
pub mod process;
pub mod snapshot;
