//! A hundred creates within ten seconds, one after the other without waiting for each other: a fleet of agents that begins its day.
//! Each sandbox answers a command. The first creates find everything ready; what the later ones wait for is what the host
//! cannot make in that time.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::StartKind;
use support::{Host, Sandbox, small};
use tokio::time::{Instant, sleep_until};

use crate::report::{Report, elapsed};
use crate::starts;

const CREATES: u32 = 100;
const EVERY: Duration = Duration::from_millis(100);
/// Of the creates, those that begin and those that end a time.
const TENTH: usize = 10;
/// Each takes a minute, and as long to remove.
const MOST_RUNS: usize = 3;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    // The smallest there is, so that they fit.
    let request = CreateSandbox { memory_mb: Some(128), ..small() };
    host.wait_until_warm(&request).await.delete().await;
    let (mut first, mut last, mut output, mut all) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs.min(MOST_RUNS) {
        let begin = Instant::now();
        let creates = (0..CREATES).map(|number| {
            let request = &request;
            async move {
                sleep_until(begin + EVERY * number).await;
                starts::timed_unchecked(request).await
            }
        });
        let started = try_join_all(creates).await?;
        all.push(elapsed(begin.into_std()));
        for start in &started {
            starts::check(&start.sandbox, StartKind::Warm).await?;
        }
        first.extend(started.iter().take(TENTH).map(|start| start.created));
        last.extend(started.iter().rev().take(TENTH).map(|start| start.created));
        output.extend(started.iter().map(|start| start.first_output));
        join_all(started.into_iter().map(|start| Sandbox::delete(start.sandbox))).await;
    }
    report.add("hundred", "warm_create_of_first_10", "ms", &first);
    report.add("hundred", "warm_create_of_last_10", "ms", &last);
    report.add("hundred", "warm_create_to_first_output", "ms", &output);
    report.add("hundred", "warm_all_100", "ms", &all);
    Ok(())
}
