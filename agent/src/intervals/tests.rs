//! The journal with real files, and a real process that is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sandpiper_protocol::ids::SandboxId;
use sandpiper_protocol::interval::{Bytes, Counters};

use super::*;

/// A segment of about three records.
const SHORT: Sizes = of_segments(1300);

const fn of_segments(segment: u64) -> Sizes {
    Sizes { segment, ..SIZES }
}

fn begun(at_ms: i64) -> Interval {
    Interval {
        id: IntervalId::generate(),
        sandbox: SandboxId::generate(),
        team: Some("team0000000000000000000001".into()),
        cpu: 2,
        memory_mb: 512,
        began_at_ms: at_ms,
        traffic: Some(Traffic::begin(at_ms, Counters::default())),
        end: None,
    }
}

/// Counters of which each forwarded so many bytes.
fn forwarded(egress: u64) -> Counters {
    Counters { forwarded: Bytes { egress, ingress: 2 * egress }, ..Counters::default() }
}

fn ended(interval: &Interval, at_ms: i64) -> Interval {
    Interval { end: Some(IntervalEnd { at_ms, reason: EndReason::Deleted }), ..interval.clone() }
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap()
}

impl Intervals {
    /// All that a reader who has nothing yet gets, page by page.
    fn read_all(&self, page: usize) -> Vec<IntervalRecord> {
        let mut all = Vec::new();
        loop {
            let IntervalPage { journal, records, more, .. } = self.page(page).unwrap();
            if let Some(last) = records.last() {
                self.acknowledge(&journal, last.sequence).unwrap();
            }
            all.extend(records);
            if !more {
                return all;
            }
        }
    }
}

impl Intervals {
    /// What went through an interval's network when its counters say this.
    fn advance(&self, interval: &Interval, at_ms: i64, counters: Counters) -> Traffic {
        let known = self.traffic(&interval.id).or(interval.traffic).unwrap();
        known.read(at_ms, counters)
    }
}

fn segments(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.ends_with(".journal")).collect();
    names.sort();
    names
}

#[test]
fn a_beginning_and_an_end_are_one_record_each_however_often_they_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open(folder.path().into()).unwrap();
    let (one, other) = (begun(1000), begun(2000));
    for _ in 0..2 {
        intervals.follow(&one);
        intervals.follow(&other);
    }
    intervals.write().unwrap();
    for _ in 0..2 {
        intervals.follow(&ended(&one, 5000));
    }
    assert!(intervals.is_unwritten(&one.id) && !intervals.is_unwritten(&other.id));
    assert_eq!(intervals.page(10).unwrap().records.len(), 2, "only what is synced is told");
    intervals.write().unwrap();
    intervals.follow(&ended(&one, 5000));
    intervals.write().unwrap();

    let records = intervals.read_all(2);

    let found: Vec<_> = records.iter().map(|record| (record.sequence, record.interval.clone())).collect();
    assert_eq!(found, [(1, one.clone()), (2, other), (3, ended(&one, 5000))]);
    assert!(intervals.page(10).unwrap().records.is_empty());
}

#[test]
fn another_agent_goes_on_where_the_first_was_and_closes_what_nobody_knows() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open(folder.path().into()).unwrap();
    let (kept, orphan, late) = (begun(1000), begun(2000), begun(9000));
    [&kept, &orphan, &late].into_iter().for_each(|one| intervals.follow(one));
    intervals.see(at(7000)).unwrap();
    let journal = intervals.page(10).unwrap().journal;
    drop(intervals);

    let intervals = Intervals::open(folder.path().into()).unwrap();
    intervals.follow(&kept);
    intervals.settle(&HashSet::from([kept.id.clone()]));
    intervals.write().unwrap();

    let page = intervals.page(10).unwrap();
    assert_eq!((page.journal, page.seen_at_ms, page.more), (journal, Some(7000), false));
    let mut ends: Vec<_> = page.records[3..].iter().map(|record| record.interval.clone()).collect();
    ends.sort_by_key(|interval| interval.began_at_ms);
    let lost = |interval: &Interval, at_ms| Interval {
        end: Some(IntervalEnd { at_ms, reason: EndReason::Lost }),
        ..interval.clone()
    };
    assert_eq!(ends, [lost(&orphan, 7000), lost(&late, 9000)], "none ends before it began");
}

