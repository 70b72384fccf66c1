//! The command line, run as people run it.

mod network;
mod network_explain;
mod webhook;
mod webhook_listen;
mod webhook_receivers;
