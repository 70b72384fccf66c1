//! What a volume adds to a warm start: starts with one and without take turns.

use std::collections::BTreeMap;

use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::StartKind;
use support::{Host, small};

use crate::report::{Report, ratio_of_medians};
use crate::starts;

const NAME: &str = "bench-start";

/// What one side came to, in milliseconds.
#[derive(Default)]
struct Side {
    created: Vec<f64>,
    first_output: Vec<f64>,
}

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let volume = host.volume(NAME).await;
    let plain = small();
    let mounts = BTreeMap::from([("/data".to_owned(), NAME.to_owned())]);
    let mounting = CreateSandbox { volume_mounts: mounts, ..small() };
    host.wait_until_warm(&plain).await.delete().await;
    // The first to attach a volume may wait for the file system that all begin with.
    let first = host.sandbox_with(&mounting).await;
    first.out("grep ' /data ext4 ' /proc/mounts").await;
    first.delete().await;

    let (mut without, mut with) = (Side::default(), Side::default());
    for _ in 0..runs {
        without.start(&plain).await?;
        with.start(&mounting).await?;
    }
    for (name, without, with) in [
        ("warm_create", &without.created, &with.created),
        ("warm_create_to_first_output", &without.first_output, &with.first_output),
    ] {
        report.add("volume-start", name, "ms", without);
        report.add("volume-start", &format!("{name}_with_volume"), "ms", with);
        report.add("volume-start", &format!("{name}_ratio_of_medians"), "x", &[ratio_of_medians(with, without)?]);
    }
    volume.delete().await;
    Ok(())
}

impl Side {
    async fn start(&mut self, request: &CreateSandbox) -> anyhow::Result<()> {
        let start = starts::timed(request, StartKind::Warm).await?;
        self.created.push(start.created);
        self.first_output.push(start.first_output);
        start.sandbox.delete().await;
        Ok(())
    }
}