#[test]
fn traffic_is_a_record_where_it_grew_and_goes_on_with_another_agent() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open(folder.path().into()).unwrap();
    let one = begun(1000);
    intervals.follow(&one);
    for (at_ms, egress) in [(2000, 0), (3000, 100), (4000, 100), (5000, 250)] {
        intervals.measure(&one.id, intervals.advance(&one, at_ms, forwarded(egress)));
    }
    intervals.write().unwrap();
    drop(intervals);

    let intervals = Intervals::open(folder.path().into()).unwrap();
    // As its sandbox's record has it, which knows of no reading.
    intervals.follow(&one);
    let last = intervals.advance(&one, 6000, forwarded(260));
    intervals.follow(&Interval { traffic: Some(last), ..ended(&one, 6000) });
    intervals.measure(&one.id, last.read(7000, forwarded(900)));
    intervals.write().unwrap();

    let records = intervals.read_all(10);
    let told = records.iter().map(|record| record.interval.traffic.unwrap());
    let told: Vec<_> = told.map(|traffic| (traffic.at_ms, traffic.total.egress, traffic.total.ingress)).collect();
    assert_eq!(told, [(1000, 0, 0), (3000, 100, 200), (5000, 250, 500), (6000, 260, 520)]);
}

#[test]
fn nobodys_interval_ends_with_the_last_reading_and_not_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open(folder.path().into()).unwrap();
    let (one, uncounted) = (begun(1000), Interval { traffic: None, ..begun(1000) });
    [&one, &uncounted].into_iter().for_each(|interval| intervals.follow(interval));
    intervals.see(at(2000)).unwrap();
    intervals.measure(&one.id, intervals.advance(&one, 3000, forwarded(10)));
    intervals.measure(&uncounted.id, Traffic::begin(3000, forwarded(10)));
    intervals.settle(&HashSet::new());
    intervals.write().unwrap();

    let records = intervals.read_all(10);
    let last = |id: &IntervalId| records.iter().rfind(|record| record.interval.id == *id).unwrap().interval.clone();
    assert_eq!(last(&one.id).end, Some(IntervalEnd { at_ms: 3000, reason: EndReason::Lost }));
    assert_eq!(last(&one.id).traffic.unwrap().total.egress, 10);
    assert_eq!((last(&uncounted.id).end.unwrap().at_ms, last(&uncounted.id).traffic), (2000, None));
    assert_eq!(records.len(), 5);
}

/// A sandbox as its record on the disk has it, and the slot that its machine has.
struct Live {
    interval: Interval,
    counters: Counters,
    /// What really went through.
    moved: Bytes,
}

