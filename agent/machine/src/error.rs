//! Why there is no monitor.

use std::io;

/// Why a monitor cannot be started, or watched once it is.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("Cannot {what}")]
    Host { what: &'static str, source: io::Error },
    #[error("No monitor is started any more: the agent ends")]
    Closed,
}
