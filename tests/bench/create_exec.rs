//! What a caller waits for: from the create call to the first byte of a command's output.

use std::time::Instant;

use anyhow::Context;
use sandpiper_protocol::process::ProcessEvent;
use support::{Host, shell, small};

use crate::figure::Report;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
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
    report.add("create-exec", "create", "ms", &created);
    report.add("create-exec", "create_to_first_output", "ms", &output);
    Ok(())
}
