//! What a supervisor does with its sandbox, an operation a file. Each takes what the phase holds
//! ([`Running`](crate::launch::Running)) and returns an outcome; how the life goes on then is decided in `life`.

pub(crate) mod checkpoint;
pub(crate) mod delete;
pub(crate) mod network;
mod parked;
pub(crate) mod pause;
pub(crate) mod resume;
pub(crate) mod start;
mod traffic;
pub(crate) mod volumes;
