//! One harness for everything that needs a whole host: end-to-end tests and benchmarks.
//!
//! [`Host::shared`] starts `sandpiper up` once per process, with its own folders and ports, and gives a client of it. A
//! [`Sandbox`] is destroyed when it is dropped. The host ends with the process that started it, however that ends.

mod host;
mod sandbox;
mod wait;

pub use host::{Host, small};
pub use sandbox::{Sandbox, shell};
pub use wait::{eventually, wait_for};
