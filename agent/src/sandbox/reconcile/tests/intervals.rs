//! What becomes of the intervals of machines when an agent was killed.

use sandpiper_protocol::interval::{Interval, IntervalEnd};

use super::*;

impl Host {
    /// As [`Self::leave`], with an interval that the journal has heard of.
    fn leave_counted(&self, state: SandboxState) -> (Record, Sleeper) {
        let (record, sleeper) = self.leave(state);
        let intervals = self.intervals();
        intervals.follow(record.interval.as_ref().unwrap());
        intervals.write().unwrap();
        (record, sleeper)
    }

    /// The last that the journal says of an interval.
    fn last(&self, id: &IntervalId) -> Interval {
        let records = self.intervals().page(100).unwrap().records;
        records.into_iter().rev().find(|record| record.interval.id == *id).unwrap().interval
    }

    /// What the journal says at last of the interval of a record, which is open there.
    fn end(&self, record: &Record) -> Option<IntervalEnd> {
        self.last(&record.interval.as_ref().unwrap().id).end
    }

    fn records(&self) -> usize {
        self.intervals().page(100).unwrap().records.len()
    }

    /// As an agent writes it that has just looked.
    fn seen(&self, at_ms: i64) {
        fs::write(self.paths.intervals().join("seen"), at_ms.to_string()).unwrap();
    }
}

#[test]
fn a_machine_that_runs_is_in_its_interval_still() {
    let host = host();
    let (record, _sleeper) = host.leave_counted(SandboxState::Ready);
    let (unwritten, _other) = host.leave(SandboxState::Ready);

    for _ in 0..2 {
        assert_eq!(host.reconcile().len(), 2);

        assert_eq!((host.end(&record), host.end(&unwritten)), (None, None));
        assert_eq!(host.records(), 2, "each is said to have begun, once");
    }
}

#[test]
fn a_machine_of_an_agent_that_counted_no_time_begins_to_be_counted() {
    let host = host();
    let (mut record, _sleeper) = host.leave(SandboxState::Ready);
    record.interval = None;
    host.save(&record);
    let before = Timestamp::now().as_millisecond();

    let first = host.reconcile().remove(0).record.interval.unwrap();

    assert!(first.began_at_ms >= before && first.end.is_none());
    assert_eq!(host.reconcile()[0].record.interval, Some(first));
}

#[test]
fn a_machine_that_ended_meanwhile_ran_until_it_was_last_seen() {
    let host = host();
    let (record, sleeper) = host.leave_counted(SandboxState::Ready);
    let began = record.interval.as_ref().unwrap().began_at_ms;
    drop(sleeper);

    for (seen, expected) in [(began + 1, began + 1), (began - 60_000, began)] {
        host.seen(seen);
        host.save(&record);
        let found = host.reconcile().remove(0).record;
        assert_eq!(found.interval.unwrap().end, Some(IntervalEnd { at_ms: expected, reason: EndReason::Lost }));
    }
    assert_eq!(host.end(&record).unwrap().at_ms, began + 1, "it has ended once");
}

#[test]
fn a_stop_that_the_journal_has_not_heard_of_is_told_to_it() {
    let host = host();
    let (mut record, _sleeper) = host.leave_counted(SandboxState::Ready);
    let began = record.interval.as_ref().unwrap().began_at_ms;
    record.stop(record.files.clone(), Timestamp::from_millisecond(began + 1234).unwrap());
    host.save(&record);

    for _ in 0..2 {
        host.reconcile();

        assert_eq!(host.end(&record), Some(IntervalEnd { at_ms: began + 1234, reason: EndReason::Paused }));
        assert_eq!(host.records(), 2);
    }
}

#[test]
fn a_delete_is_in_the_journal_before_the_record_goes() {
    let host = host();
    let (mut said, _one) = host.leave_counted(SandboxState::Stopping);
    let (unsaid, _other) = host.leave_counted(SandboxState::Stopping);
    let began = said.interval.as_ref().unwrap().began_at_ms;
    said.end_interval(began + 7, EndReason::Expired);
    host.save(&said);
    host.seen(began + 3);

    assert!(host.reconcile().is_empty() && host.is_clean());

    assert_eq!(host.end(&said), Some(IntervalEnd { at_ms: began + 7, reason: EndReason::Expired }));
    assert_eq!(host.end(&unsaid).unwrap().reason, EndReason::Lost);
}

#[test]
fn a_sandbox_that_cannot_be_read_is_not_billed_on() {
    let host = host();
    let (record, _sleeper) = host.leave_counted(SandboxState::Ready);
    let began = record.interval.as_ref().unwrap().began_at_ms;
    let own = host.paths.sandbox(&record.id);
    fs::write(record_file::record_path(&own), b"{").unwrap();
    fs::write(record_file::copy_path(&own), b"{").unwrap();
    host.seen(began + 5);

    assert_eq!(host.settle().unreadable.len(), 1);

    assert_eq!(host.end(&record), Some(IntervalEnd { at_ms: began + 5, reason: EndReason::Lost }));
}
