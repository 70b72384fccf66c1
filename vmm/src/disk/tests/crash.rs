//! A writer that is killed: everything it acknowledged is there when the disk is opened again.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::*;

const BLOCKS: u64 = 64;
const FOLDER: &str = "SANDPIPER_TEST_CRASH_FOLDER";
const SEED: &str = "SANDPIPER_TEST_CRASH_SEED";
const WRITER: &str = "disk::tests::crash::writer";

/// The `number`th operation of a run: a range, and the byte it is filled with, zero for a zeroing.
fn operation(seed: u64, number: u64) -> (Range<u64>, u8) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut next = |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % limit
    };
    next(2);
    let start = next(BLOCKS * BLOCK_SIZE);
    let length = (1 + next(6 * BLOCK_SIZE)).min(BLOCKS * BLOCK_SIZE - start);
    let byte = next(5) * 50;
    (start..start + length, u8::try_from(byte).unwrap())
}

fn perform(disk: &mut Disk, (range, byte): (Range<u64>, u8)) {
    let length = range.end - range.start;
    if byte == 0 {
        disk.write_zeroes(range.start, length).unwrap();
    } else {
        write(disk, range.start, &vec![byte; usize::try_from(length).unwrap()]).unwrap();
    }
    disk.flush().unwrap();
}

/// Not a test: the process that the test below starts and kills. Prints the number of each operation that is flushed.
#[test]
#[ignore = "runs only as a child of the test below"]
fn writer() {
    let (Ok(folder), Ok(seed)) = (std::env::var(FOLDER), std::env::var(SEED)) else { return };
    let seed = seed.parse().unwrap();
    let stack = Stack { folder: folder.into(), layers: 2, size: BLOCKS * BLOCK_SIZE };
    let mut disk = stack.open();
    for number in 0.. {
        perform(&mut disk, operation(seed, number));
        // Straight to the pipe: a line is there or it is not.
        std::io::stderr().write_all(format!("{number}\n").as_bytes()).unwrap();
    }
}

#[test]
fn acknowledged_writes_survive_a_killed_writer() {
    for seed in 1..=12u64 {
        let folder = tempfile::tempdir().unwrap();
        let mut stack = Stack::new(folder.path(), BLOCKS);
        stack.add_with(0, &vec![0xba; 40 * 4096]);
        stack.add();
        let mut model = read_all(&stack.open());

        let acknowledged = run_and_kill(&folder.path().display().to_string(), seed, 1 + seed * 7 % 40);

        for number in 0..acknowledged {
            let (range, byte) = operation(seed, number);
            model[index(&range)].fill(byte);
        }
        let content = read_all(&stack.open());
        let (in_flight, byte) = operation(seed, acknowledged);
        for (at, (found, expected)) in content.iter().zip(&model).enumerate() {
            let may_be_new = in_flight.contains(&(at as u64)) && *found == byte;
            assert!(found == expected || may_be_new, "seed {seed}: byte {at} is {found}, not {expected}");
        }
    }
}

/// Starts a writer, kills it once it has acknowledged `enough` operations and is busy with the next ones, and returns how
/// many it has acknowledged in all.
fn run_and_kill(folder: &str, seed: u64, enough: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", WRITER, "--ignored", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(SEED, seed.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut acknowledged = 0;
    while acknowledged < enough {
        assert_eq!(lines.next().expect("the writer ended by itself"), acknowledged.to_string());
        acknowledged += 1;
    }
    child.kill().unwrap();
    // What it still said between our last look and its end counts as well.
    acknowledged += lines.count() as u64;
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    acknowledged
}

fn index(range: &Range<u64>) -> Range<usize> {
    usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
}
