//! What a guest sees besides CPUs and memory.
//!
//! Devices sit on one of two [`bus`]es, port I/O and MMIO. [`virtio`] devices are apart from their attachment: the
//! [`virtio::mmio`] transport is what stands on the bus.

pub mod bus;
pub mod power;
pub mod pvpanic;
pub mod serial;
pub mod virtio;
pub mod vmgenid;
