//! What comes through the data plane: files up and down, and the output of a process.

use std::time::Instant;

use anyhow::ensure;
use support::{Host, shell, small};

use crate::report::{Report, mebibytes};

/// Of each file, and of the output.
const BYTES: usize = 32 << 20;
const MOST_ROUNDS: usize = 5;

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let sandbox = Host::shared().wait_until_warm(&small()).await;
    // Nothing that could be stored or sent as less than it is.
    let content: Vec<u8> =
        std::iter::successors(Some(1u32), |last| Some(last.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f)))
            .flat_map(u32::to_le_bytes)
            .take(BYTES)
            .collect();
    let (mut up, mut down, mut output) = (Vec::new(), Vec::new(), Vec::new());
    let rate = |begin: Instant| mebibytes(BYTES as u64) / begin.elapsed().as_secs_f64();
    for _ in 0..runs.clamp(1, MOST_ROUNDS) {
        let body = content.clone();
        let begin = Instant::now();
        sandbox.data_plane.write_file("file", body, None).await?;
        up.push(rate(begin));

        let begin = Instant::now();
        let read = sandbox.data_plane.read_file("file", None).await?;
        down.push(rate(begin));
        ensure!(read == content, "the file came back as another");

        let begin = Instant::now();
        let printed = sandbox.data_plane.run(&shell("exec cat file", None)).await?;
        output.push(rate(begin));
        ensure!(printed.stdout == content, "the output is not the file");
    }
    report.add("transfer", "upload", "MiB/s", &up);
    report.add("transfer", "download", "MiB/s", &down);
    report.add("transfer", "process_output", "MiB/s", &output);
    sandbox.delete().await;
    Ok(())
}