/// Machines begin, send and end at random, agents are killed at random, counters begin anew. What lies on the disk is what a sandbox's
/// record says, and what was written of the journal.
#[test]
fn any_life_of_an_agent_has_the_traffic_that_there_was() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let open = || Intervals::open_with(folder.path().into(), of_segments(3000)).unwrap();
    let (mut intervals, mut live) = (open(), Vec::<Live>::new());
    let (mut true_of, mut told_of) = (BTreeMap::new(), BTreeMap::<IntervalId, Bytes>::new());
    let mut tell = |intervals: &Intervals, random: &mut StdRng| {
        for IntervalRecord { interval, .. } in intervals.read_all(random.random_range(1..20)) {
            told_of.insert(interval.id, interval.traffic.unwrap().total);
        }
    };
    for now in 0..3000 {
        let place = random.random_range(0..8_usize);
        match (random.random_range(0..12), live.get_mut(place)) {
            (0..=1, None) => {
                // A slot that was somebody's before, or nobody's.
                let counters = forwarded(random.random_range(0..2) * 1000);
                let interval = Interval { traffic: Some(Traffic::begin(now, counters)), ..begun(now) };
                intervals.follow(&interval);
                live.push(Live { interval, counters, moved: Bytes::default() });
            }
            (2..=5, Some(one)) => {
                let moved = Bytes { egress: random.random_range(0..5000), ingress: random.random_range(0..5000) };
                let to = if random.random() { &mut one.counters.forwarded } else { &mut one.counters.proxied };
                (*to, one.moved) = (*to + moved, one.moved + moved);
            }
            (6..=7, Some(one)) => {
                intervals.measure(&one.interval.id, intervals.advance(&one.interval, now, one.counters));
                // They are lost, between two agents of which both have read them.
                if random.random_range(0..4) == 0 {
                    one.counters.proxied = Bytes::default();
                    intervals.measure(&one.interval.id, intervals.advance(&one.interval, now, one.counters));
                    intervals.write().unwrap();
                }
            }
            (8, Some(_)) => {
                let Live { interval, counters, moved } = live.swap_remove(place);
                let traffic = Some(intervals.advance(&interval, now, counters));
                // It is in the sandbox's record, which goes once the journal has it.
                intervals.follow(&Interval { traffic, ..ended(&interval, now) });
                true_of.insert(interval.id, moved);
                intervals.write().unwrap();
            }
            (9, _) => intervals.write().unwrap(),
            (10, _) => tell(&intervals, &mut random),
            (11, _) => {
                intervals = open();
                live.iter().for_each(|one| intervals.follow(&one.interval));
                intervals.settle(&live.iter().map(|one| one.interval.id.clone()).collect());
            }
            _ => {}
        }
    }
    for Live { interval, counters, moved } in live {
        intervals.measure(&interval.id, intervals.advance(&interval, 3000, counters));
        true_of.insert(interval.id, moved);
    }
    intervals.write().unwrap();
    tell(&intervals, &mut random);

    assert!(true_of.len() > 20);
    for (id, moved) in &true_of {
        assert_eq!(told_of.get(id), Some(moved), "seed {seed}");
    }
    assert_eq!(told_of.len(), true_of.len());
}

#[test]
fn a_torn_end_is_cut_off_wherever_it_was_torn() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open(folder.path().into()).unwrap();
    let (first, second) = (begun(1000), begun(2000));
    intervals.follow(&first);
    intervals.write().unwrap();
    intervals.follow(&second);
    intervals.write().unwrap();
    let path = folder.path().join(&segments(folder.path())[0]);
    let whole = fs::read(&path).unwrap();
    let line = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    drop(intervals);

    let garbage: [&[u8]; 3] = [&[0; 100], b"\n\n", b"00000000 {}\n"];
    let torn = (line..whole.len()).map(|length| whole[..length].to_vec());
    for text in torn.chain(garbage.map(|garbage| [&whole[..line], garbage].concat())) {
        fs::write(&path, &text).unwrap();
        let intervals = Intervals::open(folder.path().into()).unwrap();
        let third = begun(3000);
        intervals.follow(&third);
        intervals.write().unwrap();

        let records = Intervals::open(folder.path().into()).unwrap().page(10).unwrap().records;

        let found: Vec<_> = records.iter().map(|record| (record.sequence, &record.interval)).collect();
        assert_eq!(found, [(1, &first), (2, &third)], "torn at {}", text.len());
    }
}

#[test]
fn a_damaged_record_is_passed_over_and_those_around_it_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open(folder.path().into()).unwrap();
    let all = [begun(1000), begun(2000), begun(3000)];
    all.iter().for_each(|one| intervals.follow(one));
    intervals.write().unwrap();
    let path = folder.path().join(&segments(folder.path())[0]);
    let text = fs::read_to_string(&path).unwrap().replace("\"began_at_ms\":2000", "\"began_at_ms\":2001");
    fs::write(&path, text).unwrap();

    let intervals = Intervals::open(folder.path().into()).unwrap();

    let sequences: Vec<_> = intervals.read_all(1).iter().map(|record| record.sequence).collect();
    assert_eq!(sequences, [1, 3]);
}

