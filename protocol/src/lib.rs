//! The messages that cross a process border, and nothing else.
//!
//! ```text
//!   sandpiper (cli) ──/v1──▶ sandpiper-api ──[agent]──▶ sandpiper-agent ──[vmm]──▶ sandpiper-vmm
//!         │                                                  │                        │ virtio-vsock
//!         └────────────── data plane [process] ─────────────▶└───────[guest]─────────▶ sandpiper-init
//! ```
//!
//! * [`agent`]: what the API process asks of the host agent, HTTP and JSON over a Unix socket.
//! * [`allowance`]: what a team may hold on a host, and how fast its machines may be; part of [`agent`].
//! * [`interval`]: when machines of sandboxes ran; part of [`agent`].
//! * [`template`]: versions of templates, and how they are built; part of [`agent`].
//! * [`builder`]: what the agent asks of the program that builds in a machine, JSON lines over its standard streams.
//! * [`volume`]: volumes, and what is done with those that no sandbox has; part of [`agent`].
//! * [`vmm`]: what the agent asks of one monitor, JSON frames with file descriptors over a Unix socket.
//! * [`guest`]: vsock ports, the link between the agent and PID 1, and how a TCP port of the guest is reached.
//! * [`lines`]: lines of a stream, as the link has them.
//! * [`connect`], [`process`] and [`filesystem`]: the data plane, as the E2B SDKs speak it.
//! * [`extents`]: which bytes of a layer are its own, for all who read layers.
//! * [`trace`]: where the time of an operation went, across all of these.
//! * [`id`] makes and checks identifiers, [`ids`] gives them types; [`error_chain`] prints errors with their causes.

#![warn(clippy::missing_errors_doc)]

pub mod agent;
pub mod allowance;
pub mod builder;
pub mod connect;
pub mod error_chain;
pub mod extents;
pub mod filesystem;
pub mod guest;
pub mod id;
pub mod ids;
pub mod interval;
pub mod lines;
pub mod process;
pub mod template;
pub mod trace;
pub mod vmm;
pub mod volume;
