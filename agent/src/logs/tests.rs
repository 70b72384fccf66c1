//! Logs through the life of an agent: rotation, torn ends, floods, kills.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use sandpiper_protocol::agent::{LogEntry, LogProcess};
use sandpiper_protocol::guest::OutputStream;

use super::*;

const BOUNDS: Bounds = Bounds { bytes: 64 * 1024, lines_per_second: u32::MAX };
/// What the process is told that is to be killed: where to write.
const FOLDER: &str = "SANDPIPER_TEST_LOG_FOLDER";
/// The test that is killed.
const KILLED: &str =
    "logs::tests::a_process_that_is_killed_while_it_writes_loses_nothing_that_was_read_and_repeats_no_sequence";

/// The log in `folder`, as an agent has it that was started just now.
fn open(folder: &Path) -> SandboxLog {
    Logs::new(BOUNDS).unwrap().open("sbx", folder.to_owned())
}

fn all(log: &SandboxLog) -> Vec<LogEntry> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        let page = log.page(&LogQuery { after: Some(after), limit: Some(7), ..LogQuery::default() }).unwrap();
        entries.extend(page.entries);
        after = entries.last().map_or(0, |entry: &LogEntry| entry.sequence);
        if !page.has_more {
            return entries;
        }
    }
}

fn messages(log: &SandboxLog) -> Vec<String> {
    all(log).into_iter().map(|entry| entry.message).collect()
}

fn sequences(entries: &[LogEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.sequence).collect()
}

#[test]
fn entries_are_read_forwards_from_a_sequence_and_backwards_from_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    (1..=20).for_each(|number| log.host(format!("line {number}")));

    let page = |query| log.page(&query).unwrap();
    let forwards = page(LogQuery { after: Some(17), limit: Some(2), ..LogQuery::default() });
    assert_eq!((sequences(&forwards.entries), forwards.has_more, forwards.last), (vec![18, 19], true, 20));
    let backwards = page(LogQuery { before: Some(3), newest_first: true, ..LogQuery::default() });
    assert_eq!((sequences(&backwards.entries), backwards.has_more), (vec![2, 1], false));
    let sought = page(LogQuery { search: Some("ne 2".into()), newest_first: true, ..LogQuery::default() });
    assert_eq!(sequences(&sought.entries), [20, 2]);
    let time = forwards.entries[0].time.as_millisecond();
    let within = page(LogQuery { since_ms: Some(time), until_ms: Some(time), ..LogQuery::default() });
    assert!(within.entries.iter().any(|entry| entry.sequence == 18));
    assert!(page(LogQuery { since_ms: Some(time + 60_000), ..LogQuery::default() }).entries.is_empty());
    // Nothing of the disk is asked where nothing can have come.
    let read = LogQuery { after: Some(20), ..LogQuery::default() };
    assert_eq!(log.empty_page(&read).unwrap().last, 20);
    log.host("more");
    assert!(log.empty_page(&read).is_none());
    assert_eq!(sequences(&page(read).entries), [21]);
}

#[test]
fn a_log_has_a_size_and_its_oldest_entries_give_way() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    for number in 0..300 {
        log.host(format!("{number} {}", "\"".repeat(1000)));
        // At most so many lines wait.
        if number % 100 == 0 {
            drop(log.flush());
        }
    }

    let entries = all(&log);

    let bytes: u64 = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes <= BOUNDS.bytes, "{bytes}");
    assert!(entries.len() > 20 && entries.len() < 40, "{}", entries.len());
    assert_eq!(entries.last().unwrap().sequence, 300);
    assert!(entries.windows(2).all(|pair| pair[0].sequence + 1 == pair[1].sequence));
    let is_truncated = |after| log.page(&LogQuery { after: Some(after), ..LogQuery::default() }).unwrap().is_truncated;
    assert!(is_truncated(0) && is_truncated(200) && !is_truncated(entries[0].sequence));
}

#[test]
fn a_log_goes_on_under_the_next_agent_and_no_sequence_is_given_twice() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    log.host("of the first agent");
    log.host("and again");
    assert_eq!(messages(&log).len(), 2);

    let log = open(folder.path());
    log.host("of the second");
    assert_eq!(messages(&log).len(), 3);
    let log = open(folder.path());
    log.host("of the third");

    assert_eq!(sequences(&all(&log)), [1, 2, 1_000_000, 2_000_000]);
}

