//! The agent from outside: the real program, real monitors in their jails, and guests that need no kernel.
//!
//! Needs root and /dev/kvm; without, these tests skip, and say so.

mod cycles;
mod damage;
mod guest;
mod host;
mod kill_points;
