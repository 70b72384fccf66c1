//! The monitor: one process, one microVM.

pub mod devices;
pub mod disk;
