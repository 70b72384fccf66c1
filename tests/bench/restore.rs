//! A warm start, step by step, as monitor and agent saw it.

use sandpiper_protocol::agent::StartKind;
use support::{Host, small};

use crate::figure::{Report, milliseconds};

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.wait_until_warm(&small()).await.delete().await;
    let (mut first, mut link, mut ready) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let sandbox = host.sandbox().await;
        let view = host.agent_view(&sandbox.id).await?;
        anyhow::ensure!(view.start == StartKind::Warm, "a start was {:?}, not warm", view.start);
        first.push(milliseconds(view.timings.first_instruction_us));
        link.push(milliseconds(view.timings.guest_init_us));
        ready.push(milliseconds(view.timings.data_plane_ready_us));
        sandbox.delete().await;
    }
    report.add("restore", "start_to_first_instruction", "ms", &first);
    report.add("restore", "start_to_link", "ms", &link);
    report.add("restore", "start_to_data_plane", "ms", &ready);
    Ok(())
}
