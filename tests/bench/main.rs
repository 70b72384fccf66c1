//! Figures of a whole host, taken where this runs: `scripts/bench NAME`.
//!
//! Every figure is one line: what was measured, in which unit, over how many runs, its median and 95th percentile. Times
//! of different machines say nothing of each other; ratios of one run do.

mod boot;
mod create_exec;
mod disk;
mod figure;
mod memory;

use clap::{Parser, ValueEnum};

use crate::figure::Report;

/// Benchmarks of a whole host with real guests
#[derive(Parser)]
struct Arguments {
    /// What to measure; everything where none is named
    names: Vec<Bench>,

    /// One line of JSON per figure
    #[arg(long)]
    json: bool,

    /// Runs per figure
    #[arg(long, default_value_t = 20)]
    runs: usize,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
enum Bench {
    /// Monitor started -> first instruction -> init -> data plane ready
    Boot,
    /// Create called -> first byte of a command's output
    CreateExec,
    /// Memory of an idle 256 MiB sandbox's monitor
    Memory,
    /// Reads and writes in a guest
    Disk,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let names = if arguments.names.is_empty() { Bench::value_variants().to_vec() } else { arguments.names };
    let mut report = Report::new(arguments.json);
    for name in names {
        match name {
            Bench::Boot => boot::run(arguments.runs, &mut report).await?,
            Bench::CreateExec => create_exec::run(arguments.runs, &mut report).await?,
            Bench::Memory => memory::run(&mut report).await?,
            Bench::Disk => disk::run(&mut report).await?,
        }
    }
    report.finish();
    Ok(())
}
