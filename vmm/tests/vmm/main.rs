//! The monitor from outside: the real binary, running guests of a few hand-written instructions.

mod jail;
mod monitor;
mod payload;
