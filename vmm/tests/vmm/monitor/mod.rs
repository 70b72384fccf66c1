//! The monitor from outside: the real binary, its control socket, and payload guests on this machine's /dev/kvm.
//!
//! Guests here are a few hand-written instructions, so these tests run on any /dev/kvm, also one that cannot run a stock
//! kernel. Without /dev/kvm they skip, and say so.

mod control;
mod machine;
mod snapshot;
mod support;
