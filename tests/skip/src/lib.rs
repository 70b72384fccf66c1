//! How a test says that it did not run.

use std::fmt::Display;
use std::io::Write;

/// Writes `SKIPPED: <what>: <reason>` on a line of its own on standard error: what runs the tests looks for it, and counts
/// the test as neither passed nor failed. `what` names the test, or the group of tests that need the same.
pub fn skipped(what: &str, reason: impl Display) {
    // Not `eprintln!`, which the test harness keeps to itself when a test passes. The harness may be in the middle of a line.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED: {what}: {reason}");
}
