//! Figures of a whole host, taken where this runs: `scripts/bench NAME`.
//!
//! Every figure is one line: what was measured, in which unit, over how many runs, its median and 95th percentile. Times
//! of different machines say nothing of each other; ratios of one run do.

mod api;
mod boot;
mod checkpoint;
mod clone_memory;
mod connection;
mod create_exec;
mod discovery;
mod disk;
mod figure;
mod fork;
mod load;
mod memory;
mod net;
mod pause;
mod policy_apply;
mod preview;
mod reporter;
mod restore;
mod slot;
mod webhooks;

use clap::{Parser, ValueEnum};

use crate::figure::Report;
use crate::pause::Half;

/// The agent's, since the ingress is measured in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks of a whole host with real guests
#[derive(Parser)]
struct Arguments {
    /// What to measure; everything where none is named
    names: Vec<Bench>,

    /// One line of JSON per figure
    #[arg(long)]
    json: bool,

    /// Of these, only those that need guests, or that need none
    #[arg(long, value_enum)]
    only: Option<Need>,

    /// Runs per figure
    #[arg(long, default_value_t = 20)]
    runs: usize,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
enum Need {
    Guests,
    None,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
enum Bench {
    /// Monitor started -> first instruction -> init -> data plane ready
    Boot,
    /// Create called -> first byte of a command's output, booted and from a warm snapshot
    CreateExec,
    /// A start from a warm snapshot -> first instruction -> guest's link -> data plane ready
    Restore,
    /// Pausing a 512 MiB sandbox of which 10, 30 and 100 MiB were written, and what that stores
    Pause,
    /// Resuming the same
    Resume,
    /// Checkpoints of disk and of disk and memory: standstill, time, and what they store
    Checkpoint,
    /// Forking a sandbox into 1 and into 10
    Fork,
    /// Memory and disk that each of ten idle clones of a warm snapshot has for itself
    CloneMemory,
    /// Memory of an idle 256 MiB sandbox's monitor
    Memory,
    /// Reads and writes in a guest
    Disk,
    /// A guest's round trips, connections and throughput, under policies of 0 to 9,000 entries
    Net,
    /// Requests through the ingress, and through nginx in its place, to a server on this machine
    Preview,
    /// Requests to Python's web server in a guest at its preview URL
    PreviewGuest,
    /// Giving a network slot to a machine, and taking it away
    Slot,
    /// Compiling a policy of 10, 1,000 and 10,000 entries, and putting it in force
    PolicyApply,
    /// Payments reported -> webhooks at their receivers: times, sustained rate, and fairness beside one that hangs
    Webhooks,
    /// Requests for a merchant's catalog, banks and mobile money operators
    Discovery,
}

impl Bench {
    fn need(self) -> Need {
        match self {
            Self::Preview | Self::Slot | Self::PolicyApply | Self::Webhooks | Self::Discovery => Need::None,
            _ => Need::Guests,
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let names = if arguments.names.is_empty() { Bench::value_variants().to_vec() } else { arguments.names };
    let mut report = Report::new(arguments.json);
    for name in names.into_iter().filter(|name| arguments.only.is_none_or(|need| name.need() == need)) {
        match name {
            Bench::Boot => boot::run(arguments.runs, &mut report).await?,
            Bench::CreateExec => create_exec::run(arguments.runs, &mut report).await?,
            Bench::Restore => restore::run(arguments.runs, &mut report).await?,
            Bench::Pause => pause::run(Half::Pause, arguments.runs, &mut report).await?,
            Bench::Resume => pause::run(Half::Resume, arguments.runs, &mut report).await?,
            Bench::Checkpoint => checkpoint::run(arguments.runs, &mut report).await?,
            Bench::Fork => fork::run(arguments.runs, &mut report).await?,
            Bench::CloneMemory => clone_memory::run(&mut report).await?,
            Bench::Memory => memory::run(&mut report).await?,
            Bench::Disk => disk::run(&mut report).await?,
            Bench::Net => net::run(&mut report).await?,
            Bench::Preview => preview::run(arguments.runs, &mut report).await?,
            Bench::PreviewGuest => preview::run_in_guest(arguments.runs, &mut report).await?,
            Bench::Slot => slot::run(arguments.runs, &mut report).await?,
            Bench::PolicyApply => policy_apply::run(arguments.runs, &mut report).await?,
            Bench::Webhooks => webhooks::run(arguments.runs, &mut report).await?,
            Bench::Discovery => discovery::run(arguments.runs, &mut report).await?,
        }
    }
    report.finish();
    Ok(())
}