#[test]
fn what_is_acknowledged_goes_and_what_goes_on_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let mut intervals = Intervals::open_with(folder.path().into(), SHORT).unwrap();
    let long = begun(0);
    intervals.follow(&long);
    for n in 1..200 {
        let one = begun(n * 10);
        intervals.follow(&one);
        intervals.follow(&ended(&one, n * 10 + 5));
        intervals.write().unwrap();
        if n == 100 {
            assert!(segments(folder.path()).len() > 20, "nothing goes that nobody has");
        }
        if n >= 100 {
            intervals.read_all(7);
            assert!(segments(folder.path()).len() <= 2, "{:?}", segments(folder.path()));
        }
        if n % 20 == 0 {
            intervals = Intervals::open_with(folder.path().into(), SHORT).unwrap();
        }
    }
    assert_eq!(intervals.state().open.keys().collect::<Vec<_>>(), [&long.id]);

    intervals.follow(&ended(&long, 5000));
    intervals.write().unwrap();

    let last = intervals.read_all(7).pop().unwrap();
    assert_eq!(last.interval, ended(&long, 5000));
}

#[test]
fn a_host_on_which_very_much_goes_on_does_not_write_it_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open_with(folder.path().into(), SHORT).unwrap();
    let all: Vec<_> = (0..100).map(begun).collect();
    for one in &all {
        intervals.follow(one);
        intervals.write().unwrap();
    }
    assert_eq!(intervals.read_all(7).len(), 100);
    assert!(intervals.page(10).unwrap().records.is_empty());

    for one in &all {
        intervals.follow(&ended(one, 500));
        intervals.write().unwrap();
        intervals.read_all(7);
    }

    assert!(segments(folder.path()).len() <= 2, "{:?}", segments(folder.path()));
    assert!(intervals.state().next < 400, "each was written again a few times at most");
}

#[test]
fn a_journal_that_nobody_reads_is_full_at_some_point_and_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open_with(folder.path().into(), Sizes { most: 3000, ..SHORT }).unwrap();
    let mut begun = (0..).map(begun).inspect(|one| intervals.follow(one));
    let mut all = Vec::new();
    while !intervals.is_full() {
        all.extend(begun.next());
        intervals.write().unwrap();
    }
    assert!((5..20).contains(&all.len()) && intervals.is_crowded(), "{}", all.len());

    // What runs ends all the same.
    all.iter().for_each(|one| intervals.follow(&ended(one, 1000)));
    intervals.write().unwrap();
    assert_eq!(intervals.read_all(7).len(), 2 * all.len());

    assert!(!intervals.is_full() && !intervals.is_crowded());
}

#[test]
fn only_what_is_there_is_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open(folder.path().into()).unwrap();
    intervals.follow(&begun(1));
    intervals.write().unwrap();
    let journal = intervals.page(1).unwrap().journal;

    let refused = |journal: &str, through| intervals.acknowledge(journal, through).unwrap_err();
    assert!(matches!(refused("jnlother", 1), AcknowledgeError::OtherJournal(_)));
    assert!(matches!(refused(&journal, 2), AcknowledgeError::NoSuchRecord { through: 2, last: 1 }));

    intervals.acknowledge(&journal, 1).unwrap();
    intervals.acknowledge(&journal, 0).unwrap();
    assert!(intervals.page(1).unwrap().records.is_empty(), "an older acknowledgement takes nothing back");
}

