//! Checkpoints of a sandbox whose program never stops writing: how long the sandbox stands still, and how much less it writes
//! meanwhile than before.

use std::time::{Duration, Instant};

use anyhow::ensure;
use sandpiper_protocol::process::{DataEvent, ProcessEvent};
use support::{Host, shell, small};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::report::{Report, elapsed, milliseconds};

/// Writes 64 MiB of memory over and over, and says so of each MiB.
const MEMORY: &str = "exec python3 -uc 'import os
m = memoryview(bytearray(64 << 20))
while 1:
    for o in range(0, 64 << 20, 1 << 20):
        m[o:o + (1 << 20)] = os.urandom(4096) * 256
        os.write(1, b\".\")'";
/// Writes 64 MiB of a file over and over, each MiB to the disk.
const DISK: &str = "exec python3 -uc 'import os
f = os.open(\"written\", os.O_CREAT | os.O_WRONLY)
while 1:
    for o in range(0, 64 << 20, 1 << 20):
        os.pwrite(f, os.urandom(4096) * 256, o)
        os.fdatasync(f)
        os.write(1, b\".\")'";
/// How long it is watched before each checkpoint.
const BEFORE: Duration = Duration::from_secs(2);

pub(crate) async fn run(runs: usize, report: &mut Report) -> anyhow::Result<()> {
    let host = Host::shared();
    for (kind, program, memory) in [("full", MEMORY, true), ("disk", DISK, false)] {
        let sandbox = host.wait_until_warm(&small()).await;
        let mut output = sandbox.data_plane.start(&shell(program, None)).await?;
        let (count, written) = watch::channel(0_u64);
        let reader = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok(Some(event)) = output.next().await {
                if let ProcessEvent::Data(DataEvent::Stdout(base64)) = event {
                    count.send_modify(|count| *count += decoded_length(&base64));
                }
            }
        }));
        let (mut stall, mut whole, mut share) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..runs {
            let before = rate(&written, tokio::time::sleep(BEFORE)).await.1;
            let begin = Instant::now();
            let (checkpoint, during) = rate(&written, sandbox.checkpoint(memory)).await;
            whole.push(elapsed(begin));
            let checkpoint = checkpoint?;
            share.push(100.0 * during / before);
            stall.push(milliseconds(host.agent_checkpoint(&checkpoint.id).await?.stopped_us));
            checkpoint.delete().await;
        }
        ensure!(!reader.is_finished(), "the program that writes has ended");
        report.add("checkpoint-load", &format!("{kind}_stall"), "ms", &stall);
        report.add("checkpoint-load", &format!("{kind}_checkpoint"), "ms", &whole);
        report.add("checkpoint-load", &format!("{kind}_written_meanwhile"), "%", &share);
        sandbox.delete().await;
    }
    Ok(())
}

/// MiB per second that are written while `work` goes on, and what that comes to.
async fn rate<T>(written: &watch::Receiver<u64>, work: impl Future<Output = T>) -> (T, f64) {
    let (begin, before) = (Instant::now(), *written.borrow());
    let done = work.await;
    let written = u32::try_from(*written.borrow() - before).unwrap_or(u32::MAX);
    (done, f64::from(written) / begin.elapsed().as_secs_f64())
}

fn decoded_length(base64: &str) -> u64 {
    let padding = base64.bytes().rev().take_while(|byte| *byte == b'=').count();
    (base64.len() / 4 * 3 - padding) as u64
}
