//! A whole host with real guests, from the API down to processes inside a microVM.
//!
//! Run with `scripts/test`, which starts this where real guests run. One host serves all tests, one after another.

mod checkpoint;
mod cli;
mod crash;
mod damage;
mod files;
mod fork;
mod isolation;
mod jail;
mod lifecycle;
mod network;
mod pause;
mod pressure;
mod preview;
mod process;
mod recovery;
mod tokens;
mod wake;
mod warm;
