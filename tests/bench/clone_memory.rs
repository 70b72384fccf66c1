//! What one more sandbox of a warm template costs in memory and disk while it does nothing.

use sandpiper_protocol::agent::StartKind;
use support::{Host, layers, small};

use crate::report::{Report, mebibytes};
use crate::starts;
use crate::usage::{self, report_memory};

const CLONES: u32 = 10;

pub(crate) async fn run(report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.wait_until_warm(&small()).await.delete().await;
    let before = usage::available().await?;
    let mut clones = Vec::new();
    for _ in 0..CLONES {
        clones.push(starts::timed(&small(), StartKind::Warm).await?.sandbox);
    }
    let taken = (before - usage::available().await?) / f64::from(CLONES);
    report.add("clone-memory", "host_of_10", "KiB", &[taken]);
    report_memory("clone-memory", &clones, report)?;
    let mut bytes = Vec::new();
    for clone in &clones {
        bytes.push(mebibytes(layers::own_bytes(&host.folder_of(&clone.id))?));
    }
    report.add("clone-memory", "stored_of_10", "MiB", &bytes);
    for clone in clones {
        clone.delete().await;
    }
    Ok(())
}
