//! The monitor from outside: the real binary, its control socket, and payload guests on this machine's /dev/kvm.
//!
//! Most guests here are a few hand-written instructions, so these tests run on any /dev/kvm, also one that cannot run a
//! stock kernel. The exception is [`linux`]. Without /dev/kvm they skip, and say so.

mod control;
mod extra_disks;
mod linux;
mod machine;
mod snapshot;
mod support;
