//! What an fsync takes in one guest, alone and beside another guest that syncs as fast as it may.
//!
//! The one that is measured writes 4 KiB and syncs twenty times a second, far below its own limit. Rounds alone and rounds beside
//! the other take turns, so that a host that becomes slower is slower for both.

use std::path::PathBuf;
use std::time::Duration;

use sandpiper_bench_guest::Job;
use support::{Host, small};

use crate::guest_program::Program;
use crate::report::{Report, ratio_of_medians};

const ROUND: Duration = Duration::from_secs(5);
const MOST_ROUNDS: usize = 5;
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let (quiet, busy) = (host.wait_until_warm(&small()).await, host.wait_until_warm(&small()).await);
    let (measured, neighbour) = (Program::install(&quiet).await?, Program::install(&busy).await?);
    let job = |pause| Job::Syncs { path: PathBuf::from("/root/sync.bin"), time: ROUND, pause };
    let (paced, unpaced) = (job(PAUSE), job(Duration::ZERO));
    let (mut alone, mut beside, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs.clamp(1, MOST_ROUNDS) {
        alone.extend(measured.run::<Vec<f64>>(&paced).await?);
        let (times, of_neighbour) = tokio::join!(measured.run::<Vec<f64>>(&paced), neighbour.run::<Vec<f64>>(&unpaced));
        beside.extend(times?);
        rates.push(f64::from(u32::try_from(of_neighbour?.len())?) / ROUND.as_secs_f64());
    }
    let ratio = ratio_of_medians(&beside, &alone)?;
    report.add("fsync-neighbour", "alone", "ms", &alone);
    report.add("fsync-neighbour", "beside", "ms", &beside);
    report.add("fsync-neighbour", "ratio_of_medians", "x", &[ratio]);
    report.add("fsync-neighbour", "neighbours_rate", "syncs/s", &rates);
    quiet.delete().await;
    busy.delete().await;
    Ok(())
}
