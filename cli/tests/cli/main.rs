//! The command line, run as people run it.

mod events;
mod files;
mod machine;
mod mcp;
mod network;
mod network_explain;
mod support;
mod team_webhooks;
mod template;
mod usage;
mod webhook;
mod webhook_listen;
mod webhook_receivers;
