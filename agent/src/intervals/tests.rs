//! The journal with real files, and a real process that is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sandpiper_protocol::ids::SandboxId;

use super::*;

/// A segment of about three records.
const SHORT: Sizes = of_segments(600);

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
        end: None,
    }
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
    assert!((10..20).contains(&all.len()), "{}", all.len());

    // What runs ends all the same.
    all.iter().for_each(|one| intervals.follow(&ended(one, 1000)));
    intervals.write().unwrap();
    assert_eq!(intervals.read_all(7).len(), 2 * all.len());

    assert!(!intervals.is_full());
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
        for (interval, what) in [(one.clone(), "began"), (ended(&one, n), "ended")] {
            intervals.follow(&interval);
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
            let what = if record.interval.end.is_none() { "began" } else { "ended" };
            let before = told.insert(record.sequence, format!("{what} {}", record.interval.id));
            assert_eq!(before, None, "no number is given twice");
        }
    }
    let told: BTreeSet<String> = told.into_values().collect();
    let lost: Vec<_> = said.difference(&told).collect();
    assert!(lost.is_empty() && said.len() > 12, "{lost:?}");
    let (began, ended): (Vec<_>, Vec<_>) = told.iter().partition(|line| line.starts_with("began"));
    assert_eq!(began.len(), ended.len(), "everything that began has ended");
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
