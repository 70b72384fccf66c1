//! Forks: until all of them live.

use std::time::Instant;

use futures_util::future::join_all;
use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::StartKind;
use support::{Host, Sandbox, layers, small};

use crate::report::{Report, elapsed, mebibytes};
use crate::starts;
use crate::trace_steps::TraceSteps;

/// Each takes ten starts.
const TEN_RUNS: usize = 5;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let source = host.wait_until_warm(&CreateSandbox { timeout: Some(3600), ..small() }).await;
    for (count, runs) in [(1, runs), (10, runs.min(TEN_RUNS))] {
        let (mut live, mut bytes) = (Vec::new(), Vec::new());
        let mut steps = TraceSteps::of("POST /v1/sandboxes/{id}/fork");
        for _ in 0..runs {
            starts::rest().await;
            let before = layers::own_bytes(&host.folder_of(&source.id))?;
            let start = Instant::now();
            let forks = source.fork(count).await?;
            live.push(elapsed(start));
            steps.add_last().await?;
            for fork in &forks {
                starts::check(fork, StartKind::Restored).await?;
            }
            let folders = forks.iter().chain([&source]).map(|sandbox| host.folder_of(&sandbox.id));
            bytes.push(mebibytes(layers::own_bytes_of(folders)?.saturating_sub(before)));
            join_all(forks.into_iter().map(Sandbox::delete)).await;
        }
        report.add("fork", &format!("fork_{count}"), "ms", &live);
        report.add("fork", &format!("fork_{count}_stored"), "MiB", &bytes);
        steps.report("fork", &format!("fork_{count}"), report);
    }
    source.delete().await;
    Ok(())
}
