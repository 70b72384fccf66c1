//! Where the time of an operation went: its steps, across the processes that it passes.
//!
//! All processes of a host read one clock, so steps that different ones tell of can be laid side by side.

use serde::{Deserialize, Serialize};

/// The header by which a process tells the next one which trace its request is part of, as W3C Trace Context has it:
/// `00-<32 hexadecimal digits>-<16>-01`. The 32 are [`Trace::id`].
pub const TRACEPARENT: &str = "traceparent";

/// One operation, with its steps in the order of their beginnings. The first is the whole of it.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Trace {
    /// 32 hexadecimal digits, the same in every process.
    pub id: String,
    /// What the operation is about.
    pub sandbox: Option<String>,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Step {
    pub name: String,
    /// Who did it: `api`, `agent`, `monitor` or `guest`.
    pub by: String,
    /// How many steps it is within.
    pub depth: u32,
    /// Microseconds of the host's `CLOCK_MONOTONIC`.
    pub start_us: u64,
    /// Likewise; `None` while it goes on.
    pub end_us: Option<u64>,
}

/// What `GET /traces` responds with, newest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TraceList {
    pub traces: Vec<Trace>,
}
