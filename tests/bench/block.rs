//! A guest's root disk, past the guest's page cache: one request at a time, 32, and several streams.
//!
//! The file has been written before, by the guest, so that reads come from the sandbox's own layer and writes find their
//! blocks allocated. The host's page cache is in between: these are results of the device, not of the host's disk.

use std::path::PathBuf;
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

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let sandbox = Host::shared().wait_until_warm(&small()).await;
    let program = Program::install(&sandbox).await?;
    let path = PathBuf::from(FILE);
    program.run::<()>(&Job::Fill { path: path.clone(), bytes: FILE_BYTES }).await?;
    for (direction, verb) in [(Direction::Read, "read"), (Direction::Write, "write")] {
        for (order, name, bytes) in
            [(Order::Random, "random_4k", RANDOM_BYTES), (Order::Sequential, "sequential_256k", SEQUENTIAL_BYTES)]
        {
            for (depth, streams) in SHAPES {
                let block = Block { path: path.clone(), direction, order, bytes, depth, streams, time: ROUND };
                let job = Job::Block(block);
                let mut samples = Vec::new();
                for _ in 0..runs.clamp(1, MOST_ROUNDS) {
                    let volume: Volume = program.run(&job).await?;
                    samples.push(match order {
                        Order::Random => rate(&volume)?,
                        Order::Sequential => throughput(&volume),
                    });
                }
                let unit = if order == Order::Random { "ops/s" } else { "MiB/s" };
                report.add("block", &format!("{name}_{verb}_depth_{depth}_streams_{streams}"), unit, &samples);
            }
        }
    }
    sandbox.delete().await;
    Ok(())
}

/// Operations a second.
fn rate(volume: &Volume) -> anyhow::Result<f64> {
    Ok(f64::from(u32::try_from(volume.operations)?) / volume.time.as_secs_f64())
}
