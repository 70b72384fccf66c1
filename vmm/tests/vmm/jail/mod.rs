//! The jail from outside: the real binary, jailed as the agent jails it, running a guest that uses its devices.
//!
//! Needs root and /dev/kvm; without, these tests skip, and say so.

mod confinement;
mod devices;
mod lifecycle;
mod support;
mod system_calls;
mod wire;