#[test]
fn a_torn_end_is_cut_off_and_the_log_says_so() {
    for torn in [&b"{\"sequence\":3,\"ti"[..], b"\0\0\0\0\n\0", b"not an entry\n"] {
        let folder = tempfile::tempdir().unwrap();
        let log = open(folder.path());
        log.host("whole");
        assert_eq!(messages(&log), ["whole"]);
        let path = folder.path().join("log-00000000000000000001");
        OpenOptions::new().append(true).open(&path).unwrap().write_all(torn).unwrap();

        let log = open(folder.path());
        log.host("after the tear");

        let said = format!("the end of the log was torn: {} bytes are cut off", torn.len());
        assert_eq!(messages(&log), ["whole", &*said, "after the tear"]);
        let again = open(folder.path());
        assert_eq!(messages(&again).len(), 3, "it is said once");
    }
}

#[test]
fn hostile_lines_are_one_bounded_entry_each() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    log.push(LogSource::Guest, "\u{1b}[2J\u{7}one\n{\"sequence\":99}\n\0");
    log.push(LogSource::Console, &"é\"\u{1}".repeat(100_000));

    let entries = all(&log);

    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0].message, "\u{fffd}[2J\u{fffd}one\u{fffd}{\"sequence\":99}\u{fffd}\u{fffd}");
    assert!(entries[1].message.len() < 8 * 1024 && !entries[1].message.contains('\u{1}'));
    assert!(messages(&open(folder.path())).len() == 2);
}

#[test]
fn entries_wait_for_the_folder_of_a_sandbox_that_is_just_being_made() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("sbx");
    let log = open(&folder);
    log.host("created");
    assert!(messages(&log).is_empty());

    fs::create_dir(&folder).unwrap();
    log.host("ready");

    assert_eq!(messages(&log), ["created", "ready"]);
}

#[test]
fn the_last_entries_outlive_the_sandbox_for_a_while_and_its_folder_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let logs = Logs::new(BOUNDS).unwrap();
    let log = logs.open("first", folder.path().to_owned());
    (0..300).for_each(|number| log.host(number.to_string()));
    let read = LogQuery { after: Some(u64::MAX), ..LogQuery::default() };
    assert!(!log.page(&read).unwrap().is_ended);

    log.close();
    fs::remove_dir_all(folder.path()).unwrap();
    log.host("the very last");
    logs.retire("first");

    let log = logs.find("first").unwrap();
    let entries = all(&log);
    assert_eq!((entries.len(), entries.last().unwrap().message.as_str()), (200, "the very last"));
    assert!(log.empty_page(&read).is_none() && log.page(&read).unwrap().is_ended);
    assert!(!folder.path().exists());
    for number in 0..ENDED_SANDBOXES {
        let id = number.to_string();
        logs.open(&id, folder.path().to_owned());
        logs.retire(&id);
    }
    assert!(logs.find("first").is_none() && logs.find("0").is_some());
}

#[test]
fn what_was_said_of_a_sandbox_that_never_had_a_folder_is_there_after_its_end() {
    let parent = tempfile::tempdir().unwrap();
    let log = open(&parent.path().join("never"));
    log.host("created");
    log.host("not started");
    log.close();
    assert_eq!(messages(&log), ["created", "not started"]);
}

#[test]
fn lines_that_the_disk_does_not_take_are_counted_and_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    // No file can take its place, whoever tries.
    let obstacle = folder.path().join("log-00000000000000000001");
    drop(log.flush());
    fs::create_dir(&obstacle).unwrap();
    (0..3).for_each(|_| log.host("lost"));
    assert!(messages(&log).is_empty());
    log.host("lost too");
    assert!(messages(&log).is_empty());

    fs::remove_dir(&obstacle).unwrap();
    log.host("written");

    assert_eq!(messages(&log), ["4 lines were lost: the host could not write them", "written"]);
}

/// Lines that a process wrote.
fn output(texts: impl IntoIterator<Item = String>) -> Vec<OutputLine> {
    let line = |text| OutputLine {
        stream: OutputStream::Stderr,
        pid: 7,
        command: "app".into(),
        tag: Some("start".into()),
        text,
        cut: false,
    };
    texts.into_iter().map(line).collect()
}

