//! What a caller waits for: from the create call to the first byte of a command's output.

use sandpiper_protocol::agent::StartKind;
use support::{Host, small};

use crate::report::Report;
use crate::starts;
use crate::trace_steps::TraceSteps;

/// Machines that wait; each start takes one of them, and comes when there are as many again.
const PARKED: u32 = 2;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.set_warm_starts(false).await;
    measure("cold", StartKind::Cold, 0, runs, report).await?;
    host.set_warm_starts(true).await;
    host.wait_until_warm(&small()).await.delete().await;
    measure("warm", StartKind::Warm, 0, runs, report).await?;
    host.set_parking(PARKED).await;
    for _ in 0..PARKED {
        host.sandbox().await.delete().await;
    }
    measure("parked", StartKind::Parked, PARKED, runs, report).await?;
    host.set_parking(0).await;
    Ok(())
}

/// Takes each of these starts once so many machines are parked.
async fn measure(name: &str, kind: StartKind, parked: u32, runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let (mut created, mut output, mut steps) = (Vec::new(), Vec::new(), TraceSteps::of("POST /v1/sandboxes"));
    for _ in 0..runs {
        Host::shared().wait_until_parked(parked).await;
        starts::rest().await;
        let start = starts::timed(&small(), kind).await?;
        created.push(start.created);
        output.push(start.first_output);
        steps.add_last().await?;
        start.sandbox.delete().await;
    }
    report.add("create-exec", &format!("{name}_create"), "ms", &created);
    report.add("create-exec", &format!("{name}_create_to_first_output"), "ms", &output);
    steps.report("create-exec", name, report);
    Ok(())
}
