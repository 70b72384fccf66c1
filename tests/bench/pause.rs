//! Pause, and resume while the host still has the files in its page cache, by how much a guest wrote since it was started or resumed.

use std::time::Instant;

use sandpiper::client::CreateSandbox;
use sandpiper_protocol::agent::StartKind;
use support::{Dialogue, Host, KEEPER, layers, small};

use crate::report::{Report, elapsed, mebibytes};
use crate::starts;
use crate::trace_steps::TraceSteps;

/// Of a guest of 512 MiB.
const WRITTEN_MIB: [u32; 3] = [10, 30, 100];

/// What of it is reported: one is not measured without the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Pause,
    Resume,
}

pub(crate) async fn run(half: Half, runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    let request = CreateSandbox { memory_mb: Some(512), ..small() };
    // From a snapshot: a guest that was booted has written all that it uses.
    let mut sandbox = host.wait_until_warm(&request).await;
    let keeper = Dialogue::start(&sandbox, KEEPER).await.pid();
    let folder = host.folder_of(&sandbox.id);
    for written in WRITTEN_MIB {
        let (mut paused, mut bytes, mut resumed, mut served) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut of_pause = TraceSteps::of("POST /v1/sandboxes/{id}/pause");
        let mut of_resume = TraceSteps::of("POST /v1/sandboxes/{id}/resume");
        for _ in 0..runs {
            Dialogue::attach(&sandbox, keeper).await.ask(&format!("fill {written}")).await;
            let before = layers::own_bytes(&folder)?;
            let start = Instant::now();
            sandbox.pause().await?;
            paused.push(elapsed(start));
            bytes.push(mebibytes(layers::own_bytes(&folder)?.saturating_sub(before)));

            starts::rest().await;
            let start = Instant::now();
            sandbox.resume(None).await?;
            resumed.push(elapsed(start));
            sandbox.sh("true").await;
            served.push(elapsed(start));
            starts::check(&sandbox, StartKind::Restored).await?;
            of_pause.add_last().await?;
            of_resume.add_last().await?;
        }
        match half {
            Half::Pause => {
                report.add("pause", &format!("pause_{written}_mib"), "ms", &paused);
                report.add("pause", &format!("pause_{written}_mib_stored"), "MiB", &bytes);
                of_pause.report("pause", &format!("pause_{written}_mib"), report);
            }
            Half::Resume => {
                report.add("resume", &format!("resume_{written}_mib"), "ms", &resumed);
                report.add("resume", &format!("resume_{written}_mib_to_command"), "ms", &served);
                of_resume.report("resume", &format!("resume_{written}_mib"), report);
            }
        }
    }
    sandbox.delete().await;
    Ok(())
}
