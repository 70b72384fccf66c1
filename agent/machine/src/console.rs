//! Follows a guest's serial port, where the operator turned it on: new lines are told, and the file is cut when it has grown.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// How often the file is looked at. It is a regular file, which cannot be waited for.
const INTERVAL: Duration = Duration::from_millis(300);
/// Most bytes taken at a time.
const CHUNK: u64 = 64 * 1024;
/// A file longer than this is cut to nothing once it was read; its writer appends.
const MAX_FILE: u64 = 1024 * 1024;
/// A line is broken here.
const MAX_LINE: usize = 2048;

/// Follows a guest's console until it is finished or dropped.
#[derive(Debug)]
pub struct Console {
    end: CancellationToken,
    following: AbortOnDropHandle<()>,
}

impl Console {
    /// Tells `hear` each new line of the file at `path`. To be called on a runtime.
    pub fn follow(path: PathBuf, hear: impl Fn(&str) + Clone + Send + 'static) -> Self {
        let end = CancellationToken::new();
        let following = tokio::spawn(follow(path, hear, end.clone()));
        Self { end, following: AbortOnDropHandle::new(following) }
    }

    /// Reads what is there still, so that the last words are told, and stops.
    pub async fn finish(self) {
        self.end.cancel();
        // It ended by itself where the file could not be read.
        let _ = self.following.await;
    }
}

/// Tells `hear` each new line of the file at `path` until `end`, then once more, so that the last words are there.
async fn follow(path: PathBuf, hear: impl Fn(&str) + Clone + Send + 'static, end: CancellationToken) {
    let mut follower = Follower { path, offset: 0, line: Vec::new() };
    loop {
        let last = tokio::select! {
            () = end.cancelled() => true,
            () = tokio::time::sleep(INTERVAL) => false,
        };
        let hear = hear.clone();
        let step = tokio::task::spawn_blocking(move || {
            let result = follower.step(&hear, last);
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
///
/// # Errors
/// The file cannot be opened or cut.
pub fn bound_file(path: &std::path::Path) -> io::Result<()> {
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
    fn step(&mut self, hear: &impl Fn(&str), last: bool) -> io::Result<()> {
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
            self.take(&bytes, hear);
            if !last && count as u64 == CHUNK {
                // The rest in the next round, so that a flood of output does not keep a thread busy for ever.
                return Ok(());
            }
        }
        if last && !self.line.is_empty() {
            self.flush(hear);
        }
        if self.offset > MAX_FILE {
            OpenOptions::new().write(true).open(&self.path)?.set_len(0)?;
            self.offset = 0;
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], hear: &impl Fn(&str)) {
        for byte in bytes {
            if *byte == b'\n' || self.line.len() >= MAX_LINE {
                self.flush(hear);
            }
            if *byte != b'\n' {
                self.line.push(*byte);
            }
        }
    }

    fn flush(&mut self, hear: &impl Fn(&str)) {
        let line = std::mem::take(&mut self.line);
        hear(&String::from_utf8_lossy(&line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::io::Write;

    #[test]
    fn lines_arrive_whole_and_the_last_words_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console.log");
        let mut file = OpenOptions::new().append(true).create_new(true).open(&path).unwrap();
        let lines = RefCell::new(Vec::new());
        let hear = |line: &str| lines.borrow_mut().push(line.trim_end().to_owned());
        let mut follower = Follower { path, offset: 0, line: Vec::new() };

        file.write_all(b"one\r\ntw").unwrap();
        follower.step(&hear, false).unwrap();
        assert_eq!(*lines.borrow(), ["one"]);
        file.write_all(b"o\npanic").unwrap();
        follower.step(&hear, true).unwrap();

        assert_eq!(*lines.borrow(), ["one", "two", "panic"]);
    }

    #[test]
    fn a_file_that_has_grown_is_cut_and_followed_from_its_new_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console.log");
        let mut file = OpenOptions::new().append(true).create_new(true).open(&path).unwrap();
        let lines = RefCell::new(Vec::new());
        let hear = |line: &str| lines.borrow_mut().push(line.trim_end().to_owned());
        let mut follower = Follower { path: path.clone(), offset: 0, line: Vec::new() };

        file.write_all(&b"0123456789abcde\n".repeat(70_000)).unwrap();
        follower.step(&hear, true).unwrap();
        file.write_all(b"afterwards\n").unwrap();
        follower.step(&hear, true).unwrap();

        assert_eq!(std::fs::metadata(&path).unwrap().len(), 11);
        assert_eq!(lines.borrow().last().unwrap(), "afterwards");
    }
}
