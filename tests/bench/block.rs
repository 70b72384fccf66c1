//! A guest's root disk, past the guest's page cache: one request at a time, 32, and several streams.
//!
//! The file has been written before, by the guest, so that reads come from the sandbox's own layer and writes find their
//! blocks allocated. The host's page cache is in between: these are results of the device, not of the host's disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandpiper_bench_guest::{Block, Direction, Job, Order, Volume};
use support::{Host, small};

use crate::guest_program::{Program, throughput};
use crate::report::Report;

const FILE: &str = "/root/bench.bin";
const FILE_BYTES: u64 = 256 << 20;
const ROUND: Duration = Duration::from_secs(3);
const MOST_ROUNDS: usize = 5;
const RANDOM_BYTES: usize = 4 << 10;
const SEQUENTIAL_BYTES: usize = 256 << 10;

/// Depth of each stream, streams.
const SHAPES: [(u32, u32); 4] = [(1, 1), (32, 1), (1, 4), (32, 4)];

/// What is asked of a disk.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    direction: Direction,
    order: Order,
    /// Requests that each stream has under way.
    depth: u32,
    pub(crate) streams: u32,
}

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let sandbox = Host::shared().wait_until_warm(&small()).await;
    let program = Program::install(&sandbox).await?;
    let file = fill(&program, FILE).await?;
    for load in Load::all() {
        let mut samples = Vec::new();
        for _ in 0..rounds(runs) {
            samples.push(load.round(&program, &file).await?);
        }
        report.add("block", &load.name(), load.unit(), &samples);
    }
    sandbox.delete().await;
    Ok(())
}

/// The file at this path of the guest, made for [`Load::round`].
pub(crate) async fn fill(program: &Program<'_>, path: &str) -> anyhow::Result<PathBuf> {
    let path = PathBuf::from(path);
    program.run::<()>(&Job::Fill { path: path.clone(), bytes: FILE_BYTES }).await?;
    Ok(path)
}

/// How often each load is measured.
pub(crate) fn rounds(runs: usize) -> usize {
    runs.clamp(1, MOST_ROUNDS)
}

impl Load {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let kinds = [Direction::Read, Direction::Write]
            .into_iter()
            .flat_map(|direction| [Order::Random, Order::Sequential].map(|order| (direction, order)));
        kinds.flat_map(|(direction, order)| SHAPES.map(|(depth, streams)| Self { direction, order, depth, streams }))
    }

    pub(crate) fn name(self) -> String {
        let Self { depth, streams, .. } = self;
        let order = if self.order == Order::Random { "random_4k" } else { "sequential_256k" };
        let verb = if self.direction == Direction::Read { "read" } else { "write" };
        format!("{order}_{verb}_depth_{depth}_streams_{streams}")
    }

    pub(crate) fn unit(self) -> &'static str {
        if self.order == Order::Random { "ops/s" } else { "MiB/s" }
    }

    /// Asks a filled file for so much, for some seconds: how much of it was done, in [`Self::unit`].
    pub(crate) async fn round(self, program: &Program<'_>, file: &Path) -> anyhow::Result<f64> {
        let Self { direction, order, depth, streams } = self;
        let bytes = if order == Order::Random { RANDOM_BYTES } else { SEQUENTIAL_BYTES };
        let block = Block { path: file.to_owned(), direction, order, bytes, depth, streams, time: ROUND };
        let volume: Volume = program.run(&Job::Block(block)).await?;
        match order {
            Order::Random => rate(&volume),
            Order::Sequential => Ok(throughput(&volume)),
        }
    }
}

/// Operations a second.
fn rate(volume: &Volume) -> anyhow::Result<f64> {
    Ok(f64::from(u32::try_from(volume.operations)?) / volume.time.as_secs_f64())
}
