//! When machines of sandboxes ran, as the agent's journal tells the API process; part of [`agent`](crate::agent).
//!
//! | request | body | response |
//! |---|---|---|
//! | `GET /intervals?limit` | | [`IntervalPage`]: the oldest records that were not acknowledged |
//! | `POST /intervals/acknowledge` | [`Acknowledgement`] | 204: these are not listed again; 409 `conflict` where it is of another journal |
//!
//! An **interval** is the time for which a sandbox had one machine. It has an id from its beginning on. The journal has a record
//! where it begins, one where it ends, and some in between that say what went through its network so far, each with all that is known
//! of it: whoever keeps the last of each id knows all, however often some are listed.

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
    /// What went through its network so far; nothing of a machine that has none, or whose agent did not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// None while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<IntervalEnd>,
}

impl Interval {
    /// Until when its machine is known to have run, by what is said here.
    pub fn known_until_ms(&self) -> i64 {
        self.traffic.map_or(self.began_at_ms, |traffic| traffic.at_ms.max(self.began_at_ms))
    }
}

/// What went through the network of an interval's machine, from its beginning on: what came from beyond the host, and what went
/// there.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct Traffic {
    /// When the counters were read, not before the interval began, nor after it ended.
    pub at_ms: i64,
    #[serde(flatten)]
    pub total: Bytes,
    /// What the counters said then: the agent's own, to go on from.
    #[serde(default)]
    pub counters: Counters,
}

/// Bytes that left a sandbox, and that came to it.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Bytes {
    #[serde(rename = "egress_bytes")]
    pub egress: u64,
    #[serde(rename = "ingress_bytes")]
    pub ingress: u64,
}

/// What the counters of a network slot say.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Counters {
    /// Of packets that were forwarded.
    pub forwarded: Bytes,
    /// Of what its proxy passed on.
    pub proxied: Bytes,
}

impl Traffic {
    /// Nothing yet, of counters that go on from here.
    pub fn begin(at_ms: i64, counters: Counters) -> Self {
        Self { at_ms, total: Bytes::default(), counters }
    }

    /// What it comes to when the counters say this. One that says less than before has begun anew. A clock that was set back takes
    /// no reading back.
    #[must_use]
    pub fn read(self, at_ms: i64, counters: Counters) -> Self {
        let before = self.counters;
        let forwarded = counters.forwarded.since(before.forwarded);
        let proxied = counters.proxied.since(before.proxied);
        Self { at_ms: at_ms.max(self.at_ms), total: self.total + forwarded + proxied, counters }
    }
}

impl Bytes {
    /// What was added to counters that said `before`.
    fn since(self, before: Self) -> Self {
        let added = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        Self { egress: added(self.egress, before.egress), ingress: added(self.ingress, before.ingress) }
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { egress: self.egress.saturating_add(other.egress), ingress: self.ingress.saturating_add(other.ingress) }
    }
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

    fn bytes(egress: u64, ingress: u64) -> Bytes {
        Bytes { egress, ingress }
    }

    #[test]
    fn traffic_is_what_counters_gained_since_it_began() {
        let counters = |forwarded, proxied| Counters { forwarded, proxied };
        let begun = Traffic::begin(100, counters(bytes(1000, 500), bytes(10, 20)));

        let first = begun.read(200, counters(bytes(1007, 500), bytes(13, 25)));
        assert_eq!((first.at_ms, first.total), (200, bytes(10, 5)));
        assert_eq!(first.read(300, first.counters).total, first.total, "nothing came");

        // The proxy's began anew, which the other's growth must not hide.
        let second = first.read(300, counters(bytes(5000, 500), bytes(1, 2)));
        assert_eq!(second.total, bytes(10 + 3993 + 1, 5 + 2));
        assert_eq!(second.read(50, second.counters).at_ms, 300, "the clock was set back");
    }

    #[test]
    fn an_interval_of_an_agent_that_did_not_count_is_read() {
        let older = r#"{"id": "itv1", "sandbox": "sbx1", "cpu": 1, "memory_mb": 512, "began_at_ms": 5}"#;
        assert_eq!(serde_json::from_str::<Interval>(older).unwrap().traffic, None);
        let other = r#"{"at_ms": 7, "egress_bytes": 1, "ingress_bytes": 2}"#;
        assert_eq!(serde_json::from_str::<Traffic>(other).unwrap().total, bytes(1, 2));
    }
}
