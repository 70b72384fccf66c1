//! A whole host with real guests, from the API down to processes inside a microVM.
//!
//! Run with `scripts/test`, which starts this where real guests run. One host serves all tests, one after another.

mod cli;
mod crash;
mod files;
mod isolation;
mod lifecycle;
mod preview;
mod process;
mod tokens;
