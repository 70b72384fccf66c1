//! The API process from outside: its real router over a real database, asking an agent over a real Unix socket. Only the
//! agent is a stand-in ([`support::agent`]), as another process would be.

mod accounts;
mod allowances;
mod authorization;
mod checkpoints;
mod command;
mod connect;
mod create;
mod e2b;
mod examples;
mod fork;
mod http;
mod idempotency;
mod list;
mod listener;
mod mcp;
mod metrics;
mod network;
mod network_worker;
mod openapi;
mod pause;
mod payments;
mod ports;
mod processes;
mod quota;
mod restore;
mod roles;
mod rotate_secrets;
mod sandbox;
mod sessions;
mod support;
mod sync;
mod templates;
mod validation;
mod volumes;
mod webhooks;
