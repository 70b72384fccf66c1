//! Slots, in a host that each test makes for itself: namespaces, so nothing of this machine's network is touched and nothing
//! is left, however a test ends.

mod guest;
mod host;
mod killed;
mod life;
mod reach;
mod traffic;
