//! The client side of Sandpiper, as the `sandpiper` command has it: [`client`] talks to the control plane and to a sandbox's
//! data plane. The end-to-end tests use it too.

pub use sandpiper_client as client;
