//! Forks: until all of them live.

use std::time::Instant;

use futures_util::future::join_all;
use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::StartKind;
use support::{Host, Sandbox, layers, small};

use crate::report::{Report, elapsed, mebibytes};
use crate::starts;

/// Each takes ten starts.
const TEN_RUNS: usize = 5;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let source = host.wait_until_warm(&CreateSandbox { timeout: Some(3600), ..small() }).await;
    for (count, runs) in [(1, runs), (10, runs.min(TEN_RUNS))] {
        let (mut live, mut bytes) = (Vec::new(), Vec::new());
        for _ in 0..runs {
            let start = Instant::now();
            let forks = source.fork(count).await?;
            live.push(elapsed(start));
            for fork in &forks {
                starts::check(fork, StartKind::Restored).await?;
            }
            bytes.push(mebibytes(layers::own_bytes_of(forks.iter().map(|fork| host.folder_of(&fork.id)))?));
            join_all(forks.into_iter().map(Sandbox::delete)).await;
        }
        report.add("fork", &format!("fork_{count}"), "ms", &live);
        report.add("fork", &format!("fork_{count}_stored"), "MiB", &bytes);
    }
    source.delete().await;
    Ok(())
}
