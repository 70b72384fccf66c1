//! Benchmarks of a whole host, run where this runs: `scripts/bench NAME`.
//!
//! Every result is one line: what was measured, in which unit, of how many samples, their median and 95th percentile, and
//! what it was taken on. `docs/benchmarks.md` says how each is taken, and what it does not say.

mod api;
mod block;
mod boot;
mod burst;
mod checkpoint;
mod checkpoint_load;
mod clone_memory;
mod connection;
mod create_exec;
mod discovery;
mod first_request;
mod fork;
mod fsync_neighbour;
mod guest_program;
mod hundred;
mod idle;
mod load;
mod memory;
mod net;
mod pages;
mod pause;
mod policy_apply;
mod policy_live;
mod preview;
mod report;
mod reporter;
mod restore;
mod restore_payload;
mod resume_cold;
mod schedule;
mod serving;
mod slot;
mod starts;
mod template_build;
mod template_import;
mod trace_steps;
mod transfer;
mod usage;
mod volume_block;
mod volume_read;
mod volume_start;
mod webhooks;

use clap::{Parser, ValueEnum};

use crate::pause::Half;
use crate::report::Report;

/// The agent's, since the ingress is measured in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks of a whole host with real guests
#[derive(Parser)]
struct Arguments {
    /// What to measure; everything where none is named
    names: Vec<Bench>,

    /// One line of JSON per result
    #[arg(long)]
    json: bool,

    /// Of these, only those that need guests, or that need none
    #[arg(long, value_enum)]
    only: Option<Need>,

    /// Runs per result, fewer where one is long; a 95th percentile needs 20 samples
    #[arg(long, default_value_t = 20)]
    runs: usize,

    /// Sandboxes of `idle`, or as many as the host has room for; the quota of the host's team is 100, one more than these
    #[arg(long, default_value_t = 99)]
    sandboxes: usize,

    /// Only print the names of what would be measured
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
enum Need {
    Guests,
    None,
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
enum Bench {
    /// A cold start: monitor asked for -> first instruction -> init -> data plane ready
    Boot,
    /// Create called -> first byte of a command's output, cold and warm
    CreateExec,
    /// A warm start: monitor asked for -> first instruction -> guest's link -> data plane ready
    Restore,
    /// Ten creates at once -> all have answered a command
    Burst,
    /// A hundred creates within ten seconds -> all have answered a command
    Hundred,
    /// Create called -> the server of the template's start command has answered a request
    FirstRequest,
    /// Many sandboxes that do nothing: memory, processor time, and the next one's start beside them
    Idle,
    /// Pausing a 512 MiB sandbox of which 10, 30 and 100 MiB were written, and what that stores
    Pause,
    /// Resuming the same, its files in the host's page cache
    Resume,
    /// Resuming one of which 30 MiB were written, its files not in the page cache
    ResumeCold,
    /// Checkpoints of disk and of disk and memory: standstill, time, and what they store
    Checkpoint,
    /// Checkpoints of one that never stops writing: standstill, and what it writes meanwhile
    CheckpointLoad,
    /// Forking a sandbox into 1 and into 10
    Fork,
    /// Memory and disk that each of ten idle clones of a warm snapshot takes
    CloneMemory,
    /// Memory of an idle 256 MiB sandbox's monitor
    Memory,
    /// A guest's disk: random and sequential, one request at a time and 32, one stream and four
    Block,
    /// What an fsync takes in a guest, alone and beside one that syncs in a loop
    FsyncNeighbour,
    /// A guest's round trips, connections and throughput, under policies of 0 to 10,000 entries
    Net,
    /// Files and a process's output through the data plane
    Transfer,
    /// Warm starts with a volume and without, in turn
    VolumeStart,
    /// A small file of a volume that no sandbox has, with a cold and a warm helper, beside a warm start
    VolumeRead,
    /// A volume's disk against the root disk of the same guest
    VolumeBlock,
    /// A Dockerfile of five steps, none and all of them done before, beside plain buildah's and a warm start
    TemplateBuild,
    /// An image of 200 MiB from a file and from a registry, beside plain buildah's
    TemplateImport,
    /// A policy of 10, 1,000 and 10,000 entries through the API, for a guest with 100 open connections
    PolicyLive,
    /// Requests to Python's web server in a guest at its preview URL
    PreviewGuest,
    /// Requests through the ingress, and through nginx in its place, to a server on this machine
    Preview,
    /// Restores of a guest of a few instructions, on this machine's own /dev/kvm
    RestorePayload,
    /// Giving a network slot to a machine, and taking it away
    Slot,
    /// Compiling a policy of 10, 1,000 and 10,000 entries, and putting it in force
    PolicyApply,
    /// Payments reported -> webhooks at their receivers: times, sustained rate, and fairness beside one that hangs
    Webhooks,
    /// Requests for a merchant's catalog, banks and mobile money operators
    Discovery,
    /// Pages of 10,000 payments, and of 10,000 stopped sandboxes, while others write; creates without an agent
    Api,
    /// The pages of the dashboard, of a team with 1,000 sandboxes
    Pages,
}

impl Bench {
    fn need(self) -> Need {
        match self {
            Self::Preview
            | Self::RestorePayload
            | Self::Slot
            | Self::PolicyApply
            | Self::Webhooks
            | Self::Discovery
            | Self::Api
            | Self::Pages => Need::None,
            _ => Need::Guests,
        }
    }

