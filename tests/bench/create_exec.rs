//! What a caller waits for: from the create call to the first byte of a command's output.

use sandpiper_protocol::agent::StartKind;
use support::{Host, small};

use crate::report::Report;
use crate::starts;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.set_warm_starts(false).await;
    measure("cold", StartKind::Cold, runs, report).await?;
    host.set_warm_starts(true).await;
    host.wait_until_warm(&small()).await.delete().await;
    measure("warm", StartKind::Warm, runs, report).await
}

async fn measure(name: &str, kind: StartKind, runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let (mut created, mut output) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let start = starts::timed(&small(), kind).await?;
        created.push(start.created);
        output.push(start.first_output);
        start.sandbox.delete().await;
    }
    report.add("create-exec", &format!("{name}_create"), "ms", &created);
    report.add("create-exec", &format!("{name}_create_to_first_output"), "ms", &output);
    Ok(())
}