#[test]
fn what_processes_write_is_read_in_order_with_everything_else_or_alone() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    for number in 1..=10 {
        log.host(format!("host {number}"));
        log.output(output([format!("process {number}")]), 0);
    }

    let entries = all(&log);

    assert_eq!(sequences(&entries), (1..=20).collect::<Vec<_>>());
    let process = LogProcess {
        pid: 7,
        command: "app".into(),
        tag: Some("start".into()),
        stream: OutputStream::Stderr,
        cut: false,
    };
    assert_eq!((entries[3].source, entries[3].message.as_str()), (LogSource::Process, "process 2"));
    assert_eq!((entries[2].process.as_ref(), entries[3].process.as_ref()), (None, Some(&process)));
    let read = |query| sequences(&log.page(&query).unwrap().entries);
    let newest = LogQuery { newest_first: true, before: Some(18), limit: Some(4), ..LogQuery::default() };
    assert_eq!(read(newest.clone()), [17, 16, 15, 14]);
    assert_eq!(read(LogQuery { source: Some(LogSource::Process), ..newest.clone() }), [16, 14, 12, 10]);
    assert_eq!(read(LogQuery { source: Some(LogSource::Host), ..newest }), [17, 15, 13, 11]);
    assert_eq!(read(LogQuery { source: Some(LogSource::Guest), ..LogQuery::default() }), Vec::<u64>::new());
    assert_eq!(messages(&open(folder.path())).len(), 20, "under the next agent");
    log.close();
    fs::remove_dir_all(folder.path()).unwrap();
    assert_eq!(sequences(&all(&log)), (1..=20).collect::<Vec<_>>(), "what is left in memory");
}

#[test]
fn a_flood_of_output_pushes_nothing_else_out() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    log.host("created");
    for number in 0..30 {
        log.output(output((0..20).map(|line| format!("{number} {line} {}", "x".repeat(500)))), 0);
        drop(log.flush());
    }
    log.host("deleted");

    let of = |source| log.page(&LogQuery { source: Some(source), ..LogQuery::default() }).unwrap();
    let (host, process) = (of(LogSource::Host), of(LogSource::Process));

    let bytes: u64 = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes <= 2 * BOUNDS.bytes, "{bytes}");
    let messages: Vec<_> = host.entries.iter().map(|entry| entry.message.as_str()).collect();
    assert_eq!((messages, host.is_truncated), (vec!["created", "deleted"], false));
    assert!(process.is_truncated && process.entries.len() < 300, "{}", process.entries.len());
    assert!(process.entries.last().unwrap().message.starts_with("29 19 "));
    assert!(log.page(&LogQuery::default()).unwrap().is_truncated);
    // And in what is left of a sandbox that is gone.
    log.close();
    assert_eq!(of(LogSource::Host).entries.len(), 2);
}

#[test]
fn both_kinds_of_files_are_the_log_s_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    log.host("created");
    log.output(output(["line".to_owned()]), 0);
    drop(log.flush());
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert!(names.len() == 2 && names.iter().all(|name| is_segment(name.to_str().unwrap())), "{names:?}");
    assert!(!["log-1", "disk-00000000000000000001", "output-x0000000000000000001"].into_iter().any(is_segment));
}

#[test]
fn output_that_the_disk_does_not_take_costs_no_other_entry() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    log.host("created");
    drop(log.flush());
    let obstacle = folder.path().join("output-00000000000000000001");
    fs::create_dir(&obstacle).unwrap();
    log.output(output(["one".to_owned(), "two".to_owned()]), 0);
    log.host("ready");
    assert_eq!(messages(&log), ["created", "ready"]);

    fs::remove_dir(&obstacle).unwrap();
    log.output(output(["three".to_owned()]), 0);

    assert_eq!(messages(&log), ["created", "ready", "2 lines were lost: the host could not write them", "three"]);
    let numbers = sequences(&all(&log));
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
}

/// One test that is both processes: the one that writes, and the one that kills it.
#[test]
fn a_process_that_is_killed_while_it_writes_loses_nothing_that_was_read_and_repeats_no_sequence() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let log = open(Path::new(&folder));
        for number in 0_u64.. {
            log.host(format!("line {number} {}", "x".repeat(700)));
            if number % 20 == 0 {
                let page = log.page(&LogQuery { newest_first: true, limit: Some(1), ..LogQuery::default() }).unwrap();
                println!("read {}", page.entries[0].sequence);
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for kills in 1..=8 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", KILLED, "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let mut read = lines.map_while(Result::ok).filter_map(|line| line.split("read ").nth(1)?.parse().ok());
        let of_this: u64 = read.by_ref().take(3 + kills).last().unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        // What it had printed before it died.
        let last = read.last().unwrap_or(of_this);
        assert!(last > seen, "a sequence was given twice: {last} after {seen}");

        let log = open(folder.path());
        let entries = all(&log);
        assert!(entries.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
        assert!(entries.iter().any(|entry| entry.sequence == last), "an entry that was read is gone: {last}");
        seen = entries.last().unwrap().sequence;
    }
}
