//! Ten creates at once, as when people come in the morning: until all sandboxes have answered a command.

use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use sandpiper_protocol::agent::StartKind;
use support::{Host, Sandbox, small};

use crate::report::{Report, elapsed};
use crate::starts;

const AT_ONCE: u32 = 10;
/// Before each time, so that the slots and monitors wait again which the time before has used, as on a host that was left
/// alone.
const REST: Duration = Duration::from_secs(20);

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.wait_until_warm(&small()).await.delete().await;
    measure("warm", StartKind::Warm, 0, runs, report).await?;
    host.set_parking(AT_ONCE).await;
    join_all((0..AT_ONCE).map(|_| async { host.sandbox().await.delete().await })).await;
    measure("parked", StartKind::Parked, AT_ONCE, runs, report).await?;
    host.set_parking(0).await;
    Ok(())
}

/// Begins each time once so many machines are parked.
async fn measure(name: &str, kind: StartKind, parked: u32, runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let request = small();
    let (mut created, mut output, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        tokio::time::sleep(REST).await;
        Host::shared().wait_until_parked(parked).await;
        let begin = Instant::now();
        let started = try_join_all((0..AT_ONCE).map(|_| starts::timed_unchecked(&request))).await?;
        all.push(elapsed(begin));
        for start in &started {
            starts::check(&start.sandbox, kind).await?;
        }
        created.extend(started.iter().map(|start| start.created));
        output.extend(started.iter().map(|start| start.first_output));
        join_all(started.into_iter().map(|start| Sandbox::delete(start.sandbox))).await;
    }
    report.add("burst", &format!("{name}_create_of_10"), "ms", &created);
    report.add("burst", &format!("{name}_create_to_first_output_of_10"), "ms", &output);
    report.add("burst", &format!("{name}_all_10"), "ms", &all);
    Ok(())
}
