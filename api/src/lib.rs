//! The API process: `/v1` for tenants and the way to the agent that runs their sandboxes, with the store behind both; and the
//! command line, which serves that, payments (`sandpiper-payments`), or both.
//!
//! # Dramatis personae
//!
//! * A **team** owns everything. Its **plan** is a set of numbers from the configuration.
//! * An **API key** acts for one team; it may read, or read and write ([`auth`]).
//! * A **sandbox** is a row here and a microVM at the agent. The row is what tenants see; the agent is the truth
//!   ([`orchestration`] keeps them in step).
//! * A **checkpoint** is a sandbox as it was at one moment, under a name, from which new ones start: a row here, files at
//!   the agent. A stopped sandbox is one that waits on the agent's disk, to go on under its own id.
//! * A **network policy** says what a sandbox may reach. It is recorded here under a version first, and then *pending* until
//!   the agent has said that it is in force.
//! * A **session** is a short-lived credential for one sandbox's data plane. It is minted by the agent, passes through,
//!   and is never stored or logged.
//! * An **event** tells a team of what happened to something of its own. It is written in the transaction of its cause, and numbered
//!   in the order of the commits ([`store::events`]). A **webhook** is where a team wants events sent; of each event that it selects
//!   there is one **delivery** ([`webhooks`]).
//! * A **template version** is an immutable root file system that the agent has; the **catalog** here is a copy of its list.
//!
//! # Rooms
//!
//! [`commands`] the command line · [`config`] its file · [`service`] what a process serves, by its [`roles`] ·
//! [`telemetry`] what it sends to a collector; before the sandbox
//! side stands the dashboard, a crate of its own that calls these routes
//!
//! Of the sandbox side, which knows nothing of payments: [`state`] what handlers work with · [`router`] all routes ·
//! [`v1`] one file per resource · [`e2b`] the same for the E2B SDKs · [`mutation`] what both do with every change ·
//! [`operator`] what operators look at and change ·
//! [`auth`] keys and capabilities · [`orchestration`] work with the agent,
//! through its [`agent_client`] · [`data_planes`] of sandboxes, where they are looked into · [`store`] the tables ·
//! [`event_retention`] how long events are kept · [`webhooks`] events that are sent · [`billing`] what was used, and what it
//! costs, [`usage_export`] line by line ·
//! [`document`] what describes them · [`errors`] refusals in its tenants' words · [`mcp`] the same as tools of agents

pub mod agent_client;
pub mod auth;
pub mod backup;
pub mod billing;
pub mod commands;
pub mod config;
pub mod data_planes;
pub mod document;
pub mod e2b;
pub mod errors;
pub mod event_retention;
pub mod examples;
pub mod in_flight;
pub mod mcp;
pub mod metrics;
pub mod mutation;
pub mod offer;
pub mod operator;
pub mod orchestration;
pub mod pending_audit;
pub mod plan;
pub mod privileges;
pub mod profiles;
pub mod quota;
pub mod roles;
pub mod router;
pub mod service;
pub mod settings;
pub mod state;
pub mod store;
pub mod telemetry;
pub mod traces;
pub mod usage_export;
pub mod v1;
pub mod webhooks;
