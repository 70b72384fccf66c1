//! A cold start, step by step, as monitor and agent saw it.

use sandpiper_protocol::agent::StartKind;
use support::Host;

use crate::report::Report;
use crate::restore::Steps;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.set_warm_starts(false).await;
    let steps = Steps::take(StartKind::Cold, runs).await?;
    report.add("boot", "cold_start_to_first_instruction", "ms", &steps.first_instruction);
    report.add("boot", "cold_start_to_init", "ms", &steps.link);
    report.add("boot", "cold_start_to_data_plane", "ms", &steps.data_plane);
    host.set_warm_starts(true).await;
    Ok(())
}
