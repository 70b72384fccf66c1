//! The monitor: one process, one microVM.
//!
//! From the outside in:
//!
//! * [`process`]: the control socket, the one thread that changes anything, the exit record.
//! * [`machine`]: memory, vCPUs, boot, tables; what a machine is while it runs.
//! * [`devices`]: what the guest sees besides CPUs and memory.
//! * [`disk`]: what is behind a block device: layers.

pub mod devices;
pub mod disk;
pub mod machine;
pub mod process;
