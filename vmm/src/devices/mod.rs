//! What a guest sees besides CPUs and memory.

pub mod virtio;