    async fn run(self, runs: usize, sandboxes: usize, report: &mut Report) -> anyhow::Result<()> {
        match self {
            Self::Boot => boot::run(runs, report).await,
            Self::CreateExec => create_exec::run(runs, report).await,
            Self::Restore => restore::run(runs, report).await,
            Self::Burst => burst::run(runs, report).await,
            Self::Hundred => hundred::run(runs, report).await,
            Self::FirstRequest => first_request::run(runs, report).await,
            Self::Idle => idle::run(sandboxes, runs, report).await,
            Self::Pause => pause::run(Half::Pause, runs, report).await,
            Self::Resume => pause::run(Half::Resume, runs, report).await,
            Self::ResumeCold => resume_cold::run(runs, report).await,
            Self::Checkpoint => checkpoint::run(runs, report).await,
            Self::CheckpointLoad => checkpoint_load::run(runs, report).await,
            Self::Fork => fork::run(runs, report).await,
            Self::CloneMemory => clone_memory::run(report).await,
            Self::Memory => memory::run(report).await,
            Self::Block => block::run(runs, report).await,
            Self::FsyncNeighbour => fsync_neighbour::run(runs, report).await,
            Self::Net => net::run(runs, report).await,
            Self::Transfer => transfer::run(runs, report).await,
            Self::VolumeStart => volume_start::run(runs, report).await,
            Self::VolumeRead => volume_read::run(runs, report).await,
            Self::VolumeBlock => volume_block::run(runs, report).await,
            Self::TemplateBuild => template_build::run(runs, report).await,
            Self::TemplateImport => template_import::run(runs, report).await,
            Self::PolicyLive => policy_live::run(runs, report).await,
            Self::PreviewGuest => preview::run_in_guest(runs, report).await,
            Self::Preview => preview::run(runs, report).await,
            Self::RestorePayload => restore_payload::run(runs, report),
            Self::Slot => slot::run(runs, report).await,
            Self::PolicyApply => policy_apply::run(runs, report).await,
            Self::Webhooks => webhooks::run(runs, report).await,
            Self::Discovery => discovery::run(runs, report).await,
            Self::Api => serving::run(runs, report).await,
            Self::Pages => pages::run(runs, report).await,
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { mut names, json, only, runs, sandboxes, dry_run } = Arguments::parse();
    if names.is_empty() {
        names = Bench::value_variants().to_vec();
    }
    names.retain(|bench| only.is_none_or(|need| bench.need() == need));
    if dry_run {
        names.iter().filter_map(Bench::to_possible_value).for_each(|name| println!("{}", name.get_name()));
        return Ok(());
    }
    let mut report = Report::new(json)?;
    let mut outcome = Ok(());
    for bench in names {
        outcome = bench.run(runs, sandboxes, &mut report).await;
        if outcome.is_err() {
            break;
        }
    }
    // Also what was measured before one failed.
    report.finish();
    outcome
}
