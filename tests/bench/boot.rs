//! Starts from a disk, step by step, as monitor and agent saw them: a kernel that boots, and a bare guest that enters it.

use sandpiper_protocol::agent::StartKind;
use support::{Host, small};

use crate::report::Report;
use crate::restore::Steps;
use crate::starts;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.set_warm_starts(false).await;
    let booted = Steps::take(runs, async |sandbox| starts::check(sandbox, StartKind::Cold).await).await?;
    host.set_bare_starts_alone(true).await;
    host.wait_until_bare(&small()).await.delete().await;
    let bare = Steps::take(runs, async |sandbox| starts::check_bare(sandbox).await).await?;
    host.set_bare_starts_alone(false).await;
    for (name, steps) in [("cold", booted), ("bare", bare)] {
        report.add("boot", &format!("{name}_start_to_first_instruction"), "ms", &steps.first_instruction);
        report.add("boot", &format!("{name}_start_to_init"), "ms", &steps.link);
        report.add("boot", &format!("{name}_start_to_data_plane"), "ms", &steps.data_plane);
    }
    Ok(())
}
