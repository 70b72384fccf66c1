//! A cold start, step by step, as monitor and agent saw it.

use support::Host;

use crate::figure::{Report, milliseconds};

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.set_warm_starts(false).await;
    let (mut first, mut init, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let sandbox = host.sandbox().await;
        let timings = host.agent_view(&sandbox.id).await?.timings;
        first.push(milliseconds(timings.first_instruction_us));
        init.push(milliseconds(timings.guest_init_us));
        ready.push(milliseconds(timings.data_plane_ready_us));
        sandbox.delete().await;
    }
    report.add("boot", "start_to_first_instruction", "ms", &first);
    report.add("boot", "start_to_init", "ms", &init);
    report.add("boot", "start_to_data_plane", "ms", &ready);
    host.set_warm_starts(true).await;
    Ok(())
}
