//! The load that benchmarks put on a guest's disk and network, as a program of its own: what an interpreter or a shell in
//! the guest would take is no part of the results.
//!
//! A benchmark uploads the static program through the data plane and runs it with one argument, a [`Job`] in JSON; it prints
//! what came of it, in JSON too. On the other side of the network the same program is the peer.

mod block;
mod net;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::block::{Block, Direction, Order};
pub use crate::net::Transfer;

/// What to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Makes a file of this many random bytes, which are on the disk afterwards. Prints `null`.
    Fill { path: PathBuf, bytes: u64 },
    /// Prints a [`Volume`].
    Block(Block),
    /// Writes 4 KiB and syncs, with a pause between, for so long. Prints what each sync took, in milliseconds.
    Syncs { path: PathBuf, time: Duration, pause: Duration },
    /// Sends a byte to the peer and waits for it to come back, on one connection. Prints the times, in milliseconds.
    RoundTrips { peer: SocketAddr, count: usize },
    /// Connects to the peer, until it has sent back a first byte: a proxy on the way may accept before the peer does.
    /// Prints the times, in milliseconds.
    Connections { peer: SocketAddr, count: usize },
    /// Prints a [`Volume`]; an operation is a connection.
    Transfer(Transfer),
    /// Is the peer of the three before, until it is killed.
    Serve { address: SocketAddr },
}

/// How much was done in which time.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Volume {
    pub operations: u64,
    pub bytes: u64,
    pub time: Duration,
}

impl Job {
    /// Does it; what the program prints.
    ///
    /// # Errors
    ///
    /// When the disk or the peer fails: a result is never one of half the work.
    pub fn run(&self) -> anyhow::Result<serde_json::Value> {
        let printed = match self {
            Self::Fill { path, bytes } => serde_json::to_value(block::fill(path, *bytes)?),
            Self::Block(block) => serde_json::to_value(block.run()?),
            Self::Syncs { path, time, pause } => serde_json::to_value(block::syncs(path, *time, *pause)?),
            Self::RoundTrips { peer, count } => serde_json::to_value(net::round_trips(*peer, *count)?),
            Self::Connections { peer, count } => serde_json::to_value(net::connections(*peer, *count)?),
            Self::Transfer(transfer) => serde_json::to_value(transfer.run()?),
            Self::Serve { address } => serde_json::to_value(net::serve(*address)?),
        };
        Ok(printed?)
    }
}
