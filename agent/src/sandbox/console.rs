//! Follows a guest's serial port, where the operator turned it on: new lines go into the sandbox's log, and the file is
//! cut when it has grown.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use sandpiper_protocol::agent::LogSource;
use tokio_util::sync::CancellationToken;

use crate::logs::SandboxLog;

/// How often the file is looked at. It is a regular file, which cannot be waited for.
const INTERVAL: Duration = Duration::from_millis(300);
/// Most bytes taken at a time.
const CHUNK: u64 = 64 * 1024;
/// A file longer than this is cut to nothing once it was read; its writer appends.
const MAX_FILE: u64 = 1024 * 1024;
/// A line is broken here.
const MAX_LINE: usize = 2048;

/// Reads the file at `path` into `log` until `end`, then once more, so that the last words are there.
pub(super) async fn follow(path: PathBuf, log: SandboxLog, end: CancellationToken) {
    let mut follower = Follower { path, offset: 0, line: Vec::new() };
    loop {
        let last = tokio::select! {
            () = end.cancelled() => true,
            () = tokio::time::sleep(INTERVAL) => false,
        };
        let log_now = log.clone();
        let step = tokio::task::spawn_blocking(move || {
            let result = follower.step(&log_now, last);
            (follower, result)
        });
        match step.await {
            Ok((same, Ok(()))) => follower = same,
            Ok((_, Err(error))) => {
                tracing::warn!(%error, "a guest's console is not followed any more");
                return;
            }
            Err(_) => return,
        }
        if last {
            return;
        }
    }
}

/// Keeps a monitor's log from filling the disk. Blocks.
pub(super) fn bound_file(path: &std::path::Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    if file.metadata()?.len() > MAX_FILE {
        file.set_len(0)?;
    }
    Ok(())
}

struct Follower {
    path: PathBuf,
    offset: u64,
    line: Vec<u8>,
}

impl Follower {
    fn step(&mut self, log: &SandboxLog, last: bool) -> io::Result<()> {
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        if length > MAX_FILE.saturating_add(self.offset) {
            // More than can be shown came at once: go on near the end.
            self.offset = length - CHUNK;
        }
        loop {
            file.seek(SeekFrom::Start(self.offset))?;
            let mut bytes = Vec::new();
            let count = file.by_ref().take(CHUNK).read_to_end(&mut bytes)?;
            if count == 0 {
                break;
            }
            self.offset += count as u64;
            self.take(&bytes, log);
            if !last && count as u64 == CHUNK {
                // The rest in the next round, so that a flood of output does not keep a thread busy for ever.
                return Ok(());
            }
        }
        if last && !self.line.is_empty() {
            self.flush(log);
        }
        if self.offset > MAX_FILE {
            OpenOptions::new().write(true).open(&self.path)?.set_len(0)?;
            self.offset = 0;
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], log: &SandboxLog) {
        for byte in bytes {
            if *byte == b'\n' || self.line.len() >= MAX_LINE {
                self.flush(log);
            }
            if *byte != b'\n' {
                self.line.push(*byte);
            }
        }
    }

    fn flush(&mut self, log: &SandboxLog) {
        let line = std::mem::take(&mut self.line);
        log.push(LogSource::Console, &String::from_utf8_lossy(&line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn messages(log: &SandboxLog) -> Vec<String> {
        log.entries().into_iter().map(|entry| entry.message).collect()
    }

    #[test]
    fn lines_arrive_whole_and_the_last_words_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console.log");
        let mut file = OpenOptions::new().append(true).create_new(true).open(&path).unwrap();
        let log = SandboxLog::default();
        let mut follower = Follower { path, offset: 0, line: Vec::new() };

        file.write_all(b"one\r\ntw").unwrap();
        follower.step(&log, false).unwrap();
        assert_eq!(messages(&log), ["one"]);
        file.write_all(b"o\npanic").unwrap();
        follower.step(&log, true).unwrap();

        assert_eq!(messages(&log), ["one", "two", "panic"]);
    }

    #[test]
    fn a_file_that_has_grown_is_cut_and_followed_from_its_new_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console.log");
        let mut file = OpenOptions::new().append(true).create_new(true).open(&path).unwrap();
        let log = SandboxLog::default();
        let mut follower = Follower { path: path.clone(), offset: 0, line: Vec::new() };

        file.write_all(&b"0123456789abcde\n".repeat(70_000)).unwrap();
        follower.step(&log, true).unwrap();
        file.write_all(b"afterwards\n").unwrap();
        follower.step(&log, true).unwrap();

        assert_eq!(std::fs::metadata(&path).unwrap().len(), 11);
        assert_eq!(messages(&log).last().unwrap(), "afterwards");
    }
}
