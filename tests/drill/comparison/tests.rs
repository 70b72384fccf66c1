//! What a comparison finds, of a sandbox that ran from 10 s to 20 s, was paused, and ran again from 30 s to 40 s.

use super::*;

const SANDBOX: &str = "sbx1";

fn run(began_ms: i64, ended_ms: i64) -> Run {
    Run {
        sandbox: SANDBOX.to_owned(),
        is_certain: true,
        began: began_ms - 250..=began_ms + 50,
        ended: ended_ms - 250..=ended_ms + 50,
        last_seen: None,
        noted_ms: None,
        most_ms: ended_ms - began_ms + 300,
        late_ms: 50,
    }
}

/// One that was killed while no agent ran, and had been noted at 35 s.
fn unseen() -> Run {
    Run { last_seen: Some(34_750..=40_050), noted_ms: Some(35_000), ..run(30_000, 40_000) }
}

fn window(wanted: Wanted, time: RangeInclusive<i64>) -> Window {
    Window { sandbox: SANDBOX.to_owned(), wanted, time }
}

fn windows() -> Vec<Window> {
    vec![
        window(Wanted::Running, 9000..=10_200),
        window(Wanted::Stopped, 19_000..=20_200),
        window(Wanted::Running, 29_000..=30_200),
        window(Wanted::Stopped, 39_000..=42_000),
    ]
}

fn interval(id: &str, from_ms: i64, to_ms: i64, end_reason: &str) -> Interval {
    Interval {
        id: id.to_owned(),
        sandbox: SANDBOX.to_owned(),
        shape: SHAPE,
        from_ms,
        to_ms,
        end_reason: (end_reason != "open").then(|| end_reason.to_owned()),
    }
}

fn first() -> Interval {
    interval("first", 9990, 19_990, "paused")
}

fn second() -> Interval {
    interval("second", 29_980, 39_970, "deleted")
}

/// What is found of both runs.
fn found(intervals: &[Interval]) -> Vec<String> {
    compare(&[run(10_000, 20_000), run(30_000, 40_000)], &windows(), intervals).findings
}

/// Panics unless exactly these are found, each by a word of it.
#[track_caller]
fn assert_found(findings: &[String], words: &[&str]) {
    let is_it =
        findings.len() == words.len() && findings.iter().zip(words).all(|(finding, word)| finding.contains(word));
    assert!(is_it, "{words:?} should be found; found is {findings:#?}");
}

#[test]
fn what_is_billed_as_it_ran_is_right_and_the_bounds_are_added_up() {
    let comparison = compare(&[run(10_000, 20_000), run(30_000, 40_000)], &windows(), &[second(), first()]);
    assert_found(&comparison.findings, &[]);
    assert_eq!((comparison.runs, comparison.intervals, comparison.billed_ms), (2, 2, 19_990));
    assert_eq!((comparison.least_ms, comparison.most_ms), (2 * 9700, 2 * 10_300));
}

#[test]
fn a_run_that_is_billed_twice_is_doubled() {
    let again = Interval { id: "again".to_owned(), ..first() };
    assert_found(&found(&[first(), again, second()]), &["overlap", "doubled: a run"]);
    let halves = [interval("one", 9990, 15_000, "crashed"), interval("other", 15_000, 19_990, "paused")];
    assert_found(&found(&[&halves[..], &[second()]].concat()), &["doubled: a run"]);
}

#[test]
fn a_run_that_is_not_billed_is_lost_to_the_observer_and_to_the_client() {
    assert_found(&found(&[first()]), &["lost: a run that began", "lost: it was started"]);
    // Also where the host was not seen.
    assert_found(&compare(&[run(10_000, 20_000)], &windows(), &[first()]).findings, &["lost: it was started"]);
}

#[test]
fn what_no_machine_ran_for_is_invented() {
    let invented = interval("invented", 23_000, 27_000, "crashed");
    assert_found(&found(&[first(), invented, second()]), &["invented: invented", "too long: invented"]);
    let other = Interval { sandbox: "sbx2".to_owned(), ..second() };
    assert_found(&found(&[first(), second(), other]), &["sbx2: invented"]);
}

#[test]
fn intervals_that_overlap_are_doubled() {
    let longer = interval("first", 9990, 31_000, "paused");
    let words = ["nobody gave", "doubled: first", "first (00:00:09.990 to 00:00:31.000, paused); its machine ended"];
    assert_found(&found(&[longer, second()]), &[&words[..], &["too long: first", "too long: first"]].concat());
}

