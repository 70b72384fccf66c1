//! The client side of Sandpiper: the library that the `sandpiper` command is made of.
//!
//! [`client`] talks to the control plane and to a sandbox's data plane; it is what a Rust program that drives sandboxes
//! would use, and what the end-to-end tests use.

pub mod client;
