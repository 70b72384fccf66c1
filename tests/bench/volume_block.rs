//! A volume's disk against the root disk of the same guest: as `block`, with rounds on the one and on the other in turn.

use std::collections::BTreeMap;

use sandpiper::client::CreateSandbox;
use support::{Host, small};

use crate::block::{self, Load};
use crate::guest_program::Program;
use crate::report::{Report, ratio_of_medians};

const NAME: &str = "bench-block";

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let volume = host.volume(NAME).await;
    let volume_mounts = BTreeMap::from([("/data".to_owned(), NAME.to_owned())]);
    let sandbox = host.wait_until_warm(&CreateSandbox { volume_mounts, timeout: Some(3600), ..small() }).await;
    sandbox.out("grep ' /data ext4 ' /proc/mounts").await;
    let program = Program::install(&sandbox).await?;
    let files = [block::fill(&program, "/root/bench.bin").await?, block::fill(&program, "/data/bench.bin").await?];
    // With one stream: several are a matter of the guest's processors, not of the disk.
    for load in Load::all().filter(|load| load.streams == 1) {
        let (mut on_root, mut on_volume) = (Vec::new(), Vec::new());
        for _ in 0..block::rounds(runs) {
            on_root.push(load.round(&program, &files[0]).await?);
            on_volume.push(load.round(&program, &files[1]).await?);
        }
        let (name, unit) = (load.name(), load.unit());
        report.add("volume-block", &format!("root_{name}"), unit, &on_root);
        report.add("volume-block", &format!("volume_{name}"), unit, &on_volume);
        report.add(
            "volume-block",
            &format!("volume_over_root_{name}"),
            "x",
            &[ratio_of_medians(&on_volume, &on_root)?],
        );
    }
    sandbox.delete().await;
    volume.delete().await;
    Ok(())
}
