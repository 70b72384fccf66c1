//! One file per command: its arguments, then what it does.

pub(crate) mod checkpoint;
pub(crate) mod connect;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod limits;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod mcp;
pub(crate) mod metrics;
pub(crate) mod net_log;
pub(crate) mod network;
pub(crate) mod pause;
pub(crate) mod ports;
pub(crate) mod ps;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod start;
pub(crate) mod template;
pub(crate) mod trace;
pub(crate) mod up;
pub(crate) mod volume;
pub(crate) mod webhook;
