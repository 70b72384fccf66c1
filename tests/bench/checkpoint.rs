//! A checkpoint of a sandbox that was started warm: how long the sandbox stands still for it, how long the caller waits, and what it
//! takes of the disk. With memory, of the first one, and apart from it of those that follow, in between which nothing happens.

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
            let folder = host.folder_of(&sandbox.id);
            let (mut stall, mut whole, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
            let firsts = usize::from(memory);
            for run in 0..runs + firsts {
                let before = layers::own_bytes(&folder)?;
                let start = Instant::now();
                let checkpoint = sandbox.checkpoint(memory).await?;
                whole.push(elapsed(start));
                stall.push(milliseconds(host.agent_checkpoint(&checkpoint.id).await?.stopped_us));
                let after = layers::own_bytes_of([folder.clone(), host.checkpoint_folder(&checkpoint.id)])?;
                bytes.push(mebibytes(after.saturating_sub(before)));
                checkpoint.delete().await;
                if run < firsts {
                    let prefix = format!("{kind}_{on_disk}_mib_first");
                    add(report, &prefix, [&mut stall, &mut whole, &mut bytes]);
                }
            }
            add(report, &format!("{kind}_{on_disk}_mib"), [&mut stall, &mut whole, &mut bytes]);
            sandbox.delete().await;
        }
    }
    Ok(())
}

/// Reports what was measured of some, and forgets it.
fn add(report: &mut Report, prefix: &str, [stall, whole, bytes]: [&mut Vec<f64>; 3]) {
    report.add("checkpoint", &format!("{prefix}_stall"), "ms", &std::mem::take(stall));
    report.add("checkpoint", prefix, "ms", &std::mem::take(whole));
    report.add("checkpoint", &format!("{prefix}_stored"), "MiB", &std::mem::take(bytes));
}
