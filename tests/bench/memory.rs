//! What a monitor costs beside its guest's memory.

use sandpiper_protocol::agent::StartKind;
use support::Host;

use crate::report::Report;
use crate::starts;
use crate::usage;

/// A mapping at least this large is the guest's memory.
const GUEST_MAPPING_KIB: u64 = 128 << 10;

pub(crate) async fn run(report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    // One that was booted: its guest's memory is one mapping, of which nothing is shared.
    let source = host.sandbox().await;
    let checkpoint = source.checkpoint(false).await?;
    let sandbox = host.restore(&checkpoint).await;
    starts::check(&sandbox, StartKind::Cold).await?;
    source.delete().await;
    let monitor = usage::monitor_of(&sandbox)?;
    let smaps = std::fs::read_to_string(format!("/proc/{monitor}/smaps"))?;
    let (own, guest) = private_dirty(&smaps);
    report.add("memory", "monitor_private_dirty", "KiB", &[own]);
    report.add("memory", "guest_private_dirty", "KiB", &[guest]);
    sandbox.delete().await;
    Ok(())
}

/// KiB of private dirty pages outside and inside the guest's memory.
#[expect(clippy::cast_precision_loss, reason = "KiB of one process")]
fn private_dirty(smaps: &str) -> (f64, f64) {
    let (mut own, mut guest, mut size) = (0, 0, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let (name, value) = (words.next().unwrap_or_default(), words.next().and_then(|word| word.parse::<u64>().ok()));
        match (name, value) {
            ("Size:", Some(kib)) => size = kib,
            ("Private_Dirty:", Some(kib)) if size >= GUEST_MAPPING_KIB => guest += kib,
            ("Private_Dirty:", Some(kib)) => own += kib,
            _ => {}
        }
    }
    (own as f64, guest as f64)
}
