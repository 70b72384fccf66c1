//! Ten creates at once, as when people come in the morning: until all sandboxes have answered a command.

use std::time::Instant;

use futures_util::future::{join_all, try_join_all};
use sandpiper_protocol::agent::StartKind;
use support::{Host, Sandbox, small};

use crate::report::{Report, elapsed};
use crate::starts;

const AT_ONCE: usize = 10;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let request = small();
    Host::shared().wait_until_warm(&request).await.delete().await;
    let (mut created, mut output, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let begin = Instant::now();
        let started = try_join_all((0..AT_ONCE).map(|_| starts::timed(&request, StartKind::Warm))).await?;
        all.push(elapsed(begin));
        created.extend(started.iter().map(|start| start.created));
        output.extend(started.iter().map(|start| start.first_output));
        join_all(started.into_iter().map(|start| Sandbox::delete(start.sandbox))).await;
    }
    report.add("burst", "warm_create_of_10", "ms", &created);
    report.add("burst", "warm_create_to_first_output_of_10", "ms", &output);
    report.add("burst", "warm_all_10", "ms", &all);
    Ok(())
}
