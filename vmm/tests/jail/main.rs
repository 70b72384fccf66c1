//! The jail from outside: the real binary, jailed as the agent jails it, running a guest that uses its devices.
//!
//! Needs root and /dev/kvm; without, these tests skip, and say so.

mod confinement;
mod devices;
mod lifecycle;
#[path = "../monitor/payload.rs"]
#[allow(dead_code, reason = "guests here need a few of its instructions only")]
mod payload;
mod support;
mod system_calls;
mod wire;