#[test]
fn one_that_goes_on_of_a_sandbox_that_is_gone_is_open() {
    let open = interval("second", 29_980, 39_970, "open");
    assert_found(&found(&[first(), open]), &["open: second"]);
}

#[test]
fn one_that_begins_early_or_ends_late_is_found() {
    let early = interval("second", 29_700, 39_970, "deleted");
    assert_found(&found(&[first(), early]), &["its machine began to be the team's between"]);
    let late = interval("second", 29_980, 40_400, "deleted");
    assert_found(&found(&[first(), late]), &["its machine ended to be the team's between", "too long"]);
}

#[test]
fn one_that_ends_for_a_reason_that_nobody_gave_is_found() {
    let expired = interval("second", 29_980, 39_970, "expired");
    assert_found(&found(&[first(), expired]), &["nobody gave"]);
    let earlier = [windows()[..3].to_vec(), vec![window(Wanted::Stopped, 41_000..=42_000)]].concat();
    let findings = compare(&[run(10_000, 20_000), run(30_000, 40_000)], &earlier, &[first(), second()]).findings;
    assert_found(&findings, &["nobody gave"]);
}

#[test]
fn one_that_was_killed_while_no_agent_ran_is_billed_until_it_was_seen_last() {
    let compared = |to_ms| {
        let lost = interval("second", 29_980, to_ms, "lost");
        compare(&[run(10_000, 20_000), unseen()], &windows(), &[first(), lost]).findings
    };
    assert_found(&compared(34_900), &[]);
    assert_found(&compared(40_000), &[]);
    assert_found(&compared(34_700), &["its machine ended"]);
    assert_found(&compared(40_100), &["its machine ended"]);
}

#[test]
fn one_that_was_seen_last_before_it_began_is_billed_for_no_time() {
    let runs = [run(10_000, 20_000), Run { last_seen: Some(25_000..=29_000), ..run(30_000, 40_000) }];
    let nothing = interval("second", 29_980, 29_980, "lost");
    assert_found(&compare(&runs, &windows(), &[first(), nothing]).findings, &[]);
}

#[test]
fn an_agent_that_was_there_lost_nothing() {
    let lost = interval("second", 29_980, 39_970, "lost");
    assert_found(&found(&[first(), lost]), &["an agent was there"]);
}

#[test]
fn a_machine_that_was_hardly_a_teams_may_be_billed_for_a_moment() {
    let moment =
        Run { is_certain: false, began: 24_000..=25_000, ended: 24_000..=25_000, most_ms: 300, ..run(24_000, 25_000) };
    let billed = |windows: &[Window], intervals: &[Interval]| {
        compare(&[run(10_000, 20_000), moment.clone()], windows, intervals).findings
    };
    let windows = &windows()[..2];
    assert_found(&billed(windows, &[first()]), &[]);
    let short = interval("short", 24_100, 24_300, "crashed");
    let restarted = [windows, &[window(Wanted::Running, 23_000..=24_400)]].concat();
    assert_found(&billed(&restarted, &[first(), short]), &[]);
    let long = interval("long", 24_100, 24_900, "crashed");
    assert_found(&billed(&restarted, &[first(), long]), &["too long: long"]);
}

#[test]
fn a_shape_that_the_sandbox_never_had_is_found() {
    let large = Interval { shape: (2, 256), ..second() };
    assert_found(&found(&[first(), large]), &["2 vCPUs"]);
}

#[test]
fn seconds_have_their_milliseconds() {
    assert_eq!((seconds(1234), seconds(-50), seconds(0)), ("1.234".into(), "-0.050".into(), "0.000".into()));
}

#[test]
fn what_was_seen_of_runs_that_are_billed_once_is_summed_up_beside_what_is_billed() {
    let runs = [run(10_000, 20_000), Run { is_certain: false, ..run(30_000, 40_000) }];
    let comparison = compare(&runs, &windows(), &[interval("first", 9900, 19_880, "paused")]);
    assert_eq!((comparison.seen_ms, comparison.billed_once_ms, comparison.largest_difference_ms), (10_000, 9980, 20));

    let comparison = compare(&[unseen()], &[], &[interval("first", 29_990, 35_010, "lost")]);
    assert_eq!((comparison.seen_ms, comparison.billed_once_ms, comparison.largest_difference_ms), (5000, 5020, 20));
}
