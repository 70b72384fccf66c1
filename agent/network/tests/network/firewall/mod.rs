//! The firewall of a slot, with packets: a guest, a slot and an internet are three network namespaces, joined by pairs of
//! links. What is expected of a destination is what the policy itself says; what happens is what a connection, a datagram
//! or an echo from the guest's namespace meets. Nothing here reads rules.

mod attacks;
mod frames;
mod internet;
mod limits;
mod names;
mod probe;
mod report;
mod speed;
mod updates;
mod verdicts;
mod world;
