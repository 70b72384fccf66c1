//! When machines of sandboxes ran, as the agent's journal tells the API process; part of [`agent`](crate::agent).
//!
//! | request | body | response |
//! |---|---|---|
//! | `GET /intervals?limit` | | [`IntervalPage`]: the oldest records that were not acknowledged |
//! | `POST /intervals/acknowledge` | [`Acknowledgement`] | 204: these are not listed again; 409 `conflict` where it is of another journal |
//!
//! An **interval** is the time for which a sandbox had one machine. It has an id from its beginning on. The journal has a record
//! where it begins and one where it ends, each with all that is known of it: whoever keeps the last of each id knows all, however
//! often some are listed.

use serde::{Deserialize, Serialize};

use crate::ids::{IntervalId, SandboxId, TeamId};

/// The time for which a sandbox had one machine. Times are milliseconds since 1970.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Interval {
    pub id: IntervalId,
    pub sandbox: SandboxId,
    /// Nobody, of a sandbox of an agent that was not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<TeamId>,
    /// vCPUs.
    pub cpu: u32,
    /// MiB.
    pub memory_mb: u32,
    /// The machine was ready.
    pub began_at_ms: i64,
    /// None while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<IntervalEnd>,
}

/// When an interval ended, not before it began, and why.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct IntervalEnd {
    pub at_ms: i64,
    pub reason: EndReason,
}

/// Why an interval ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The sandbox was paused, by request or at its deadline.
    Paused,
    /// The sandbox was deleted by request.
    Deleted,
    /// The sandbox was deleted at its deadline.
    Expired,
    /// The agent deleted all sandboxes when it ended.
    HostStopped,
    /// The machine ended unasked.
    Crashed,
    /// The machine ended while no agent ran: the interval ends where one last saw it.
    Lost,
}

impl EndReason {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Paused, Self::Deleted, Self::Expired, Self::HostStopped, Self::Crashed, Self::Lost];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Deleted => "deleted",
            Self::Expired => "expired",
            Self::HostStopped => "host_stopped",
            Self::Crashed => "crashed",
            Self::Lost => "lost",
        }
    }
}

impl std::str::FromStr for EndReason {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text).ok_or(())
    }
}

/// What became of an interval.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct IntervalRecord {
    /// Grows from record to record of one journal, from 1 on.
    pub sequence: u64,
    pub interval: Interval,
}

/// Records of one journal, in their order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IntervalPage {
    /// Id of the journal: another one where the agent began anew.
    pub journal: String,
    pub records: Vec<IntervalRecord>,
    /// Whether there are more.
    pub more: bool,
    /// When the agent last saw that all ran which had begun and not ended; nothing while nothing ran yet. Where there are no
    /// more records, every interval without an end ran until then at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_at_ms: Option<i64>,
}

/// Records that need not be kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Acknowledgement {
    pub journal: String,
    /// Sequence of the last of them.
    pub through: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_written_as_it_is_read() {
        for reason in EndReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
    }
}
