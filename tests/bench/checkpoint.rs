//! A checkpoint of a sandbox that was started warm: how long the sandbox stands still for it, how long the caller waits, and what it takes of the disk.

use std::time::Instant;

use support::{Host, layers, small};

use crate::report::{Report, elapsed, mebibytes, milliseconds};

/// On the disk beside what the template has.
const ON_DISK_MIB: [u32; 2] = [0, 200];

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    for on_disk in ON_DISK_MIB {
        for (kind, memory) in [("disk", false), ("full", true)] {
            // Of its own: every checkpoint leaves a layer.
            let sandbox = host.wait_until_warm(&small()).await;
            sandbox.out(&format!("head -c {on_disk}M /dev/urandom > big; sync")).await;
            let (mut stall, mut whole, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..runs {
                let start = Instant::now();
                let checkpoint = sandbox.checkpoint(memory).await?;
                whole.push(elapsed(start));
                stall.push(milliseconds(host.agent_checkpoint(&checkpoint.id).await?.stopped_us));
                bytes.push(mebibytes(layers::own_bytes(&host.checkpoint_folder(&checkpoint.id))?));
                checkpoint.delete().await;
            }
            report.add("checkpoint", &format!("{kind}_{on_disk}_mib_stall"), "ms", &stall);
            report.add("checkpoint", &format!("{kind}_{on_disk}_mib"), "ms", &whole);
            report.add("checkpoint", &format!("{kind}_{on_disk}_mib_stored"), "MiB", &bytes);
            sandbox.delete().await;
        }
    }
    Ok(())
}
