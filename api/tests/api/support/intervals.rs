//! The stand-in's journal of intervals.

use std::collections::BTreeMap;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use sandpiper_protocol::ids::IntervalId;
use sandpiper_protocol::interval::{
    Acknowledgement, Bytes, Counters, EndReason, Interval, IntervalEnd, IntervalPage, IntervalRecord, Traffic,
};

use super::agent::{Shared, StubAgent, refusal};

/// Its id, as long as nothing is said of another.
const JOURNAL: &str = "jnl1";

/// What it holds.
#[derive(Default)]
pub(crate) struct Journal {
    pub(crate) records: Vec<IntervalRecord>,
    pub(crate) acknowledged: u64,
    pub(crate) seen_at_ms: Option<i64>,
    /// Most records of a page; without it, as many as were asked for.
    pub(crate) page: Option<usize>,
    /// Acknowledgements are lost on their way.
    pub(crate) is_deaf: bool,
    /// How often records were listed.
    pub(crate) lists: u32,
}

impl StubAgent {
    /// Has a machine of a sandbox begin at this time.
    pub(crate) fn begin(
        &self,
        sandbox: &str,
        team: Option<&str>,
        (cpu, memory_mb): (u32, u32),
        at_ms: i64,
    ) -> Interval {
        let interval = Interval {
            id: IntervalId::generate(),
            sandbox: sandbox.into(),
            team: team.map(Into::into),
            cpu,
            memory_mb,
            began_at_ms: at_ms,
            traffic: Some(Traffic::begin(at_ms, Counters::default())),
            end: None,
        };
        self.tell(interval.clone());
        interval
    }

    /// Has so much gone through its network since it began, as read at this time.
    pub(crate) fn read(&self, interval: &mut Interval, at_ms: i64, total: Bytes) {
        interval.traffic = Some(Traffic { at_ms, total, counters: Counters::default() });
        self.tell(interval.clone());
    }

    /// Has it end.
    pub(crate) fn end(&self, interval: &Interval, at_ms: i64, reason: EndReason) {
        self.tell(Interval { end: Some(IntervalEnd { at_ms, reason }), ..interval.clone() });
    }

    /// Has one run for this long.
    pub(crate) fn ran(&self, sandbox: &str, team: &str, shape: (u32, u32), time: std::ops::Range<i64>) {
        let interval = self.begin(sandbox, Some(team), shape, time.start);
        self.end(&interval, time.end, EndReason::Deleted);
    }

    fn tell(&self, interval: Interval) {
        let records = &mut self.records().intervals.records;
        let sequence = records.len() as u64 + 1;
        records.push(IntervalRecord { sequence, interval });
    }
}

pub(super) fn router() -> Router<Shared> {
    Router::new().route("/intervals", get(list)).route("/intervals/acknowledge", post(acknowledge))
}

async fn list(State(shared): State<Shared>, Query(bounds): Query<BTreeMap<String, usize>>) -> Json<IntervalPage> {
    let journal = &mut shared.records().intervals;
    journal.lists += 1;
    let limit = journal.page.unwrap_or(bounds["limit"]);
    let mut left: Vec<_> =
        journal.records.iter().filter(|record| record.sequence > journal.acknowledged).cloned().collect();
    let more = left.len() > limit;
    left.truncate(limit);
    Json(IntervalPage { journal: JOURNAL.to_owned(), records: left, more, seen_at_ms: journal.seen_at_ms })
}

async fn acknowledge(State(shared): State<Shared>, Json(sent): Json<Acknowledgement>) -> Response {
    let journal = &mut shared.records().intervals;
    if journal.is_deaf {
        return refusal(500, "internal");
    }
    assert!(sent.journal == JOURNAL && sent.through <= journal.records.len() as u64);
    journal.acknowledged = journal.acknowledged.max(sent.through);
    StatusCode::NO_CONTENT.into_response()
}
