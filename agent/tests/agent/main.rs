//! The agent from outside: the real program, real monitors in their jails, and guests that need no kernel.
//!
//! Needs root and /dev/kvm; without, these tests skip, and say so.

#[path = "../../src/crash_points.rs"]
#[allow(dead_code, reason = "the agent passes the points; tests only name them")]
mod crash_points;
mod damage;
mod guest;
mod host;
mod kill_points;
