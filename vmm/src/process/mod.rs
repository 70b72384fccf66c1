//! The process around the machine: its control socket, the one thread that changes anything, its exit record.
//!
//! ```text
//!              connections                       first report wins
//!   agent ◀──────────────────▶ driver (main thread) ◀──────────── ExitLatch ◀── vCPUs, devices
//!     ▲                          │ builds, drops                               │
//!     │                          └──────────▶ Machine ─────────────────────────┘
//!     └──── Event::GuestConnected ──── AgentLink (vsock's thread)
//! ```
//!
//! All that changes the machine's state happens on the main thread, in [`driver`]: it waits for packets and for the
//! machine's end, and handles one at a time. Nothing a peer sends ends the process but `Stop`: what is not understood is
//! answered with a fault. When the machine ended, for whatever reason, the driver returns the exit record; it is written
//! as the very last thing, after the machine is gone, so a reader of it knows that no disk is touched any more.

mod control;
mod driver;
mod exit;
mod link;

use std::fs::File;
use std::os::fd::OwnedFd;

use kvm_ioctls::Kvm;
use sandpiper_protocol::error_chain::chain;
use sandpiper_protocol::vmm::{ExitReason, ExitRecord};

use crate::memory::tracker::Tracker;

#[cfg(fuzzing)]
use sandpiper_protocol::vmm::{Fault, Packet, RequestMessage};

/// What a monitor is started with.
pub struct Options {
    /// A listening `SOCK_SEQPACKET` socket.
    pub control: OwnedFd,
    /// Gets the exit record.
    pub exit: File,
    pub kvm: Kvm,
    /// `/proc/self/pagemap` of this process; without it there are no snapshots.
    pub pagemap: Option<File>,
    /// Without it, memory is written down while the machine stands still.
    pub tracker: Option<Tracker>,
    /// When the process began, in `CLOCK_MONOTONIC` microseconds.
    pub process_start_us: u64,
}

/// Runs until the machine ended, and leaves the record of how. The record is returned too.
pub fn run(options: Options) -> ExitRecord {
    let exit = options.exit.try_clone();
    let record = driver::Driver::new(options)
        .and_then(driver::Driver::run)
        .unwrap_or_else(|error| ExitRecord { reason: ExitReason::Failed, message: chain(&error) });
    if let Err(error) = exit.and_then(|file| exit::write(file, &record)) {
        eprintln!("sandpiper-vmm: cannot write the exit record {record:?}: {error}");
    }
    record
}

/// The request in a packet of these bytes, or the id and the fault that it is answered with. For fuzzing.
///
/// # Errors
/// The id of a request that cannot be understood, and its fault.
#[cfg(fuzzing)]
pub fn understand(bytes: Vec<u8>) -> Result<RequestMessage, (u64, Fault)> {
    driver::understand(&Packet { bytes, fds: Vec::new() })
}
