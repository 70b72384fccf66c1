//! Why a sandbox is deleted.

use sandpiper_protocol::interval::EndReason;

/// Why a sandbox is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeleteCause {
    Requested,
    Timeout,
    AgentEnds,
    /// Another sandbox of the same fork could not be made.
    ForkFailed,
}

impl DeleteCause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "it was asked for",
            Self::Timeout => "its deadline has passed",
            Self::AgentEnds => "the agent ends",
            Self::ForkFailed => "the fork that it belongs to failed",
        }
    }

    /// Why the interval of its machine ends.
    pub(crate) fn end_reason(self) -> EndReason {
        match self {
            Self::Requested | Self::ForkFailed => EndReason::Deleted,
            Self::Timeout => EndReason::Expired,
            Self::AgentEnds => EndReason::HostStopped,
        }
    }

    /// For the metrics.
    pub(crate) fn as_label(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Timeout => "timeout",
            Self::AgentEnds => "agent_ends",
            Self::ForkFailed => "fork_failed",
        }
    }
}
