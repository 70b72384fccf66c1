//! What becomes of the intervals of machines when an agent was killed.

use std::cell::Cell;

use sandpiper_protocol::interval::{Bytes, Interval, IntervalEnd, Traffic};

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
fn what_runs_is_seen_by_the_agent_that_finds_it() {
    let host = host();
    let (_record, _sleeper) = host.leave_counted(SandboxState::Ready);
    let before = Timestamp::now().as_millisecond();

    host.reconcile();

    assert!(host.intervals().seen_at_ms() >= Some(before));
}

#[test]
fn a_machine_that_ends_while_others_are_looked_at_is_not_seen() {
    let host = host();
    let (mut gone, sleeper) = host.leave_counted(SandboxState::Ready);
    gone.slot = Some(1);
    host.save(&gone);
    drop(sleeper);
    let (_ends, sleeper) = host.leave_counted(SandboxState::Ready);
    let seen = gone.interval.as_ref().unwrap().began_at_ms + 1;
    host.seen(seen);

    let sleeper = Cell::new(Some(sleeper));
    // Whichever is found first, neither runs now.
    host.settle_with(&|_, _| {
        drop(sleeper.take());
        None
    });

    assert!(sleeper.take().is_none());
    assert_eq!(host.intervals().seen_at_ms(), Some(seen));
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

/// Counters of a slot that forwarded so many bytes.
fn forwarded(egress: u64) -> Counters {
    Counters { forwarded: Bytes { egress, ingress: 0 }, ..Counters::default() }
}

impl Host {
    /// As an agent writes it that has just read the counters of a record's machine, which said this.
    fn measured(&self, record: &Record, egress: u64) {
        let (intervals, interval) = (self.intervals(), record.interval.as_ref().unwrap());
        intervals.follow(interval);
        intervals.measure(&interval.id, interval.traffic.unwrap().read(interval.began_at_ms, forwarded(egress)));
        intervals.write().unwrap();
    }

    /// What went through the network of a record's machine, as the journal says at last.
    fn traffic(&self, record: &Record) -> Traffic {
        self.last(&record.interval.as_ref().unwrap().id).traffic.unwrap()
    }
}

#[test]
fn what_went_through_the_slot_of_a_machine_that_is_gone_is_read_before_the_slot_goes() {
    let host = host();
    let (mut measured, one) = host.leave_counted(SandboxState::Ready);
    let (mut never, two) = host.leave_counted(SandboxState::Ready);
    let (mut gone, three) = host.leave_counted(SandboxState::Ready);
    for (record, slot) in [(&mut measured, 1), (&mut never, 2), (&mut gone, 3)] {
        record.slot = Some(slot);
        host.save(record);
    }
    host.measured(&measured, 500);
    host.measured(&gone, 70);
    [one, two, three].into_iter().for_each(drop);
    // Slot 3 went with the machine.
    let slots = [(1, forwarded(800)), (2, forwarded(90))];

    for _ in 0..2 {
        host.settle_with(&|_, slot| slots.iter().find(|(number, _)| *number == slot).map(|(_, counters)| *counters));

        let totals = [&measured, &never, &gone].map(|record| host.traffic(record).total.egress);
        assert_eq!(totals, [800, 90, 70], "of {} records", host.records());
        let lost = [&measured, &never, &gone].map(|record| host.end(record).unwrap().reason);
        assert_eq!(lost, [EndReason::Lost; 3]);
    }
}

#[test]
fn another_boot_has_the_slots_of_others() {
    let mut host = host();
    let (mut record, sleeper) = host.leave_counted(SandboxState::Ready);
    record.slot = Some(1);
    host.save(&record);
    host.measured(&record, 500);
    drop(sleeper);
    host.boot_id = "another".to_owned();

    host.settle_with(&|_, _| Some(forwarded(900)));

    assert_eq!(host.traffic(&record).total.egress, 500);
}

#[test]
fn a_machine_that_runs_on_is_read_by_whoever_has_it_then() {
    let host = host();
    let (mut record, _sleeper) = host.leave_counted(SandboxState::Ready);
    record.slot = Some(1);
    host.save(&record);
    host.measured(&record, 500);

    let found = host.settle_with(&|_, _| panic!("its slot is in use")).sandboxes.remove(0);

    let id = found.record.interval.unwrap().id;
    let known = host.intervals().traffic(&id).unwrap();
    assert_eq!(known.read(i64::MAX, forwarded(600)).total.egress, 600);
}

#[test]
fn a_stop_has_the_traffic_that_its_record_says() {
    let host = host();
    let (mut record, _sleeper) = host.leave_counted(SandboxState::Ready);
    host.measured(&record, 500);
    let began = record.interval.as_ref().unwrap().began_at_ms;
    let last = host.traffic(&record).read(began + 10, forwarded(777));
    record.note_traffic(Some(last));
    record.stop(record.files.clone(), Timestamp::from_millisecond(began + 1234).unwrap());
    host.save(&record);

    host.reconcile();

    assert_eq!((host.traffic(&record), host.end(&record).unwrap().at_ms), (last, began + 1234));
}
