//! What one more sandbox of a warm template costs in memory while it does nothing: the pages that no other process
//! shares.

use std::fs;

use anyhow::Context;
use support::{Host, layers, small};

use crate::figure::{Report, mebibytes};

const CLONES: usize = 10;

pub(crate) async fn run(report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let mut clones = vec![host.wait_until_warm(&small()).await];
    while clones.len() < CLONES {
        clones.push(host.sandbox().await);
    }
    let (mut own, mut proportional, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for clone in &clones {
        let monitor = host.monitor_of(&clone.id).context("the sandbox has a monitor")?;
        let smaps = fs::read_to_string(format!("/proc/{monitor}/smaps_rollup"))?;
        own.push(kib(&smaps, "Private_Clean:") + kib(&smaps, "Private_Dirty:"));
        proportional.push(kib(&smaps, "Pss:"));
        bytes.push(mebibytes(layers::own_bytes(&host.folder_of(&clone.id))?));
    }
    report.add("clone-memory", "unique_of_10", "KiB", &own);
    report.add("clone-memory", "proportional_of_10", "KiB", &proportional);
    report.add("clone-memory", "stored_of_10", "MiB", &bytes);
    for clone in clones {
        clone.delete().await;
    }
    Ok(())
}

fn kib(smaps: &str, field: &str) -> f64 {
    let line = smaps.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}