#[test]
fn what_cannot_be_written_is_written_later_and_once() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open_with(folder.path().into(), of_segments(1)).unwrap();
    intervals.follow(&begun(1));
    intervals.write().unwrap();
    // The next segment cannot be made: something else has its name.
    let taken = folder.path().join(format!("{:020}.journal", 2));
    fs::create_dir(&taken).unwrap();
    let one = begun(2);
    intervals.follow(&one);
    intervals.write().unwrap_err();
    assert!(intervals.is_unwritten(&one.id));
    fs::remove_dir(&taken).unwrap();

    intervals.follow(&ended(&one, 3));
    intervals.write().unwrap();

    let sequences: Vec<_> = intervals.read_all(10).iter().map(|record| record.sequence).collect();
    assert_eq!(sequences, [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn what_runs_is_seen_every_few_seconds_and_what_comes_is_written_soon() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open(folder.path().into()).unwrap();
    let leave = CancellationToken::new();
    let keeper = tokio::spawn(intervals.clone().keep(leave.clone()));
    let until = async |holds: &dyn Fn() -> bool| {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::sleep(2 * SEEN_EVERY).await;
    assert_eq!(intervals.seen_at_ms(), None, "nothing runs");

    let one = begun(Timestamp::now().as_millisecond());
    intervals.follow(&one);
    until(&|| !intervals.is_unwritten(&one.id)).await;
    until(&|| intervals.seen_at_ms() >= Some(one.began_at_ms)).await;
    leave.cancel();
    keeper.await.unwrap();

    assert_eq!(Intervals::open(folder.path().into()).unwrap().seen_at_ms(), intervals.seen_at_ms());
}

/// What the process below does in the folder that this names.
const CHILD: &str = "SANDPIPER_TEST_INTERVALS";

/// Says each interval that has begun or ended once that is written.
#[test]
#[ignore = "is no test: it is started, and killed, by the next one"]
fn child_that_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let intervals = Intervals::open_with(folder.into(), of_segments(5000)).unwrap();
    let mut out = std::io::stderr();
    for n in 0.. {
        let one = begun(n);
        let moved = intervals.advance(&one, n, forwarded(n.unsigned_abs() + 1));
        let steps: [(&str, &dyn Fn()); 3] = [
            ("began", &|| intervals.follow(&one)),
            ("moved", &|| intervals.measure(&one.id, moved)),
            ("ended", &|| intervals.follow(&Interval { traffic: Some(moved), ..ended(&one, n) })),
        ];
        for (what, step) in steps {
            step();
            intervals.write().unwrap();
            writeln!(out, "{what} {}", one.id).unwrap();
        }
        intervals.see(at(n)).unwrap();
    }
}

#[test]
fn a_process_that_is_killed_loses_nothing_it_had_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(7);
    let (mut said, mut told) = (BTreeSet::new(), BTreeMap::new());
    for _ in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "intervals::tests::child_that_is_killed", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        for _ in 0..random.random_range(1..60) {
            said.insert(lines.next().unwrap().unwrap());
        }
        child.kill().unwrap();
        said.extend(lines.map_while(Result::ok).filter(|line| line.len() > "began ".len() + 24));
        child.wait().unwrap();

        // As an agent opens it, with a half of what was acknowledged.
        let intervals = Intervals::open_with(folder.path().into(), of_segments(5000)).unwrap();
        intervals.settle(&HashSet::new());
        intervals.write().unwrap();
        for record in intervals.read_all(random.random_range(1..50)) {
            let Interval { traffic, end, .. } = &record.interval;
            let has_moved = traffic.unwrap().total != Bytes::default();
            let what = if end.is_some() {
                "ended"
            } else if has_moved {
                "moved"
            } else {
                "began"
            };
            let before = told.insert(record.sequence, format!("{what} {}", record.interval.id));
            assert_eq!(before, None, "no number is given twice");
        }
    }
    let told: BTreeSet<String> = told.into_values().collect();
    let lost: Vec<_> = said.difference(&told).collect();
    assert!(lost.is_empty() && said.len() > 12, "{lost:?}");
    let count = |what: &str| told.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!(count("began"), count("ended"), "everything that began has ended");
}

#[test]
fn a_file_without_end_of_line_is_no_reason_to_lose_the_next_segment() {
    let folder = tempfile::tempdir().unwrap();
    let intervals = Intervals::open_with(folder.path().into(), of_segments(1)).unwrap();
    for n in 0..3 {
        intervals.follow(&begun(n));
        intervals.write().unwrap();
    }
    let path = folder.path().join(&segments(folder.path())[1]);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"1234").unwrap();

    let records = Intervals::open_with(folder.path().into(), of_segments(1)).unwrap().read_all(2);

    assert_eq!(records.iter().map(|record| record.sequence).collect::<Vec<_>>(), [1, 2, 3]);
}
