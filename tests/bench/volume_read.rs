//! A small file read from a volume that no sandbox has: by a helper that is started for it, and by one that is there. And a
//! warm start of a sandbox beside them, which a read with a helper should take no longer than.

use std::time::Instant;

use anyhow::{Context, ensure};
use sandpiper_protocol::agent::StartKind;
use support::{Host, Volume, eventually, small};

use crate::report::{Report, elapsed, ratio_of_medians};
use crate::starts;

const FILE: &str = "/small";
const BYTES: usize = 4 << 10;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    host.wait_until_warm(&small()).await.delete().await;
    let volume = host.volume("bench-read").await;
    volume.write(FILE, vec![b'x'; BYTES]).await;
    let (mut cold, mut warm, mut created) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        eventually("the helper has gone", || async { !host.has_helper(&volume.id) }).await;
        cold.push(read(&volume).await?);
        ensure!(host.has_helper(&volume.id), "the helper did not stay: no read is one with a warm helper");
        warm.push(read(&volume).await?);
        let start = starts::timed(&small(), StartKind::Warm).await?;
        created.push(start.created);
        start.sandbox.delete().await;
    }
    report.add("volume-read", "cold_helper_first_byte", "ms", &cold);
    report.add("volume-read", "warm_helper_first_byte", "ms", &warm);
    report.add("volume-read", "warm_create", "ms", &created);
    report.add("volume-read", "warm_helper_over_warm_create", "x", &[ratio_of_medians(&warm, &created)?]);
    report.add("volume-read", "cold_helper_over_warm_create", "x", &[ratio_of_medians(&cold, &created)?]);
    volume.delete().await;
    Ok(())
}

/// Reads the file: milliseconds until its first byte was there.
async fn read(volume: &Volume<'_>) -> anyhow::Result<f64> {
    let begin = Instant::now();
    let mut response = volume.read(FILE).await;
    let first = response.chunk().await?.context("the file ended before it began")?;
    let time = elapsed(begin);
    ensure!(first.len() + response.bytes().await?.len() == BYTES, "the file came back as another");
    Ok(time)
}
