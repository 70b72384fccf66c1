//! One harness for everything that needs a whole host: end-to-end tests and benchmarks.
//!
//! [`Host::shared`] starts `sandpiper up` once per process, with its own folders and ports, and gives a client of it. A
//! [`Sandbox`] and a [`Checkpoint`] are destroyed when they are dropped. The host ends with the process that started
//! it, however that ends. A [`Dialogue`] is a program in a guest that answers questions, also after it was paused or
//! forked; [`REACHER`] is one that says what it can reach, of an [`internet`] of the tests' own, in which there is a
//! [`registry`], too. What a host must not keep, and what its files hold, is in `traces` and [`layers`].

mod bystander;
mod checkpoint;
pub mod damage;
mod dialogue;
mod host;
pub mod http1;
pub mod internet;
mod inventory;
pub mod layers;
pub mod listeners;
mod reach;
mod receiver;
pub mod registry;
mod sandbox;
mod sighting;
mod statistics;
mod template;
mod traces;
mod up;
mod volume;
mod wait;
mod watch;

pub use bystander::Bystander;
pub use checkpoint::{Checkpoint, from_checkpoint};
pub use dialogue::{COUNTER, Dialogue, HOLDER, KEEPER};
pub use host::{Host, small};
pub use inventory::Inventory;
pub use reach::REACHER;
pub use receiver::Receiver;
pub use registry::Registry;
pub use sandbox::{Sandbox, shell, text};
pub use sighting::{Monitor, Sighting};
pub use statistics::Samples;
pub use template::{Template, version_of};
pub use traces::Traces;
pub use up::{AtExit, FILLER, Setup};
pub use volume::Volume;
pub use wait::{eventually, wait_for, wait_until, within};
pub use watch::Watch;
