//! Where the time of a start goes: its steps, kept for whoever asks later.
//!
//! A trace is begun with [`begin`], its steps with [`step`]. Both are spans of `tracing`, so what runs in a span has its
//! steps below that one's, on whichever task or thread. A [`layer`] of the subscriber writes them down; without it they cost
//! nothing.
//!
//! ```text
//!   begin("create") ── step("check") ──▶ layer ──▶ Traces, the newest of them ──▶ GET /traces
//!        │ traceparent
//!        ▼
//!   the next process: begin_within(traceparent, …)
//! ```

mod layer;
mod traces;

use nix::time::{ClockId, clock_gettime};
use tracing::{Metadata, Span};

pub use layer::layer;
pub use traces::Traces;

/// The target of all spans that are parts of traces.
const TARGET: &str = "sandpiper::trace";

/// Whether this is no part of a trace: what a log is to hold.
pub fn is_no_part(metadata: &Metadata<'_>) -> bool {
    metadata.target() != TARGET
}

/// Begins a trace. Its steps are what happens in this span.
pub fn begin(name: &str) -> Span {
    let id = format!("{:032x}", rand::random::<u128>());
    tracing::info_span!(target: TARGET, "trace", name, id)
}

/// Begins this process's part of the trace that a request's `traceparent` names; one of its own if it names none.
pub fn begin_within(traceparent: Option<&str>, name: &str) -> Span {
    match traceparent.and_then(id_of) {
        Some(id) => tracing::info_span!(target: TARGET, "trace", name, id),
        None => begin(name),
    }
}

/// A step of the trace that the current span is part of; of none, nothing.
pub fn step(name: &'static str) -> Span {
    tracing::info_span!(target: TARGET, "step", name)
}

/// A step of the current trace that is over and of which another told; times as [`now_us`] has them.
pub fn passed(by: &str, name: &str, start_us: u64, end_us: u64) {
    layer::current(|trace| trace.add(by, name, start_us, end_us));
}

/// Says which sandbox the current trace is about.
pub fn about(sandbox: &str) {
    layer::current(|trace| trace.about(sandbox));
}

/// The `traceparent` of a request that is part of the current trace.
pub fn traceparent() -> Option<String> {
    layer::current(|trace| format!("00-{}-{:016x}-01", trace.id(), rand::random::<u64>().max(1)))
}

/// Microseconds of the host's `CLOCK_MONOTONIC`, which all its processes share.
pub fn now_us() -> u64 {
    let Ok(now) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return 0 };
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(now.tv_nsec() / 1000).unwrap_or(0))
}

/// The trace that a `traceparent` names, as W3C Trace Context has it.
fn id_of(traceparent: &str) -> Option<&str> {
    let mut parts = traceparent.split('-');
    let (version, id) = (parts.next()?, parts.next()?);
    let is_hex =
        |text: &str, length| text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_hex(version, 2) && version != "ff" && is_hex(id, 32) && id.bytes().any(|byte| byte != b'0')).then_some(id)
}

#[cfg(test)]
mod tests;
