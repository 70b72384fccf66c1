//! The monitor: one process, one microVM.
//!
//! From the outside in:
//!
//! * [`process`]: the control socket, the one thread that changes anything, the exit record.
//! * [`machine`]: memory, vCPUs, boot, tables; what a machine is while it runs.
//! * [`memory`], [`snapshot`]: the guest's memory, and machines as files.
//! * [`devices`]: what the guest sees besides CPUs and memory.
//! * [`disk`]: what is behind a block device: layers.
//! * [`exit`]: how a machine ends; [`layout`]: where things are in its addresses; [`vcpu_state`]: what a vCPU is between
//!   two instructions.
//! * [`jail`]: what a monitor, and each of its threads, is still allowed to do.

#![warn(clippy::missing_errors_doc)]

pub mod devices;
pub mod disk;
pub mod exit;
pub mod jail;
pub mod layout;
pub mod machine;
pub mod memory;
pub mod process;
pub mod snapshot;
pub mod vcpu_state;
