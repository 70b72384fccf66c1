//! The network of sandboxes: each has a namespace of its own, what it may reach is enforced there, and nothing else of the
//! host or of other sandboxes is in sight.

mod attachment;
pub mod config;
mod denials;
mod dns;
pub mod firewall;
mod host;
mod links;
mod memory;
pub mod meter;
pub mod names;
mod neighbours;
pub mod netns;
mod nft;
pub mod pin;
mod plan;
mod proxy;
mod shared;
pub mod slots;
mod sysctl;
mod tap;
mod traffic;
pub mod upstream;

pub use attachment::{AttachError, Attachment, CheckError, Network, StartError, counters};
pub use config::Config;
pub use host::firewalls::dropping_chains;
pub use slots::Slot;
pub use traffic::{Traffic, TrafficReader};

/// What the fuzz targets reach (`tests/fuzz`).
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::dns::fuzzing::reply;
    pub use crate::proxy::fuzzing::{Passed, hello, requests};
}
