//! What a caller waits for: from the create call to the first byte of a command's output.

use sandpiper_protocol::agent::{self, StartKind};
use support::{Host, Sandbox, small};

use crate::report::Report;
use crate::starts;
use crate::trace_steps::TraceSteps;

/// Machines that wait; each start takes one of them, and comes when there are as many again.
const PARKED: u32 = 2;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.set_warm_starts(false).await;
    measure("cold", async |sandbox| starts::check(sandbox, StartKind::Cold).await, 0, runs, report).await?;
    host.set_bare_starts_alone(true).await;
    host.wait_until_bare(&small()).await.delete().await;
    measure("bare", async |sandbox| starts::check_bare(sandbox).await, 0, runs, report).await?;
    host.set_bare_starts_alone(false).await;
    host.wait_until_warm(&small()).await.delete().await;
    measure("warm", async |sandbox| starts::check(sandbox, StartKind::Warm).await, 0, runs, report).await?;
    host.set_parking(PARKED).await;
    for _ in 0..PARKED {
        host.sandbox().await.delete().await;
    }
    measure("parked", async |sandbox| starts::check(sandbox, StartKind::Parked).await, PARKED, runs, report).await?;
    host.set_parking(0).await;
    Ok(())
}

/// Takes each of these starts once so many machines are parked.
async fn measure(
    name: &str,
    check: impl AsyncFn(&Sandbox) -> anyhow::Result<agent::Sandbox>,
    parked: u32,
    runs: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (mut created, mut output, mut steps) = (Vec::new(), Vec::new(), TraceSteps::of("POST /v1/sandboxes"));
    for _ in 0..runs {
        Host::shared().wait_until_parked(parked).await;
        starts::rest().await;
        let start = starts::timed_unchecked(&small()).await?;
        check(&start.sandbox).await?;
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
