//! Webhooks from an update of a payment to a receiver and back: the real store, worker, TLS and sockets. Only the clock,
//! jitter and names are the tests' own.

mod addresses;
mod caps;
mod config;
mod crash;
mod fairness;
mod limit;
pub(crate) mod name_server;
mod names;
mod operator;
mod outcomes;
mod portal;
mod process;
pub(crate) mod receiver;
mod recovery;
mod requests;
mod retention;
mod rollback;
mod schedule;
pub(crate) mod server;
pub(crate) mod stage;
mod two_processes;
