//! What a caller waits for: from the create call to the first byte of a command's output.

use std::time::Instant;

use anyhow::Context;
use sandpiper_protocol::process::ProcessEvent;
use support::{Host, shell, small};

use crate::figure::Report;

/// Booting says the same every time; a few runs are enough to compare with.
const COLD_RUNS: usize = 5;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.set_warm_starts(false).await;
    measure("cold_", runs.min(COLD_RUNS), report).await?;
    host.set_warm_starts(true).await;
    host.wait_until_warm(&small()).await.delete().await;
    measure("", runs, report).await
}

async fn measure(prefix: &str, runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let (mut created, mut output) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let start = Instant::now();
        let sandbox = host.try_sandbox(&small()).await?;
        created.push(start.elapsed().as_secs_f64() * 1000.0);
        let mut stream = sandbox.data_plane.start(&shell("echo ready", None)).await?;
        while !matches!(stream.next().await?.context("output before the end")?, ProcessEvent::Data(_)) {}
        output.push(start.elapsed().as_secs_f64() * 1000.0);
        sandbox.delete().await;
    }
    report.add("create-exec", &format!("{prefix}create"), "ms", &created);
    report.add("create-exec", &format!("{prefix}create_to_first_output"), "ms", &output);
    Ok(())
}
