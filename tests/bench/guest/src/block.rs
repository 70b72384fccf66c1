//! Reads and writes of a file past the guest's page cache, several at a time (`io_uring`, `O_DIRECT`).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use io_uring::{IoUring, opcode, types};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::Volume;

/// `O_DIRECT` wants memory, offsets and lengths that are multiples of the disk's blocks, which are no larger.
const PAGE: usize = 4096;

/// Reads or writes for so long.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Block {
    /// Made by [`Job::Fill`](crate::Job::Fill).
    pub path: PathBuf,
    pub direction: Direction,
    pub order: Order,
    /// Of each request, a multiple of 4096.
    pub bytes: usize,
    /// Requests that each stream has under way.
    pub depth: u32,
    /// Threads, each with a queue and a part of the file of its own.
    pub streams: u32,
    pub time: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Read,
    /// Of random bytes; the time includes the `fdatasync` at the end.
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// From the beginning to the end, and again.
    Sequential,
    Random,
}

#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; PAGE]);

pub(crate) fn fill(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut random = SmallRng::seed_from_u64(0);
    let mut left = bytes;
    let mut piece = vec![0; 1 << 20];
    while left > 0 {
        random.fill_bytes(&mut piece);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        file.write_all(&piece[..length])?;
        left -= length as u64;
    }
    file.sync_all()
}

impl Block {
    pub(crate) fn run(&self) -> anyhow::Result<Volume> {
        ensure!(self.bytes > 0 && self.bytes.is_multiple_of(PAGE), "requests must be of whole pages");
        let begin = Instant::now();
        let done = thread::scope(|scope| {
            let streams: Vec<_> =
                (0..self.streams).map(|number| scope.spawn(move || self.stream(number, begin + self.time))).collect();
            streams
                .into_iter()
                .map(|stream| stream.join().expect("a stream does not panic"))
                .sum::<anyhow::Result<u64>>()
        })?;
        Ok(Volume { operations: done, bytes: done * self.bytes as u64, time: begin.elapsed() })
    }

    /// One stream; how many of its requests were done.
    fn stream(&self, number: u32, end: Instant) -> anyhow::Result<u64> {
        let is_write = self.direction == Direction::Write;
        let file = OpenOptions::new().read(true).write(is_write).custom_flags(libc::O_DIRECT).open(&self.path)?;
        let mut offsets = self.offsets(number, file.metadata()?.len())?;
        let mut ring = IoUring::new(self.depth).context("no io_uring in this kernel")?;
        let mut buffers = self.buffers();
        for slot in 0..u64::from(self.depth) {
            self.submit(&mut ring, &file, &mut buffers, slot, offsets())?;
        }
        let (mut under_way, mut done) = (self.depth, 0);
        while under_way > 0 {
            ring.submit_and_wait(1)?;
            let completed: Vec<_> = ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (slot, result) in completed {
                let moved = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))?;
                ensure!(moved == self.bytes, "a request of {} bytes moved {moved}", self.bytes);
                done += 1;
                if Instant::now() < end {
                    self.submit(&mut ring, &file, &mut buffers, slot, offsets())?;
                } else {
                    under_way -= 1;
                }
            }
        }
        if is_write {
            file.sync_data()?;
        }
        Ok(done)
    }

    /// A buffer for each request under way. They are never freed: when a stream fails, requests may still be under way.
    fn buffers(&self) -> Vec<&'static mut [Page]> {
        let mut random = SmallRng::seed_from_u64(1);
        let buffer = |_| {
            let buffer = vec![Page([0; PAGE]); self.bytes / PAGE].leak();
            buffer.iter_mut().for_each(|page| random.fill_bytes(&mut page.0));
            buffer
        };
        (0..self.depth).map(buffer).collect()
    }

    /// Queues the next request of a slot whose last one, if any, has completed.
    fn submit(
        &self,
        ring: &mut IoUring,
        file: &File,
        buffers: &mut [&'static mut [Page]],
        slot: u64,
        offset: u64,
    ) -> anyhow::Result<()> {
        let buffer = usize::try_from(slot).ok().and_then(|slot| buffers.get_mut(slot)).context("an unknown slot")?;
        let (start, length) = (buffer.as_mut_ptr().cast::<u8>(), u32::try_from(self.bytes)?);
        let file = types::Fd(file.as_raw_fd());
        let entry = match self.direction {
            Direction::Read => opcode::Read::new(file, start, length).offset(offset).build(),
            Direction::Write => opcode::Write::new(file, start, length).offset(offset).build(),
        };
        // SAFETY: the buffer has `self.bytes` bytes, is never freed, and no other request that is under way has it, since its
        // slot is free. The file is open until the stream ends; were it closed before, the kernel holds it for requests.
        unsafe { ring.submission().push(&entry.user_data(slot)) }.context("the queue is full")
    }

    /// Where the requests of a stream go: into its own part of the file.
    fn offsets(&self, stream: u32, file_bytes: u64) -> anyhow::Result<impl FnMut() -> u64 + use<>> {
        let (bytes, order) = (self.bytes as u64, self.order);
        let blocks = file_bytes / u64::from(self.streams) / bytes;
        ensure!(blocks > 0, "{} is too small for {} streams", self.path.display(), self.streams);
        let first = u64::from(stream) * blocks;
        let mut random = SmallRng::seed_from_u64(stream.into());
        let mut next = 0;
        Ok(move || {
            let block = match order {
                Order::Sequential => next % blocks,
                Order::Random => random.random_range(0..blocks),
            };
            next += 1;
            (first + block) * bytes
        })
    }
}

/// Writes to one place after the other and syncs each time; what each sync took, in milliseconds.
pub(crate) fn syncs(path: &Path, time: Duration, pause: Duration) -> anyhow::Result<Vec<f64>> {
    const PLACES: u64 = 64;
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < time {
        let place = times.len() as u64 % PLACES;
        file.write_all_at(&[0x5a; 4096], place * 4096)?;
        let called = Instant::now();
        file.sync_all()?;
        times.push(called.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(pause);
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(order: Order) -> Block {
        let path = "file".into();
        Block { path, direction: Direction::Read, order, bytes: PAGE, depth: 1, streams: 2, time: Duration::ZERO }
    }

    #[test]
    fn sequential_requests_go_round_the_streams_own_part() {
        let mut offsets = block(Order::Sequential).offsets(1, 6 * 4096).unwrap();

        let seen: Vec<u64> = (0..4).map(|_| offsets() / 4096).collect();

        assert_eq!(seen, [3, 4, 5, 3]);
    }

    #[test]
    fn random_requests_reach_all_of_the_streams_own_part_and_nothing_else() {
        let mut offsets = block(Order::Random).offsets(0, 6 * 4096).unwrap();

        let seen: std::collections::BTreeSet<u64> = (0..100).map(|_| offsets() / 4096).collect();

        assert_eq!(seen, [0, 1, 2].into());
    }
}
