//! A warm start, step by step, as monitor and agent saw it.

use sandpiper_protocol::agent::{self, StartKind};
use support::{Host, Sandbox, small};

use crate::report::{Report, milliseconds};
use crate::starts;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    Host::shared().wait_until_warm(&small()).await.delete().await;
    let steps = Steps::take(runs, async |sandbox| starts::check(sandbox, StartKind::Warm).await).await?;
    report.add("restore", "warm_start_to_first_instruction", "ms", &steps.first_instruction);
    report.add("restore", "warm_start_to_link", "ms", &steps.link);
    report.add("restore", "warm_start_to_data_plane", "ms", &steps.data_plane);
    Ok(())
}

/// Milliseconds of each start from when a monitor was asked for.
#[derive(Default)]
pub(crate) struct Steps {
    pub(crate) first_instruction: Vec<f64>,
    /// To the guest's first process, which speaks to the agent.
    pub(crate) link: Vec<f64>,
    pub(crate) data_plane: Vec<f64>,
}

impl Steps {
    /// Of so many starts, each of which must be as `check` says.
    pub(crate) async fn take(
        runs: usize,
        check: impl AsyncFn(&Sandbox) -> anyhow::Result<agent::Sandbox>,
    ) -> anyhow::Result<Self> {
        let mut steps = Self::default();
        for _ in 0..runs {
            let sandbox = Host::shared().sandbox().await;
            let timings = check(&sandbox).await?.timings;
            steps.first_instruction.push(milliseconds(timings.first_instruction_us));
            steps.link.push(milliseconds(timings.guest_init_us));
            steps.data_plane.push(milliseconds(timings.data_plane_ready_us));
            sandbox.delete().await;
        }
        Ok(steps)
    }
}
